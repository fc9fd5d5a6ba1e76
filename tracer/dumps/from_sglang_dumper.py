"""Folders of SGLang's dumper: one file for each module output of each step.

Target and draft of a server that speculates are registered in one dumper, and every forward pass is a step: the draft's
steps are no samples.

Source: SGLang ``srt/debug_utils/dumper.py``.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.document import open_document
from drafttrace.tracer.dumps.registry import FolderLayout, Request, SampleRef, refuse_too_many, register
from drafttrace.tracer.dumps.sglang_passes import LENGTHS, NEEDED, Batch, batch_of, pass_capture
from drafttrace.tracer.dumps.sglang_processes import is_of_draft
from drafttrace.tracer.dumps.sglang_states import LAYER, is_needed
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile

_OUTPUT = re.compile(r"(?:non_intrusive__)?(.+)\.output(?:\.(\d+))?")
_MODULE = re.compile(r"(?:non_intrusive__)?(.+?)\.(?:output|inputs)(?:\..+)?")
_MOST_NAMED = 4

Named = list[tuple[Path, dict[str, str]]]


def _tags(path: Path) -> dict[str, str]:
    return dict(part.split("=", 1) for part in path.name.removesuffix(".pt").split("___") if "=" in part)


def _dumper_files(folder: Path) -> Named:
    """The files of the dumper in the order in which they were written."""
    files = [(path, _tags(path)) for path in folder.glob("*.pt") if "___" in path.name]
    named = [(path, tags) for path, tags in files if {"name", "dump_index"} <= set(tags)]
    return sorted(named, key=lambda file: (_order(file[1]["dump_index"]), file[0].name))


@dataclass(frozen=True)
class _Index:
    """What the names of the files of a folder say. by_step: the files of each step; rank: the lowest one."""

    named: Named
    by_step: dict[int | None, Named]
    rank: str
    drafts: dict[int, str]
    notes: list[str]


def _index(folder: Path) -> _Index:
    """Listed once for all samples of a folder, and again when a file comes or goes: there are hundreds per sample."""
    try:
        stamp = os.stat(folder).st_mtime_ns
    except OSError:
        stamp = 0
    return _listed(folder, stamp)


@functools.lru_cache(maxsize=4)
def _listed(folder: Path, _stamp: int) -> _Index:
    named = _dumper_files(folder)
    by_step: dict[int | None, Named] = {}
    for path, tags in named:
        by_step.setdefault(_number(tags.get("step")), []).append((path, tags))
    return _Index(named, by_step, _first_rank(named), _draft_steps(named), _about_draft(named))


def _order(text: str) -> tuple[bool, int, str]:
    number = _number(text)
    return number is None, number or 0, text


def _first_rank(files: Named) -> str:
    """The lowest rank that wrote files, as their names spell it: where several did, every one has the stream."""
    ranks = {tags.get("rank", "0") for _path, tags in files}
    return min(ranks, key=_order, default="0")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _detect_dumper(folder: Path) -> str | None:
    if not _index(folder).named:
        return None
    return "files named step=...___rank=...___dump_index=...___name=....pt (SGLang dumper)"


def _draft_steps(named: Named) -> dict[int, str]:
    """The steps that are passes of a draft, and a module of each that shows it."""
    found: dict[int, str] = {}
    for _path, tags in named:
        module, step = _MODULE.fullmatch(tags["name"]), _number(tags.get("step"))
        if module is not None and step is not None and is_of_draft(module[1]):
            found.setdefault(step, module[1])
    return found


def _about_draft(named: Named) -> list[str]:
    """What to say of the steps that are left out."""
    drafts = _draft_steps(named)
    if not drafts:
        return []
    steps = {step for _path, tags in named if (step := _number(tags.get("step"))) is not None}
    listed = ", ".join(map(str, sorted(drafts)[:_MOST_NAMED])) + (", ..." if len(drafts) > _MOST_NAMED else "")
    return [
        f"{len(drafts)} of the {len(steps)} steps ({listed}) are passes of the draft (they have {drafts[min(drafts)]}), "
        "and are left out: they hold no states of the target"
    ]


def _dumper_samples(folder: Path) -> Sequence[SampleRef]:
    """Every request of every step, in their order; named as their steps where each step is of one request."""
    files: dict[int, dict[str, Path]] = {}
    index = _index(folder)
    named, rank, drafts = index.named, index.rank, index.drafts
    for path, tags in named:
        number = _number(tags.get("step"))
        if number is not None and number not in drafts:
            step = files.setdefault(number, {})
            if tags.get("rank", "0") == rank:
                step[tags["name"]] = path
    if drafts and not files:
        raise DrafttraceError(
            f"Every step of '{folder}' is a forward pass of the draft (step {min(drafts)} has {drafts[min(drafts)]}), and "
            "holds no states of the target; give a folder with the passes of the target."
        )
    counts = {step: _requests_in(folder, step, named) for step, named in sorted(files.items())}
    if max(counts.values(), default=0) <= 1:
        return [SampleRef(step, folder, step) for step in counts]
    refuse_too_many(folder, sum(counts.values()))
    places = [(step, part) for step, count in counts.items() for part in range(count)]
    return [SampleRef(number, folder, step, part) for number, (step, part) in enumerate(places)]


def _requests_in(folder: Path, step: int, files: Mapping[str, Path]) -> int:
    """How many requests a step has; 1 where that cannot be read, which its reader tells."""
    try:
        plain = {name: _value_of(files[name]) for name in (*NEEDED, LENGTHS) if name in files}
        return max(1, len(_dumper_batch(folder, step, plain).runs))
    except DrafttraceError:
        return 1


def _dumper_batch(folder: Path, step: int, plain: Mapping[str, Tensor | None]) -> Batch:
    if any(plain.get(name) is None for name in NEEDED):
        raise UnreadableFile(
            f"Step {step} of '{folder}' has no input_ids and positions; dump with DUMPER_NON_INTRUSIVE_MODE=all."
        )
    return batch_of(folder, plain, f"Step {step} of '{folder}'")


def _read_dumper(folder: Path, ref: SampleRef, request: Request) -> Capture:
    index = _index(folder)
    of_step = index.by_step.get(ref.inner, [])
    by_rank: dict[str, list[tuple[Path, str]]] = {}
    for path, tags in of_step:
        by_rank.setdefault(tags.get("rank", "0"), []).append((path, tags["name"]))
    rank = index.rank
    stages = _stages(by_rank, rank)
    top = max((k for stage in (rank, *stages) for k in _layers_in(by_rank.get(stage, []))), default=-1)
    part = _part(by_rank.get(rank, []), top)
    batch = _dumper_batch(folder, ref.inner, part.plain)
    notes = _join_stages({stage: _part(by_rank[stage], top) for stage in stages}, part, batch, folder)
    ordered = {name: [parts[k] for k in sorted(parts)] for name, parts in part.outputs.items()}
    why = _detect_dumper(folder) or build.FORCED
    made = pass_capture(folder, "SG-DUMPER", why, ordered, batch, ref.part, request)
    if len(by_rank) > 1:
        notes.insert(0, f"rank {rank} of {len(by_rank)} ranks")
    if len(batch.runs) > 1:
        notes.append(f"request {ref.part} of the {len(batch.runs)} of step {ref.inner}")
    notes += [
        f"step {ref.inner} has {name} twice, with different contents: the last is read" for name in part.twice
    ]
    return replace(made, notes=(*made.notes, *notes, *index.notes))


@dataclass
class _Part:
    """What one rank dumped of a step: module outputs, plain fields. twice: names with files of different contents."""

    outputs: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    plain: dict[str, Tensor] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)


def _part(files: Sequence[tuple[Path, str]], top: int) -> _Part:
    """Every dumped tensor that is needed where its name says: an output ``k`` of a module, or a plain field.

    Others are not opened. Of several of one name the last counts. top: the highest layer of the step.
    """
    part = _Part()
    held: dict[str, Tensor] = {}
    for path, name in files:
        output = _OUTPUT.fullmatch(name)
        if name not in {*NEEDED, LENGTHS} and (output is None or not is_needed(output[1], top)):
            continue
        value = _value_of(path)
        if value is None:
            continue
        if name in held and name not in part.twice and not _same(held[name], value):
            part.twice.append(name)
        held[name] = value
        if output is None:
            part.plain[name] = value
        else:
            part.outputs.setdefault(output[1], {})[int(output[2] or 0)] = value
    return part


def _same(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are equal bit by bit."""
    return one.kind == two.kind and one.shape == two.shape and one.read().tobytes() == two.read().tobytes()


# --- stages of a pipeline ------------------------------------------------------------------------------------


def _layers_in(files: Sequence[tuple[Path, str]]) -> set[int]:
    modules = [output[1] for _path, name in files if (output := _OUTPUT.fullmatch(name)) is not None]
    return {int(layer[1]) for module in modules if (layer := LAYER.search(module))}


def _stages(by_rank: Mapping[str, Sequence[tuple[Path, str]]], own: str) -> list[str]:
    """A rank of every other stage of the pipeline: one with layers that those before it have none of."""
    held, stages = _layers_in(by_rank.get(own, [])), []
    for rank in sorted(by_rank, key=_order):
        theirs = _layers_in(by_rank[rank])
        if rank != own and theirs and held and not theirs & held:
            stages.append(rank)
            held |= theirs
    return stages


def _join_stages(stages: Mapping[str, _Part], own: _Part, batch: Batch, folder: Path) -> list[str]:
    """Add to ``own`` what the other stages of a pipeline dumped of the step, and say so, and which do not fit."""
    joined, left = [], []
    for rank, part in stages.items():
        theirs = (
            batch_of(folder, part.plain, f"rank {rank} of '{folder}'") if set(NEEDED) <= set(part.plain) else None
        )
        if (
            theirs is None
            or not np.array_equal(theirs.tokens, batch.tokens)
            or not np.array_equal(theirs.positions, batch.positions)
        ):
            left.append(rank)
            continue
        joined.append(rank)
        for name, parts in part.outputs.items():
            own.outputs.setdefault(name, parts)
    notes = [f"joined with the layers of other stages of the pipeline: rank {', '.join(joined)}"] if joined else []
    if left:
        notes.append(
            f"the layers of rank {', '.join(left)}, another stage of the pipeline, are left out: its tokens are missing or "
            "other ones"
        )
    return notes


def _value_of(path: Path) -> Tensor | None:
    """The tensor that the dumper put into one file; None for anything else."""
    value = open_document(path).value
    value = value.get("value") if isinstance(value, dict) else value
    return value if isinstance(value, Tensor) else None


register(
    FolderLayout(
        "SG-DUMPER",
        "SGLang's own dumps",
        "SGLang dumper folder",
        _detect_dumper,
        _dumper_samples,
        _read_dumper,
        many_runs=True,
        ids="B(id)",
        parts=lambda folder, _samples: [path for path, _tags in _index(folder).named],
    )
)
