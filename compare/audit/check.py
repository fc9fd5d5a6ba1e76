"""``drafttrace check``: configuration and weights of a draft against its target and its server, no tensor moved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.class_tensors import as_loaded
from drafttrace.compare.audit.config_checks import config_findings
from drafttrace.compare.audit.conventions import Convention, sglang, sglang_reader, trainer, vllm
from drafttrace.compare.audit.copied_weights import copied_findings
from drafttrace.compare.audit.evidence_checks import IS_EMBEDDING, disputed_slots, dump_findings, dump_wiring
from drafttrace.compare.audit.fix import planned_changes, remarks_on
from drafttrace.compare.audit.foreign_dumps import is_foreign
from drafttrace.compare.audit.lost_sizes import read_draft
from drafttrace.compare.audit.odd_id_checks import whole_ids
from drafttrace.compare.audit.refusal_checks import ask_where_unusual
from drafttrace.compare.audit.result import CheckResult, ReadingRow
from drafttrace.compare.audit.roles import refuse_draft_as_target, refuse_no_draft
from drafttrace.compare.audit.served_class import with_served_class
from drafttrace.compare.audit.server_checks import live_algorithm, refuse_other_model, server_findings, server_notes
from drafttrace.compare.audit.sglang_rules import ALGORITHMS
from drafttrace.compare.audit.shard_checks import shard_findings
from drafttrace.compare.audit.start_checks import start_findings
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.switch_checks import switch_remarks
from drafttrace.compare.audit.target_config import TargetConfig, read_target_config
from drafttrace.compare.audit.true_width import with_true_width
from drafttrace.compare.audit.vocab_checks import decoded_samples, vocabulary_findings, vocabulary_map
from drafttrace.compare.audit.weight_checks import tensor_reports, weight_findings
from drafttrace.compare.audit.wiring_checks import wiring_findings
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights, draft_weights
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import check_wiring, wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.checkpoint import Checkpoint, open_checkpoint
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.hub_cache import model_folder
from drafttrace.tracer.part_names import EMBED, stored_name

Wiring = tuple[tuple[int | None, ...], tuple[str, ...]]
"""The boundary of every slot of a dump, and how each is known."""


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
    if sglang_version is None and url_health is None:  # else the release may be another one than is installed
        loads, said = ask_where_unusual(subject)
        subject, notes = replace(subject, loads=loads), [*notes, *said]
    notes = [*notes, *switch_remarks(subject.draft)]
    subject, findings, width = with_true_width(subject)
    reports = tensor_reports(subject, hash_weights)
    vocabulary = vocabulary_map(subject)
    findings += [*wiring_findings(subject), *config_findings(subject)]
    findings += [*shard_findings(subject), *weight_findings(subject, reports)]
    findings += [*vocabulary_findings(subject, vocabulary), *copied_findings(subject, vocabulary, hash_weights)]
    if url_health is None:  # a server that runs did start
        findings += start_findings(subject)
    for one, how in zip(dumps, hows, strict=True):
        findings += dump_findings(subject, one, *how)
    if url_health is not None:
        findings += server_findings(subject, url_health)
        notes += server_notes(subject, url_health)
    live = url_health.get("wiring") if url_health is not None else None
    boundaries = live.get("boundaries") if isinstance(live, dict) else None
    changes = {**width, **planned_changes(subject)}
    notes += remarks_on(subject, changes)
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
        fix=changes,
        seconds=time.perf_counter() - began,
    )


def gather(
    target_dir: Path,
    draft_dir: Path,
    dumps: Sequence[Capture] = (),
    health: Mapping[str, Any] | None = None,
    version: str | None = None,
    trained: Sequence[int] | None = None,
    algorithm: str | None = None,
) -> tuple[Subject, list[str], list[Wiring]]:
    """What is audited, remarks about it, and every dump's wiring with how each boundary of it is known.

    Arguments and errors as :func:`check`.
    """
    given = {"target": target_dir, "draft": draft_dir}
    target_dir, draft_dir = model_folder(target_dir, "target"), model_folder(draft_dir, "draft")
    notes = [
        f"The {role} '{given[role]}' is {folder} of the hub cache."
        for role, folder in (("target", target_dir), ("draft", draft_dir))
        if folder != given[role]
    ]
    target = read_target_config(target_dir)
    refuse_draft_as_target(target, draft_dir)
    draft = with_served_class(whole_ids(read_draft(draft_dir)))
    weights = as_loaded(draft_weights(open_checkpoint(draft_dir)), draft)
    refuse_no_draft(draft, weights)
    if health is not None:
        refuse_other_model(target, health)
    if trained is not None:
        _refuse_wrong_trained(trained, target, draft, weights)
    target_weights = _target_weights(target_dir, notes)
    if version is None and health is not None and isinstance(health.get("sglang_version"), str):
        version = health["sglang_version"]
    try:
        reader = sglang_reader(target, version)
    except ValueError as error:
        raise DrafttraceError(f"--sglang-version: {error}.") from None
    by, wiring = "", tuple(trained) if trained is not None else None
    if wiring is not None:
        by = "given by --trained"
    hows = [_wiring_of(dump, target_weights, target.embed_scale) for dump in dumps]
    by_value, own = None, [k for k, one in enumerate(dumps) if not is_foreign(one, target, draft, weights)]
    if wiring is None and own:
        wiring, by = _agreed([dumps[k] for k in own], [hows[k] for k in own], notes)
        beyond = [k for k in wiring or () if k > target.layers]
        if beyond:
            raise DrafttraceError(
                f"The slots of {by} are {wiring_name(wiring or ())}, but the target has {target.layers} layers and no "
                f"B{beyond[0]}; give the target that the dump was made with, or its slots with --boundaries."
            )
        by_value = tuple(i for i, how in enumerate(hows[own[0]][1]) if how == IS_EMBEDDING)
    disputed = trained is not None and any(disputed_slots(trained, hows[k][1]) for k in own)
    n = target.layers
    readings: tuple[Convention, ...] = (trainer(draft, n), vllm(draft, n), sglang(draft, n, reader))
    algorithm = algorithm or live_algorithm(health)
    subject = Subject(
        target, draft, target_weights, weights, reader, readings, wiring, by, algorithm, by_value, disputed
    )
    return subject, notes, hows


def _refuse_wrong_trained(
    trained: Sequence[int], target: TargetConfig, draft: DraftConfig, weights: DraftWeights
) -> None:
    """The rule of ``serve --wiring``. A draft of another target's width has its own fault, so its fc does not count."""
    shape = weights.shape("fc.weight")
    fits = shape is not None and len(shape) == 2 and draft.slot_width == target.hidden_size
    width = shape[1] if fits and shape is not None else None
    check_wiring(trained, n=target.layers, hidden=target.hidden_size, width=width, option="--trained")


def _wiring_of(dump: Capture, target: Checkpoint | None, scale: float) -> Wiring:
    if dump.format.startswith("drafttrace.trace"):
        raise DrafttraceError(
            f"{dump.path} is a trace of a server, not a training dump, so it says what is served and not what was "
            "trained; give the dump, or compare the two with drafttrace diff."
        )
    return dump_wiring(dump, target, scale)


def _agreed(
    dumps: Sequence[Capture], hows: Sequence[Wiring], notes: list[str]
) -> tuple[tuple[int, ...] | None, str]:
    """The wiring that the samples of a dump agree on, and what says so; None where they do not name one."""
    name = f"the dump {Path(dumps[0].path).name}"
    if len(dumps) > 1:
        one_file = len({dump.path for dump in dumps}) == 1
        names = [f"#{dump.sample}" if one_file else Path(dump.path).name for dump in dumps]
        name = f"samples {', '.join(names)} of the dump"
        notes.append(f"{name[:1].upper()}{name[1:]} were read; --dump PATH#i reads another one.")
    read = {how[0] for how in hows}
    if len(read) > 1:
        shown = " and ".join(sorted(wiring_name(one) for one in read))
        notes.append(
            f"The samples of the dump do not agree on its slots: {shown}. The served wiring was not compared with it; "
            "look at one of them with --dump PATH#i."
        )
        return None, ""
    (found,) = read
    known = tuple(k for k in found if k is not None)
    if found and len(known) == len(found):
        return known, name
    notes.append(
        f"The dump's slots are {wiring_name(found)}: it does not say which boundaries training used in every slot, so the "
        "served wiring was compared only with what its rows prove (drafttrace diff against a trace, or drafttrace replay "
        "--search, finds out by value)."
    )
    return None, ""


def _target_weights(folder: Path, notes: list[str]) -> Checkpoint | None:
    """The target's checkpoint. A folder without weights is fine for an audit; a damaged one is not."""
    if not any(folder.glob("*.safetensors*")) and not any(folder.glob("pytorch_model*")):
        notes.append("The target folder has no weights: embedding and head were not compared.")
        return None
    try:
        found = open_checkpoint(folder)
    except UnreadableFile as error:
        raise UnreadableFile(f"The target's weights: {error}") from error
    if stored_name(found, EMBED) is None:
        notes.append(
            f"The target's weights ({len(found)} tensors) have no embedding by any known name: embedding and head were not "
            "compared."
        )
    return found


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
