"""Quantized tensors of what SGLang builds plainly, whatever ``quantization_config`` says: nothing dequantizes them.

By SGLang 0.5.23's sources: ``fc`` of the plain class is torch's own Linear and an embedding gets no quantization, so that
packed numbers fill no parameter and scales are dropped. A head is quantized only where its method is told so by name:
AWQ and GPTQ with ``lm_head``, compressed-tensors with a target of that name, Model-Optimizer always; FP8 never does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.class_tensors import draft_class
from drafttrace.compare.audit.mla_checks import refused
from drafttrace.compare.audit.quantized import PACKED, SCALES, is_part, is_quantized, method_of, said_by
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.draft_config import PLAIN_CLASS
from drafttrace.compare.result import Finding

_FC, _HEAD, _EMBEDDING = "fc", "lm_head", "embed_tokens"


def plain_part_findings(subject: Subject) -> Iterator[Finding]:
    """What is quantized in the checkpoint and plain in the class, a module at a time."""
    if refused(subject):
        return
    for module in plain_modules(subject):
        parts = [name for name in subject.draft_weights.names if name.startswith(f"{module}.") and is_part(name)]
        if f"{module}.weight" in subject.draft_weights:
            yield from _unscaled(subject, module, parts)
        elif parts:
            yield _never_filled(subject, module, parts)


def plain_modules(subject: Subject) -> tuple[str, ...]:
    """Which of these the class that loads the draft builds without any quantization."""
    draft = subject.draft
    own = draft.hidden_size != draft.slot_width
    plain = {
        _FC: draft_class(draft) == PLAIN_CLASS or not is_quantized(draft),
        _HEAD: not draft.tied and draft.draft_vocab_size is not None and _plain_head(subject),
        _EMBEDDING: own,
    }
    return tuple(module for module, is_plain in plain.items() if is_plain)


def _plain_head(subject: Subject) -> bool:
    draft, said, method = subject.draft, said_by(subject.draft), method_of(subject.draft)
    if not is_quantized(draft) or method == "fp8":
        return True
    if method in PACKED:
        return not said.get(_HEAD)
    return method == "compressed-tensors" and not any(_names_the_head(one) for one in _targets(said))


def _targets(said: Mapping[str, Any]) -> Iterator[str]:
    groups = said.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        targets = group.get("targets") if isinstance(group, Mapping) else None
        yield from (one for one in targets or () if isinstance(one, str)) if isinstance(targets, list) else ()


def _names_the_head(target: str) -> bool:
    if not target.startswith("re:"):
        return target == _HEAD
    try:
        return re.match(target.removeprefix("re:"), _HEAD) is not None
    except re.error:
        return True  # SGLang's own words on it come first


def _never_filled(subject: Subject, module: str, parts: list[str]) -> Finding:
    said = [subject.draft_weights.names[name] for name in parts]
    return fault(
        "weights-missing",
        0.95,
        f"{_listed(said)} hold a quantized {module}, which {_builder(subject, module)} builds plain: the server reads none "
        f"of them, and {module}.weight keeps what the memory held.",
        _remedy(module),
        {"tensor": f"{module}.weight", "tensors": said},
    )


def _unscaled(subject: Subject, module: str, parts: list[str]) -> Iterator[Finding]:
    weights = subject.draft_weights
    name = f"{module}.weight"
    info, scales = weights.info(name), [part for part in parts if part.endswith(SCALES) and _scales(subject, part)]
    if info.float_dtype is None and not scales:
        yield fault(
            "weights-missing",
            0.9,
            f"'{info.name}' is stored as {info.dtype}, and {_builder(subject, module)} builds {module} plain: the server "
            "takes the whole numbers for the weights.",
            _remedy(module),
            {"tensor": info.name, "dtype": info.dtype},
        )
    if not scales:
        return
    said = [weights.names[part] for part in scales]
    one = module == _HEAD and all(_is_one(subject, part) for part in scales)
    build, least = (note, 0.5) if one else (fault, 0.9)
    yield build(
        "weights-unused",
        least,
        f"'{info.name}' ({info.dtype}) is quantized, and {_builder(subject, module)} builds {module} plain: it drops "
        f"{_listed(said)} without a word and reads the numbers unscaled"
        + (", which leaves the order of the tokens and changes their probabilities." if one else "."),
        _remedy(module),
        {"tensors": said, "tensor": info.name, "dtype": info.dtype},
    )


def _scales(subject: Subject, part: str) -> bool:
    """Whether a scale changes anything: not where every value of it is one."""
    weights = subject.draft_weights
    if weights.info(part).float_dtype is None:
        return True
    return not bool((weights.checkpoint.floats(weights.names[part]) == 1.0).all())


def _is_one(subject: Subject, part: str) -> bool:
    """Whether it is one number for the whole tensor."""
    return all(length == 1 for length in subject.draft_weights.info(part).shape)


def _builder(subject: Subject, module: str) -> str:
    method = method_of(subject.draft) if is_quantized(subject.draft) and module == _HEAD else ""
    named = f" under {method}" if method else ""
    why = "" if is_quantized(subject.draft) else " without a quantization_config"
    return f"SGLang's {draft_class(subject.draft)}{named}{why}"


def _remedy(module: str) -> str:
    return (
        f"Export {module}.weight as it was trained (BF16), without scales beside it, and leave {module} out of the "
        "quantization."
    )


def _listed(names: list[str]) -> str:
    return " and ".join(f"'{name}'" for name in names[:3]) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )
