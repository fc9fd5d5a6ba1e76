"""Ids that stand some places off their states: a capture whose rows pair with other tokens than the draft was trained on.

Every row then reads the wrong token and is held against a wrong one, so that no wiring and no switch looks right, and
the right ones least of all. The ids are moved as a whole, with their mask, and everything is run again on what then fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.replay.prepare import Bench, likely_wirings, name_slots, plan_wirings, reordered
from drafttrace.compare.replay.ranking import FEWEST, confidence, significant
from drafttrace.compare.replay.score import ENOUGH, WiringScore, run_wirings, score
from drafttrace.compare.replay.search import Wiring
from drafttrace.compare.replay.texts import Text, text_of
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare

PLACES = (1, -1, 2, -2)
TIMES = 1.5
"""How many times the tokens that a draft names as the capture pairs them make another pairing the right one."""
_RESTORED = 0.3
"""Of the tokens that it can say, the share that it then names."""
_ROWS, _TEXTS, _ORDERS = 1024, 8, 24


def moved(capture: Capture, places: int) -> Capture:
    """The capture with its state of position t beside the token of position t + ``places``; the rows stay as they are.

    Places before the text hold its first token, and count for nothing. Tokens after the one that follows the last row go:
    more tokens than rows would look like a dump whose other rows a prefix cache held.
    """
    if places >= 0:
        mask = None if capture.mask is None else capture.mask[places:]
        tokens = capture.tokens[places:]
    else:
        before = np.repeat(capture.tokens[:1], -places)
        most = max(len(capture.table) + 1, len(capture.tokens))
        tokens = np.concatenate((before, capture.tokens))[:most]
        mask = (
            None
            if capture.mask is None
            else np.concatenate((np.zeros_like(capture.mask, shape=-places), capture.mask))[:most]
        )
    length, prompt = capture.valid_length, capture.prompt_length
    return replace(
        capture,
        tokens=tokens,
        mask=mask,
        valid_length=min(len(tokens), max(1, length - places)) if length else length,
        prompt_length=None if prompt is None else max(0, prompt - places),
    )


class Pairings:
    """Tries other pairings of tokens and rows, each with the wirings that somebody names, on a part of the texts."""

    def __init__(
        self, subject: Subject, bench: Bench, captures: Sequence[Capture], given: Sequence[Sequence[int]]
    ) -> None:
        """captures: as they were opened. given: the user's wirings."""
        self._subject, self._bench, self._given, self._captures = subject, bench, given, captures

    def best(self, found: Wiring, least: float, slots_are: Sequence[int] | None, orders: bool) -> int:
        """The places by which the ids have to be moved so that the draft works; 0 where no move makes it.

        found: the wiring that works best as the capture pairs them. least: the most that any wiring or switch gave so.
        orders: also try the file's slots in every order.
        """
        bench = self._bench
        asis = self._share(bench, self._texts(bench.captures), [found])
        if asis is None or asis[0] * TIMES >= 1.0:
            return 0
        shares: dict[int, tuple[float, int, float]] = {}
        for places in PLACES:
            try:
                captures = name_slots(self._subject, [moved(one, places) for one in self._captures], slots_are)
            except DrafttraceError:  # --slots-are fits the capture as it stands only
                continue
            texts = self._texts(captures)
            there = replace(bench, texts=tuple(texts), whole=tuple(texts), captures=tuple(captures))
            there_named = self._share(there, texts, [found, *self._named(there, orders)]) if texts else None
            if there_named is not None:
                shares[places] = there_named
        if not shares:
            return 0
        places = max(shares, key=lambda k: shares[k][0])
        share, rows, sayable = shares[places]
        before = max(asis[0], least)
        right = share >= TIMES * before and share >= _RESTORED * sayable
        return places if right and significant(share, before, rows) else 0

    def _texts(self, captures: Sequence[Capture]) -> list[Text]:
        found: list[Text] = []
        for text in islice(self._each(captures), _TEXTS):
            found.append(text)
            if sum(one.rows for one in found) >= _ROWS:
                break
        counted = sum(int(text.weight[text.mask_offset :][: text.rows].sum()) for text in found)
        return found if counted >= ENOUGH else [replace(t, weight=np.ones(len(t.tokens), bool)) for t in found]

    def _each(self, captures: Sequence[Capture]) -> Iterator[Text]:
        for capture in captures:
            try:
                yield text_of(capture, None, self._subject.target.layers, 2 * _ROWS)
            except NothingToCompare:  # a text that the move makes too short
                continue

    def _named(self, bench: Bench, orders: bool) -> list[Wiring]:
        slots = bench.replayer.model.slots
        named = list(plan_wirings(self._subject, bench, self._given))
        likely = [*likely_wirings(self._subject, slots), *reordered((bench.texts[0].file_wiring,), slots)]
        return [*named, *likely[:_ORDERS]] if orders else named

    def _share(
        self, bench: Bench, texts: Sequence[Text], wirings: Sequence[Wiring]
    ) -> tuple[float, int, float] | None:
        """Of the text's next tokens the most that a wiring names, over how many rows, and the share that can be said."""
        held = set.intersection(*(set(text.sources) for text in texts)) if texts else set()
        known = [wiring for wiring in dict.fromkeys(wirings) if set(wiring) <= held]
        if not known:
            return None
        replayer, switches = bench.replayer, bench.trained
        made = run_wirings(replayer, texts, known, switches, 1)
        tried = [score(replayer, texts, one, switches, 1) for one in made]
        best = max((one.steps[0] for one in tried), key=lambda step: np.nan_to_num(step.token_top1))
        return (best.token_top1, best.rows, best.coverage) if best.rows >= FEWEST else None


def moved_finding(places: int, before: WiringScore, after: WiringScore, last_fits: bool) -> Finding | None:
    """That the states belong to other tokens than stand beside them; None where it is not proven on all rows.

    before, after: the best wiring as the capture pairs them, and moved. last_fits: whether the capture's last state names
    the tokens as they stand.
    """
    one, two = before.steps[0], after.steps[0]
    if not significant(two.token_top1, one.token_top1, two.rows):
        return None
    count = "1 place" if abs(places) == 1 else f"{abs(places)} places"
    side = "after" if places > 0 else "before"
    what = "slots" if last_fits else "states"
    said = ", and the last state fits the ids as they stand, so the slots alone were moved" if last_fits else ""
    roll = f"numpy.roll(ids, {-places})"
    return fault(
        "token-shift",
        confidence(two.token_top1, one.token_top1, two.rows),
        f"The {what} of the capture belong to the tokens {count} {side} those that stand at their place: row t with "
        f"token t{places:+d} names {two.token_top1:.1%} of the text's tokens, as the capture pairs them "
        f"{one.token_top1:.1%}{said}. All else here is of the moved ids.",
        (
            f"Move the slots of the capture by {count}, so that a row holds the state of its own token"
            if last_fits
            else f"Move the token ids and the loss mask of the capture by {count} ({roll})"
        )
        + ", and look at what wrote it; a draft trained on it as it stands learns the wrong pairs.",
        {"places": places, "before": one.token_top1, "after": two.token_top1, "rows": two.rows},
    )
