"""The rows that the draft looked up for its tokens, against the target's for the same tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.fc_input import FITS, MAX_ROWS, is_state, same_rows
from drafttrace.compare.hypotheses import Fit, explain
from drafttrace.compare.measure import Bools
from drafttrace.tracer.capture import Capture, DraftRows, Ints
from drafttrace.tracer.rows import Floats, Rows

_SAME = 0.01  # relative L2 that rounding alone leaves
_LOOKED_AT = 4  # rows of one token that show whether it has an embedding of its own


@dataclass(frozen=True)
class InLayerZero:
    """What the target's layer 0 was given, where that need not be what its embedding's tap recorded: a target may
    multiply in between, and either of the two may be the broken one. rows: B0; at: ``[rows of the trace]``, the row of it
    that belongs there, -1 where there is none."""

    rows: Rows
    at: Ints


def own_b0(trace: Capture) -> InLayerZero | None:
    """The B0 of the trace's own layer sweep."""
    rows = trace.boundaries.get(0)
    if rows is None or trace.embed is None or rows.width != trace.embed.rows.width:
        return None
    number = np.arange(len(trace.table))
    held = number < len(rows)
    present = trace.present.get("boundary/0")
    if present is not None:
        held[: len(present)] &= present[: len(held)]
    return InLayerZero(rows, np.where(held, number, -1))


def compare_embedding(
    trace: Capture, draft: DraftRows, layer_zero: InLayerZero | None, without: Collection[int] = ()
) -> tuple[float | None, Fit | None]:
    """Share of rows where the draft's embedding is the target's, or is what the target's layer 0 was given, bit for bit;
    and how it follows from the target's, or from that, in the others. None for what cannot be told.

    without: rows of the target's embedding that are no measure. Where the two are not one in most rows, the draft has to
    hold one of them in all: a target that multiplies its embedding is no reason to do so in some rows. Then the rows
    without B0 tell nothing of a draft that holds that.
    """
    rows, present = draft.tensors.get("embed_in"), draft.present.get("embed_in")
    if rows is None or present is None or trace.embed is None or rows.width != trace.embed.rows.width:
        return None, None
    kept = _pairs(trace, draft, rows, present, without)
    if not kept:
        return None, None
    ours, theirs = np.array(kept, np.int64).T
    x, y = rows.take(ours), trace.embed.rows.take(theirs)
    z, held = _given(layer_zero, theirs, y)
    states = is_state(x) & is_state(y)
    if not states.any():
        return None, None
    x, y, z, held = x[states], y[states], z[states], held[states]
    held &= is_state(z)
    plain, given = same_rows(x, y), held & same_rows(x, z)
    equal = plain | given
    if held.any() and 2 * int(same_rows(y, z)[held].sum()) < int(held.sum()):
        if given.sum() > (plain & held).sum():
            return float(given[held].mean()), _known(x[held & ~given], z[held & ~given])
        equal = plain
    fit = _known(x[~equal], y[~equal])
    if fit is None:
        fit = _known(x[held & ~equal], z[held & ~equal])
    return float(equal.mean()), fit


def _pairs(
    trace: Capture, draft: DraftRows, rows: Rows, present: Bools, without: Collection[int]
) -> list[tuple[int, int]]:
    """(row of the draft, row of the target) of one token."""
    assert trace.embed is not None
    vector_rows: dict[int, list[int]] = {}
    left_out = frozenset(without)
    for row in range(min(len(trace.table), len(trace.embed.rows))):
        if row in left_out:
            continue
        vector_rows.setdefault(int(trace.table.token_id[row]), []).append(row)
    pairs = [
        (int(row), vector_rows[int(draft.table.token_id[row])][:_LOOKED_AT])
        for row in np.flatnonzero(present)
        if int(draft.table.token_id[row]) in vector_rows
    ][:MAX_ROWS]
    # A token that is embedded now so, now so, is a placeholder: pictures stand in its rows, and it has none of its own.
    of_token = {found[0]: trace.embed.rows.take(np.array(found)) for _, found in pairs}
    words = {
        first
        for first, vectors in of_token.items()
        if bool(same_rows(vectors, vectors[:1].repeat(len(vectors), 0)).all())
    }
    kept = [(row, found[0]) for row, found in pairs if found[0] in words]
    # Unless the draft's own row of it is one of them: then the others are no picture, and differ from it.
    torn = [(row, found) for row, found in pairs if found[0] not in words]
    for (row, found), mine in zip(torn, rows.take(np.array([r for r, _ in torn], np.int64)), strict=True):
        alike = same_rows(of_token[found[0]], mine[None].repeat(len(found), 0))
        if alike.any():
            kept.append((row, found[int(np.argmin(alike))]))
    return kept


def _given(layer_zero: InLayerZero | None, theirs: Ints, like: Floats) -> tuple[Floats, Bools]:
    """B0 in the target's rows, and in which of them it is held."""
    if layer_zero is None:
        return np.zeros_like(like), np.zeros(len(like), np.bool_)
    at = layer_zero.at[theirs]
    return layer_zero.rows.take(np.maximum(at, 0)), at >= 0


def _known(x: Floats, y: Floats) -> Fit | None:
    """The fit that no draft's own training explains: a draft may have trained its embedding from the target's."""
    fits = explain(x, y) if len(x) >= 4 else ()
    known = {"scalar": _SAME, "bytes": FITS["bytes"]}
    return next((fit for fit in fits if fit.residual < known.get(fit.name, 0)), None)
