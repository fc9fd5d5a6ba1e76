"""``drafttrace check``: configuration and weights of a draft against its target and its server, no tensor moved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.config_checks import config_findings
from drafttrace.compare.audit.conventions import Convention, sglang, sglang_reader, trainer, vllm
from drafttrace.compare.audit.evidence_checks import dump_findings, dump_wiring, live_algorithm, server_findings
from drafttrace.compare.audit.fix import planned_changes
from drafttrace.compare.audit.result import CheckResult, ReadingRow
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.target_config import read_target_config
from drafttrace.compare.audit.vocab_checks import decoded_samples, vocabulary_findings, vocabulary_map
from drafttrace.compare.audit.weight_checks import tensor_reports, weight_findings
from drafttrace.compare.audit.wiring_checks import wiring_findings
from drafttrace.compare.draft_config import read_draft_config
from drafttrace.compare.draft_weights import draft_weights
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.checkpoint import Checkpoint, open_checkpoint
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile


def check(
    target_dir: Path,
    draft_dir: Path,
    *,
    dump: Capture | None = None,
    url_health: Mapping[str, Any] | None = None,
    sglang_version: str | None = None,
    hash_weights: bool = False,
    trained: Sequence[int] | None = None,
    algorithm: str | None = None,
) -> CheckResult:
    """Audit a draft for a target.

    dump: a training dump, whose wiring then counts as the trained one. url_health: the answer of a live server's
    ``/drafttrace/health``. sglang_version: audit for that release by the built-in table instead of the installed one.
    hash_weights: read every tensor of the draft whole and hash it. trained: the wiring of training, if the user knows
    it. Raises UnreadableFile for folders that cannot be audited and DrafttraceError for a version that is none.
    """
    began = time.perf_counter()
    subject, notes, how = gather(target_dir, draft_dir, dump, url_health, sglang_version, trained, algorithm)
    reports = tensor_reports(subject, hash_weights)
    vocabulary = vocabulary_map(subject)
    findings = [*wiring_findings(subject), *config_findings(subject)]
    findings += [*weight_findings(subject, reports), *vocabulary_findings(subject, vocabulary)]
    if dump is not None and how is not None:
        findings += dump_findings(subject, dump, *how)
    if url_health is not None:
        findings += server_findings(subject, url_health)
    live = url_health.get("wiring") if url_health is not None else None
    boundaries = live.get("boundaries") if isinstance(live, dict) else None
    return CheckResult(
        target=str(target_dir),
        draft=str(draft_dir),
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
        findings=tuple(_ordered(findings)),
        tensors=reports,
        vocabulary=decoded_samples(subject, vocabulary),
        notes=tuple(notes),
        fix=planned_changes(subject),
        seconds=time.perf_counter() - began,
    )


def gather(
    target_dir: Path,
    draft_dir: Path,
    dump: Capture | None = None,
    health: Mapping[str, Any] | None = None,
    version: str | None = None,
    trained: Sequence[int] | None = None,
    algorithm: str | None = None,
) -> tuple[Subject, list[str], tuple[tuple[int | None, ...], tuple[str, ...]] | None]:
    """What is audited, remarks about it, and the dump's wiring with how each boundary of it is known.

    Arguments and errors as :func:`check`.
    """
    target, draft = read_target_config(target_dir), read_draft_config(draft_dir)
    notes: list[str] = []
    weights = draft_weights(open_checkpoint(draft_dir))
    target_weights = _target_weights(target_dir, notes)
    if version is None and health is not None and isinstance(health.get("sglang_version"), str):
        version = health["sglang_version"]
    try:
        reader = sglang_reader(target, version)
    except ValueError as error:
        raise DrafttraceError(f"--sglang-version: {error}.") from None
    how, by, wiring = None, "", tuple(trained) if trained is not None else None
    if wiring is not None:
        by = "given by --trained"
    if dump is not None and dump.format.startswith("drafttrace.trace"):
        raise DrafttraceError(
            f"{dump.path} is a trace of a server, not a training dump, so it says what is served and not what was "
            "trained; give the dump, or compare the two with drafttrace diff."
        )
    if dump is not None:
        how = dump_wiring(dump, target_weights, target.embed_scale)
        if wiring is None and how[0] and None not in how[0]:
            wiring, by = tuple(k for k in how[0] if k is not None), f"the dump {Path(dump.path).name}"
        elif wiring is None:
            notes.append(
                f"The dump's slots are {wiring_name(how[0])}: it does not say which boundaries training used, so the "
                "served wiring was not compared with it (drafttrace diff against a trace finds out by value)."
            )
    n = target.layers
    readings: tuple[Convention, ...] = (trainer(draft, n), vllm(draft, n), sglang(draft, n, reader))
    algorithm = algorithm or live_algorithm(health)
    subject = Subject(target, draft, target_weights, weights, reader, readings, wiring, by, algorithm)
    return subject, notes, how


def _target_weights(folder: Path, notes: list[str]) -> Checkpoint | None:
    """The target's checkpoint. A folder without weights is fine for an audit; a damaged one is not."""
    if not any(folder.glob("*.safetensors*")) and not any(folder.glob("pytorch_model*")):
        notes.append("The target folder has no weights: embedding and head were not compared.")
        return None
    try:
        return open_checkpoint(folder)
    except UnreadableFile as error:
        raise UnreadableFile(f"The target's weights: {error}") from error


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
