"""``drafttrace replay``: the draft by itself on stored hidden states, wiring by wiring and switch by switch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from drafttrace.compare.audit.check import gather
from drafttrace.compare.audit.evidence_checks import dump_wiring
from drafttrace.compare.audit.sglang_rules import honoured
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.replay.findings import (
    coverage_findings,
    live_findings,
    served_switch_findings,
    significant,
    variant_findings,
    wiring_findings,
)
from drafttrace.compare.replay.live import LiveComparison, compare_live, draft_steps
from drafttrace.compare.replay.loading import Replayer, load_replayer
from drafttrace.compare.replay.result import ReplayResult, SearchInfo, VariantRow, WiringRow
from drafttrace.compare.replay.score import WiringScore, run_wirings, score
from drafttrace.compare.replay.search import Ranked, Wiring, search
from drafttrace.compare.replay.switches import ABSOLUTE, OFFSETS, OWN, TARGETS, Switches, switches_of
from drafttrace.compare.replay.texts import Key, Text, cut_to_sweep, key_name, keys_name, text_of
from drafttrace.compare.result import Finding
from drafttrace.compare.target_parts import TargetParts, target_parts
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare, UnreadableFile

DEFAULT_STEPS, MOST_STEPS = 3, 16
_RESCORED = 5
_SMALL = 512


def replay(
    captures: Capture | Sequence[Capture],
    draft_dir: Path,
    target_dir: Path,
    *,
    wirings: Sequence[Sequence[int]] = (),
    search_wirings: bool = False,
    switches: bool = True,
    steps: int | None = None,
    sglang_version: str | None = None,
    ignore_switches: Collection[str] = (),
    slots_are: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Run a draft on the hidden states of one or several captures.

    wirings: further wirings to compare. search_wirings: rank all ordered wirings over the boundaries present.
    switches: also try every switch the other way round. slots_are: the boundaries of the file's slots, where the file
    does not say them; slots that equal the target's embedding are B0 by value in any case. steps: draft steps
    (default: the trace's, else 3). ignore_switches: unknown config keys to wave through. progress: called with the
    number of wirings just tried.

    Raises UnreadableFile, UnknownFormat or NothingToCompare where the draft, the target or the captures cannot be used.
    """
    began = time.perf_counter()
    given = [captures] if isinstance(captures, Capture) else list(captures)
    if not given:
        raise NothingToCompare("No capture was given; name a trace or a training dump.")
    count = steps or max((draft_steps(capture) for capture in given), default=0) or DEFAULT_STEPS
    if not 1 <= count <= MOST_STEPS:
        raise DrafttraceError(
            f"--steps {count} is outside 1..{MOST_STEPS}; give the server's --speculative-num-steps."
        )
    subject, notes, _ = gather(target_dir, draft_dir, version=sglang_version)
    with torch.inference_mode(), _threads(subject.draft.hidden_size):
        bench = _open(subject, _named(subject, given, slots_are), count, ignore_switches, search_wirings)
        notes += [remark for text in bench.texts for remark in text.notes] + _undeclared(bench.captures)
        plan = _wirings(subject, bench, wirings)
        made = _Maker(subject, bench, plan, progress)
        made.score_named()
        if search_wirings:
            made.search()
        if switches:
            made.try_switches()
        made.compare_live()
    return made.result(target_dir, draft_dir, notes, time.perf_counter() - began)


@contextmanager
def _threads(width: int) -> Iterator[None]:
    """One thread for small drafts: handing an operation of microseconds to other cores costs more than it saves."""
    before = torch.get_num_threads()
    if width <= _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Bench:
    """Everything loaded: the draft, the texts, how to run it as trained and as served.

    live_text: the first capture's text with all its rows, where ``texts`` are cut to what a layer sweep covers.
    """

    replayer: Replayer
    texts: tuple[Text, ...]
    live_text: Text
    captures: tuple[Capture, ...]
    steps: int
    trained: Switches
    served: Switches


def _open(
    subject: Subject, captures: Sequence[Capture], steps: int, ignore: Collection[str], sweep: bool
) -> _Bench:
    target = subject.target
    if subject.target_weights is None:
        raise UnreadableFile(
            f"{target.path.parent} has no weights; the replay needs the target's embedding, give the whole folder."
        )
    parts: TargetParts = target_parts(
        subject.target_weights, eps=target.eps, model_type=target.model_type, embed_scale=target.embed_scale
    )
    trained = switches_of(subject.draft, subject.draft_weights, ignore)
    whole = tuple(text_of(capture, parts) for capture in captures)
    texts = (
        tuple(cut_to_sweep(capture, parts) or text_of(capture, parts) for capture in captures) if sweep else whole
    )
    longest = max(len(text.tokens) for text in whole) + steps
    replayer = load_replayer(subject.draft, subject.draft_weights, parts, longest)
    for text in (*whole, *texts):
        _check_widths(text, replayer)
    return _Bench(replayer, texts, whole[0], tuple(captures), steps, trained, served_switches(subject, trained))


def _named(subject: Subject, captures: Sequence[Capture], slots_are: Sequence[int] | None) -> list[Capture]:
    """The captures with boundaries for slots that their files leave open: by value for B0, else as the user says."""
    found = []
    for capture in captures:
        if slots_are is not None and len(slots_are) != len(capture.slots):
            raise DrafttraceError(
                f"{capture.path} has {len(capture.slots)} slots, {keys_name(list(slots_are))} names {len(slots_are)}."
            )
        by_value, _ = dump_wiring(capture, subject.target_weights, subject.target.embed_scale)
        slots = []
        for k, slot in enumerate(capture.slots):
            boundary, source = slot.boundary, slot.source
            if by_value[k] == 0:
                boundary, source = 0, "its rows are the target's embedding rows"
            elif slots_are is not None and boundary is None:
                boundary, source = slots_are[k], "named by the user"
            slots.append(replace(slot, boundary=boundary, source=source))
        found.append(replace(capture, slots=tuple(slots)))
    return found


def _undeclared(captures: Sequence[Capture]) -> list[str]:
    """That a file does not name its slots' boundaries, which keeps the server's wiring from being compared."""
    found = [slot for capture in captures for slot in capture.slots if slot.boundary is None]
    if not found:
        return []
    return [
        f"the file does not say which boundaries its slots are ({found[0].source}): they are called slot0, slot1, … "
        "and the server's wiring cannot be found among them; name the layer ids of the dump to compare it"
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


def served_switches(subject: Subject, trained: Switches) -> Switches:
    """How SGLang runs this draft: flags that its class reads, norms only where a flag asks for them, its embedding."""
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
    )


def _wirings(subject: Subject, bench: _Bench, given: Sequence[Sequence[int]]) -> dict[Wiring, list[str]]:
    """The wirings to compare, and who names each."""
    slots, found = bench.replayer.model.slots, dict[Wiring, list[str]]()

    def add(wiring: Sequence[Key], source: str) -> None:
        found.setdefault(tuple(wiring), []).append(source)

    for wiring in given:
        if len(wiring) != slots:
            raise DrafttraceError(
                f"--wiring {keys_name(list(wiring))} names {len(wiring)} boundaries, the draft's fc reads {slots} slots."
            )
        add(tuple(wiring), "given")
    first = bench.texts[0].file_wiring
    if len(first) >= slots and all(text.file_wiring == first for text in bench.texts):
        add(first[:slots], "file" if len(first) == slots else f"file, first {slots} slots")
    served = subject.served.wiring
    if served is not None and len(served) == slots:
        add(served, f"server ({subject.served.who}, {subject.served.ids_from})")
    trainer = subject.readings[0]
    if trainer.wiring is not None and len(trainer.wiring) == slots and trainer.ids_from != "default":
        add(trainer.wiring, f"config as {trainer.who} means it")
    return found


class _Maker:
    """Fills a result step by step."""

    def __init__(
        self,
        subject: Subject,
        bench: _Bench,
        plan: dict[Wiring, list[str]],
        progress: Callable[[int], None] | None,
    ) -> None:
        self._subject, self._bench, self._plan, self._progress = subject, bench, plan, progress
        held = set(bench.texts[0].sources)
        for text in bench.texts[1:]:
            held &= set(text.sources)
        self._held = held
        self._scores: dict[Wiring, WiringScore] = {}
        self._search: Ranked | None = None
        self._variants: list[VariantRow] = []
        self._as_served: WiringScore | None = None
        self._live: LiveComparison | None = None

    def _available(self, wiring: Wiring) -> bool:
        return set(wiring) <= self._held

    def _score(self, wirings: Sequence[Wiring], switches: Switches) -> list[WiringScore]:
        bench = self._bench
        per_text = [run_wirings(bench.replayer, text, wirings, switches, bench.steps) for text in bench.texts]
        return [
            score(bench.replayer, bench.texts, [guesses[i] for guesses in per_text], switches, bench.steps)
            for i in range(len(wirings))
        ]

    def score_named(self) -> None:
        wirings = [wiring for wiring in self._plan if self._available(wiring)]
        if wirings:
            self._scores |= zip(wirings, self._score(wirings, self._bench.trained), strict=True)

    def search(self) -> None:
        bench = self._bench
        keys = sorted(self._held, key=lambda key: (isinstance(key, str), key))
        slots = bench.replayer.model.slots
        if len(keys) < slots:
            return
        seeds = [wiring for wiring in self._plan if self._available(wiring)]
        self._search = search(bench.replayer, bench.texts, keys, slots, bench.trained, seeds, self._progress)
        fresh = [wiring for wiring in self._search.wirings[:_RESCORED] if wiring not in self._scores]
        if fresh:
            self._scores |= zip(fresh, self._score(fresh, bench.trained), strict=True)
        for wiring in self._search.wirings[:_RESCORED]:
            self._plan.setdefault(wiring, []).append("search")

    def reference(self) -> Wiring | None:
        """The wiring that works best."""
        return next(iter(self._order(self._scores)), None)

    def _order(self, wirings: Iterable[Wiring]) -> list[Wiring]:
        """Best first by top-1; among those that chance cannot tell from the best, by the loss of the next token,
        which uses every row's probabilities and not only their order."""
        known = [w for w in wirings if np.isfinite(self._scores[w].top1)]
        if not known:
            return []
        top = max(known, key=lambda w: self._scores[w].top1)
        best = self._scores[top]
        alike = [w for w in known if not significant(best.top1, self._scores[w].top1, best.rows)]
        rest = [w for w in known if w not in alike]
        return [
            *sorted(alike, key=lambda w: self._scores[w].nll),
            *sorted(rest, key=lambda w: (-self._scores[w].top1, self._scores[w].nll)),
        ]

    def try_switches(self) -> None:
        wiring = self.reference()
        if wiring is None:
            return
        base, bench = self._scores[wiring], self._bench
        for name, value, changed in variants_of(bench.trained, bench.replayer):
            tried = self._score([wiring], changed)[0]
            gains = [_share(tried, s) - _share(base, s) for s in range(bench.steps)]
            step = int(np.argmax(np.abs(np.nan_to_num(gains))))
            self._variants.append(VariantRow(name, value, tried, step, float(gains[step])))
        if bench.served != bench.trained:
            self._as_served = self._score([wiring], bench.served)[0]

    def compare_live(self) -> None:
        bench = self._bench
        text, capture = bench.live_text, bench.captures[0]
        if capture.draft is not None:
            self._live = compare_live(bench.replayer, capture, text, text.file_wiring, bench.served)

    def _server_wiring(self) -> Wiring | None:
        """What the server hands over: a trace's own slots, else what it would make of the config."""
        if self._bench.captures[0].draft is not None:
            return self._bench.texts[0].file_wiring
        return self._subject.served.wiring

    def _changed(self) -> list[str]:
        one, two = asdict(self._bench.trained), asdict(self._bench.served)
        return [name for name in one if one[name] != two[name]]

    def findings(self) -> Iterator[Finding]:
        wiring, served = self.reference(), self._server_wiring()
        if wiring is None:
            return
        best = self._scores[wiring]
        if served is not None:
            yield from wiring_findings(self._subject, (wiring, best), (served, self._scores.get(served)))
        yield from variant_findings(self._variants, best)
        yield from served_switch_findings(best, self._as_served, self._changed())
        yield from coverage_findings(self._outside(), best)
        if self._live is not None:
            known = self._scores.get(self._bench.texts[0].file_wiring)
            yield from live_findings(self._live, known.simulated if known is not None else float("nan"))

    def _outside(self) -> float:
        """Share of the counted next tokens that the draft can never say."""
        wiring = self.reference()
        return float("nan") if wiring is None else 1.0 - self._scores[wiring].steps[0].coverage

    def _rows(self) -> Iterator[WiringRow]:
        for wiring in self._order(self._scores):
            yield WiringRow(keys_name(wiring), tuple(self._plan[wiring]), self._scores[wiring])
        for wiring, sources in self._plan.items():
            if wiring not in self._scores:
                missing = tuple(key_name(key) for key in wiring if key not in self._held)
                yield WiringRow(keys_name(wiring), tuple(sources), None, missing)

    def _search_info(self) -> SearchInfo | None:
        if self._search is None:
            return None
        order = self._order(self._search.wirings[:_RESCORED])
        if not order:
            return None
        scores = [self._scores[w] for w in order[:2]]
        margin = scores[0].top1 - scores[1].top1 if len(scores) > 1 else float("nan")
        nll_margin = scores[1].nll - scores[0].nll if len(scores) > 1 else float("nan")
        return SearchInfo(
            method=self._search.method,
            tried=self._search.tried,
            possible=self._search.possible,
            winner=keys_name(order[0]),
            runner_up=keys_name(order[1]) if len(order) > 1 else None,
            margin=margin,
            nll_margin=nll_margin,
        )

    def result(self, target: Path, draft: Path, notes: Sequence[str], seconds: float) -> ReplayResult:
        bench, wiring, served = self._bench, self.reference(), self._server_wiring()
        with_target = all(text.best is not None for text in bench.texts)
        return ReplayResult(
            captures=tuple(text.name for text in bench.texts),
            target=str(target),
            draft=str(draft),
            rows=self._scores[wiring].rows if wiring is not None else 0,
            steps=bench.steps,
            slots=bench.replayer.model.slots,
            judged_by="the target's own choice" if with_target else "the text's next token",
            switches=asdict(bench.trained),
            served_switches=asdict(bench.served),
            wirings=tuple(self._rows()),
            reference=keys_name(wiring) if wiring is not None else None,
            served=keys_name(served) if served is not None else None,
            as_served=self._as_served,
            search=self._search_info(),
            variants=tuple(self._variants),
            live=self._live,
            outside_vocabulary=self._outside(),
            findings=tuple(sorted(self.findings(), key=lambda f: (f.severity != "fault", -f.confidence))),
            notes=tuple(dict.fromkeys(notes)),
            seconds=seconds,
        )


def _share(one: WiringScore, step: int) -> float:
    at = one.steps[step]
    return at.token_top1 if at.target_top1 is None else at.target_top1


def variants_of(base: Switches, replayer: Replayer) -> Iterator[tuple[str, str, Switches]]:
    """Every switch that can be set otherwise with the weights at hand: name, value, all switches with it."""
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
    for shift in (-1, 1):
        yield "token_shift", str(shift), replace(base, token_shift=base.token_shift + shift)
    if base.embedding == OWN and replayer.config.hidden_size == replayer.config.slot_width:
        yield "embedding", TARGETS, replace(base, embedding=TARGETS)
