"""The replay as blocks: verdict and causes first, then wirings, steps, switches and the live comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from drafttrace.compare.document import (
    Block,
    Causes,
    Grid,
    Head,
    Lines,
    join,
    percent,
    plain,
    to_markdown,
    to_terminal,
)
from drafttrace.compare.replay.live import LiveComparison
from drafttrace.compare.replay.result import ReplayResult, SearchInfo
from drafttrace.compare.replay.score import WiringScore

if TYPE_CHECKING:
    from rich.console import Console

_VERDICTS = {
    "match": ("NOTHING BETTER FOUND", "bold green"),
    "mismatch": ("PROBLEM FOUND", "bold red"),
    "incomparable": ("NOTHING REPLAYED", "bold magenta"),
}
_LONE = ("NO FAULT FOUND, ONE WIRING TRIED", "bold green")
"""Of a single wiring nobody can say that it is the best."""


def terminal(result: ReplayResult, console: Console) -> None:
    """Print the replay."""
    to_terminal(blocks(result), console)


def markdown(result: ReplayResult) -> str:
    """The replay as Markdown."""
    return to_markdown(blocks(result))


def blocks(result: ReplayResult) -> Iterator[Block]:
    """The replay's pieces, in order."""
    lone = result.verdict == "match" and result.scored == 1
    yield Head(*(_LONE if lone else _VERDICTS[result.verdict]), result.summary)
    if result.findings:
        yield Causes(result.findings)
    yield _wirings(result)
    if result.best is not None and result.best.score is not None:
        yield _steps(result.best.wiring, result.best.score)
    if result.variants:
        yield _switches(result)
    if result.live is not None:
        yield _live(result.live)
    yield Lines("", tuple(_remarks(result)))


def _wirings(result: ReplayResult) -> Grid:
    rows = []
    for row in result.wirings:
        score = row.score
        if score is None:
            rows.append(
                (
                    row.wiring,
                    ", ".join(row.sources),
                    "–",
                    "–",
                    "–",
                    "–",
                    "not in the capture: " + ", ".join(row.missing),
                )
            )
            continue
        first = score.steps[0]
        rows.append(
            (
                row.wiring,
                ", ".join(row.sources),
                percent(first.token_top1),
                percent(first.target_top1),
                plain(score.expected),
                plain(score.simulated),
                "" if row.wiring != result.served else "what the server hands over",
            )
        )
    short = f", {result.absent_tokens} tokens short: lengths compare wirings only" if result.absent_tokens else ""
    return Grid(
        f"Wirings, by agreement with {result.judged_by} at the first step{short}",
        ("wiring", "named by", "text", "target", "expected length", "chain length", ""),
        tuple(rows),
        right=frozenset({2, 3, 4, 5}),
        bold=frozenset({0}) if result.best is not None else frozenset(),
    )


def _steps(name: str, score: WiringScore) -> Grid:
    rows = tuple(
        (
            str(step.step + 1),
            str(step.rows),
            percent(step.token_top1),
            percent(step.token_top3),
            percent(step.token_covered),
            percent(step.target_top1),
            percent(step.all_token_top1),
            percent(step.accepted),
            percent(1 - step.coverage),
        )
        for step in score.steps
    )
    return Grid(
        f"Steps of {name}",
        (
            "step",
            "rows",
            "text top-1",
            "top-3",
            "if sayable",
            "target top-1",
            "all rows",
            "after a hit",
            "not sayable",
        ),
        rows,
        right=frozenset(range(9)),
    )


def _switches(result: ReplayResult) -> Grid:
    rows = tuple(
        (v.switch, v.value, str(v.step + 1), f"{v.gain:+.1%}", plain(v.score.expected)) for v in result.variants
    )
    return Grid(
        "Switches set otherwise",
        ("switch", "value", "step", "change of top-1", "expected length"),
        rows,
        right=frozenset({2, 3, 4}),
        bold=frozenset(i for i, v in enumerate(result.variants) if v.gain > 0.02),
    )


def _live(live: LiveComparison) -> Grid:
    rows = tuple(
        (
            str(stage.step + 1),
            stage.tensor,
            str(stage.rows),
            "–" if stage.cosine_p50 is None else str(len(stage.apart or ())),
            plain(stage.cosine_p50, 5),
            plain(stage.cosine_min, 5),
            plain(stage.rel_l2_p50, 4),
            plain(stage.norm_ratio_p50, 4),
            percent(stage.equal_top1),
            percent(stage.tied_top1),
        )
        for stage in live.stages
    )
    return Grid(
        f"Live against replay, both in {live.number_format}",
        (
            "step",
            "what",
            "rows",
            "apart",
            "cosine p50",
            "cosine min",
            "rel L2",
            "norm ratio",
            "equal first choice",
            "or tied",
        ),
        rows,
        right=frozenset({0, 2, 3, 4, 5, 6, 7, 8, 9}),
        bold=frozenset(i for i, stage in enumerate(live.stages) if stage.parted),
    )


def _against_runner_up(found: SearchInfo) -> str:
    """How the next wiring stands to the first. The first may have the lower numbers: see ``ranking``."""
    if found.runner_up is None:
        return ""
    points, nats = found.margin, found.nll_margin
    if points >= 0 and nats >= 0:
        return f", {points:.1%} and {nats:.2f} nats before {found.runner_up}"
    said = []
    if math.isfinite(points):
        more = "as many" if points == 0 else f"{abs(points):.1%} {'fewer' if points > 0 else 'more'}"
        said.append(f"{more} right proposals at the first step")
    if math.isfinite(nats):
        said.append(f"a loss {abs(nats):.2f} nats {'higher' if nats >= 0 else 'lower'}")
    why = "; a lower loss alone takes no place from a wiring that is named or likely" if points == 0 else ""
    return f"; next is {found.runner_up} with {' and '.join(said)}{why}" if said else f"; next is {found.runner_up}"


def _remarks(result: ReplayResult) -> Iterator[str]:
    yield f"{result.rows} rows of {join(result.captures, 3)}, {result.steps} steps, {result.seconds:.1f} s"
    changed = [
        f"{name} {result.switches[name]} (server: {result.served_switches[name]})"
        for name in result.switches
        if result.switches[name] != result.served_switches[name]
    ]
    if changed:
        yield "as trained, not as served: " + ", ".join(changed)
    if result.search is not None:
        found = result.search
        yield (
            f"search ({found.method}): {found.tried} of {found.possible} ordered wirings tried, best {found.winner}"
            f"{_against_runner_up(found)}"
        )
        best = result.best.score.top1 if result.best is not None and result.best.score is not None else 0.0
        ahead = [row.wiring for row in result.wirings if row.score is not None and row.score.top1 > best]
        if ahead:
            yield (
                f"{found.winner} stands before {join(ahead, 3)}: a wiring that somebody named, or that a usual mistake "
                "makes of the config, keeps its place as long as chance explains the difference"
            )
        if found.undecided:
            yield f"these rows cannot tell {found.winner} from {join(found.undecided, 4)}: record or dump more text"
    if result.live is not None and result.live.stages and result.live.parted is None:
        part = " wherever it could be compared" if result.live.lacking else ""
        yield f"the live draft computes what the replay computes{part}"
    if result.live is not None and result.live.observed is not None:
        yield (
            f"observed accept length {result.live.observed:.2f} over {len(result.live.accept_lengths)} rounds of "
            f"{result.live.steps} draft steps{'; which one to expect is not known' if result.absent_tokens else ''}"
        )
    yield from result.notes
