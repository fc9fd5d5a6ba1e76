"""``drafttrace replay``: the draft by itself on stored hidden states, wiring by wiring and switch by switch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from drafttrace.compare.audit.gathering import gather
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.switch_checks import switch_remarks
from drafttrace.compare.replay.audited import audited_findings
from drafttrace.compare.replay.conclude import LIKELY, SEARCH, Measured
from drafttrace.compare.replay.findings import (
    variant_findings,
)
from drafttrace.compare.replay.live import LiveComparison, compare_live, draft_steps
from drafttrace.compare.replay.material import token_remarks
from drafttrace.compare.replay.moved_ids import Pairings, moved, moved_finding
from drafttrace.compare.replay.prepare import (
    Bench,
    likely_wirings,
    name_slots,
    open_bench,
    plan_wirings,
    reordered,
    undeclared,
    variants_of,
)
from drafttrace.compare.replay.products import threads
from drafttrace.compare.replay.ranking import Scored, order
from drafttrace.compare.replay.result import ReplayResult, VariantRow
from drafttrace.compare.replay.score import WiringScore, row_hits, row_losses, run_wirings, score
from drafttrace.compare.replay.search import Ranked, Wiring, search
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare

DEFAULT_STEPS, MOST_STEPS = 3, 16
_RESCORED = 5


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
    count = steps
    if count is None:  # 0 is a number that was asked for, and is refused
        count = max((draft_steps(capture) for capture in given), default=0) or DEFAULT_STEPS
    if not 1 <= count <= MOST_STEPS:
        raise DrafttraceError(
            f"--steps {count} is outside 1..{MOST_STEPS}; give the server's --speculative-num-steps."
        )
    subject, notes, _ = gather(target_dir, draft_dir, version=sglang_version)
    notes = [*notes, *switch_remarks(subject.draft)]
    asked = _Asked(wirings, search_wirings, switches, count, frozenset(ignore_switches), slots_are, progress)
    with torch.inference_mode(), threads(subject.draft.hidden_size):
        made = _run(subject, given, asked)
        made = _with_moved_ids(subject, given, asked, made)
        bench = made.bench
        for text in bench.texts:
            notes += [*text.notes, *token_remarks(text, bench.replayer.parts.vocabulary)]
        notes += undeclared(bench.captures)
    return made.measured().result(target_dir, draft_dir, notes, time.perf_counter() - began)


@dataclass(frozen=True)
class _Asked:
    """What the user asked for; see :func:`replay`."""

    wirings: Sequence[Sequence[int]]
    search: bool
    switches: bool
    steps: int
    ignore: frozenset[str]
    slots_are: Sequence[int] | None
    progress: Callable[[int], None] | None


def _run(subject: Subject, given: Sequence[Capture], asked: _Asked, live: LiveComparison | None = None) -> _Maker:
    """Everything that was asked for, on these captures. live: what their live draft was compared to before."""
    captures = name_slots(subject, given, asked.slots_are)
    bench = open_bench(subject, captures, asked.steps, asked.ignore, asked.search)
    for text in bench.texts:
        token_remarks(text, bench.replayer.parts.vocabulary)  # refuses a text of another vocabulary before any work
    plan = plan_wirings(subject, bench, asked.wirings)
    made = _Maker(subject, bench, plan, asked.progress, [slot.boundary for slot in given[0].slots])
    made.score_named()
    if asked.search:
        made.search()
    if asked.switches:
        made.try_switches()
    if live is None:
        made.compare_live()
    else:
        made.live = live
    return made


def _with_moved_ids(subject: Subject, given: Sequence[Capture], asked: _Asked, made: _Maker) -> _Maker:
    """What was made, or all of it anew where the draft works with the ids some places off their states, and not else."""
    found, before = made.reference(), made.best_score()
    if not asked.switches or found is None or before is None:
        return made
    pairings = Pairings(subject, made.bench, given, asked.wirings)
    places = pairings.best(found, made.most_named(), asked.slots_are, asked.search)
    if not places:
        return made
    again = _run(subject, [moved(capture, places) for capture in given], asked, made.live)
    after = again.best_score()
    last_fits = any(text.best is not None for text in made.bench.texts)
    again.moved = moved_finding(places, before, after, last_fits) if after is not None else None
    return again if again.moved is not None else made


class _Maker:
    """Runs wirings and switches, one after the other; what that means is said in ``conclude``."""

    def __init__(
        self,
        subject: Subject,
        bench: Bench,
        plan: dict[Wiring, list[str]],
        progress: Callable[[int], None] | None,
        declared: Sequence[int | None],
    ) -> None:
        self._subject, self.bench, self._plan, self._progress = subject, bench, plan, progress
        self._declared = declared
        held = set(bench.texts[0].sources)
        for text in bench.texts[1:]:
            held &= set(text.sources)
        self._held = held
        self._scored: dict[Wiring, Scored] = {}
        self._answer: WiringScore | None = None
        self._search: Ranked | None = None
        self._likely: list[Wiring] = []
        self._variants: list[VariantRow] = []
        self._causes: list[Finding] = []
        self._as_served: WiringScore | None = None
        self.live: LiveComparison | None = None
        self.moved: Finding | None = None

    def _available(self, wiring: Wiring) -> bool:
        return set(wiring) <= self._held

    def _score(self, wirings: Sequence[Wiring], switches: Switches, whole: bool = False) -> list[Scored]:
        """What wirings propose; ``whole``: over all rows, where the texts are cut to what a layer sweep covers."""
        bench = self.bench
        texts = bench.whole if whole else bench.texts
        found = []
        for guesses in run_wirings(bench.replayer, texts, wirings, switches, bench.steps):
            counts = score(bench.replayer, texts, guesses, switches, bench.steps)
            found.append(Scored(counts, row_losses(texts, guesses), row_hits(texts, guesses, bench.steps)))
        return found

    def _add(self, wirings: Iterable[Wiring]) -> None:
        fresh = [wiring for wiring in dict.fromkeys(wirings) if wiring not in self._scored]
        if fresh:
            self._scored |= zip(fresh, self._score(fresh, self.bench.trained), strict=True)

    def score_named(self) -> None:
        """The wirings that somebody names; what the server hands over also on the rows that a search leaves out."""
        self._add(wiring for wiring in self._plan if self._available(wiring))
        bench, served = self.bench, self._server_wiring()
        if served is None or not bench.cut or len(served) != bench.replayer.model.slots:
            return
        if all(set(served) <= set(text.sources) for text in bench.whole):
            self._answer = self._score([served], bench.trained, whole=True)[0].score

    def search(self) -> None:
        bench = self.bench
        keys = sorted(self._held, key=lambda key: (isinstance(key, str), key))
        slots = bench.replayer.model.slots
        if len(keys) < slots:
            return
        named = (bench.texts[0].file_wiring, self._subject.served.wiring, self._subject.readings[0].wiring)
        likely = dict.fromkeys((*likely_wirings(self._subject, slots), *reordered(named, slots)))
        self._likely = [w for w in likely if self._available(w)]
        seeds = [wiring for wiring in (*self._plan, *self._likely) if self._available(wiring)]
        self._search = search(bench.replayer, bench.texts, keys, slots, bench.trained, seeds, self._progress)
        self._add((*self._search.wirings[:_RESCORED], *self._likely))
        for wiring in self._search.wirings[:_RESCORED]:
            self._plan.setdefault(wiring, []).append(SEARCH)
        for wiring in self._likely:
            self._plan.setdefault(wiring, []).append(LIKELY)

    def reference(self) -> Wiring | None:
        """The wiring that works best."""
        return next(iter(self._order()), None)

    def best_score(self) -> WiringScore | None:
        """What the wiring that works best gives."""
        found = self.reference()
        return None if found is None else self._scored[found].score

    def most_named(self) -> float:
        """Of the text's next tokens the most that any wiring or switch named at the first step."""
        scores = [one.score for one in self._scored.values()] + [row.score for row in self._variants]
        return max((float(np.nan_to_num(one.steps[0].token_top1)) for one in scores), default=0.0)

    def _order(self) -> list[Wiring]:
        """Best first. What the server hands over keeps its place before what others name, and those before a guess."""
        served = self._server_wiring()
        named = [w for w, sources in self._plan.items() if not set(sources) <= {SEARCH, LIKELY}]
        return order(self._scored, [*([served] if served is not None else []), *named], self._likely)

    def try_switches(self) -> None:
        wiring = self.reference()
        if wiring is None:
            return
        base, bench = self._scored[wiring].score, self.bench
        self._variants += self._tried(wiring, base, self._variants_of(bench.trained))
        self._causes = self._causes_among(wiring)
        if bench.served != bench.trained:
            self._as_served = self._score([wiring], bench.served)[0].score

    def _variants_of(self, switches: Switches) -> Iterator[tuple[str, str, Switches]]:
        return variants_of(switches, self.bench.replayer, self._subject.target.rope_theta)

    def _tried(
        self, wiring: Wiring, base: WiringScore, variants: Iterable[tuple[str, str, Switches]]
    ) -> Iterator[VariantRow]:
        """What each variant gives, beside ``base``."""
        for name, value, changed in variants:
            score = self._score([wiring], changed)[0].score
            gains = [_share(score, s) - _share(base, s) for s in range(self.bench.steps)]
            step = int(np.argmax(np.abs(np.nan_to_num(gains))))
            yield VariantRow(name, value, score, step, float(gains[step]))

    def _causes_among(self, wiring: Wiring) -> list[Finding]:
        """Switches that should be set otherwise, the one that gains most first, and each other one only where it still
        gains with those set: much of what helps a draft with a fault only softens that fault."""
        base, switches, rows = self._scored[wiring].score, self.bench.trained, list(self._variants)
        dead = any(found.evidence.get("zero") for found in self._audited())
        causes: list[Finding] = []
        while named := list(variant_findings(rows, base, self.bench.served, dead=dead)):
            best = max(named, key=lambda f: f.evidence["after"] - f.evidence["before"])
            causes.append(best)
            took = (best.evidence["switch"], best.evidence["value"])
            left = {f.evidence["switch"] for f in named} - {took[0]}
            if not left:
                break
            base = next(row.score for row in rows if (row.switch, row.value) == took)
            variants = list(self._variants_of(switches))
            switches = next(changed for name, value, changed in variants if (name, value) == took)
            again = [one for one in self._variants_of(switches) if one[0] in left]
            rows = list(self._tried(wiring, base, again))
        return causes

    def _audited(self) -> list[Finding]:
        """What the audit says of config and weights."""
        return list(
            audited_findings(
                self._subject,
                self.bench.replayer,
                next((v for v in self._variants if v.switch == "rope"), None),
                running=self.bench.captures[0].draft is not None,
            )
        )

    def compare_live(self) -> None:
        bench = self.bench
        text, capture = bench.live_text, bench.captures[0]
        if capture.draft is not None:
            self.live = compare_live(bench.replayer, capture, text, text.file_wiring, bench.served)

    def _server_wiring(self) -> Wiring | None:
        """What the server hands over: a trace's own slots, else what it would make of the config."""
        if self.bench.captures[0].draft is not None:
            return self.bench.texts[0].file_wiring
        return self._subject.served.wiring

    def measured(self) -> Measured:
        """What was run, for the conclusion."""
        return Measured(
            subject=self._subject,
            bench=self.bench,
            plan=self._plan,
            declared=self._declared,
            held=frozenset(self._held),
            scored=self._scored,
            ranked=self._order(),
            served=self._server_wiring(),
            answer=self._answer,
            search=self._search,
            variants=self._variants,
            causes=self._causes,
            as_served=self._as_served,
            audited=self._audited(),
            live=self.live,
            moved=self.moved,
        )


def _share(one: WiringScore, step: int) -> float:
    at = one.steps[step]
    return at.token_top1 if at.target_top1 is None else at.target_top1
