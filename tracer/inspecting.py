"""What a file is: its format and why, its samples, tokens and states, and what their values say."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.assumed_checks import default_refuted, judged
from drafttrace.tracer.boundary import LAST_STATE, boundary_name, wiring_name
from drafttrace.tracer.capture import Accepted, Capture, Norm, Phase, Slot
from drafttrace.tracer.checked_states import SLOT_NORM, Check
from drafttrace.tracer.declared_checks import contradictions, declared_checks
from drafttrace.tracer.dumps.build import UncutRows, assumed_wiring
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.inspect_render import render
from drafttrace.tracer.open import open_numbered
from drafttrace.tracer.position_rows import TakenRows, position_rows
from drafttrace.tracer.row_places import missing_rows
from drafttrace.tracer.row_statistics import RowStatistics, row_statistics, statistics_together
from drafttrace.tracer.rows import Rows

__all__ = ["Inspection", "StateView", "inspect_capture", "render"]

SCHEMA = "drafttrace.inspection/1"
_PREVIEW = 24


@dataclass(frozen=True)
class StateView:
    """One state: a slot, the embedding, the last state or a boundary. probably: what it is, in a few words."""

    role: str
    name: str
    shape: tuple[int, int]
    dtype: str
    boundary: int | None
    source: str
    norm: str | None
    statistics: RowStatistics
    probably: str

    def to_json(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "boundary": None if self.boundary is None else boundary_name(self.boundary),
            "source": self.source,
            "norm": self.norm,
            "statistics": self.statistics.to_json(),
            "probably": self.probably,
        }


@dataclass(frozen=True)
class Inspection:
    """Everything that ``drafttrace inspect`` shows.

    numbers: those of the samples (first, last, count). text: the first tokens decoded, where a tokenizer was given.
    boundaries: every boundary that stands in the file by its name, besides the slots.
    mask_ones: None where there is no mask. phases / accepted: rows by phase and fate, for a trace.
    """

    path: str
    format: str
    recognised_by: str
    sample_count: int
    sample: int | None
    tokens: int
    valid_length: int
    prompt_length: int | None
    first_token_known: bool
    first_ids: tuple[int, ...]
    text: str | None
    mask_ones: int | None
    mask_offset: int
    complete: bool
    states: tuple[StateView, ...]
    boundaries: tuple[str, ...]
    phases: Mapping[str, int]
    accepted: Mapping[str, int]
    draft_tensors: Mapping[str, tuple[int, int]]
    probes: tuple[Mapping[str, Any], ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    target: str | None

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, as sentences: refuted checks, unexpected embeddings, NaN, zero and repeated rows."""
        found = [check.summary for check in self.checks if check.is_problem]
        for state in self.states:
            numbers = state.statistics
            for count, first, what in (
                (numbers.nan_rows, numbers.first_nan_row, "that are not finite (NaN or infinity)"),
                (numbers.zero_rows, numbers.first_zero_row, "of zeros"),
                (numbers.repeated_rows, numbers.first_repeated_row, "equal to the row before"),
            ):
                if count:
                    found.append(f"{state.name} has {_rows(count, first)} {what}, of {numbers.rows_read} read.")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """The machine form, ``drafttrace.inspection/1``."""
        plain = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in {"states", "checks", "probes", "notes", "first_ids", "draft_tensors"}
        }
        return {
            "schema": SCHEMA,
            **plain,
            "phases": dict(self.phases),
            "accepted": dict(self.accepted),
            "first_ids": list(self.first_ids),
            "states": [state.to_json() for state in self.states],
            "boundaries": list(self.boundaries),
            "draft_tensors": {name: list(shape) for name, shape in self.draft_tensors.items()},
            "probes": [dict(probe) for probe in self.probes],
            "checks": [check.to_json() for check in self.checks],
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def inspect_capture(
    spec: str,
    *,
    target: Path | None = None,
    tokenizer: Path | None = None,
    format: str | None = None,
    sample: int | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
) -> Inspection:
    """Look at a trace or dump. Among several samples the first is shown.

    target: folder of the target, for the checks by value. tokenizer: folder with tokenizer.json; default the target.
    Raises DrafttraceError where the file cannot be read.
    """
    asked = dataclasses.replace(_said(target, request or Request()), lenient=True)
    capture, count = open_numbered(spec, format=format, sample=sample, mapping=mapping, request=asked)
    checks = declared_checks(capture, asked.layers)
    capture, by_value = _by_value(capture, target)
    checks += by_value
    text = _text(capture, tokenizer or target, tokenizer is not None)
    return _inspection(capture, count, checks, text, target)


def _said(target: Path | None, asked: Request) -> Request:
    if target is None:
        return asked
    from drafttrace.tracer.target_weights import said_of

    return said_of(target, asked)


def _by_value(capture: Capture, target: Path | None) -> tuple[Capture, list[Check]]:
    """The capture with its rows at their tokens, and the checks by value; those of most files need a target, and their
    modules are imported with one."""
    checks: list[Check] = []
    if target is None and not missing_rows(capture) and "next_token_agreement" not in capture.about:
        return capture, checks
    from drafttrace.tracer.row_place_checks import placed_by_value
    from drafttrace.tracer.target_weights import TargetWeights
    from drafttrace.tracer.value_checks import check_stored_shift, check_values

    checks += check_stored_shift(capture)
    weights = None if target is None else TargetWeights(target)
    capture, places = placed_by_value(capture, weights)
    checks += places
    if weights is not None:
        checks += check_values(capture, weights)
    return capture, checks


def _rows(count: int, first: int | None) -> str:
    if count == 1:
        return "1 row" if first is None else f"1 row (row {first})"
    return f"{count} rows" if first is None else f"{count} rows (the first is row {first})"


def _text(capture: Capture, folder: Path | None, wanted: bool) -> str | None:
    """The first tokens as text. A tokenizer that was not asked for may be missing."""
    if folder is None or capture.redacted or (not wanted and not (folder / "tokenizer.json").is_file()):
        return None
    from drafttrace.tracer.errors import DrafttraceError
    from drafttrace.tracer.tokenizer import decode_text

    try:
        return decode_text(folder, capture.tokens[: 4 * _PREVIEW].tolist())
    except DrafttraceError:
        if wanted:
            raise
        return None


def _inspection(
    capture: Capture, count: int, checks: list[Check], text: str | None, target: Path | None
) -> Inspection:
    mask = capture.mask
    known = np.flatnonzero(capture.tokens >= 0)
    return Inspection(
        path=capture.path,
        format=capture.format,
        recognised_by=capture.recognised_by,
        sample_count=count,
        sample=capture.sample,
        tokens=len(capture.tokens),
        valid_length=capture.valid_length,
        prompt_length=capture.prompt_length,
        first_token_known=bool(len(known) and known[0] == 0),
        first_ids=tuple(int(token) for token in capture.tokens[:_PREVIEW]),
        text=text,
        mask_ones=None if mask is None else int((mask != 0).sum()),
        mask_offset=capture.mask_offset,
        complete=capture.complete,
        states=tuple(_states(capture, checks)),
        boundaries=tuple(boundary_name(k) for k in sorted(capture.boundaries)),
        phases=_counts(capture.table.phase, Phase),
        accepted=_counts(capture.table.accepted, Accepted),
        draft_tensors={} if capture.draft is None else {k: v.shape for k, v in capture.draft.tensors.items()},
        probes=tuple(dataclasses.asdict(probe) for probe in capture.probes),
        checks=tuple(checks),
        notes=capture.notes,
        target=None if target is None else str(target),
    )


def _counts(values: Any, kind: type[Phase] | type[Accepted]) -> dict[str, int]:
    found = Counter(values.tolist())
    return {kind(value).name.lower(): count for value, count in sorted(found.items()) if value in set(kind)}


def _real_rows(capture: Capture) -> int | None:
    """How many rows come before the padding; None where the rows do not follow the tokens one by one."""
    position, valid = capture.table.position, capture.valid_length
    ordered = len(position) > valid > 0 and bool((position == np.arange(len(position))).all())
    return valid if ordered else None


def _whole_statistics(capture: Capture) -> dict[Rows, RowStatistics]:
    """Statistics of the states of which every row was stored, as in a dump."""
    states = [(slot.name, slot.rows) for slot in capture.slots]
    states += [(tap, state.rows) for tap, state in (("embed", capture.embed), ("last", capture.last)) if state]
    whole = [rows for tap, rows in states if capture.present.get(tap) is None]
    return dict(zip(whole, statistics_together(whole, _real_rows(capture)), strict=True))


def _statistics(
    capture: Capture, tap: str, rows: Rows, is_embedding: bool | None, whole: Mapping[Rows, RowStatistics]
) -> RowStatistics:
    """Statistics of the rows that were recorded; neighbours are compared along the positions, one row for each.

    is_embedding: None where nobody says; then it is one if as many rows repeat as tokens do.
    whole: of the states that were recorded in full. In a trace the candidates of one position stand side by side, and two
    of them may be of one token.
    """
    table, recorded = capture.table, capture.present.get(tap)
    if recorded is None:
        found = whole[rows]
    else:
        there = np.flatnonzero(recorded[: len(rows)])
        found = row_statistics(TakenRows(rows, there)).at(there)
    tokens = table.token_id
    if len(table) and bool((np.diff(table.position) != 1).any()):
        index = position_rows(capture, tap)
        index = index[(index >= 0) & (index < len(rows))]
        along = row_statistics(TakenRows(rows, index)).at(index)
        found = dataclasses.replace(
            found, repeated_rows=along.repeated_rows, first_repeated_row=along.first_repeated_row
        )
        tokens = tokens[index]
    same = int(((tokens[1:] == tokens[:-1]) & (tokens[1:] >= 0)).sum()) if is_embedding is not False else 0
    if is_embedding is None:
        is_embedding = found.repeated_rows == same
    if is_embedding and found.repeated_rows:  # the embedding repeats where the tokens do
        left = max(0, found.repeated_rows - same)
        # Which of them are none of the tokens' doing is not counted row by row.
        found = dataclasses.replace(found, repeated_rows=left, first_repeated_row=None)
    return found


def _states(capture: Capture, checks: list[Check]) -> list[StateView]:
    whole = _whole_statistics(capture)

    def view(
        role: str, name: str, rows: Rows, boundary: int | None, source: str, norm: str | None, probably: str
    ) -> StateView:
        tap = name if role == "slot" else role
        told = boundary is not None or role != "slot"
        is_embedding = boundary == 0 or probably.startswith("B0") or (False if told else None)
        statistics = _statistics(capture, tap, rows, is_embedding, whole)
        judgement = judged(source, name, boundary, role == "last", checks) + (
            _other_backend(source, capture, checks) if role == "slot" and boundary is None else ""
        )
        return StateView(role, name, rows.shape, rows.dtype.value, boundary, judgement, norm, statistics, probably)

    views = [
        view(
            "slot",
            slot.name,
            slot.rows,
            slot.boundary,
            slot.source,
            None,
            _probably(slot, k, capture, checks),
        )
        for k, slot in enumerate(capture.slots)
    ]
    embed, last = capture.embed, capture.last
    if embed is not None:
        views.append(view("embed", embed.name, embed.rows, embed.boundary, embed.source, None, "the embedding, B0"))
    if last is not None:
        probably = _last(last.name, checks)
        views.append(view("last", last.name, last.rows, last.boundary, last.proven_by, str(last.norm), probably))
    return views


def _probably(slot: Slot, k: int, capture: Capture, checks: list[Check]) -> str:
    """What a slot probably is: what its values prove, else what is declared, else what trainers do by default."""
    for check in checks:
        if check.subject == slot.name and check.id == "embedding" and check.verdict in {"found", "confirmed"}:
            return "B0, the embedding (its values are the embedding's)"
        if check.subject == slot.name and check.id == SLOT_NORM:
            return f"{LAST_STATE} (by its values)"
    if isinstance(slot.rows, UncutRows):
        return "slots side by side, perhaps; --hidden-size H cuts them"
    if slot.boundary is not None:
        wrong = contradictions(checks, slot.name)
        return f"{boundary_name(slot.boundary)} (declared{', but ' if wrong else ''}{'; '.join(wrong)})"
    if LAST_STATE in slot.source:
        return LAST_STATE
    if default_refuted(slot.source, checks):
        return "unknown: the assumed default is refuted; compare with a reference to find out"
    default = assumed_wiring(slot.source)
    if default is not None and len(default) == len(capture.slots):
        named = " or ".join(map(boundary_name, _backends(default[k], capture, checks)))
        return f"{named} if the trainer kept its default; not recorded"
    return "not recorded; compare with a reference to find out"


def _backends(usual: int, capture: Capture, checks: list[Check]) -> list[int]:
    """Model-Optimizer's vLLM backend stores every slot one layer early and the last state before the norm, without
    saying so: the norm tells the backend."""
    if capture.format != "MO-PT" or capture.last is None:
        return [usual]
    norms = [str(check.evidence["found"]) for check in checks if check.id == "last-norm"]
    norm = norms[0] if norms and norms[0] != Norm.UNKNOWN else str(capture.last.norm)
    return {str(Norm.PRE): [usual - 1], str(Norm.POST): [usual]}.get(norm, [usual, usual - 1])


def _other_backend(source: str, capture: Capture, checks: list[Check]) -> str:
    """What the last state says of a default that the source names: which backend stored it, as :func:`_backends`."""
    default = assumed_wiring(source)
    if default is None or default_refuted(source, checks):
        return ""
    found = [_backends(k, capture, checks) for k in default]
    if any(k in likely for k, likely in zip(default, found, strict=True)):
        return ""
    named = wiring_name([likely[0] for likely in found])
    return f"; the last state before the norm is that of the vLLM backend, which stored {named}"


def _last(name: str, checks: list[Check]) -> str:
    told = [check for check in checks if check.subject == name and check.id in {"last-norm", "last-is-last"}]
    if any(check.id == "last-boundary" and check.verdict == "refuted" for check in checks):
        return "an inner layer (declared), read as the last state"
    if any(check.id == "last-is-last" and check.verdict == "refuted" for check in told):
        return "no last state: an inner layer"
    for check in told:
        if check.id == "last-norm" and check.verdict in {"found", "confirmed", "refuted"}:
            return f"last state, {check.evidence['found']} the final norm".replace("post", "after").replace(
                "pre", "before"
            )
    return "last state, unchecked"
