"""What SGLang itself can write of a forward pass: ``Pass*.pt`` files and dumper folders.

Dumper folders and Pass files hold module outputs by name; ``sglang_states`` says which boundary each is.

Source: SGLang ``srt/debug_utils/dumper.py``, ``srt/debug_utils/tensor_dump_forward_hook.py``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture, Ints, LastState, Norm, Slot
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.document import Document, open_document
from drafttrace.tracer.dumps.registry import (
    FolderLayout,
    Layout,
    Request,
    SampleRef,
    refuse_too_many,
    register,
)
from drafttrace.tracer.dumps.sglang_processes import (
    about_draft,
    missing_beside,
    of_one_run,
    other_stages,
    rank_of,
    ranks_beside,
    refuse_draft,
)
from drafttrace.tracer.dumps.sglang_states import LAYER, Outputs, collect, is_needed, slots_of
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.rows import Rows

_NEEDED = ("input_ids", "positions")
_LENGTHS = "seq_lens"


@dataclass(frozen=True)
class _Batch:
    """The rows of a forward pass: token ids and positions of all, ``[rows]``.

    lengths: of every request, tokens of earlier passes included (SGLang's ``seq_lens``); None where they are not there.
    """

    tokens: Ints
    positions: Ints
    lengths: Ints | None = None

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The rows of each request, without those that the batch was padded with.

        Rows at consecutive positions may be of two requests, such as two decode steps: the lengths tell them apart.
        """
        positions = self.positions[: _unpadded(self.tokens, self.positions)]
        return _runs_of_lengths(positions, self.lengths) or _runs(positions)


def _unpadded(tokens: Ints, positions: Ints) -> int:
    """How many rows are of requests. SGLang pads a batch with token 0 at position 0; no request is that one token."""
    kept = np.flatnonzero((tokens != 0) | (positions != 0))
    return int(kept[-1]) + 1 if len(kept) else min(1, len(tokens))


def _runs(positions: Ints) -> list[tuple[int, int]]:
    """Rows of one request each: runs of consecutive positions."""
    if len(positions) == 0:
        return []
    cuts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    return list(itertools.pairwise(cuts))


def _runs_of_lengths(positions: Ints, lengths: Ints | None) -> list[tuple[int, int]]:
    """Rows of one request each, of which the last one stands at its length - 1; none where the lengths do not fit."""
    found: list[tuple[int, int]] = []
    start = 0
    for length in [] if lengths is None else lengths.tolist():
        if start == len(positions):  # the requests that a batch is padded with
            break
        stop = start + length - int(positions[start])
        if not start < stop <= len(positions) or (np.diff(positions[start:stop]) != 1).any():
            return []
        found.append((start, stop))
        start = stop
    return found if start == len(positions) else []


def _capture(
    path: Path, layout: str, why: str, outputs: Outputs, batch: _Batch, run: int, request: Request
) -> Capture:
    runs, count = batch.runs, len(batch.tokens)
    if run >= len(runs):
        raise UnreadableFile(
            f"'{path}' has no request {run} in this forward pass: it has {len(runs)}; count from 0."
        )
    start, stop = runs[run]
    found = collect(outputs, count, request)

    def part(tensor: Tensor, name: str) -> Rows:
        return build.rows(tensor.cut(0, start, stop), name, path)

    boundaries = {k: part(tensor, f"B{k}") for k, tensor in found.boundaries.items()}
    if not boundaries and found.last is None and found.odd:
        raise UnreadableFile(
            f"'{path}' has no residual stream of one row for each of its {count} tokens, but {found.odd[0]}; dump one "
            "forward pass of one process."
        )
    if not boundaries and found.last is None:
        raise UnreadableFile(
            f"'{path}' holds no residual stream: neither layers.k.input_layernorm nor embed_tokens nor norm has an "
            "output; dump the whole model."
        )
    slots, notes = slots_of(boundaries, found, request, f"'{path}'")
    if found.odd:
        notes.append(f"left out, for they have other than {count} rows: {', '.join(found.odd[:4])}")
    last: LastState | None = None
    if found.last is not None:
        last = build.last_state("norm", part(found.last, "norm"), Norm.POST, "the output of the final norm")
    tokens, positions = batch.tokens[start:stop], batch.positions[start:stop]
    made = build.capture(
        path, layout, why, tokens, slots,
        last=last, boundaries=boundaries, valid_length=len(tokens), notes=tuple(notes),
        embed=Slot("embed_tokens", boundaries[0], 0, "module name: embed_tokens") if 0 in boundaries else None,
        about={"target_layers": found.layers},
    )  # fmt: skip
    return _placed(made, tokens, positions)


def _placed(made: Capture, tokens: Ints, positions: Ints) -> Capture:
    """The capture with its rows at their positions: a decode pass, or one after a cached prefix, begins further on."""
    if len(positions) and positions[0] > build.MOST_ROWS:
        raise UnreadableFile(
            f"'{made.path}' begins at position {positions[0]:,}, and a request may have {build.MOST_ROWS:,} tokens; "
            "dump it again."
        )
    if len(positions) and positions[0] > 0:
        shifted = np.full(int(positions[0]) + len(tokens), -1, np.int64)
        shifted[int(positions[0]) :] = tokens
        table = replace(made.table, position=positions.copy())
        made = replace(made, tokens=shifted, table=table, valid_length=len(shifted),
                       notes=(*made.notes, f"the pass begins at position {positions[0]}"))  # fmt: skip
    return made


# --- Pass00000.pt --------------------------------------------------------------------------------------------


def _field_ending(value: Mapping[str, Any], ending: str) -> Tensor | None:
    for name, item in value.items():
        if isinstance(name, str) and name.endswith(ending) and isinstance(item, Tensor):
            return item
    return None


def _detect_pass(document: Document, _request: Request) -> str | None:
    if not isinstance(document.value, dict):
        return None
    if _field_ending(document.value, ".forward_batch_info.input_ids") is None:
        return None
    return "a dict of module outputs with forward_batch_info.input_ids (--debug-tensor-dump-output-folder)"


def _batch_of(document: Document) -> _Batch:
    """Raises UnreadableFile for a pass without its input_ids or positions."""
    value = document.value if isinstance(document.value, dict) else {}
    found = {name: _field_ending(value, f".forward_batch_info.{name}") for name in (*_NEEDED, _LENGTHS)}
    missing = next((name for name in _NEEDED if found[name] is None), None)
    if missing is not None:
        raise UnreadableFile(
            f"The field 'forward_batch_info.{missing}' of '{document.path}' is missing or None; read the file without "
            "--format, or dump the pass again."
        )
    return _batch(document.path, found, f"'{document.path}'")


def _batch(path: Path, found: Mapping[str, Tensor | None], what: str) -> _Batch:
    """The rows that ``input_ids``, ``positions`` and ``seq_lens`` tell; what: where they stand, as an error names it."""
    ids, where = (found[name] for name in _NEEDED)
    assert ids is not None and where is not None
    tokens = build.token_ids(ids, _NEEDED[0], path)
    positions = build.token_ids(where, _NEEDED[1], path)
    if len(positions) != len(tokens):
        raise UnreadableFile(f"{what} has {len(positions)} positions for {len(tokens)} tokens; dump it again.")
    lengths = found.get(_LENGTHS)
    try:
        told = None if lengths is None else build.token_ids(lengths, _LENGTHS, path)
    except UnreadableFile:  # the positions tell the requests, too, of all but rare passes
        told = None
    return _Batch(tokens, positions, told)


def _outputs(document: Document) -> dict[str, list[Tensor]]:
    outputs: dict[str, list[Tensor]] = {}
    for name, item in document.value.items():
        tensors = [item] if isinstance(item, Tensor) else item if isinstance(item, list) else []
        outputs[str(name)] = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    return outputs


def _joined(path: Path, outputs: dict[str, list[Tensor]], batch: _Batch) -> list[str]:
    """Add to ``outputs`` what the other stages of a pipeline wrote of the same pass, and say so.

    Raises UnreadableFile where the stages do not fit: other tokens, or a layer that two of them have.
    """
    own = {name for name in outputs if LAYER.search(name)}
    others = other_stages(path)
    for other in others:
        document = open_document(other)
        theirs = _batch_of(document)
        more = _outputs(document)
        same = np.array_equal(theirs.tokens, batch.tokens) and np.array_equal(theirs.positions, batch.positions)
        twice = sorted(name for name in more if name in own)
        if not same or twice:
            why = f"{twice[0]} is in both" if same else "their tokens differ"
            raise UnreadableFile(
                f"'{path}' and '{other}' are of two stages of a pipeline and do not belong together ({why}); move the one "
                "that is of another run away."
            )
        own |= {name for name in more if LAYER.search(name)}
        outputs.update((name, tensors) for name, tensors in more.items() if name not in outputs)
    names = ", ".join(f"'{other.parent.name}'" for other in others)
    return [f"joined with the layers that other stages of the pipeline wrote: {names}"] if others else []


def _read_pass(document: Document, inner: int, request: Request) -> Capture:
    why = build.recognised(_detect_pass, document, request)
    batch, path = _batch_of(document), document.path
    outputs = _outputs(document)
    refuse_draft(path, outputs)
    notes = _joined(path, outputs, batch)
    made = _capture(path, "SG-PASS", why, outputs, batch, inner, request)
    rank, ranks = rank_of(path), ranks_beside(path)
    if rank is not None and ranks > 1:
        notes.insert(0, f"rank {rank} of {ranks} ranks")
    if rank is not None and not request.tokens_only:
        notes += missing_beside(path)
    return replace(made, notes=(*made.notes, *notes, *about_draft(path)))


# --- dumper folders ------------------------------------------------------------------------------------------

_OUTPUT = re.compile(r"(?:non_intrusive__)?(.+)\.output(?:\.(\d+))?")


def _tags(path: Path) -> dict[str, str]:
    return dict(part.split("=", 1) for part in path.name.removesuffix(".pt").split("___") if "=" in part)


def _dumper_files(folder: Path) -> list[tuple[Path, dict[str, str]]]:
    files = [(path, _tags(path)) for path in sorted(folder.glob("*.pt")) if "___" in path.name]
    return [(path, tags) for path, tags in files if {"name", "dump_index"} <= set(tags)]


def _first_rank(files: Sequence[tuple[Path, dict[str, str]]]) -> str:
    """The lowest rank that wrote files, as their names spell it: where several did, every one has the stream."""
    ranks = {tags.get("rank", "0") for _path, tags in files}
    return min(ranks, key=lambda rank: (_number(rank) is None, _number(rank) or 0, rank), default="0")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _detect_dumper(folder: Path) -> str | None:
    if not _dumper_files(folder):
        return None
    return "files named step=...___rank=...___dump_index=...___name=....pt (SGLang dumper)"


def _dumper_samples(folder: Path) -> Sequence[SampleRef]:
    """Every request of every step, in their order; named as their steps where each step is of one request."""
    files: dict[int, dict[str, Path]] = {}
    named = _dumper_files(folder)
    rank = _first_rank(named)
    for path, tags in named:
        number = _number(tags.get("step"))
        if number is not None:
            step = files.setdefault(number, {})
            if tags.get("rank", "0") == rank:
                step[tags["name"]] = path
    counts = {step: _requests_in(folder, step, named) for step, named in sorted(files.items())}
    if max(counts.values(), default=0) <= 1:
        return [SampleRef(step, folder, step) for step in counts]
    refuse_too_many(folder, sum(counts.values()))
    places = [(step, part) for step, count in counts.items() for part in range(count)]
    return [SampleRef(number, folder, step, part) for number, (step, part) in enumerate(places)]


def _requests_in(folder: Path, step: int, files: Mapping[str, Path]) -> int:
    """How many requests a step has; 1 where that cannot be read, which its reader tells."""
    try:
        plain = {name: _value_of(files[name]) for name in (*_NEEDED, _LENGTHS) if name in files}
        return max(1, len(_dumper_batch(folder, step, plain).runs))
    except DrafttraceError:
        return 1


def _dumper_batch(folder: Path, step: int, plain: Mapping[str, Tensor | None]) -> _Batch:
    if any(plain.get(name) is None for name in _NEEDED):
        raise UnreadableFile(
            f"Step {step} of '{folder}' has no input_ids and positions; dump with DUMPER_NON_INTRUSIVE_MODE=all."
        )
    return _batch(folder, plain, f"Step {step} of '{folder}'")


def _read_dumper(folder: Path, ref: SampleRef, request: Request) -> Capture:
    outputs: dict[str, dict[int, Tensor]] = {}
    plain: dict[str, Tensor] = {}
    named = _dumper_files(folder)
    rank = _first_rank(named)
    of_step = [(path, tags) for path, tags in named if _number(tags.get("step")) == ref.inner]
    ranks = {tags.get("rank", "0") for _path, tags in of_step}
    own = [(path, tags["name"]) for path, tags in of_step if tags.get("rank", "0") == rank]
    modules = [output[1] for _path, name in own if (output := _OUTPUT.fullmatch(name)) is not None]
    top = max((int(layer[1]) for module in modules if (layer := LAYER.search(module))), default=-1)
    for path, name in own:
        _sort_in(path, name, top, outputs, plain)
    batch = _dumper_batch(folder, ref.inner, plain)
    ordered = {name: [parts[k] for k in sorted(parts)] for name, parts in outputs.items()}
    why = _detect_dumper(folder) or build.FORCED
    made = _capture(folder, "SG-DUMPER", why, ordered, batch, ref.part, request)
    notes = made.notes if len(ranks) == 1 else (*made.notes, f"rank {rank} of {len(ranks)} ranks")
    if len(batch.runs) > 1:
        notes = (*notes, f"request {ref.part} of the {len(batch.runs)} of step {ref.inner}")
    return replace(made, notes=notes)


def _value_of(path: Path) -> Tensor | None:
    """The tensor that the dumper put into one file; None for anything else."""
    value = open_document(path).value
    value = value.get("value") if isinstance(value, dict) else value
    return value if isinstance(value, Tensor) else None


def _sort_in(
    path: Path, name: str, top: int, outputs: dict[str, dict[int, Tensor]], plain: dict[str, Tensor]
) -> None:
    """Put one dumped tensor where its name says: an output ``k`` of a module, or a plain field. Others are not opened.

    top: the highest layer of the step.
    """
    output = _OUTPUT.fullmatch(name)
    wanted = output is not None and is_needed(output[1], top)
    if not wanted and name not in {*_NEEDED, _LENGTHS}:
        return
    value = _value_of(path)
    if value is None:
        return
    if output is None:
        plain[name] = value
    else:
        outputs.setdefault(output[1], {})[int(output[2] or 0)] = value


register(
    Layout(
        "SG-PASS",
        "SGLang's own dumps",
        "SGLang --debug-tensor-dump-output-folder",
        _detect_pass,
        _read_pass,
        lambda document: max(1, len(_batch_of(document).runs)),
        several=True,
        ids="B(id)",
        of_run=of_one_run,
    )
)
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
        parts=lambda folder, _samples: [path for path, _tags in _dumper_files(folder)],
    )
)
