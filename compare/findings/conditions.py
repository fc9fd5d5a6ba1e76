"""G, H, I: the same request under other conditions - ranks, a warm cache, graphs, or simply later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.findings.graphs import PHASES, graph_phases
from drafttrace.compare.findings.positions import placed
from drafttrace.compare.findings.rows import placeholder_span
from drafttrace.compare.ranks import Divergence
from drafttrace.compare.result import Finding
from drafttrace.compare.vocabulary import Entry, register
from drafttrace.tracer.capture import Capture

register(
    Entry(
        id="rank-divergence",
        kind="ranks",
        rank=220,
        listed=10,
        what="Ranks hold different values of a tensor that should be the same on all.",
        signature="The row hashes of the ranks differ.",
        remedy="Compare with --tp-size 1; look for an operation that runs on one rank only.",
        cases=("vllm#50158", "sglang#31071"),
    ),
    Entry(
        id="partial-sum",
        kind="ranks",
        rank=200,
        listed=20,
        what="A rank's slot holds only its part of a sum.",
        signature="The sum over the ranks' rows is the reference (record with serve --all-ranks).",
        remedy="An all-reduce is missing between the capture point and the layer: capture after it.",
        cases=("sglang#28343",),
    ),
    Entry(
        id="cold-warm",
        kind="cache",
        rank=260,
        listed=20,
        what="The same prompt gives other states once its prefix is cached.",
        signature="Two traces of one prompt differ, and only one of them found its prefix in the cache.",
        remedy="Serve with --disable-radix-cache to confirm; then look at what the cache hands back.",
        cases=("sglang#10846",),
    ),
    Entry(
        id="decay",
        kind="cache",
        rank=270,
        listed=30,
        what="The same prompt gives other states, or a shorter accept length, the longer the server runs.",
        signature="Two traces of one prompt differ, and nothing that they record was different about the runs.",
        remedy="Let drafttrace watch date the first run that differs; restart to confirm.",
        cases=("sglang#32176",),
    ),
    Entry(
        id="graph-eager",
        kind="batching",
        rank=280,
        listed=60,
        what="The states differ only when CUDA graphs are replayed.",
        signature="Two traces of one prompt differ, one of them recorded with --disable-cuda-graph.",
        remedy="Something in the captured graph reads a buffer that is not refreshed.",
        cases=("sglang#22836", "vllm#20190"),
    ),
)


@finder(turn=100)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings between ranks, and between two traces of one request."""
    yield from _ranks(facts)
    yield from _conditions(facts)


def _ranks(facts: Facts) -> Iterator[Finding]:
    ranks = facts.ranks
    summed: set[str] = set()
    if ranks.partial is not None:
        partial = ranks.partial
        summed = {f"aux/{slot}" for slot in partial.slots} | {"hidden_in", "fc_in"}
        yield finding(
            "partial-sum",
            f"{name_slots(partial.slots).capitalize()} of this rank {'holds' if len(partial.slots) == 1 else 'hold'} "
            "only a part: the sum over the ranks is the reference's state.",
            slots=partial.slots,
            confidence=0.97,
            evidence={"rel_l2_alone": list(partial.alone), "rel_l2_of_the_sum": list(partial.summed)},
            remedy="An all-reduce is missing between the capture point and the layer: capture after it.",
        )
    moved = [d for d in ranks.divergences if d.moved > 0.6 * d.differing and d.differing >= 3]
    if moved:
        yield _mixed_up(moved)
    rest = [d for d in ranks.divergences if d not in moved and d.name not in summed]
    if rest:
        yield _divergence(rest, asked=ranks.partial is None)


def _mixed_up(moved: Sequence[Divergence]) -> Finding:
    """Ranks that hold the same rows in another order."""
    first = moved[0]
    how = f": {first.blocks.kind}" if first.blocks is not None else ""
    return finding(
        "rows-by-rank",
        f"Rank {first.rank} holds the first rank's rows of {first.name} at other places{how}.",
        confidence=0.95 if first.blocks is not None else 0.8,
        evidence={
            f"rank {d.rank}, {d.name}": {"rows": d.rows, "at_another_place": d.moved, "frame": d.frame}
            for d in moved[:20]
        },
        remedy="Look at what gathers rows between the ranks: its order is not the order of the tokens.",
    )


def _divergence(divergences: Sequence[Divergence], asked: bool) -> Finding:
    first = divergences[0]
    names = sorted({d.name for d in divergences})
    more = (
        " To see whether the ranks hold parts of a sum, record with drafttrace serve --all-ranks and give the other "
        "ranks' traces with --rank-trace."
    )
    return finding(
        "rank-divergence",
        f"Ranks disagree on tensors that all should hold alike ({', '.join(names)}): rank {first.rank} differs first "
        f"in {first.name} at position {first.position}.",
        confidence=0.97,
        evidence={
            f"rank {d.rank}, {d.name}": {"rows": d.rows, "differing": d.differing, "frame": d.frame}
            for d in divergences[:20]
        },
        remedy="Compare with --tp-size 1; look for an operation that runs on one rank only, or for sampling per rank."
        + (more if asked else ""),
    )


def _conditions(facts: Facts) -> Iterator[Finding]:
    """Two traces of one request that differ without any other cause: name what was different about the runs."""
    reference = facts.reference
    if reference is None or not _is_trace(facts.left) or not _is_trace(reference):
        return
    if facts.reading is None or not facts.reading.same:
        return
    explained = {s.index for s in (*facts.left_streams, *facts.reference_streams) if s.explanation is not None}
    odd = {r.slot for r in facts.rows if r.outliers}
    broken = {s.slot for s in facts.slots if s.zero_rows or s.nan_rows}
    bad = {s.slot for s in facts.slots if s.verdict == "mismatch"} | odd
    pictures = {r.slot for r in facts.rows if placeholder_span(facts, r) is not None}
    slots = sorted(bad - explained - broken - placed(facts) - pictures - facts.copies.slots)
    if not slots or (facts.alignment is not None and facts.alignment.shift):
        return
    name, text, remedy = _difference(facts.left, reference)
    verb = "differs" if len(slots) == 1 else "differ"
    yield finding(
        name,
        f"{name_slots(slots).capitalize()} {verb} between two runs of one request, and {text}.",
        slots=slots,
        confidence=0.7 if name != "decay" else 0.5,
        evidence={
            str(s.slot): {"rel_l2": s.rel_l2.p50, "outliers": s.outlier_rows}
            for s in facts.slots
            if s.slot in slots
        },
        remedy=remedy,
    )


def _is_trace(capture: Capture) -> bool:
    return capture.format.startswith("drafttrace.trace")


def _difference(left: Capture, reference: Capture) -> tuple[str, str, str]:
    warm = (_number(left, "request", "cached_prefix") > 0) != (_number(reference, "request", "cached_prefix") > 0)
    if warm:
        return (
            "cold-warm",
            "one of them found its prefix in the cache while the other did not",
            "Serve with --disable-radix-cache to confirm; then look at what the cache hands back.",
        )
    graphs = graph_phases(left) ^ graph_phases(reference)
    if graphs:
        which = " and ".join(phase for phase in PHASES if phase in graphs)
        return (
            "graph-eager",
            f"one of them replayed its {which} passes as CUDA graphs while the other ran them eagerly",
            "Something in the captured graph reads a buffer that is not refreshed: bisect with --disable-cuda-graph (in "
            "SGLang 0.5.23 and newer --cuda-graph-backend-decode=disabled and --cuda-graph-backend-prefill=disabled).",
        )
    return (
        "decay",
        "nothing that the traces record was different about the runs: the server's state has changed",
        "Restart the server and record the same prompt again and again; the first differing run dates the damage.",
    )


def _value(capture: Capture, block: str, key: str) -> Any:
    part = capture.about.get(block)
    return part.get(key) if isinstance(part, Mapping) else None


def _number(capture: Capture, block: str, key: str) -> int:
    value = _value(capture, block, key)
    return value if isinstance(value, int) else 0
