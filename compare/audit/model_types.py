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


def knows(model_type: str) -> bool | None:
    """Whether a server here finds a config class for ``model_type``; None where nothing is installed that would tell."""
    if model_type in COMMON:
        return True
    listed = _folder("transformers", "models/auto")
    if listed is None:
        return None
    if model_type in _mapped(listed):
        return True
    configs = _folder("sglang", "srt/configs")
    return configs is not None and model_type in _own(configs)


def _folder(package: str, inside: str) -> Path | None:
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


@functools.cache
def _own(folder: Path) -> frozenset[str]:
    """The types of the config classes that SGLang brings itself."""
    return frozenset(
        kind
        for path in sorted(folder.glob("*.py"))
        for kind in re.findall(r'^\s+model_type\b[^=\n]*=\s*"([\w.-]+)"', path.read_text("utf-8"), re.MULTILINE)
    )
