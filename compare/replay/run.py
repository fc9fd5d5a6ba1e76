"""``drafttrace replay``: the draft by itself on stored hidden states, wiring by wiring and switch by switch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from drafttrace.compare.audit.gathering import gather
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.switch_checks import switch_remarks
from drafttrace.compare.replay.absent import absent_before, absent_findings
from drafttrace.compare.replay.audited import audited_findings
from drafttrace.compare.replay.findings import (
    coverage_findings,
    last_findings,
    served_switch_findings,
    served_useless_findings,
    under_right_map,
    unproven_findings,
    useless_findings,
    variant_findings,
    wiring_findings,
)
from drafttrace.compare.replay.live import LiveComparison, compare_live, draft_steps
from drafttrace.compare.replay.live_findings import agreement_finding, contradiction_finding, live_findings
from drafttrace.compare.replay.material import broken_findings, token_remarks
from drafttrace.compare.replay.order_findings import order_findings
from drafttrace.compare.replay.prepare import (
    Bench,
    another_wiring,
    likely_wirings,
    name_slots,
    open_bench,
    plan_wirings,
    reordered,
    undeclared,
    variants_of,
)
from drafttrace.compare.replay.products import threads
from drafttrace.compare.replay.ranking import Scored, alike, order, works
from drafttrace.compare.replay.result import ReplayResult, SearchInfo, VariantRow, WiringRow
from drafttrace.compare.replay.score import WiringScore, row_hits, row_losses, run_wirings, score
from drafttrace.compare.replay.search import Ranked, Wiring, search
from drafttrace.compare.replay.switches import Switches
from drafttrace.compare.replay.texts import Text, key_name, keys_name
from drafttrace.compare.result import FAULT, Finding
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare

DEFAULT_STEPS, MOST_STEPS = 3, 16
_RESCORED = 5
_SHOWN = 0.7
SEARCH, LIKELY = "search", "a usual mistake"


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
    with torch.inference_mode(), threads(subject.draft.hidden_size):
        bench = open_bench(subject, name_slots(subject, given, slots_are), count, ignore_switches, search_wirings)
        for text in bench.texts:
            notes += [*text.notes, *token_remarks(text, bench.replayer.parts.vocabulary)]
        notes += undeclared(bench.captures)
        plan = plan_wirings(subject, bench, wirings)
        made = _Maker(subject, bench, plan, progress, [slot.boundary for slot in given[0].slots])
        made.score_named()
        if search_wirings:
            made.search()
        if switches:
            made.try_switches()
        made.compare_live()
    return made.result(target_dir, draft_dir, notes, time.perf_counter() - began)


class _Maker:
    """Fills a result step by step."""

    def __init__(
        self,
        subject: Subject,
        bench: Bench,
        plan: dict[Wiring, list[str]],
        progress: Callable[[int], None] | None,
        declared: Sequence[int | None],
    ) -> None:
        self._subject, self._bench, self._plan, self._progress = subject, bench, plan, progress
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
        self._live: LiveComparison | None = None

    def _available(self, wiring: Wiring) -> bool:
        return set(wiring) <= self._held

    def _score(self, wirings: Sequence[Wiring], switches: Switches, whole: bool = False) -> list[Scored]:
        """What wirings propose; ``whole``: over all rows, where the texts are cut to what a layer sweep covers."""
        bench = self._bench
        texts = bench.whole if whole else bench.texts
        found = []
        for guesses in run_wirings(bench.replayer, texts, wirings, switches, bench.steps):
            counts = score(bench.replayer, texts, guesses, switches, bench.steps)
            found.append(Scored(counts, row_losses(texts, guesses), row_hits(texts, guesses, bench.steps)))
        return found

    def _add(self, wirings: Iterable[Wiring]) -> None:
        fresh = [wiring for wiring in dict.fromkeys(wirings) if wiring not in self._scored]
        if fresh:
            self._scored |= zip(fresh, self._score(fresh, self._bench.trained), strict=True)

    def score_named(self) -> None:
        """The wirings that somebody names; what the server hands over also on the rows that a search leaves out."""
        self._add(wiring for wiring in self._plan if self._available(wiring))
        bench, served = self._bench, self._server_wiring()
        if served is None or not bench.cut or len(served) != bench.replayer.model.slots:
            return
        if all(set(served) <= set(text.sources) for text in bench.whole):
            self._answer = self._score([served], bench.trained, whole=True)[0].score

    def search(self) -> None:
        bench = self._bench
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

    def _order(self) -> list[Wiring]:
        """Best first. What the server hands over keeps its place before what others name, and those before a guess."""
        served = self._server_wiring()
        named = [w for w, sources in self._plan.items() if not set(sources) <= {SEARCH, LIKELY}]
        return order(self._scored, [*([served] if served is not None else []), *named], self._likely)

    def try_switches(self) -> None:
        wiring = self.reference()
        if wiring is None:
            return
        base, bench = self._scored[wiring].score, self._bench
        self._variants += self._tried(wiring, base, variants_of(bench.trained, bench.replayer))
        self._causes = self._causes_among(wiring)
        if bench.served != bench.trained:
            self._as_served = self._score([wiring], bench.served)[0].score

    def _tried(
        self, wiring: Wiring, base: WiringScore, variants: Iterable[tuple[str, str, Switches]]
    ) -> Iterator[VariantRow]:
        """What each variant gives, beside ``base``."""
        for name, value, changed in variants:
            score = self._score([wiring], changed)[0].score
            gains = [_share(score, s) - _share(base, s) for s in range(self._bench.steps)]
            step = int(np.argmax(np.abs(np.nan_to_num(gains))))
            yield VariantRow(name, value, score, step, float(gains[step]))

    def _causes_among(self, wiring: Wiring) -> list[Finding]:
        """Switches that should be set otherwise, the one that gains most first, and each other one only where it still
        gains with those set: much of what helps a draft with a fault only softens that fault."""
        base, switches, rows = self._scored[wiring].score, self._bench.trained, list(self._variants)
        dead = any(found.evidence.get("zero") for found in self._audited())
        causes: list[Finding] = []
        while named := list(variant_findings(rows, base, self._bench.served, dead=dead)):
            best = max(named, key=lambda f: f.evidence["after"] - f.evidence["before"])
            causes.append(best)
            took = (best.evidence["switch"], best.evidence["value"])
            left = {f.evidence["switch"] for f in named} - {took[0]}
            if not left:
                break
            base = next(row.score for row in rows if (row.switch, row.value) == took)
            variants = list(variants_of(switches, self._bench.replayer))
            switches = next(changed for name, value, changed in variants if (name, value) == took)
            again = [one for one in variants_of(switches, self._bench.replayer) if one[0] in left]
            rows = list(self._tried(wiring, base, again))
        return causes

    def _audited(self) -> list[Finding]:
        """What the audit says of config and weights."""
        return list(
            audited_findings(
                self._subject,
                self._bench.replayer,
                next((v for v in self._variants if v.switch == "rope"), None),
                running=self._bench.captures[0].draft is not None,
            )
        )

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

    def findings(self) -> list[Finding]:
        """All of them, faults first; that the draft is no good at all only where nothing says why, and that live and
        replay agree only where nothing at all was found and their accept lengths are alike."""
        found = list({(one.id, one.summary): one for one in self._named()}.values())
        if not any(finding.severity == FAULT for finding in found):
            found += self._unexplained()
        if not found and self.reference() is not None:
            found += agreement_finding(self._all_replayed(), self._chain())
        return sorted(found, key=lambda f: (f.severity != FAULT, -f.confidence))

    def _unexplained(self) -> list[Finding]:
        """What no other finding explains. A draft that the server got along with is not called useless."""
        wiring, served = self.reference(), self._server_wiring()
        if wiring is None or self._absent() or (self._as_served is not None and works(self._as_served)):
            return []
        found = list(
            contradiction_finding(self._all_replayed(), self._chain(), self._changed(), bool(self._variants))
        )
        if found:
            return found
        best, theirs = self._scored[wiring].score, self._scored.get(served) if served is not None else None
        found += useless_findings(wiring, best, self._search.tried if self._search is not None else 0)
        if not found and served is not None and theirs is not None:
            found += served_useless_findings(served, self._answer or theirs.score, wiring, best)
        asked, sweep = self._subject.served.wiring, self._bench.captures[0].boundaries
        if not found and served is not None and theirs is not None and asked not in self._scored:
            score, swept = self._answer or theirs.score, asked is not None and set(asked) <= set(sweep)
            found += unproven_findings(served, score, asked, swept)
        return found

    def _absent_before(self, text: Text) -> int:
        return absent_before(text, self._bench.trained, self._bench.replayer.config.layers)

    def _absent(self) -> int:
        """Tokens that the counted rows would attend to and the replay has no keys of: lengths are not the draft's own."""
        return max(self._absent_before(text) for text in (*self._bench.texts, *self._bench.whole))

    def _all_replayed(self) -> LiveComparison | None:
        """The live comparison where the replayed text is all that was served, so that their accept lengths compare."""
        return None if self._bench.live_text.left_out else self._live

    def _chain(self) -> float:
        """Accept length of the replay's own chain with the slots that the server handed over; NaN where not known.

        Over all rows of the text: the rows that a search is about may be those of the prompt alone.
        """
        known = self._scored.get(self._bench.texts[0].file_wiring)
        whole = self._answer if self._bench.cut else known.score if known is not None else None
        return whole.simulated if whole is not None else float("nan")

    def _named(self) -> Iterator[Finding]:
        wiring, served = self.reference(), self._server_wiring()
        yield from broken_findings(self._bench.whole, [key for w in self._scored for key in w])
        yield from self._audited()
        if wiring is None:
            return
        best = self._scored[wiring].score
        yield from self._wirings(wiring, served)
        yield from self._causes
        yield from served_switch_findings(best, self._as_served, self._changed())
        yield from last_findings(self._bench.captures, self._subject.target.layers)
        mapped = self._rightly_mapped()
        yield from coverage_findings(self._outside(), best if mapped is None else mapped)
        yield from live_findings(self._live)
        for text in self._bench.whole:
            own = self._live if text is self._bench.live_text else None
            yield from absent_findings(text, own, self._absent_before(text))

    def _wirings(self, wiring: Wiring, served: Wiring | None) -> Iterator[Finding]:
        """The winner against what is served; where that says nothing, against the order of the file's own slots."""
        first, undecided, told = self._scored[wiring], self._undecided(), False
        own = self._bench.texts[0].file_wiring
        alone = all(text.file_wiring == own for text in self._bench.texts) and len(own) == len(wiring)
        unmeasured = served is not None and served not in self._scored and set(own) == set(wiring)
        if served is not None and not (alone and unmeasured and own != wiring):
            others = [w for w in undecided if w != served]
            for found in wiring_findings(
                self._subject, (wiring, first), (served, self._scored.get(served)), others
            ):
                told = True
                yield found
        if not told and alone:
            others = [w for w in undecided if w != own]
            yield from order_findings(
                self._subject, (wiring, first), (own, self._scored.get(own)), self._declared, others
            )

    def _outside(self) -> float:
        """Share of the counted next tokens that the draft can never say, by the map as the findings say it is meant.

        NaN where nothing maps a pruned vocabulary: what it holds is then not known.
        """
        mapped, replayer = self._rightly_mapped(), self._bench.replayer
        unmapped = replayer.d2t is None and replayer.draft_vocabulary < replayer.parts.vocabulary
        return float("nan") if mapped is None or unmapped else 1.0 - mapped.steps[0].coverage

    def _rightly_mapped(self) -> WiringScore | None:
        """What the best wiring gives with the vocabulary map read as the findings say that it is meant."""
        wiring = self.reference()
        if wiring is None:
            return None
        best = self._scored[wiring].score
        return under_right_map(self._causes, self._variants, best)

    def _undecided(self) -> list[Wiring]:
        """Wirings that these rows cannot tell from the one that stands first."""
        ranked = self._order()
        return [w for w in ranked[1:] if alike(self._scored[ranked[0]], self._scored[w])]

    def _rows(self) -> Iterator[WiringRow]:
        reference = self.reference()
        best = self._scored[reference].score.top1 if reference is not None else 0.0
        for place, wiring in enumerate(self._order()):
            counts = self._scored[wiring].score
            if place and set(self._plan[wiring]) == {LIKELY} and counts.top1 < _SHOWN * best:
                continue
            yield WiringRow(keys_name(wiring), tuple(self._plan[wiring]), counts)
        for wiring, sources in self._plan.items():
            if wiring not in self._scored:
                missing = tuple(key_name(key) for key in wiring if key not in self._held)
                yield WiringRow(keys_name(wiring), tuple(sources), None, missing)

    def _search_info(self) -> SearchInfo | None:
        if self._search is None:
            return None
        ranked = self._order()
        if not ranked:
            return None
        scores = [self._scored[w].score for w in ranked[:2]]
        margin = scores[0].top1 - scores[1].top1 if len(scores) > 1 else float("nan")
        nll_margin = scores[1].loss - scores[0].loss if len(scores) > 1 else float("nan")
        return SearchInfo(
            method=self._search.method,
            tried=self._search.tried,
            possible=self._search.possible,
            winner=keys_name(ranked[0]),
            runner_up=keys_name(ranked[1]) if len(ranked) > 1 else None,
            margin=margin,
            nll_margin=nll_margin,
            undecided=tuple(keys_name(w) for w in self._undecided()),
        )

    def result(self, target: Path, draft: Path, notes: Sequence[str], seconds: float) -> ReplayResult:
        bench, wiring, served = self._bench, self.reference(), self._server_wiring()
        with_target = all(text.best is not None for text in bench.texts)
        return ReplayResult(
            captures=tuple(text.name for text in bench.texts),
            target=str(target),
            draft=str(draft),
            rows=self._scored[wiring].score.rows if wiring is not None else 0,
            steps=bench.steps,
            slots=bench.replayer.model.slots,
            judged_by="the target's own choice" if with_target else "the text's next token",
            switches=asdict(bench.trained),
            served_switches=asdict(bench.served),
            wirings=tuple(self._rows()),
            reference=keys_name(wiring) if wiring is not None else None,
            served=keys_name(served) if served is not None else None,
            another=another_wiring(self._subject, bench.replayer.model.slots, self._held, self._scored),
            as_served=self._as_served,
            search=self._search_info(),
            variants=tuple(self._variants),
            live=self._live,
            outside_vocabulary=self._outside(),
            findings=tuple(self.findings()),
            notes=tuple(dict.fromkeys(notes)),
            seconds=seconds,
            absent_tokens=self._absent(),
        )


def _share(one: WiringScore, step: int) -> float:
    at = one.steps[step]
    return at.token_top1 if at.target_top1 is None else at.target_top1
