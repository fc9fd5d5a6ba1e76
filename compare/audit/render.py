"""The audit as blocks: verdict and causes first, then who reads the ids how, then the tensors that stand out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.document import Block, Causes, Grid, Head, Lines, to_markdown, to_terminal
from drafttrace.tracer.boundary import wiring_name

if TYPE_CHECKING:
    from rich.console import Console


def terminal(result: CheckResult, console: Console) -> None:
    """Print the audit."""
    to_terminal(blocks(result), console)


def markdown(result: CheckResult) -> str:
    """The audit as Markdown."""
    return to_markdown(blocks(result))


def left_over(result: CheckResult) -> str:
    """What ``--fix`` does not put right, behind the sentence that says what it wrote."""
    if not result.left:
        return ""
    names = ", ".join(dict.fromkeys(one.id for one in result.left))
    count = "1 problem" if len(result.left) == 1 else f"{len(result.left)} problems"
    return f"; {count} that no line of the config is sure to put right {'is' if count[:2] == '1 ' else 'are'} left: {names}"


def blocks(result: CheckResult) -> Iterator[Block]:
    """The audit's pieces, in order."""
    word, style = ("PROBLEM FOUND", "bold red") if result.faults else ("NO PROBLEM FOUND", "bold green")
    yield Head(word, style, result.summary)
    if result.findings:
        yield Causes(result.findings)
    rows = [
        (r.who, r.ids_from, str(list(r.ids)) if r.ids is not None else "–", r.wiring or "–", r.note)
        for r in result.readings
    ]
    if result.wanted is not None:
        rows.insert(0, ("training", result.wanted_by, "–", wiring_name(result.wanted), "what fc was trained on"))
    if result.live is not None:
        rows.append(("live server", "layers_to_capture", "–", wiring_name(result.live), "what it hands over now"))
    yield Grid(
        "What each reader makes of the layer ids",
        ("reader", "ids from", "ids", "wiring", "how"),
        tuple(rows),
        bold=frozenset(i for i, row in enumerate(rows) if row[0].startswith(("SGLang", "training"))),
    )
    yield Lines(
        "",
        (
            f"target {result.target}: {result.target_class}, {result.layers} layers, {result.hidden_size} wide",
            f"draft {result.draft}: {result.draft_class} ({result.project}), fc reads {result.fc_slots} slots",
            _tensors(result),
            *result.notes,
        ),
    )
    odd = [t for t in result.tensors if t.state not in {"alive", "integers"}]
    if odd:
        rows_of_tensors = tuple((t.stored_as, t.dtype, str(list(t.shape)), t.state) for t in odd[:20])
        yield Grid(
            "Tensors that stand out", ("tensor", "dtype", "shape", "state"), rows_of_tensors, codes=frozenset({0})
        )
    if result.vocabulary:
        samples = tuple((str(i), str(k), "–" if text is None else repr(text)) for i, k, text in result.vocabulary)
        yield Grid(
            "Samples of the vocabulary map", ("draft id", "target id", "text"), samples, codes=frozenset({2})
        )
    if result.fix:
        yield Lines(
            "drafttrace check --fix OUT would write", tuple(f"{key}: {value}" for key, value in result.fix.items())
        )
        if result.left:
            yield Lines("and would leave", tuple(f"{one.id}: {one.summary}" for one in result.left))


def _tensors(result: CheckResult) -> str:
    kinds = Counter(tensor.dtype for tensor in result.tensors)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    hashed = "hashed" if any(tensor.sha256 for tensor in result.tensors) else "sampled"
    return f"{len(result.tensors)} tensors ({listed}), {hashed}, in {result.seconds:.2f} s"
