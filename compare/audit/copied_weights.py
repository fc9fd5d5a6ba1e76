"""Tensors of a draft that are the target's bit for bit, where training would have moved them.

The embedding is shared by design, and the whole head is looked at with the weights. A tensor is compared by a few of its
rows first, and as far as ``SAMPLE`` values only where those are equal. Of a target whose headers alone are megabytes
(thousands of experts in each file) the outer layers are looked at, all with hashing on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from drafttrace.compare.audit.subject import Subject, note
from drafttrace.compare.audit.vocab_checks import VocabularyMap
from drafttrace.compare.audit.weight_checks import SAMPLE
from drafttrace.compare.document import join
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.result import Finding
from drafttrace.tracer.checkpoint import Checkpoint
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.part_names import EMBED, HEAD, NORM, stored_name
from drafttrace.tracer.rows import Floats

_LAYERS, _FIRST = "layers.", 2
_LEAST = 16
"""Values without which an equality is chance."""
_ALSO = {"hidden_norm.weight": ("input_layernorm.weight",)}
"""Parts that a target does not have, and those of its parts that an export takes for them."""
_HEAD = "lm_head.weight"
_MOST_HEADERS, _OTHER_HEADER = 1 << 20, 1 << 16
"""Bytes of headers that a check has the time to read, and what a file that is no safetensors counts for."""


class _Copy(NamedTuple):
    """A draft's tensor, the target's that it equals, and how many values were compared."""

    mine: str
    theirs: str
    values: int


def copied_findings(subject: Subject, vocabulary: VocabularyMap | None, whole: bool = False) -> Iterator[Finding]:
    """One hint that names every tensor that is the target's; nothing without the target's weights.

    whole: look at every layer of the target, however large its headers are.
    """
    target = subject.target_weights
    if target is None:
        return
    copies = [*_parts(subject, target, whole), *_pruned_head(subject, target, vocabulary)]
    if not copies:
        return
    draft = subject.draft_weights
    named = [f"'{draft.names[one.mine]}' (its '{one.theirs}')" for one in copies]
    rows = ", the head in the rows of the kept tokens" if any(one.mine == _HEAD for one in copies) else ""
    it = "it" if len(copies) == 1 else "them"
    yield note(
        "weights-replaced",
        0.5,
        f"{len(copies)} of the draft's tensors {'is' if len(copies) == 1 else 'are'} the target's bit for bit{rows}: "
        f"{join(named, 4)}; right only if training started from {it} and froze {it}.",
        f"If training moved {it}, export {it} again into {draft.info(copies[0].mine).file.name}: an export before "
        "training's first step, or from the wrong model, looks so.",
        {
            "tensors": {draft.names[one.mine]: one.theirs for one in copies},
            "values": sum(one.values for one in copies),
        },
    )


def _parts(subject: Subject, target: Checkpoint, whole: bool) -> Iterator[_Copy]:
    """Tensors of layers against those of any layer of the target, and the norm before the head."""
    draft = subject.draft_weights
    final = stored_name(target, NORM)
    layers = _by_layer(target, {_part(name) for name in draft.names if name.startswith(_LAYERS)})
    held = _affordable(target, layers, None if whole else _MOST_HEADERS)
    for name, stored in draft.names.items():
        if name == "norm.weight":
            candidates = [final] if final is not None else []
        elif name.startswith(_LAYERS):
            candidates = [one for part in (_part(name), *_ALSO.get(_part(name), ())) for one in held.get(part, ())]
        else:
            continue
        if not candidates or draft.info(name).float_dtype is None:
            continue
        theirs = _equal_one(draft.checkpoint, stored, target, candidates)
        if theirs is not None:
            yield _Copy(name, *theirs)


def _part(name: str) -> str:
    """``self_attn.o_proj.weight`` for ``layers.0.self_attn.o_proj.weight``."""
    return name.split(".", 2)[-1]


def _by_layer(target: Checkpoint, parts: set[str]) -> Mapping[int, Mapping[str, str]]:
    """The target's tensors of these parts, by layer of its language model and part."""
    wanted = parts | {other for part in parts for other in _ALSO.get(part, ())}
    endings = tuple(f".{part}" for part in wanted)
    found: dict[int, dict[str, str]] = {}
    for name in target:
        if not name.endswith(endings) or "visual" in name or "vision" in name:
            continue
        before, _, rest = name.rpartition("layers.")
        number, _, part = rest.partition(".")
        if part in wanted and number.isdecimal() and "layers" not in before:
            found.setdefault(int(number), {})[part] = name
    return found


def _affordable(
    target: Checkpoint, layers: Mapping[int, Mapping[str, str]], most: int | None
) -> Mapping[str, list[str]]:
    """By part the tensors of as many layers as ``most`` bytes of headers give, from the outer ones inwards."""
    found: dict[str, list[str]] = {}
    opened: set[Path] = set()
    cost, last = 0, len(layers) - 1
    numbers = sorted(layers, reverse=True)
    for place in sorted(range(len(numbers)), key=lambda place: min(place, last - place)):
        parts = layers[numbers[place]]
        files = {target.file_of(name) for name in parts.values()} - opened
        cost += sum(map(_header_bytes, files))
        if most is not None and cost > most and opened:
            break
        opened |= files
        for part, name in parts.items():
            found.setdefault(part, []).append(name)
    return found


def _header_bytes(file: Path) -> int:
    """What a safetensors file says of its header's length."""
    if file.suffix != ".safetensors":
        return _OTHER_HEADER
    try:
        with file.open("rb") as start:
            return int.from_bytes(start.read(8), "little")
    except OSError:  # said of the shards
        return 0


def _equal_one(draft: Checkpoint, stored: str, target: Checkpoint, candidates: list[str]) -> tuple[str, int] | None:
    """The first candidate that the tensor equals, and how many values were compared."""
    shape = draft.info(stored).shape
    if int(np.prod(shape)) < _LEAST:
        return None
    first = _rows(shape, _FIRST)
    mine = draft.floats(stored, first)
    if not np.isfinite(mine).all() or (mine == mine.flat[0]).all():  # constants say nothing
        return None
    for name in candidates:
        if not _equals(target, name, shape, first, mine):
            continue
        rows = _rows(shape, max(_FIRST, SAMPLE // max(1, int(np.prod(shape[1:])))))
        every = draft.floats(stored, rows)
        if _equals(target, name, shape, rows, every):
            return name, int(every.size)
    return None


def _equals(
    target: Checkpoint, name: str, shape: tuple[int, ...], rows: npt.NDArray[np.int64], mine: Floats
) -> bool:
    """Whether the target's tensor has that shape and these rows; a file that cannot be read has nothing in it."""
    try:
        info = target.info(name)
        return (
            info.shape == shape and info.float_dtype is not None and np.array_equal(mine, target.floats(name, rows))
        )
    except (KeyError, UnreadableFile):  # said of the shards
        return False


def _rows(shape: tuple[int, ...], most: int) -> npt.NDArray[np.int64]:
    """So many rows, evenly over the tensor; of a vector all values."""
    count = shape[0] if len(shape) == 1 else min(shape[0], most)
    return np.unique(np.linspace(0, shape[0] - 1, count).astype(np.int64))


def _pruned_head(subject: Subject, target: Checkpoint, vocabulary: VocabularyMap | None) -> Iterator[_Copy]:
    """The rows of a pruned head against those of the target's head for the same tokens."""
    draft, head = subject.draft_weights, matrix_shape(subject.draft_weights, _HEAD)
    theirs = stored_name(target, HEAD) or stored_name(target, EMBED)
    if head is None or theirs is None or vocabulary is None or draft.info(_HEAD).float_dtype is None:
        return
    info, ids = target.info(theirs), vocabulary.targets
    fits = len(info.shape) == 2 and info.shape[1] == head[1] and info.float_dtype is not None
    if not fits or head[0] == info.shape[0]:
        return
    if len(ids) != head[0] or not len(ids) or not 0 <= int(ids.min()) <= int(ids.max()) < info.shape[0]:
        return
    for most in (_FIRST, max(_FIRST, SAMPLE // head[1])):
        rows = _rows(head, most)
        mine: Floats = draft.checkpoint.floats(draft.names[_HEAD], rows)
        if (
            mine.size < _LEAST
            or (mine == mine.flat[0]).all()
            or not np.array_equal(mine, target.floats(theirs, ids[rows]))
        ):
            return
    yield _Copy(_HEAD, theirs, int(mine.size))
