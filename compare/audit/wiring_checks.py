"""Does the server hand ``fc`` the slots that training fed it? From the configuration alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drafttrace.compare.audit.loading_checks import unread
from drafttrace.compare.audit.mistyped_keys import mistyped_ids
from drafttrace.compare.audit.odd_id_checks import odd_id_findings, stops_at_the_object
from drafttrace.compare.audit.remedies import ids_line, wiring_remedy
from drafttrace.compare.audit.sglang_rules import FIRST_VERSION, LAST_VERSION, in_table
from drafttrace.compare.audit.subject import OUTSIDE, Subject, fault, note
from drafttrace.compare.config_switches import near_name
from drafttrace.compare.draft_config import NESTED, SPECULATORS, LayerIds
from drafttrace.compare.result import Finding
from drafttrace.compare.wiring import read
from drafttrace.tracer.boundary import wiring_name


def wiring_findings(subject: Subject) -> Iterator[Finding]:
    """Every difference between the trained and the served wiring, where both are known; hints where one is not."""
    yield from release_findings(subject)
    if subject.reader is None:
        if subject.target.architecture is not None:  # else that is told
            yield _no_capture(subject)
        return
    yield from odd_id_findings(subject)
    if subject.served.wiring is None or stops_at_the_object(
        subject.draft
    ):  # no server reads them: nothing to compare
        return
    yield from _embedding(subject)
    yield from _lost_slots(subject)
    yield from _two_lists(subject)
    trained, by = subject.trained, subject.origin
    if trained is None and subject.draft.project == SPECULATORS and subject.draft.layer_ids is not None:
        trained, by = subject.readings[0].wiring, f"{subject.readings[0].ids_from} of a speculators config"
    served = subject.served.wiring or ()
    if trained is None:
        yield from _unknown_training(subject)
    elif tuple(trained) != served:
        base = f"Training used {wiring_name(trained)} ({by}); {subject.served.who} serves {wiring_name(served)}"
        facts: dict[str, Any] = {"trained_by": by}
        if subject.by_value is not None:
            facts |= {"by_value": list(subject.by_value)}
        yield from difference_findings(subject, trained, base, facts)
    elif subject.served.ids_from == "default":
        yield note(
            "default-wiring",
            0.3,
            f"{_falls_back(subject)} to its default {wiring_name(served)}, which happens to be what training used.",
            f"Write the ids down so that no release changes them: {wiring_remedy(subject, trained)}",
            {"served": list(served), "trained_by": by},
        )


def release_findings(subject: Subject) -> Iterator[Finding]:
    """A release of which the table knows nothing: another one's rules stand in for it."""
    version = subject.version
    if (subject.reader is not None and subject.reader.installed) or in_table(version):
        return
    yield note(
        "boundary-offset",
        0.3,
        f"SGLang {version} lies outside the table, which goes from {FIRST_VERSION} to {LAST_VERSION}: what it makes "
        "of layer ids, switches and names is told by its nearest release in the table, and may be otherwise.",
        f"Audit with that release installed and without --sglang-version, or serve one from {FIRST_VERSION} to "
        f"{LAST_VERSION}.",
        {OUTSIDE: version, "first": FIRST_VERSION, "last": LAST_VERSION},
    )


def _falls_back(subject: Subject) -> str:
    if unread(subject.draft):  # this SGLang stops before it looks for ids
        return "SGLang does not load this config; with its keys at the top level it would fall back"
    return "The server falls back"


def _no_capture(subject: Subject) -> Finding:
    return fault(
        "fc-not-called",
        0.8,
        f"SGLang {subject.version} has no EAGLE-3 capture for the target class {subject.target.architecture}.",
        "Serve a release or a target class that has set_eagle3_layers_to_capture.",
        {"architecture": subject.target.architecture},
    )


def _embedding(subject: Subject) -> Iterator[Finding]:
    """B0 asked for where the class adds a residual that is None at layer 0: the server stops at its first pass."""
    ids, reader = subject.served.ids, subject.reader
    if ids is None or reader is None or reader.embed is True:
        return
    asked = reader.read(ids, subject.target.layers)
    if 0 not in asked:
        return
    where = f"{reader.architecture} in {subject.served.who}"
    evidence = {"ids": list(ids), "asked": list(asked), "class": reader.architecture, "version": reader.version}
    if reader.embed is False:
        yield fault(
            "fc-not-called",
            0.96,
            f"The ids {list(ids)} ask for B0, which {where} cannot capture: the server stops with a TypeError at its "
            "first pass, before fc runs.",
            wiring_remedy(subject, subject.trained if subject.trained is not None else tuple(sorted(set(asked)))),
            evidence,
            (0,),
        )
    else:
        yield note(
            "fc-not-called",
            0.3,
            f"The ids {list(ids)} ask for B0; whether {where} can capture it is not known (some classes stop with a "
            "TypeError).",
            "Start the server once and look at [B0] with drafttrace record; if it stops, drafttrace serve --wiring hands "
            "B0 over without asking the class.",
            evidence,
            (0,),
        )


def _lost_slots(subject: Subject) -> Iterator[Finding]:
    """Ids that name no layer's entry, or one twice: the server silently hands over fewer slots."""
    ids, reader = subject.served.ids, subject.reader
    if ids is None or reader is None:
        return
    n = subject.target.layers
    asked, served = reader.read(ids, n), subject.served.wiring or ()
    if reader.stops_at(ids, n):
        beyond = wiring_name(reader.stops_at(ids, n))
        yield fault(
            "fc-not-called",
            0.95,
            f"{subject.served.who} reads the ids {list(ids)} as {wiring_name(asked)}, and {reader.architecture} looks each "
            f"up among its {n} layers, which have no entry {beyond}: the server stops with an IndexError before it serves.",
            "List ids that differ and lie within the target: " + _ids_or_train(subject),
            {"ids": list(ids), "asked": list(asked), "layers": n},
        )
    elif len(served) != len(ids):
        yield fault(
            "slot-count",
            0.95,
            f"The config lists {len(ids)} ids {list(ids)}, which {subject.served.who} reads as {wiring_name(asked)}; "
            f"only {wiring_name(served)} exist on a target of {n} layers, so fc gets {_slots(len(served))}.",
            "List ids that differ and lie within the target: " + _ids_or_train(subject),
            {"ids": list(ids), "asked": list(asked), "served": list(served)},
        )
    elif tuple(asked) != tuple(sorted(asked)) and subject.trained != served:
        yield fault(
            "slot-permutation",
            0.6,
            f"The ids {list(ids)} are not ascending: {subject.served.who} hands over {wiring_name(served)}, a trainer "
            f"that keeps the order of the list fed {wiring_name(asked)}.",
            "If training kept the list's order, " + wiring_remedy(subject, asked),
            {"ids": list(ids), "served": list(served), "listed": list(asked)},
            tuple(i for i, (a, b) in enumerate(zip(asked, served, strict=True)) if a != b),
        )


def _two_lists(subject: Subject) -> Iterator[Finding]:
    """Ids in two places that are no two spellings of one wiring: what one reader serves the other does not."""
    first = subject.draft.layer_ids
    for other in subject.draft.other_ids if first is not None else ():
        assert first is not None
        apart = {one - two for one, two in zip(first.ids, other.ids, strict=False)}
        if len(first.ids) == len(other.ids) and apart in ({0}, {1}, {-1}):  # B(k), or the output of layer k
            continue
        yield note(
            "wrong-boundary",
            0.5,
            f"The config lists the ids {list(first.ids)} in {first.where} and {list(other.ids)} in {other.where}, which no "
            "reading makes the same boundaries; SGLang reads the nested list only, vLLM the one at the top level.",
            "Keep the list that training used (drafttrace replay on a training dump tells) and write it in both places.",
            {"ids": {first.where: list(first.ids), other.where: list(other.ids)}},
        )


def _slots(count: int) -> str:
    return f"{count} slot" if count == 1 else f"{count} slots"


def _ids_or_train(subject: Subject) -> str:
    if subject.trained is not None:
        return wiring_remedy(subject, subject.trained)
    highest = subject.target.layers - (0 if subject.reader is not None and subject.reader.last else 1)
    return (
        f"one for each of fc's {subject.fc_slots or 'own'} slots, within B0 to B{highest}. --dump FILE or --trained "
        "B0,B3,B31 tells which, and then the line to paste."
    )


def _default_served(subject: Subject) -> Finding:
    """The default of the server, and the ids that stand where it does not look."""
    draft, served = subject.draft, subject.served.wiring or ()
    stands, ids = "there are none in the config", draft.layer_ids or mistyped_ids(draft)
    if draft.ids_problem is not None:
        stands = draft.ids_problem
    elif draft.layer_ids is not None:
        stands = f"they stand in {draft.layer_ids.where}, which SGLang does not read"
    elif ids is not None:
        stands = f"they stand in {ids.where}, which nobody reads (did you mean {NESTED}?)"
    wanted, either = subject.readings[0].wiring or served, {reading.wiring for reading in subject.readings[:2]}
    if (
        ids is not None and max(wanted) > subject.target.layers
    ):  # no boundary of this target: the other reading is meant
        wanted = tuple(ids.ids)
    if draft.layer_ids is None and ids is not None:
        wanted, either = _by_another_name(subject, ids)
    # as one of those who write ids means them
    build = note if draft.ids_problem is None and (ids is None or served in either) else fault
    return build(
        "default-wiring",
        0.4 if build is note else 0.9,
        f"SGLang looks for the layer ids in {NESTED} only; {stands}, so it serves its default "
        f"{wiring_name(served)}.",
        _moved_ids(subject, wanted),
        {"served": list(served), "ids_from": subject.served.ids_from, "problem": draft.ids_problem},
    )


def _unknown_training(subject: Subject) -> Iterator[Finding]:
    """Nothing says what training used: tell what the server does and where readers disagree."""
    served = subject.served.wiring or ()
    if subject.served.ids_from == "default":
        yield _default_served(subject)
        return
    meant, n = subject.readings[0].wiring or (), subject.target.layers
    if meant != served and len(meant) == len(served) and max(meant) <= n:  # else nobody can have meant it
        yield note(
            "boundary-offset",
            0.4,
            f"The ids {list(subject.served.ids or ())} mean {wiring_name(served)} to {subject.served.who} and "
            f"{wiring_name(meant)} to a trainer that counts layer outputs; the config does not say which is meant.",
            "Give --dump or --trained to decide; if training used the latter, " + wiring_remedy(subject, meant),
            {"served": list(served), "trainer": list(meant), "ids": list(subject.served.ids or ())},
        )


def _by_another_name(subject: Subject, ids: LayerIds) -> tuple[tuple[int, ...], set[tuple[int, ...] | None]]:
    """The wiring that ids under a mistyped name are most likely for, and all that they may be for."""
    plain, late = tuple(ids.ids), tuple(k + 1 for k in ids.ids)
    if near_name(ids.where) == NESTED and subject.reader is not None:  # as this server reads that field
        served = subject.reader.served(ids.ids, subject.target.layers)
        return served, {served}
    return late, {plain, late}


def _moved_ids(subject: Subject, wanted: Sequence[int]) -> str:
    """Where the ids belong; both readings of ids that do not say which is meant."""
    said, slots = subject.draft.layer_ids or mistyped_ids(subject.draft), subject.fc_slots
    if said is None and slots not in (None, len(wanted)):
        return (
            f"List the {slots} ids that training used in {NESTED}: fc reads {slots} slots, and the default has "
            f"{len(wanted)}. Where nobody knows them, --dump or --trained finds the line to write."
        )
    if said is not None and subject.draft.layer_ids is None and near_name(said.where) == NESTED:
        return f"Write the list under its name: {ids_line(subject.draft, said.ids)} (SGLang: {wiring_name(wanted)})"
    if said is None or tuple(said.ids) == tuple(wanted):
        return f"Put the ids where the server looks: {wiring_remedy(subject, wanted)}"
    return (
        f"The config does not say whether id k means B(k) or the output of layer k, B(k+1): give --dump or --trained to "
        f"decide. For {wiring_name(wanted)}, {wiring_remedy(subject, wanted)}; "
        f"for {wiring_name(said.ids)}, {wiring_remedy(subject, said.ids)}"
    )


def difference_findings(
    subject: Subject, wanted: Sequence[int], base: str, facts: Mapping[str, Any], sure: float = 0.95
) -> Iterator[Finding]:
    """Every way in which the served wiring differs from the one that is wanted.

    base: the beginning of each summary, which says why ``wanted`` is; facts go into the evidence.
    """
    served = subject.served.wiring or ()
    evidence = {"trained": list(wanted), "served": list(served), "ids_from": subject.served.ids_from, **facts}
    remedy = f"{wiring_remedy(subject, wanted)}{_as_declared(subject)}"

    def found(name: str, tail: str, slots: tuple[int, ...] = ()) -> Finding:
        return fault(
            name,
            min(sure, _surety(subject, slots)),
            f"{base[:1].upper()}{base[1:]}{tail}.",
            remedy,
            evidence,
            slots,
        )

    if subject.served.ids_from == "default":
        yield found("default-wiring", f"; the server takes its default, because {_why_default(subject)}")
    if len(served) != len(wanted):
        yield found("slot-count", f": {_slots(len(served))} instead of {len(wanted)}")
    reading = read(served, wanted)
    if reading.shift:
        order = "in ascending order, " if reading.permuted else ""
        yield found(
            "slot-shift",
            f": {order}slot i holds what belongs in slot i{reading.shift:+d}",
            tuple(range(len(served))),
        )
    if reading.permuted:
        moved = tuple(i for i, (a, b) in enumerate(zip(served, wanted, strict=False)) if a != b)
        yield found("slot-permutation", ": the same slots in another order", moved)
    late = tuple(i for i, d in enumerate(reading.offsets) if d is not None and abs(d) == 1)
    if (reading.offset or reading.moved) and late:
        word = "late" if (reading.offset or next(d for d in reading.offsets if d in (1, -1)) or 0) > 0 else "early"
        yield found("boundary-offset", f": {len(late)} of {len(served)} slots one boundary {word}", late)
    if reading.wrong:
        names = ", ".join(str(i) for i in reading.wrong)
        yield found("wrong-boundary", f": slot {names} holds another boundary", reading.wrong)


def _surety(subject: Subject, slots: Sequence[int]) -> float:
    """How sure the trained boundaries of ``slots`` (none: all) are: what a dump only declares may be another boundary."""
    if subject.by_value is None or subject.trained is None:
        return 1.0
    proven = [k in subject.by_value for k in slots or range(len(subject.trained))]
    return 0.95 if all(proven) else 0.9 if any(proven) else 0.8


def _as_declared(subject: Subject) -> str:
    """What would prove the slots that a dump only declares."""
    if subject.by_value is None or subject.trained is None or len(subject.by_value) == len(subject.trained):
        return ""
    return "; drafttrace replay --search would tell by value what the dump only declares"


def _why_default(subject: Subject) -> str:
    draft = subject.draft
    if draft.ids_problem is not None:
        return draft.ids_problem
    if draft.layer_ids is not None:
        return f"the ids stand in {draft.layer_ids.where} and SGLang reads {NESTED} only"
    mistyped = mistyped_ids(draft)
    if mistyped is not None:
        return f"the ids stand in {mistyped.where}, which nobody reads (did you mean {NESTED}?)"
    return f"the config has no {NESTED}"
