"""What an audit looks at, read from folders, dumps and a server's words: the subject, remarks, and each dump's wiring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.asking_sglang import DRAFT, Loads
from drafttrace.compare.audit.class_tensors import as_loaded
from drafttrace.compare.audit.conventions import Convention, SglangReader, sglang, sglang_reader, trainer, vllm
from drafttrace.compare.audit.evidence_checks import IS_EMBEDDING, disputed_slots, dump_wiring
from drafttrace.compare.audit.foreign_dumps import is_foreign
from drafttrace.compare.audit.installed import installed_version
from drafttrace.compare.audit.lost_sizes import parsed_draft, read_draft
from drafttrace.compare.audit.odd_id_checks import whole_ids
from drafttrace.compare.audit.roles import refuse_draft_as_target, refuse_no_draft
from drafttrace.compare.audit.served_class import with_served_class
from drafttrace.compare.audit.server_checks import live_algorithm, refuse_other_model
from drafttrace.compare.audit.sglang_rules import LAST_VERSION
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.target_class import with_meant_class
from drafttrace.compare.audit.target_config import TargetConfig, read_target_config
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights, draft_weights
from drafttrace.tracer.boundary import check_wiring, wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.checkpoint import Checkpoint, open_checkpoint
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.hub_cache import model_folder
from drafttrace.tracer.part_names import EMBED, stored_name

Wiring = tuple[tuple[int | None, ...], tuple[str, ...]]
"""The boundary of every slot of a dump, and how each is known."""


@dataclass(frozen=True)
class _Trained:
    """The wiring of training: what says it, which of its slots a dump proves, and whether a dump's rows contradict it."""

    wiring: tuple[int, ...] | None
    by: str
    by_value: tuple[int, ...] | None
    disputed: bool


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
    target = with_meant_class(read_target_config(target_dir))
    refuse_draft_as_target(target, draft_dir)
    draft = with_served_class(whole_ids(read_draft(draft_dir)))
    weights = as_loaded(draft_weights(open_checkpoint(draft_dir)), draft)
    refuse_no_draft(draft, weights)
    if health is not None:
        refuse_other_model(target, health)
    if trained is not None:
        _refuse_wrong_trained(trained, target, draft, weights)
    target_weights = _target_weights(target_dir, notes)
    release = _release(version, health)
    reader = _reader(target, release)
    hows = [_wiring_of(dump, target_weights, target.embed_scale) for dump in dumps]
    own = [k for k, one in enumerate(dumps) if not is_foreign(one, target, draft, weights)]
    if trained is None and any(dumps[k].assumed_wiring for k in own):
        notes.append(_nobody_said(next(dumps[k] for k in own if dumps[k].assumed_wiring)))
    own = [k for k in own if not dumps[k].assumed_wiring]
    told = _trained(trained, [dumps[k] for k in own], [hows[k] for k in own], target, notes)
    n = target.layers
    readings: tuple[Convention, ...] = (trainer(draft, n), vllm(draft, n), sglang(draft, n, reader))
    subject = Subject(
        target,
        draft,
        target_weights,
        weights,
        reader,
        readings,
        told.wiring,
        told.by,
        algorithm or live_algorithm(health),
        told.by_value,
        told.disputed,
        release=release or installed_version() or LAST_VERSION,
    )
    return subject, notes, hows


def with_config(subject: Subject, config: Mapping[str, Any]) -> Subject:
    """The subject with another config of its draft, and all that follows from it. Raises UnreadableFile where it is none.

    What SGLang said of the config as it stands holds for what is the same in both.
    """
    draft = with_served_class(whole_ids(parsed_draft(config, subject.draft.path)))
    loads, n = subject.loads, subject.target.layers
    if loads is not None:
        refusal = loads.refusals[DRAFT]
        changed = {key for key in {*config, *subject.draft.raw} if config.get(key) != subject.draft.raw.get(key)}
        solved = refusal is not None and bool(changed & {key.partition(".")[0] for key in refusal.keys})
        refusals = {**loads.refusals, DRAFT: None if solved else refusal}
        loads = Loads(loads.version, refusals, {**loads.sizes, DRAFT: {}})
    return replace(
        subject,
        draft=draft,
        draft_weights=as_loaded(draft_weights(subject.draft_weights.checkpoint), draft),
        readings=(trainer(draft, n), vllm(draft, n), sglang(draft, n, subject.reader)),
        loads=loads,
    )


def _release(version: str | None, health: Mapping[str, Any] | None) -> str | None:
    """The release that is audited for: the given one, or the live server's; None for the installed one."""
    live = health.get("sglang_version") if health is not None else None
    return live if version is None and isinstance(live, str) else version


def _reader(target: TargetConfig, version: str | None) -> SglangReader | None:
    """The target's class in that release."""
    try:
        return sglang_reader(target, version)
    except ValueError as error:
        raise DrafttraceError(f"--sglang-version: {error}.") from None


def _trained(
    given: Sequence[int] | None,
    own: Sequence[Capture],
    hows: Sequence[Wiring],
    target: TargetConfig,
    notes: list[str],
) -> _Trained:
    """own: the dumps that are this draft's. Raises DrafttraceError for a dump of boundaries that the target lacks."""
    if given is not None:
        disputed = any(disputed_slots(given, how[1]) for how in hows)
        return _Trained(tuple(given), "given by --trained", None, disputed)
    if not own:
        return _Trained(None, "", None, False)
    wiring, by = _agreed(own, hows, notes)
    beyond = [k for k in wiring or () if k > target.layers]
    if beyond:
        raise DrafttraceError(
            f"The slots of {by} are {wiring_name(wiring or ())}, but the target has "
            f"{target.layers} layers and no "
            f"B{beyond[0]}; give the target that the dump was made with, or its slots with --boundaries."
        )
    by_value = tuple(i for i, how in enumerate(hows[0][1]) if how == IS_EMBEDDING)
    return _Trained(wiring, by, by_value, False)


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


def _nobody_said(dump: Capture) -> str:
    name = Path(dump.path).name
    return (
        f"{name} was made by drafttrace reference without --wiring: its slots {wiring_name(dump.wiring)} are a choice of "
        "the tool and say nothing of training, so the served wiring was not compared with them. If the wiring of training "
        "is known, give it with --trained B.., or make the file again with drafttrace reference --wiring B..; else "
        "drafttrace replay --search on this file finds it by value."
    )


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
            f"The target's weights ({len(found)} tensors) have no embedding by any known name: "
            "embedding and head were not "
            "compared."
        )
    return found
