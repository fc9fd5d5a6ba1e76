"""``drafttrace check``: configuration and weights of a draft against its target and its server, no tensor moved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.config_checks import config_findings
from drafttrace.compare.audit.context_checks import context_findings
from drafttrace.compare.audit.conventions import Convention
from drafttrace.compare.audit.copied_weights import copied_findings
from drafttrace.compare.audit.evidence_checks import dump_findings
from drafttrace.compare.audit.first_eagle import first_eagle
from drafttrace.compare.audit.fix import corrected, planned_changes, remarks_on
from drafttrace.compare.audit.gathering import Wiring, gather, with_config
from drafttrace.compare.audit.head_rows import head_row_findings
from drafttrace.compare.audit.refusal_checks import ask_where_unusual
from drafttrace.compare.audit.result import CheckResult, ReadingRow
from drafttrace.compare.audit.server_checks import server_findings, server_notes
from drafttrace.compare.audit.sglang_rules import ALGORITHMS
from drafttrace.compare.audit.shard_checks import shard_findings
from drafttrace.compare.audit.slot_width import with_true_widths
from drafttrace.compare.audit.start_checks import start_findings
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.switch_checks import switch_remarks
from drafttrace.compare.audit.turned_tensors import with_turned_tensors
from drafttrace.compare.audit.vocab_checks import (
    VocabularyMap,
    decoded_samples,
    vocabulary_findings,
    vocabulary_map,
)
from drafttrace.compare.audit.weight_checks import TensorReport, tensor_reports, weight_findings
from drafttrace.compare.audit.wiring_checks import wiring_findings
from drafttrace.compare.result import FAULT, Finding
from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile


@dataclass(frozen=True)
class _Judged:
    """What the checks say. subject: with what the findings say once taken as right. fix: what ``--fix`` would write."""

    subject: Subject
    findings: tuple[Finding, ...]
    fix: Mapping[str, Any]
    reports: tuple[TensorReport, ...]
    vocabulary: VocabularyMap | None
    copied: tuple[Finding, ...] = ()


def check(
    target_dir: Path,
    draft_dir: Path,
    *,
    dump: Capture | Sequence[Capture] | None = None,
    url_health: Mapping[str, Any] | None = None,
    sglang_version: str | None = None,
    hash_weights: bool = False,
    trained: Sequence[int] | None = None,
    algorithm: str | None = None,
) -> CheckResult:
    """Audit a draft for a target.

    dump: a training dump, or some of its samples, whose wiring then counts as the trained one. url_health: the answer of
    a live server's ``/drafttrace/health``. sglang_version: audit for that release by the built-in table instead of the
    installed one. hash_weights: read every tensor of the draft whole and hash it. trained: the wiring of training, if the
    user knows it. Raises UnreadableFile for folders that cannot be audited, and DrafttraceError for a version or
    an algorithm that is none, a wiring that cannot be, folders in each other's place, and a server of another model.
    """
    began = time.perf_counter()
    if algorithm is not None and algorithm.upper() not in ALGORITHMS:
        raise DrafttraceError(
            f"'{algorithm}' is no speculative algorithm of SGLang; name one of {', '.join(ALGORITHMS)}."
        )
    dumps = [dump] if isinstance(dump, Capture) else list(dump or ())
    subject, notes, hows = gather(target_dir, draft_dir, dumps, url_health, sglang_version, trained, algorithm)
    early = first_eagle(subject)
    if early is None and sglang_version is None and url_health is None:  # else it may be another release
        loads, said = ask_where_unusual(subject)
        subject, notes = replace(subject, loads=loads), [*notes, *said]
    made = _alone(subject, early, hash_weights) if early else _judge(subject, dumps, hows, url_health, hash_weights)
    notes += switch_remarks(made.subject.draft)
    if url_health is not None:
        notes += server_notes(made.subject, url_health)
    notes += remarks_on(made.subject, made.fix)
    left = _left(made, subject, dumps, hows, running=url_health is not None)
    return _result(made, (target_dir, draft_dir), notes, url_health, left, began)


def _alone(subject: Subject, finding: Finding, hash_weights: bool) -> _Judged:
    """A draft of another kind: what is said of it holds for everything that does not fit, so nothing else is said."""
    return _Judged(subject, (finding,), {}, tensor_reports(subject, hash_weights), None)


def _judge(
    subject: Subject,
    dumps: Sequence[Capture],
    hows: Sequence[Wiring],
    health: Mapping[str, Any] | None,
    hash_weights: bool,
    before: _Judged | None = None,
    *,
    running: bool = False,
) -> _Judged:
    """Every check, one after the other. before: what the same weights gave with another config. running: a server was
    seen to run the draft, whose answer is not looked at here."""
    subject, findings = with_turned_tensors(subject)
    subject, wider, width = with_true_widths(subject)
    findings += wider
    reports = before.reports if before is not None else tensor_reports(subject, hash_weights)
    vocabulary = vocabulary_map(subject)
    copied = before.copied if before is not None else _against_the_target(subject, vocabulary, hash_weights)
    findings += [*wiring_findings(subject), *config_findings(subject)]
    findings += [*shard_findings(subject), *weight_findings(subject, reports)]
    findings += [*vocabulary_findings(subject, vocabulary), *copied]
    running = running or health is not None
    if not running:
        findings += start_findings(subject)
    else:
        findings += context_findings(subject, running=True)
    for one, how in zip(dumps, hows, strict=True):
        findings += dump_findings(subject, one, *how)
    if health is not None:
        findings += server_findings(subject, health)
    changes = {**planned_changes(subject), **width}
    return _Judged(subject, tuple(_ordered(findings)), changes, reports, vocabulary, copied)


def _against_the_target(subject: Subject, vocabulary: VocabularyMap | None, whole: bool) -> tuple[Finding, ...]:
    """Values of the draft's that are the target's, where they may not be."""
    return (
        *copied_findings(subject, vocabulary, whole),
        *head_row_findings(subject, vocabulary, whole),
    )


def _left(
    made: _Judged, subject: Subject, dumps: Sequence[Capture], hows: Sequence[Wiring], *, running: bool
) -> tuple[Finding, ...]:
    """The faults of the copy that ``--fix`` would write. subject: with the config as it stands in the file. running: a
    server was seen to run."""
    faults = tuple(finding for finding in made.findings if finding.severity == FAULT)
    if not made.fix or not faults:
        return faults
    try:
        mended = with_config(subject, corrected(subject.draft.raw, made.fix))
    except UnreadableFile:
        return faults
    again = _judge(mended, dumps, hows, None, False, before=made, running=running)
    return tuple(finding for finding in again.findings if finding.severity == FAULT)


def _result(
    made: _Judged,
    folders: tuple[Path, Path],
    notes: Sequence[str],
    health: Mapping[str, Any] | None,
    left: tuple[Finding, ...],
    began: float,
) -> CheckResult:
    """folders: of target and draft, as they were given."""
    subject = made.subject
    live = health.get("wiring") if health is not None else None
    boundaries = live.get("boundaries") if isinstance(live, dict) else None
    return CheckResult(
        target=str(folders[0]),
        draft=str(folders[1]),
        target_class=subject.target.architecture,
        draft_class=subject.draft.architecture,
        project=subject.draft.project,
        layers=subject.target.layers,
        hidden_size=subject.target.hidden_size,
        fc_slots=subject.fc_slots,
        sglang_version=subject.version,
        readings=tuple(_row(reading) for reading in subject.readings),
        wanted=subject.trained,
        wanted_by=subject.trained_by,
        live=tuple(boundaries) if isinstance(boundaries, list) else None,
        findings=made.findings,
        tensors=made.reports,
        vocabulary=decoded_samples(subject, made.vocabulary),
        notes=tuple(notes),
        fix=made.fix,
        left=left,
        seconds=time.perf_counter() - began,
    )


def _row(reading: Convention) -> ReadingRow:
    name = None if reading.wiring is None else wiring_name(reading.wiring)
    return ReadingRow(reading.who, reading.ids_from, reading.ids, name, reading.wiring, reading.note)


def _ordered(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Faults before hints, the surest first, each once."""
    seen: set[tuple[str, str]] = set()
    for finding in sorted(findings, key=lambda f: (f.severity != "fault", -f.confidence)):
        if (finding.id, finding.summary) not in seen:
            seen.add((finding.id, finding.summary))
            yield finding
