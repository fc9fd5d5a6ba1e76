"""A draft whose config says that it is quantized: what its tensors are called then, and drafts that only say so.

By SGLang 0.5.23's ``layers/quantization``: AWQ and GPTQ build no ``weight`` at all, and FP8 multiplies what it loads by a
``weight_scale`` (``weight_scale_inv``, by block) that starts at the least number of its format. ``fc``, the norms and the
head are never quantized by these: see ``plain_parts``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.mla_checks import ATTENTION, refused
from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import split_fused
from drafttrace.compare.result import Finding

KEY = "quantization_config"
_PARTS = (
    "qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_shape", "weight_scale", "weight_scale_inv",
    "weight_scale_2", "weight_global_scale", "weight_zero_point", "weight_g_idx", "input_scale", "input_global_scale",
    "k_scale", "v_scale", "perm", "workspace", "SCB", "weight_format",
)  # fmt: skip
"""What stands in the place of a ``weight``, or beside it."""
SCALES = ("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "SCB")
"""Parts by which a stored ``weight`` has to be multiplied, or divided, to be what it was."""
PACKED = {"awq", "awq_marlin", "gptq", "gptq_marlin"}
_EXEMPT = ("modules_to_not_convert", "ignored_layers", "dynamic")
_NEEDS = {
    "awq": (("w_bit", "bits"), ("q_group_size", "group_size"), ("zero_point",)),
    "gptq": (("bits",), ("group_size",), ("desc_act",)),
}
"""Fields that have to be there, each under one of its names."""


def is_quantized(draft: DraftConfig) -> bool:
    """Whether SGLang may build the draft's layers for quantized tensors: it looks in three places for how."""
    beside = (draft.path.parent / "hf_quant_config.json").is_file()  # Model-Optimizer's
    return bool(said_by(draft)) or bool(draft.raw.get("compression_config")) or beside


def said_by(draft: DraftConfig) -> Mapping[str, Any]:
    """``quantization_config`` of the draft's config; empty where there is none."""
    said = draft.raw.get(KEY)
    return said if isinstance(said, Mapping) else {}


def is_part(name: str) -> bool:
    """Whether a tensor is one of those that a quantization has in the place of, or beside, a ``weight``."""
    return name.rsplit(".", 1)[-1] in _PARTS


def stands_for(name: str, held: Collection[str]) -> bool:
    """Whether parts of a quantized tensor are there in the place of the ``weight`` of this name."""
    module = name.removesuffix("weight")
    fused = {f"{module}{part}" for part in _PARTS}
    return any(part in fused for stored in held for part in split_fused(stored))


def quantization_findings(subject: Subject) -> Iterator[Finding]:
    """Tensors that are not quantized under a config which says that they are."""
    draft, names = subject.draft, subject.draft_weights.names
    said, method = said_by(draft), method_of(draft)
    if not said or refused(subject):
        return
    lost = [one[-1] for one in _NEEDS.get(method, ()) if not any(name in said for name in one)]
    plain = unquantized(subject)
    drop = f'Drop "{KEY}": the stored tensors are not quantized.'
    if lost:
        yield fault(
            "fc-not-called",
            0.9,
            f"{KEY} of the draft's config has the quant_method '{method}' and no {' and no '.join(lost)}: SGLang stops "
            "before it serves.",
            drop if plain else f"Copy the whole {KEY} from where the draft came from.",
            {"field": KEY, "missing": lost},
        )
    if not plain:
        return
    what = {"fp8": "multiplies them by scales, of which none is stored, so that they come out as noise"}.get(method)
    if method in PACKED:
        what = "builds no parameter of these names and drops them, so that its layers keep what the memory held"
    if what is not None:
        yield fault(
            "weights-missing",
            0.85,
            f"{KEY} says {method}, and {len(plain)} tensors of the draft's layers are stored as they were trained, such as "
            f"'{names[plain[0]]}' ({subject.draft_weights.info(plain[0]).dtype}): SGLang {what}.",
            drop,
            {"field": KEY, "tensors": [names[name] for name in plain[:20]]},
        )


def unquantized(subject: Subject) -> list[str]:
    """Canonical names of the layers' tensors that are as training had them, where SGLang expects all of them quantized;
    empty where it need not."""
    draft, weights = subject.draft, subject.draft_weights
    if (
        any(said_by(draft).get(key) for key in _EXEMPT)
        or method_of(draft) not in {*PACKED, "fp8"}
        or any(is_part(name) for name in weights.names)
    ):
        return []
    return [name for name in weights.names if _is_linear(name) and weights.info(name).dtype in _FLOATS]


def method_of(draft: DraftConfig) -> str:
    """The quant_method that the draft's config names, in small letters."""
    return str(said_by(draft).get("quant_method", "")).lower()


_FLOATS = {"BF16", "F16", "F32"}


def _is_linear(name: str) -> bool:
    inside = ATTENTION in name or ".mlp." in name
    return inside and name.endswith("_proj.weight")
