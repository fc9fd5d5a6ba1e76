"""Which ``model_type`` the transformers and the SGLang here know: by the text of their lists, nothing is imported."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

COMMON = frozenset(
    {
        "deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text", "glm4", "glm4_moe", "gpt_oss", "kimi_k2", "llama",
        "llama4_text", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    }
)  # fmt: skip
"""Types of public drafts and their targets, for where no transformers is installed."""


PLAIN_TYPES = frozenset(
    {
        "deepseek_v2", "deepseek_v3", "gpt_oss", "kimi_k2", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3",
        "qwen3_moe",
    }
)  # fmt: skip
"""Types whose class takes what it is given, by fields that the tables have, and is no wrapper around others."""
FAMILY_TYPES = frozenset(
    {
        "apertus", "deepseek_v32", "exaone_moe", "gemma3_text", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "llama4_text",
        "mellum", "minimax_m2", "ministral3", "phi3", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_5_moe_text", "qwen3_5_text",
        "qwen3_next", "qwen3_vl_moe_text", "qwen3_vl_text",
    }
)  # fmt: skip
"""Types of the other public targets of EAGLE-3 drafts: what each class takes is read in its source (``class_fields``)."""
WRAPPED_TYPES = frozenset(
    {
        "gemma3", "kimi_k25", "kimi_vl", "llama4", "mistral3", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl",
        "qwen3_vl_moe",
    }
)  # fmt: skip
"""Types whose language model is an object of its own in the config."""
KNOWN_TYPES = PLAIN_TYPES | FAMILY_TYPES
DRAFT_TYPES = KNOWN_TYPES - {"qwen2_5_vl"}
"""Types that a draft may be written as: their class takes its sizes from the top level."""


NOT_FLAT = frozenset({"inkling_mm_model", "kimi_k25", "kimi_k3", "minicpmv4_6", "minicpmv4_7"})
"""Types of SGLang whose class refuses the sizes of a draft at the top level."""
SIZED_BY_A_PART = frozenset(
    {
        "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2", "aria", "aya_vision", "bailing_moe_v3_vl",
        "bailingmm_moe_v2_lite", "cohere2_vision", "cosmos3_edge", "cosmos3_omni", "deepseek-ocr", "deepseek_ocr2",
        "deepseek_vl", "deepseek_vl_hybrid", "deepseek_vl_v2", "emu3", "exaone4_5", "fast_vlm", "gemma3", "gemma3n",
        "gemma4", "gemma4_unified", "glm46v", "glmga", "got_ocr2", "granite4_vision", "idefics2", "idefics3",
        "intern_s2_preview", "interns2_mobius", "internvl", "internvl_chat", "janus", "kimi_vl", "lfm2_vl", "llama4",
        "llava", "llava_next", "llava_next_video", "llava_onevision", "locateanything", "mistral3", "mllama",
        "multi_modality", "nemotron_h_omni", "ovis2", "paligemma", "perception_lm", "qianfan_ocr", "qwen2_5_omni",
        "qwen2_audio", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe", "shieldgemma2", "smolvlm",
        "step3_vl", "step3p7", "voxtral",
    }
)  # fmt: skip
"""Types that keep the sizes of their language model in a part: without it SGLang builds with the defaults of that part."""


_QUANTIZATIONS = frozenset(
    {
        "auto-round", "auto-round-int8", "awq", "awq_marlin", "bitsandbytes", "blockwise_int8", "compressed-tensors", "fp8",
        "gguf", "gptq", "gptq_marlin", "humming", "minimax_m3_nvfp4", "modelopt", "modelopt_fp4", "modelopt_fp8",
        "modelopt_mixed", "modelslim", "moe_wna16", "mxfp4", "mxfp8", "mxfp_w4a8", "nvfp4_online", "petit_nvfp4", "quark",
        "quark_int4fp8_moe", "quark_mxfp4", "w4afp8", "w8a8_fp8", "w8a8_int8",
    }
)  # fmt: skip
"""Names of SGLang 0.5.23 for ways to quantize, of all devices."""


def quantizations() -> frozenset[str]:
    """What ``quant_method`` may be: the names of the table, and those that the SGLang here has besides."""
    sources = package_folder("sglang", "srt/layers/quantization")
    listed = sources / "__init__.py" if sources is not None else None
    text = listed.read_text("utf-8") if listed is not None and listed.is_file() else ""
    return _QUANTIZATIONS | frozenset(re.findall(r'^\s+"([\w-]+)":', text, re.MULTILINE))


def model_sources() -> list[Path]:
    """The files of the model classes of the SGLang here; none without one."""
    sources = package_folder("sglang", "srt/models")
    return sorted(sources.glob("*.py")) if sources is not None else []


def knows(model_type: str) -> bool | None:
    """Whether a server here finds a config class for ``model_type``; None where nothing is installed that would tell."""
    if model_type in COMMON:
        return True
    listed = package_folder("transformers", "models/auto")
    if listed is None:
        return None
    if model_type in _mapped(listed):
        return True
    sources = package_folder("sglang", "srt")
    return sources is not None and model_type in _own(sources)


def refused_in_a_draft(model_type: object) -> str | None:
    """What is wrong with a type whose class has no place for a draft's sizes; None for any other."""
    if not isinstance(model_type, str) or model_type not in NOT_FLAT:
        return None
    return f"'{model_type}', whose config class has no place for a draft's sizes at the top level"


def package_folder(package: str, inside: str) -> Path | None:
    """A folder of a package that is installed here; None without one. Nothing is imported."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return next((Path(place) / inside for place in places if (Path(place) / inside).is_dir()), None)


@functools.cache
def _mapped(folder: Path) -> frozenset[str]:
    """The keys of transformers' table of config classes."""
    return frozenset(
        key
        for name in ("configuration_auto.py", "auto_mappings.py")
        if (folder / name).is_file()
        for key in re.findall(r'"([\w.-]+)"\s*[:,]\s*"\w+Config"', (folder / name).read_text("utf-8"))
    )


_REGISTRY = "_CONFIG_REGISTRY"
_REGISTRARS = ("utils/hf_transformers/common.py", "utils/hf_transformers_utils.py", "hf_transformers_utils.py")


@functools.cache
def _own(sources: Path) -> frozenset[str]:
    """The types of the config classes that SGLang brings itself and registers; those of parts of models it does not."""
    texts = [(sources / name).read_text("utf-8") for name in _REGISTRARS if (sources / name).is_file()]
    registered = next((text.partition(_REGISTRY)[2] for text in texts if _REGISTRY in text), None)
    found: set[str] = set()
    for path in sorted((sources / "configs").glob("*.py")):
        name, listed = "", registered
        text = path.read_text("utf-8")
        if registered is not None:
            listed = registered + "".join(
                re.findall(r"^\w+_CONFIG_CLASSES = \(.*?^\)", text, re.MULTILINE | re.DOTALL)
            )
        for line in text.splitlines():
            if opened := re.match(r"class (\w+)", line):
                name = opened.group(1)
            kind = re.match(r'    model_type\b[^=]*=\s*"([\w.-]+)"', line)
            if kind and name and (listed is None or re.search(rf"\b{name}\b", listed)):
                found.add(kind.group(1))
    if registered is not None:
        found |= set(re.findall(rf'{_REGISTRY}\["([\w.-]+)"\]', registered))
        found |= set(re.findall(r'^\s+model_type\s*=\s*"([\w.-]+)"', registered, re.MULTILINE))
    return frozenset(found)
