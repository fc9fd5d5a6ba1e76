"""What the runs of a replay add up to: the rows of the table, the findings, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.replay.absent import absent_before, absent_findings
from drafttrace.compare.replay.findings import (
    coverage_findings,
    last_findings,
    served_switch_findings,
    served_useless_findings,
    under_right_map,
    unproven_findings,
    useless_findings,
    wiring_findings,
)
from drafttrace.compare.replay.live import LiveComparison
from drafttrace.compare.replay.live_findings import agreement_finding, contradiction_finding, live_findings
from drafttrace.compare.replay.material import broken_findings
from drafttrace.compare.replay.order_findings import known_slot_findings, order_findings
from drafttrace.compare.replay.prepare import Bench, another_wiring
from drafttrace.compare.replay.ranking import Scored, alike, works
from drafttrace.compare.replay.result import ReplayResult, SearchInfo, VariantRow, WiringRow
from drafttrace.compare.replay.score import WiringScore
from drafttrace.compare.replay.search import Ranked, Wiring
from drafttrace.compare.replay.texts import Text, key_name, keys_name
from drafttrace.compare.result import FAULT, Finding

SEARCH, LIKELY = "search", "a usual mistake"
_SHOWN = 0.7


@dataclass(frozen=True)
class Measured:
    """Everything that was run, and nothing of what it means.

    plan: who names each wiring. declared: the boundaries of the first capture's slots. held: the states that every text
    has. scored: what each wiring that was run gives; ranked: those, best first. served: what the server hands over; answer:
    what that gives over all rows, where the texts are cut to what a layer sweep covers. variants: the best wiring with one
    switch the other way round; causes: those that should be. as_served: the best wiring with the switches as the server
    reads them. audited: what config and weights say. live: the trace's draft beside the replay. moved: that all
    of this is of ids at other places than the captures have them.
    """

    subject: Subject
    bench: Bench
    plan: Mapping[Wiring, Sequence[str]]
    declared: Sequence[int | None]
    held: frozenset[int | str]
    scored: Mapping[Wiring, Scored]
    ranked: Sequence[Wiring]
    served: Wiring | None
    answer: WiringScore | None
    search: Ranked | None
    variants: Sequence[VariantRow]
    causes: Sequence[Finding]
    as_served: WiringScore | None
    audited: Sequence[Finding]
    live: LiveComparison | None
    moved: Finding | None = None

    @property
    def reference(self) -> Wiring | None:
        """The wiring that works best."""
        return next(iter(self.ranked), None)

    def _changed(self) -> list[str]:
        one, two = asdict(self.bench.trained), asdict(self.bench.served)
        return [name for name in one if one[name] != two[name]]

    def findings(self) -> list[Finding]:
        """All of them, faults first; that the draft is no good at all only where nothing says why, and that live and
        replay agree only where nothing at all was found and their accept lengths are alike."""
        found = list({(one.id, one.summary): one for one in self._named()}.values())
        if not any(finding.severity == FAULT for finding in found):
            found += self._unexplained()
        if not found and self.reference is not None:
            found += agreement_finding(self._all_replayed(), self._chain())
        return sorted(found, key=lambda f: (f.severity != FAULT, -f.confidence))

    def _unexplained(self) -> list[Finding]:
        """What no other finding explains. A draft that the server got along with is not called useless."""
        wiring, served = self.reference, self.served
        if wiring is None or self._absent() or (self.as_served is not None and works(self.as_served)):
            return []
        found = list(
            contradiction_finding(self._all_replayed(), self._chain(), self._changed(), bool(self.variants))
        )
        if found:
            return found
        best, theirs = self.scored[wiring].score, self.scored.get(served) if served is not None else None
        found += useless_findings(wiring, best, self.search.tried if self.search is not None else 0)
        if not found and served is not None and theirs is not None:
            found += served_useless_findings(served, self.answer or theirs.score, wiring, best)
        asked, sweep = self.subject.served.wiring, self.bench.captures[0].boundaries
        if not found and served is not None and theirs is not None and asked not in self.scored:
            score, swept = self.answer or theirs.score, asked is not None and set(asked) <= set(sweep)
            found += unproven_findings(served, score, asked, swept)
        return found

    def _absent_before(self, text: Text) -> int:
        return absent_before(text, self.bench.trained, self.bench.replayer.config.layers)

    def _absent(self) -> int:
        """Tokens that the counted rows would attend to and the replay has no keys of: lengths are not the draft's own."""
        return max(self._absent_before(text) for text in (*self.bench.texts, *self.bench.whole))

    def _all_replayed(self) -> LiveComparison | None:
        """The live comparison where the replayed text is all that was served, so that their accept lengths compare."""
        return None if self.bench.live_text.left_out else self.live

    def _chain(self) -> float:
        """Accept length of the replay's own chain with the slots that the server handed over; NaN where not known.

        Over all rows of the text: the rows that a search is about may be those of the prompt alone.
        """
        known = self.scored.get(self.bench.texts[0].file_wiring)
        whole = self.answer if self.bench.cut else known.score if known is not None else None
        return whole.simulated if whole is not None else float("nan")

    def _named(self) -> Iterator[Finding]:
        wiring, served = self.reference, self.served
        yield from broken_findings(self.bench.whole, [key for w in self.scored for key in w])
        if self.moved is not None:
            yield self.moved
        yield from self.audited
        if wiring is None:
            return
        best = self.scored[wiring].score
        yield from self._wirings(wiring, served)
        yield from self.causes
        yield from served_switch_findings(best, self.as_served, self._changed())
        yield from last_findings(self.bench.captures, self.subject.target.layers)
        mapped = self._rightly_mapped()
        yield from coverage_findings(self._outside(), best if mapped is None else mapped)
        yield from live_findings(self.live)
        for text in self.bench.whole:
            own = self.live if text is self.bench.live_text else None
            yield from absent_findings(text, own, self._absent_before(text))

    def _wirings(self, wiring: Wiring, served: Wiring | None) -> Iterator[Finding]:
        """The winner against what is served; where that says nothing, against the order of the file's own slots."""
        first, undecided, told = self.scored[wiring], self._undecided(), False
        own = self.bench.texts[0].file_wiring
        alone = all(text.file_wiring == own for text in self.bench.texts) and len(own) == len(wiring)
        unmeasured = served is not None and served not in self.scored and set(own) == set(wiring)
        if served is not None and not (alone and unmeasured and own != wiring):
            others = [w for w in undecided if w != served]
            for found in wiring_findings(self.subject, (wiring, first), (served, self.scored.get(served)), others):
                told = True
                yield found
        if not told and self.bench.captures[0].draft is None:
            yield from known_slot_findings(self.subject, wiring, first, served)
        if not told and alone:
            others = [w for w in undecided if w != own]
            yield from order_findings(
                self.subject, (wiring, first), (own, self.scored.get(own)), self.declared, others
            )

    def _outside(self) -> float:
        """Share of the counted next tokens that the draft can never say, by the map as the findings say it is meant.

        NaN where nothing maps a pruned vocabulary: what it holds is then not known.
        """
        mapped, replayer = self._rightly_mapped(), self.bench.replayer
        unmapped = replayer.d2t is None and replayer.draft_vocabulary < replayer.parts.vocabulary
        return float("nan") if mapped is None or unmapped else 1.0 - mapped.steps[0].coverage

    def _rightly_mapped(self) -> WiringScore | None:
        """What the best wiring gives with the vocabulary map read as the findings say that it is meant."""
        wiring = self.reference
        if wiring is None:
            return None
        best = self.scored[wiring].score
        return under_right_map(self.causes, self.variants, best)

    def _undecided(self) -> list[Wiring]:
        """Wirings that these rows cannot tell from the one that stands first."""
        ranked = self.ranked
        return [w for w in ranked[1:] if alike(self.scored[ranked[0]], self.scored[w])]

    def _rows(self) -> Iterator[WiringRow]:
        reference = self.reference
        best = self.scored[reference].score.top1 if reference is not None else 0.0
        for place, wiring in enumerate(self.ranked):
            counts = self.scored[wiring].score
            if place and set(self.plan[wiring]) == {LIKELY} and counts.top1 < _SHOWN * best:
                continue
            yield WiringRow(keys_name(wiring), tuple(self.plan[wiring]), counts)
        for wiring, sources in self.plan.items():
            if wiring not in self.scored:
                missing = tuple(key_name(key) for key in wiring if key not in self.held)
                yield WiringRow(keys_name(wiring), tuple(sources), None, missing)

    def _search_info(self) -> SearchInfo | None:
        if self.search is None:
            return None
        ranked = self.ranked
        if not ranked:
            return None
        scores = [self.scored[w].score for w in ranked[:2]]
        margin = scores[0].top1 - scores[1].top1 if len(scores) > 1 else float("nan")
        nll_margin = scores[1].loss - scores[0].loss if len(scores) > 1 else float("nan")
        return SearchInfo(
            method=self.search.method,
            tried=self.search.tried,
            possible=self.search.possible,
            winner=keys_name(ranked[0]),
            runner_up=keys_name(ranked[1]) if len(ranked) > 1 else None,
            margin=margin,
            nll_margin=nll_margin,
            undecided=tuple(keys_name(w) for w in self._undecided()),
        )

    def result(self, target: Path, draft: Path, notes: Sequence[str], seconds: float) -> ReplayResult:
        bench, wiring, served = self.bench, self.reference, self.served
        with_target = all(text.best is not None for text in bench.texts)
        return ReplayResult(
            captures=tuple(text.name for text in bench.texts),
            target=str(target),
            draft=str(draft),
            rows=self.scored[wiring].score.rows if wiring is not None else 0,
            steps=bench.steps,
            slots=bench.replayer.model.slots,
            judged_by="the target's own choice" if with_target else "the text's next token",
            switches=asdict(bench.trained),
            served_switches=asdict(bench.served),
            wirings=tuple(self._rows()),
            reference=keys_name(wiring) if wiring is not None else None,
            served=keys_name(served) if served is not None else None,
            another=another_wiring(self.subject, bench.replayer.model.slots, self.held, self.scored),
            as_served=self.as_served,
            search=self._search_info(),
            variants=tuple(self.variants),
            live=self.live,
            outside_vocabulary=self._outside(),
            findings=tuple(self.findings()),
            notes=tuple(dict.fromkeys(notes)),
            seconds=seconds,
            absent_tokens=self._absent(),
            uncounted=sum(text.rows for text in bench.texts) if wiring is None and self.scored else 0,
        )
