"""Which tokens the rows of a dump are of, by the target's embedding and by what its last state predicts."""

from __future__ import annotations

import math

import numpy as np

from drafttrace.tracer.capture import Capture, Ints, Norm
from drafttrace.tracer.checked_states import Check, column_means, loss_of_guessing, number, spread, tokens_at
from drafttrace.tracer.embedding_match import match
from drafttrace.tracer.row_places import REMEDY, missing_rows, placed, starts, unplaced
from drafttrace.tracer.rows import Rows
from drafttrace.tracer.target_weights import TargetWeights

ID = "row-places"
_ROWS = 24
_CLEARLY = 0.5  # nats of mean loss


def placed_by_value(capture: Capture, target: TargetWeights | None) -> tuple[Capture, list[Check]]:
    """The capture with its rows at their tokens, and how that is known; as it is, and no answer, where no row is missing.

    Refuted: the rows are those of the last tokens, and whoever reads row t as that of token t has the wrong ones. Without a
    target nothing is known. Raises UnreadableFile for a damaged checkpoint.
    """
    if not missing_rows(capture):
        return capture, []
    count, tokens = len(capture.table), capture.tokens
    evidence = {"rows": count, "tokens": len(tokens)}
    start, why = None, ""
    if target is not None:
        start, why = _by_embedding(capture, target)
        if start is None:
            start, why = _by_loss(capture, target)
    if start is None:
        told = "; --target DIR may tell" if target is None else ""
        return capture, [Check(ID, "rows", "undecided", f"{unplaced(capture)}{told}.", evidence)]
    evidence |= {"start": start}
    if start == 0:
        return capture, [
            Check(ID, "rows", "confirmed", f"The {count} rows are those of the first tokens ({why}).", evidence)
        ]
    summary = (
        f"The {count} rows are those of the tokens from {start} on ({why}), and a trainer reads row t as that of token t: "
        f"a prefix cache held the first {start} tokens; {REMEDY}."
    )
    return placed(capture, start), [Check(ID, "rows", "refuted", summary, evidence)]


def _states(capture: Capture, target: TargetWeights) -> list[tuple[str, Rows]]:
    states = [(slot.name, slot.rows) for slot in capture.slots]
    states += [(capture.last.name, capture.last.rows)] if capture.last is not None else []
    return [(name, rows) for name, rows in states if rows.width == target.shape.hidden_size]


def _by_embedding(capture: Capture, target: TargetWeights) -> tuple[int | None, str]:
    for name, rows in _states(capture, target):
        index = spread(np.arange(len(rows)), _ROWS)
        raw, scale = rows.take_raw(index)
        for start in starts(capture):
            ids = tokens_at(capture.tokens, index + start)
            if not target.inside(ids).all():
                continue
            for factor in target.embedding_scales().values():
                if match(raw, rows.dtype, scale, target.embedding(ids) * np.float32(factor)).is_same:
                    return start, f"{name} is the embedding of these"
    return None, ""


def _by_loss(capture: Capture, target: TargetWeights) -> tuple[int | None, str]:
    """The place at which the deepest state predicts the next token far better than at the others."""
    last, states = capture.last, _states(capture, target)
    if not states:
        return None, ""
    name, rows = states[-1]
    places = starts(capture)
    index = spread(np.arange(len(rows), dtype=np.int64), _ROWS)
    index = index[np.isfinite(rows.take(index)).all(-1)]
    if len(index) < 4:
        return None, ""
    values = rows.take(index)
    wanted = np.stack([_known(target, tokens_at(capture.tokens, index + start + 1)) for start in places], 1)
    found: list[float] = []
    for norm in (Norm.POST, Norm.PRE):
        if norm is Norm.POST and (last is None or last.name != name):
            continue
        with np.errstate(invalid="ignore", over="ignore"):  # a checkpoint may hold NaN
            losses, _tops = target.score(values if norm is Norm.POST else target.final_norm(values), wanted)
        means = column_means(losses)
        if not found or min(means) < min(found):
            found = means
    order = np.argsort(found)
    best, second = found[int(order[0])], found[int(order[1])]
    if not math.isfinite(best) or best > loss_of_guessing(target) - _CLEARLY or second - best < _CLEARLY:
        return None, ""
    return places[
        int(order[0])
    ], f"{name} predicts the next token there with loss {number(best):.2f}, else {second:.2f}"


def _known(target: TargetWeights, tokens: Ints) -> Ints:
    return np.where(target.inside(tokens), tokens, -1)
