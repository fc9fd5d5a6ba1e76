"""L: the prompts differ before any tensor does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from drafttrace.compare.align import Alignment, valid_tokens
from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding, quoted
from drafttrace.compare.plurals import plural
from drafttrace.compare.result import Finding, FirstDifference
from drafttrace.compare.sample import MIN_ROWS
from drafttrace.compare.vocabulary import Entry, register
from drafttrace.tracer.capture import Capture, Ints

register(
    Entry(
        id="template-divergence",
        kind="data",
        rank=410,
        listed=10,
        what="The two sides hold different tokens.",
        signature="The first token that differs is shown, as text where a tokenizer is at hand.",
        remedy="Send the dump's own ids (drafttrace record --from-dump), or use the trainer's chat template.",
    ),
    Entry(
        id="no-overlap",
        kind="data",
        rank=20,
        listed=20,
        what="No row of one side belongs to a row of the other.",
        signature="Nothing could be paired.",
        remedy="Record the prompt of this very sample; give PATH#i where a dump holds several.",
    ),
)


@finder(turn=50, unpaired=True)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings about token ids."""
    alignment, reference = facts.alignment, facts.reference
    if alignment is None or reference is None:
        return
    nameless = _no_ids(facts, reference)
    if nameless is not None:
        yield nameless
        return
    moved_ids = alignment.offset and alignment.shift == -alignment.offset
    ours, theirs = len(valid_tokens(facts.left)), len(valid_tokens(reference))
    apart = alignment.unrelated
    if apart is not None and apart.foreign is not None:
        yield _other_tokenizer(facts, alignment, int(valid_tokens(reference)[apart.foreign]))
    elif alignment.same_prefix == 0 and alignment.offset == 0 and alignment.difference is not None:
        yield _no_overlap(facts, alignment)
    elif apart is not None:
        yield _only_a_start(facts, alignment)
    elif alignment.truncated is not None:
        yield _truncated(facts, alignment, ours, theirs)
    elif alignment.difference is not None and not alignment.natural and not moved_ids:
        yield _divergence(facts, alignment)
    elif len(alignment) == 0:
        yield _no_rows(alignment)
    elif alignment.unknown and len(alignment) <= MIN_ROWS:
        yield _too_few(alignment)


def _no_ids(facts: Facts, reference: Capture) -> Finding | None:
    """A side whose ids nobody knows: none of its rows can be paired. None where both sides know some."""
    nameless = [c for c in (facts.left, reference) if not (valid_tokens(c) >= 0).any()]
    if not nameless:
        return None
    return finding(
        "no-overlap",
        f"{' and '.join(quoted(c.path, 200) for c in nameless)} {'keep' if len(nameless) > 1 else 'keeps'} no token ids, "
        "so nobody can tell which row belongs to which.",
        confidence=0.99,
        evidence={"without_token_ids": [c.path for c in nameless]},
        remedy=(
            "Dump the token ids beside the states, or name their field with --tokens; an answer of SGLang needs its "
            "prompt's ids as input_ids, or return_logprob."
        ),
    )


def _other_tokenizer(facts: Facts, alignment: Alignment, foreign_id: int) -> Finding:
    d, apart = alignment.difference, alignment.unrelated
    assert d is not None and apart is not None
    return finding(
        "no-overlap",
        f"The reference was made with another tokenizer: its token {apart.foreign} has the id {foreign_id}, and the served "
        f"target knows {apart.vocabulary}. The first token that differs is {d.index} (id {d.left_id} against "
        f"{d.reference_id}){_texts(facts)}.",
        confidence=0.99,
        evidence={
            "index": apart.foreign,
            "id": foreign_id,
            "vocabulary": apart.vocabulary,
            "first_difference": d.index,
        },
        remedy=(
            "Dump again with the tokenizer of the target that is served, or serve the target that the dump was made with."
        ),
    )


def _only_a_start(facts: Facts, alignment: Alignment) -> Finding:
    d = alignment.difference
    assert d is not None
    return finding(
        "no-overlap",
        f"The two sides share their first {_first(d.index)} only, and no four in a row after that: token {d.index} differs "
        f"(id {d.left_id} against {d.reference_id}){_texts(facts)}. They hold other prompts, or ids of two tokenizers.",
        confidence=0.97,
        evidence={"first_difference": d.index, "first_ids": [d.left_id, d.reference_id]},
        remedy=(
            "Record with --from-dump, so that the server gets the dump's own token ids; where one of the texts is no "
            "language, that side was made with another tokenizer: dump again with the one that is served."
        ),
    )


def _texts(facts: Facts) -> str:
    """What stands around the first difference on both sides, decoded; how to see it where no tokenizer was found."""
    difference = first_difference(facts)
    if difference is None:
        return ""
    if difference.left_text is None:
        return "" if facts.left.redacted else "; --tokenizer DIR shows them as text"
    return f": {quoted(difference.left_text)} against {quoted(difference.reference_text or '')}"


def _no_rows(alignment: Alignment) -> Finding:
    """No token differs, but no position has a row of a known token on both sides."""
    why = (
        ", ".join(f"{count} {reason}" for reason, count in alignment.skipped.items())
        or "one side has no rows at all"
    )
    return finding(
        "no-overlap",
        f"No known token has a row on both sides: {why}.",
        confidence=0.99,
        evidence={"skipped": dict(alignment.skipped), "rows": [alignment.rows_left, alignment.rows_reference]},
        remedy="Record again with a fresh prefix (drafttrace record sends its own extra_key) and all taps on.",
    )


def _too_few(alignment: Alignment) -> Finding:
    count = len(alignment)
    return finding(
        "no-overlap",
        f"Only {count} token{'s are' if count > 1 else ' is'} known to be the same on both sides, which most texts share; "
        f"of {alignment.unknown} more a side does not keep the id.",
        confidence=0.99,
        evidence={"rows": count, "unknown": alignment.unknown, "skipped": dict(alignment.skipped)},
        remedy="Dump the token ids of the whole text beside its states.",
    )


def first_difference(facts: Facts) -> FirstDifference | None:
    """The first differing token in the form of the result; None where the sides agree as far as both go."""
    alignment = facts.alignment
    if alignment is None or alignment.difference is None or facts.reference is None:
        return None
    d, decode = alignment.difference, facts.decode
    ours, theirs = valid_tokens(facts.left), valid_tokens(facts.reference)
    return FirstDifference(
        d.index, d.left_id, d.reference_id, _around(ours, d.index, decode), _around(theirs, d.index, decode)
    )


def _around(tokens: Ints, index: int, decode: Callable[[int], str] | None) -> str | None:
    if decode is None:
        return None
    ids = [int(t) for t in tokens[max(0, index - 4) : index + 8] if t >= 0]
    return "".join(decode(t) for t in ids)


def _no_overlap(facts: Facts, alignment: Alignment) -> Finding:
    d = alignment.difference
    assert d is not None
    first = f"token {d.index}, the first that both sides know," if d.index else "the first one"
    return finding(
        "no-overlap",
        f"The two sides hold different prompts: {first} differs already (id {d.left_id} against {d.reference_id})"
        f"{_texts(facts)}.",
        confidence=0.99,
        evidence={"first_ids": [d.left_id, d.reference_id], "index": d.index},
        remedy=(
            "Record with --from-dump, so that the server gets the dump's own token ids; if the ids mean other text, the "
            "dump was made with another tokenizer."
        ),
    )


def _divergence(facts: Facts, alignment: Alignment) -> Finding:
    d = alignment.difference
    assert d is not None
    few = len(alignment) <= MIN_ROWS
    left_over = "The rows before it are too few to compare." if few else "Only the rows before it can be compared."
    moved = ""
    if alignment.offset:
        more, side = abs(alignment.offset), "the reference" if alignment.offset > 0 else "the request"
        moved = f" From there on {side} has {more} token{'s' if more > 1 else ''} more in front."
    return finding(
        "template-divergence",
        f"The token ids differ from token {d.index} on: id {d.left_id} in the request, {d.reference_id} in the "
        f"reference{_texts(facts)}. {left_over}{moved}",
        confidence=0.97,
        evidence={
            "index": d.index,
            "left_id": d.left_id,
            "reference_id": d.reference_id,
            "offset": alignment.offset,
            "tokens_alike_at_offset": alignment.matched,
        },
        remedy=(
            "Use the chat template (and the thinking and generation-prompt switches) of training when serving; to compare "
            "tensors all the same, record with --from-dump. Where one of the texts is no language, that side was made "
            "with another tokenizer: dump again with the tokenizer that is served."
        ),
    )


def _truncated(facts: Facts, alignment: Alignment, ours: int, theirs: int) -> Finding:
    if alignment.truncated == "reference":
        what = f"The reference ends after {plural(theirs, 'token')}, inside a prompt of {facts.left.prompt_length}"
    else:
        length = plural(facts.left.prompt_length or 0, "token")
        what = f"The request's prompt ends after {length}, before the reference's answer begins"
    return finding(
        "template-divergence",
        f"{what}: the prompt was truncated on one side.",
        confidence=0.9,
        evidence={"truncated": alignment.truncated, "left_tokens": ours, "reference_tokens": theirs},
        remedy="Raise the length limit on the side that cut (max_length of the dump, context length of the server).",
    )


def _first(count: int) -> str:
    """How many of the first tokens: ``token``, ``3 tokens``."""
    return "token" if count == 1 else f"{count} tokens"
