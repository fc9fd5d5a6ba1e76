"""What a replay runs on: the loaded draft, the texts, the wirings to compare and the ways to run the draft."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, permutations

import numpy as np

from drafttrace.compare.audit.evidence_checks import IS_EMBEDDING, dump_wiring
from drafttrace.compare.audit.sglang_rules import honoured
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.replay.loading import Replayer, load_replayer
from drafttrace.compare.replay.not_loaded import refuse_what_no_server_loads
from drafttrace.compare.replay.result import GIVEN
from drafttrace.compare.replay.search import Wiring
from drafttrace.compare.replay.switches import (
    ABSOLUTE,
    ASCENDING,
    OFFSETS,
    OWN,
    SERVED,
    TARGETS,
    Switches,
    switches_of,
)
from drafttrace.compare.replay.texts import Key, Text, cut_to_sweep, key_name, keys_name, text_of
from drafttrace.compare.target_parts import TargetParts, target_parts
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture, Slot
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare, UnreadableFile
from drafttrace.tracer.row_places import refuse_unplaced

_ALL_ORDERS = 4
"""Up to so many slots are tried in every order."""


@dataclass(frozen=True)
class Bench:
    """Everything loaded: the draft, the texts, how to run it as trained and as served.

    whole: the texts with all their rows, where ``texts`` are cut to what a layer sweep covers; else the same.
    """

    replayer: Replayer
    texts: tuple[Text, ...]
    whole: tuple[Text, ...]
    captures: tuple[Capture, ...]
    steps: int
    trained: Switches
    served: Switches

    @property
    def live_text(self) -> Text:
        """The first capture's text with all its rows."""
        return self.whole[0]

    @property
    def cut(self) -> bool:
        """Whether ``texts`` leave rows out."""
        return any(one is not text for one, text in zip(self.texts, self.whole, strict=True))


def open_bench(
    subject: Subject, captures: Sequence[Capture], steps: int, ignore: Collection[str], sweep: bool
) -> Bench:
    target = subject.target
    if subject.target_weights is None:
        raise UnreadableFile(
            f"{target.path.parent} has no weights, and the replay needs the target's embedding; give the whole folder."
        )
    parts: TargetParts = target_parts(
        subject.target_weights, eps=target.eps, model_type=target.model_type, embed_scale=target.embed_scale
    )
    trained = switches_of(subject.draft, subject.draft_weights, ignore)
    whole = tuple(text_of(capture, parts, target.layers) for capture in captures)
    texts = whole
    if sweep:
        cut = [cut_to_sweep(capture, parts, target.layers) for capture in captures]
        texts = tuple(one or text for one, text in zip(cut, whole, strict=True))
    longest = max(len(text.tokens) for text in whole) + steps
    refuse_what_no_server_loads(subject)
    replayer = load_replayer(subject.draft, subject.draft_weights, parts, longest)
    for text in (*whole, *texts):
        _check_widths(text, replayer)
    served = served_switches(replace(subject, draft=replayer.config), trained, draft_window(captures))
    if replayer.model.turned_otherwise:
        served = replace(served, rope=SERVED)
    if replayer.model.biased_otherwise:
        served = replace(served, biases=SERVED)
    return Bench(
        replayer,
        texts,
        whole,
        tuple(captures),
        steps,
        trained,
        served,
    )


def name_slots(subject: Subject, captures: Sequence[Capture], slots_are: Sequence[int] | None) -> list[Capture]:
    """The captures with boundaries for slots that their files leave open: by value for B0, else as the user says."""
    found = []
    if slots_are is not None:
        _check_boundaries("--slots-are", slots_are, subject)
        _check_different(slots_are)
    for capture in captures:
        refuse_unplaced(capture)
        if slots_are is not None and len(slots_are) != len(capture.slots):
            raise DrafttraceError(
                f"{capture.path} has {len(capture.slots)} slots, {keys_name(list(slots_are))} names "
                f"{len(slots_are)}; "
                "name one boundary per slot."
            )
        by_value, _ = dump_wiring(capture, subject.target_weights, subject.target.embed_scale)
        asked: Sequence[int | None] = [None] * len(capture.slots) if slots_are is None else slots_are
        held = _by_value(capture, by_value)
        slots = tuple(_named(held, k, asked[k]) for k in range(len(held.slots)))
        found.append(replace(held, slots=slots))
    return found


def _by_value(capture: Capture, by_value: Sequence[int | None]) -> Capture:
    """The capture with B0 where the rows are the embedding's, and not in another slot that its file calls so instead."""
    slots = []
    for k, slot in enumerate(capture.slots):
        if by_value[k] == 0:
            slot = replace(slot, boundary=0, source=IS_EMBEDDING)
        elif slot.boundary == 0 and 0 in by_value:
            slot = replace(
                slot, boundary=None, source=f"declared as B0, which slot {by_value.index(0)} is by value"
            )
        slots.append(slot)
    return replace(capture, slots=tuple(slots))


def _named(capture: Capture, k: int, asked: int | None) -> Slot:
    """Slot k with its boundary. Raises DrafttraceError where the user calls it another one than it is."""
    slot = capture.slots[k]
    if asked is not None and slot.boundary is None:
        return replace(slot, boundary=asked, source="named by the user")
    if asked is not None and slot.boundary != asked:
        raise DrafttraceError(
            f"--slots-are calls slot {k} of {capture.path} {key_name(asked)}, and it is {boundary_name(slot.boundary)} "
            f"({slot.source}); leave --slots-are out, or name the slots as they are."
        )
    return slot


def _check_boundaries(option: str, wiring: Sequence[int], subject: Subject) -> None:
    """Raise DrafttraceError where a wiring names a boundary that the target does not have."""
    layers = subject.target.layers
    outside = [k for k in wiring if not 0 <= k <= layers]
    if outside:
        raise DrafttraceError(
            f"{option} {keys_name(list(wiring))} names {key_name(outside[0])}, and the target has "
            f"{layers} layers; name "
            f"boundaries from B0 to B{layers}."
        )


def _check_different(slots_are: Sequence[int]) -> None:
    """Raise DrafttraceError where two slots would be one boundary."""
    twice = [k for k in slots_are if list(slots_are).count(k) > 1]
    if twice:
        raise DrafttraceError(
            f"--slots-are {keys_name(list(slots_are))} names {key_name(twice[0])} twice; name one per slot, all different."
        )


def undeclared(captures: Sequence[Capture]) -> list[str]:
    """That a file does not name its slots' boundaries, which keeps the server's wiring from being compared."""
    found = [slot for capture in captures for slot in capture.slots if slot.boundary is None]
    if not found:
        return []
    return [
        f"the file does not say which boundaries its slots are ({found[0].source}): they are called slot0, slot1, … "
        "and the server's wiring cannot be found among them; say what they are with --slots-are, one boundary per slot"
    ]


def _check_widths(text: Text, replayer: Replayer) -> None:
    width = replayer.config.slot_width
    for key, (rows, _) in text.sources.items():
        if rows.width != width:
            raise NothingToCompare(
                f"{text.name} has states {rows.width} wide ({key_name(key)}), the draft's slots are {width} wide; give the "
                "draft that belongs to this target."
            )
    if len(text.tokens) < 3:
        raise NothingToCompare(
            f"{text.name} has {len(text.tokens)} tokens, too few to predict one; give a longer text."
        )


def draft_window(captures: Sequence[Capture]) -> int | None:
    """The window that a traced server's arguments give its draft, in tokens; None where there is none.

    ``--speculative-draft-window-size`` counts the tokens before a row: SGLang's attention sees one more, the row itself.
    """
    arguments = captures[0].about.get("server_args") if captures else None
    size = arguments.get("speculative_draft_window_size") if isinstance(arguments, Mapping) else None
    return size + 1 if type(size) is int and size > 0 else None


def served_switches(subject: Subject, trained: Switches, window: int | None = None) -> Switches:
    """How SGLang runs this draft: flags that its class reads, norms only where a flag asks for them, its embedding.

    window: see :func:`draft_window`; SGLang reads a draft's window from its arguments only, for Llama drafts only.
    """
    draft, version, name = subject.draft, subject.version, subject.draft.architecture or ""

    def on(flag: str, asked: bool) -> bool:
        return asked and honoured(flag, name, version)

    return replace(
        trained,
        fc_norm=trained.fc_norm and on("fc_norm", draft.fc_norm),
        input_norm=trained.input_norm and on("norm_before_fc", draft.norm_before_fc),
        norm_before_residual=on("norm_before_residual", draft.norm_before_residual),
        norm_output=on("norm_output", bool(draft.norm_output)),
        embedding=TARGETS if draft.hidden_size == draft.slot_width else trained.embedding,
        d2t=OFFSETS,
        windows=(window,) * draft.layers if window is not None and draft.mla is None else (),
    )


def plan_wirings(subject: Subject, bench: Bench, given: Sequence[Sequence[int]]) -> dict[Wiring, list[str]]:
    """The wirings to compare, and who names each."""
    slots, found = bench.replayer.model.slots, dict[Wiring, list[str]]()

    def add(wiring: Sequence[Key], source: str) -> None:
        found.setdefault(tuple(wiring), []).append(source)

    for wiring in given:
        if len(wiring) != slots:
            raise DrafttraceError(
                f"--wiring {keys_name(list(wiring))} names {len(wiring)} boundaries, the draft's fc "
                f"reads {slots} slots; "
                "name as many."
            )
        _check_boundaries("--wiring", wiring, subject)
        add(tuple(wiring), GIVEN)
    first = bench.texts[0].file_wiring
    if len(first) >= slots and all(text.file_wiring == first for text in bench.texts):
        said = "file, where nobody gave --wiring" if bench.captures[0].assumed_wiring else "file"
        add(first[:slots], said if len(first) == slots else f"{said}, first {slots} slots")
    served = subject.served.wiring
    if served is not None and len(served) == slots:
        add(served, f"server ({subject.served.who}, {subject.served.ids_from})")
    trainer = subject.readings[0]
    if trainer.wiring is not None and len(trainer.wiring) == slots and trainer.ids_from != "default":
        add(trainer.wiring, f"config as {trainer.who} means it")
    return found


def variants_of(
    base: Switches, replayer: Replayer, target_base: float | None = None
) -> Iterator[tuple[str, str, Switches]]:
    """Every switch that can be set otherwise with the weights at hand: name, value, all switches with it.

    target_base: the target's rope base; a draft trained with it whose config lost the field is served with another.
    """
    if base.fc_norm:
        yield "fc_norm", "False", replace(base, fc_norm=False)
    if base.input_norm:
        yield "input_norm", "False", replace(base, input_norm=False)
    flipped = not base.norm_before_residual
    yield "norm_before_residual", str(flipped), replace(base, norm_before_residual=flipped)
    flipped = not base.norm_output
    yield "norm_output", str(flipped), replace(base, norm_output=flipped)
    if replayer.d2t is not None:
        other = ABSOLUTE if base.d2t == OFFSETS else OFFSETS
        yield "d2t", other, replace(base, d2t=other)
        if base.d2t == OFFSETS and bool((np.diff(replayer.targets(base)) <= 0).any()):
            yield "d2t", ASCENDING, replace(base, d2t=ASCENDING)
    for shift in (-1, 1):
        yield "token_shift", str(shift), replace(base, token_shift=base.token_shift + shift)
    if replayer.model.turned_otherwise:
        yield "rope", SERVED, replace(base, rope=SERVED)
    if target_base not in (None, replayer.config.rope.theta) and base.rope_base is None:
        yield "rope_base", f"{target_base:.15g}", replace(base, rope_base=target_base)
    if base.windows:
        yield "windows", "none", replace(base, windows=())
    if base.embedding == OWN and replayer.config.hidden_size == replayer.config.slot_width:
        yield "embedding", TARGETS, replace(base, embedding=TARGETS)


def likely_wirings(subject: Subject, slots: int) -> list[Wiring]:
    """Wirings that the usual mistakes turn the config's lists into, the likeliest first.

    A list that is one boundary off, or moved by one slot with the embedding in front, as in the incident that this tool
    was written for. They only break ties: rows that cannot tell neighbouring boundaries apart should not name a wiring
    that nobody would have written.
    """
    found: dict[Wiring, None] = {}
    for wiring in (subject.readings[0].wiring, subject.served.wiring):
        if wiring is None or len(wiring) != slots:
            continue
        found[tuple(wiring)] = None
        found[(0, *wiring[:-1])] = None
        for offset in (-1, 1):
            found[tuple(k + offset for k in wiring)] = None
    return [wiring for wiring in found if len(set(wiring)) == slots]


def reordered(wirings: Iterable[Wiring | None], slots: int) -> list[Wiring]:
    """The same boundaries in every other order, of few slots; of many in those of two exchanged ones.

    A draft whose fc reads its slots otherwise than they are handed over is one of these exactly, and rows that cannot
    tell neighbouring boundaries apart should not name others for it.
    """
    whole = [wiring for wiring in wirings if wiring is not None and len(set(wiring)) == len(wiring) == slots]
    found: dict[Wiring, None] = {}
    for wiring in whole:
        if slots <= _ALL_ORDERS:
            found |= dict.fromkeys(permutations(wiring))
            continue
        for one, two in combinations(range(slots), 2):
            moved = list(wiring)
            moved[one], moved[two] = moved[two], moved[one]
            found[tuple(moved)] = None
    return [wiring for wiring in found if wiring not in whole]


def another_wiring(subject: Subject, slots: int, held: Collection[Key], tried: Collection[Wiring]) -> Wiring | None:
    """A wiring of boundaries that the capture holds and that was not tried, the likeliest first; None where the only
    others are the same boundaries in another order, or the slots have no names."""
    known = sorted(key for key in held if isinstance(key, int))
    others = chain(likely_wirings(subject, slots), combinations(known, slots))
    seen = {frozenset(wiring) for wiring in tried}
    return next((w for w in others if set(w) <= set(known) and frozenset(w) not in seen), None)
