"""One forward pass of SGLang as a capture: its rows are one request each, its module outputs boundaries.

What Pass files and dumper folders have in common; ``sglang_states`` says which boundary each output is.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from drafttrace.tracer.capture import Accepted, Capture, Ints, LastState, Norm, Phase, Slot
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.sglang_states import Outputs, collect, slots_of
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import Rows

NEEDED = ("input_ids", "positions")
LENGTHS = "seq_lens"
_MOST_NAMED = 6


@dataclass(frozen=True)
class Batch:
    """The rows of a forward pass: token ids and positions of all, ``[rows]``.

    lengths: of every request, tokens of earlier passes included (SGLang's ``seq_lens``); None where they are not there.
    In a verify pass they are those before it: the drafted tokens are in none.
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
        return self._trees or _runs_of_lengths(positions, self.lengths) or _runs(positions)

    @property
    def is_verify(self) -> bool:
        """Whether the rows are drafted tokens, of which the pass finds out which are accepted."""
        return bool(self._trees)

    @property
    def fits_lengths(self) -> bool:
        """Whether the lengths say which rows are of which request."""
        return bool(_runs_of_lengths(self.positions[: _unpadded(self.tokens, self.positions)], self.lengths))

    @functools.cached_property
    def _trees(self) -> list[tuple[int, int]]:
        return _trees(self.tokens, self.positions, self.lengths)


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


def _trees(tokens: Ints, positions: Ints, lengths: Ints | None) -> list[tuple[int, int]]:
    """The rows of each request of a verify pass; none where it is no such pass.

    Every request has as many rows: a tree of drafted tokens, candidates for one place at one position. Its root, the token
    sampled last, stands at the length before the pass, where a row of another pass is at most its length - 1.
    """
    count = 0 if lengths is None else len(lengths)
    size = len(tokens) // count if count else 0
    if lengths is None or size < 2 or size * count != len(tokens):
        return []
    found: list[tuple[int, int]] = []
    for start, length in zip(range(0, len(tokens), size), lengths.tolist(), strict=True):
        own = positions[start : start + size]
        if not own.any() and not tokens[start : start + size].any():  # a batch is padded at its end
            break
        depths = np.unique(own)
        if own[0] != length or depths[0] != length or (own == length).sum() != 1 or (np.diff(depths) != 1).any():
            return []
        found.append((start, start + size))
    return found


def pass_capture(
    path: Path, layout: str, why: str, outputs: Outputs, batch: Batch, run: int, request: Request
) -> Capture:
    runs, count = batch.runs, len(batch.tokens)
    if run >= len(runs):
        raise UnreadableFile(
            f"'{path}' has no request {run} in this forward pass: it has {len(runs)}; count from 0."
        )
    start, stop = runs[run]
    found = collect(outputs, count, request, f"'{path}'")

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
    if len(tokens) > 1 and positions[0] > 0 and not batch.is_verify and not batch.fits_lengths:
        notes.append(f"without fitting {LENGTHS} nobody knows whether these are drafted tokens of a verify pass")
    made = build.capture(
        path, layout, why, tokens, slots,
        last=last, boundaries=boundaries, valid_length=len(tokens), notes=tuple(notes),
        embed=Slot("embed_tokens", boundaries[0], 0, "module name: embed_tokens") if 0 in boundaries else None,
        about={"target_layers": found.layers},
    )  # fmt: skip
    return _verified(made, tokens, positions) if batch.is_verify else _placed(made, tokens, positions)


def _verified(made: Capture, tokens: Ints, positions: Ints) -> Capture:
    """The capture of a tree of drafted tokens: but for its root, nobody knows which are in the text."""
    _refuse_far(made, int(positions.max()))
    known = np.full(int(positions.max()) + 1, -1, np.int64)
    known[int(positions[0])] = tokens[0]
    accepted = np.full(len(tokens), Accepted.UNKNOWN, np.int64)
    accepted[0] = Accepted.ACCEPTED
    phase = np.full(len(tokens), Phase.VERIFY, np.int64)
    table = replace(
        made.table,
        position=positions.copy(),
        token_id=tokens.copy(),
        phase=phase,
        accepted=accepted,
        round=phase * 0,
    )
    drafted = len(tokens) - 1
    note = (
        f"a verify pass at position {positions[0]}: {drafted} of its {len(tokens)} rows are of drafted tokens, which may "
        "have been rejected; the dump does not say which were"
    )
    return replace(made, tokens=known, table=table, valid_length=len(known), notes=(*made.notes, note))


def _refuse_far(made: Capture, position: int) -> None:
    if position > build.MOST_ROWS:
        raise UnreadableFile(
            f"'{made.path}' has a row at position {position:,}, and a request may have {build.MOST_ROWS:,} tokens; dump it "
            "again."
        )


def _placed(made: Capture, tokens: Ints, positions: Ints) -> Capture:
    """The capture with its rows at their positions: a decode pass, or one after a cached prefix, begins further on."""
    if len(positions) and positions[0] > 0:
        _refuse_far(made, int(positions[0]))
        shifted = np.full(int(positions[0]) + len(tokens), -1, np.int64)
        shifted[int(positions[0]) :] = tokens
        table = replace(made.table, position=positions.copy())
        made = replace(made, tokens=shifted, table=table, valid_length=len(shifted),
                       notes=(*made.notes, f"the pass begins at position {positions[0]}"))  # fmt: skip
    return made


def batch_of(path: Path, found: Mapping[str, Tensor | None], what: str) -> Batch:
    """The rows that ``input_ids``, ``positions`` and ``seq_lens`` tell; what: where they stand, as an error names it."""
    ids, where = (found[name] for name in NEEDED)
    assert ids is not None and where is not None
    tokens = build.token_ids(ids, NEEDED[0], path)
    positions = build.token_ids(where, NEEDED[1], path)
    if len(positions) != len(tokens):
        raise UnreadableFile(f"{what} has {len(positions)} positions for {len(tokens)} tokens; dump it again.")
    lengths = found.get(LENGTHS)
    try:
        told = None if lengths is None else build.token_ids(lengths, LENGTHS, path)
    except UnreadableFile:  # the positions tell the requests, too, of all but rare passes
        told = None
    batch = Batch(tokens, positions, told)
    _refuse_untold_trees(batch, what, lengths is not None)
    return batch


def _refuse_untold_trees(batch: Batch, what: str, has_lengths: bool) -> None:
    """Raise UnreadableFile where positions alone may be of a draft tree in a verify pass, or of a request per branch: rows
    of drafted tokens, most of which were rejected, must not be taken for text."""
    if batch.is_verify or batch.fits_lengths:
        return
    positions = batch.positions[: _unpadded(batch.tokens, batch.positions)]
    count = next((len(positions) // size for size in _sizes_of_trees(positions)), 0)
    if count:
        listed = ", ".join(map(str, positions[:_MOST_NAMED].tolist())) + (
            ", ..." if positions[_MOST_NAMED:].size else ""
        )
        said = f"{LENGTHS} that do not fit its positions" if has_lengths else f"no {LENGTHS}"
        trees = "a draft tree" if count == 1 else f"{count} draft trees"
        raise UnreadableFile(
            f"{what} has {said} ({listed}), which may be of {trees} in a verify pass or of {len(batch.runs)} requests; "
            f"dump it again with {LENGTHS}, or give its prefill."
        )


def _sizes_of_trees(positions: Ints) -> Iterator[int]:
    """Row counts of a request with which all rows are trees: a root before all others, every depth there, one forked."""
    for size in range(len(positions), 2, -1):
        if len(positions) % size == 0 and positions.min() > 0:
            trees = positions.reshape(-1, size)
            depths = [np.unique(own) for own in trees]
            if all(
                own[0] == known[0]
                and (own == own[0]).sum() == 1
                and (np.diff(known) == 1).all()
                and len(known) < size
                for own, known in zip(trees, depths, strict=True)
            ):
                yield size
