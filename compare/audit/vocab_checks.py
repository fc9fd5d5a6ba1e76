"""The map from draft tokens to target tokens: there, in range, unique, and offsets as SGLang reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.compare.audit.loading_checks import lacks_pruned_size
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.result import Finding

Ints = npt.NDArray[np.int64]

OFFSETS, ABSOLUTE, EITHER, NEITHER = "offsets", "absolute ids", "offsets (all zero)", "neither"


@dataclass(frozen=True)
class VocabularyMap:
    """What ``d2t`` is: its reading, the target ids that the draft can say, and how many of them are sane."""

    reading: str
    draft_vocab: int
    target_vocab: int
    targets: Ints

    def samples(self) -> tuple[tuple[int, int], ...]:
        """A few (draft id, target id) pairs over the whole map."""
        places: Iterable[int] = (
            np.unique(np.linspace(0, len(self.targets) - 1, 8).astype(np.int64)) if len(self.targets) else []
        )
        return tuple((int(i), int(self.targets[i])) for i in places)


def sane(targets: Ints, vocab: int) -> bool:
    """Whether ids are ascending, each once, and within the vocabulary."""
    inside = len(targets) == 0 or bool(targets.min() >= 0 and targets.max() < vocab)
    return inside and bool((np.diff(targets) > 0).all())


def distinct(targets: Ints, vocab: int) -> bool:
    """Whether ids are within the vocabulary, each once, in whatever order."""
    return sane(np.sort(targets), vocab)


def read_d2t(d2t: Ints, vocab: int, kept: Ints | None = None) -> str:
    """How the numbers of a ``d2t`` can be meant: as offsets, as absolute ids, as either or neither.

    kept: the tokens that a ``t2d`` beside it keeps, in ascending order, which prove a reading. Without one the reading
    that ascends is right, as every trainer lists the kept tokens so; and where none does, the one of distinct tokens: a
    head whose rows stand in the order of frequency has such a map.
    """
    offsets = d2t + np.arange(len(d2t))
    as_offsets = OFFSETS if d2t.any() else EITHER
    if kept is not None and len(kept) == len(d2t):
        for reading, targets in ((as_offsets, offsets), (ABSOLUTE, d2t)):
            if np.array_equal(np.sort(targets), kept):
                return reading
    for right in (sane, distinct):
        for reading, targets in ((as_offsets, offsets), (ABSOLUTE, d2t)):
            if right(targets, vocab):
                return reading
    return NEITHER


def kept_tokens(subject: Subject) -> Ints | None:
    """The tokens that the draft's ``t2d`` keeps, ascending; None without one, where it is no mask, and where it was never
    filled: it then keeps no token, or every one."""
    t2d = integers(subject, "t2d")
    if t2d is None or (subject.draft_weights.info("t2d").dtype != "BOOL" and not set(np.unique(t2d)) <= {0, 1}):
        return None
    kept = np.flatnonzero(t2d).astype(np.int64)
    return kept if 0 < len(kept) < len(t2d) else None


def vocabulary_map(subject: Subject) -> VocabularyMap | None:
    """The draft's map; None where the checkpoint has none."""
    d2t = integers(subject, "d2t")
    if d2t is None:
        return None
    reading = read_d2t(d2t, subject.target.vocab_size, kept_tokens(subject))
    targets = d2t if reading == ABSOLUTE else d2t + np.arange(len(d2t))
    return VocabularyMap(reading, len(d2t), subject.target.vocab_size, targets)


def integers(subject: Subject, name: str) -> Ints | None:
    """A one-dimensional integer or boolean tensor of the draft as int64; None where it is absent or another thing."""
    weights = subject.draft_weights
    if name not in weights or len(weights.shape(name) or ()) != 1 or weights.info(name).float_dtype is not None:
        return None
    return weights.checkpoint.array(weights.names[name]).astype(np.int64)


def vocabulary_findings(subject: Subject, found: VocabularyMap | None) -> Iterator[Finding]:
    """Every fault of the map, as SGLang would use it."""
    draft, vocab = subject.draft, subject.target.vocab_size
    pruned = draft.draft_vocab_size
    if found is None:
        if "d2t" in subject.draft_weights:
            info = subject.draft_weights.info("d2t")
            yield fault(
                "vocab-map-range",
                0.9,
                f"'d2t' is {info.dtype} {list(info.shape)}; a list of whole numbers is needed.",
                "Export d2t as int64 offsets.",
                {"dtype": info.dtype, "shape": list(info.shape)},
            )
        elif pruned is not None and pruned < draft.vocab_size:
            yield fault(
                "vocab-map-missing",
                0.95,
                f"The draft speaks {pruned} of {draft.vocab_size} tokens and the checkpoint has no d2t, so draft ids are "
                "taken for target ids.",
                "Export d2t (target id minus draft id) with the draft.",
                {"draft_vocab_size": pruned, "vocab_size": draft.vocab_size},
            )
        return
    if pruned is not None and found.draft_vocab != pruned:
        yield fault(
            "vocab-map-range",
            0.9,
            f"d2t has {found.draft_vocab} entries, draft_vocab_size is {pruned}.",
            _length_remedy(subject, found.draft_vocab, pruned),
            {"d2t": found.draft_vocab, "draft_vocab_size": pruned},
        )
    yield from _shared_head(subject, found)
    yield from _reading(subject, found, vocab)
    yield from _against_t2d(subject, found)


def _shared_head(subject: Subject, found: VocabularyMap) -> Iterator[Finding]:
    """A map beside a head of the target's: SGLang's draft ids are then rows of it, and no kept tokens."""
    draft, pruned = subject.draft, subject.draft.draft_vocab_size
    if matrix_shape(subject.draft_weights, "lm_head.weight") is not None:
        return
    export = "Export lm_head.weight with the draft, a row for each kept token"
    if draft.tied and found.reading != EITHER:
        yield fault(
            "weights-replaced",
            0.9,
            "tie_word_embeddings is true, so SGLang takes the first rows of the target's embedding for the draft's head, "
            "and d2t then makes another token of each: the map belongs to a head of kept tokens, which is not there.",
            f'{export}, and write "tie_word_embeddings": false, "draft_vocab_size": {found.draft_vocab}.',
            {"d2t": found.draft_vocab, "tie_word_embeddings": True},
        )
    elif (
        not draft.tied and pruned is None and found.draft_vocab < draft.vocab_size and not lacks_pruned_size(draft)
    ):
        yield fault(
            "vocab-map-range",
            0.9,
            f"Without draft_vocab_size SGLang takes the target's head of {draft.vocab_size} rows, and d2t has "
            f"{found.draft_vocab} entries: the server stops with an IndexError at the first draft id beyond them.",
            f'{export}, and write "draft_vocab_size": {found.draft_vocab}; or export the draft without d2t.',
            {"d2t": found.draft_vocab, "rows": draft.vocab_size},
        )


def _length_remedy(subject: Subject, entries: int, pruned: int) -> str:
    """Which of d2t's length and draft_vocab_size is wrong: the rows of the head tell."""
    head = matrix_shape(subject.draft_weights, "lm_head.weight")
    if head is None or head[0] == entries:
        return f'"draft_vocab_size": {entries}' + ("" if head is not None else ", if training used as many tokens.")
    if head[0] == pruned:
        return f"Export d2t again with {pruned} entries: lm_head has as many rows, so draft_vocab_size is right."
    return f"Export d2t and lm_head of one training run: lm_head has {head[0]} rows, d2t {entries} entries."


def _reading(subject: Subject, found: VocabularyMap, vocab: int) -> Iterator[Finding]:
    d2t = integers(subject, "d2t")
    assert d2t is not None  # found was made from it
    if found.reading == ABSOLUTE:
        served = d2t + np.arange(len(d2t))
        beyond = int((served >= vocab).sum())
        yield fault(
            "vocab-map-offset",
            0.9,
            f"d2t holds absolute ids, SGLang and vLLM read offsets: draft token {len(d2t) - 1} becomes target token "
            f"{int(served[-1])} instead of {int(d2t[-1])}, and {beyond} tokens fall outside the vocabulary.",
            "Store d2t[i] - i.",
            {"reading": found.reading, "outside": beyond, "last": int(d2t[-1])},
        )
    elif found.reading == NEITHER:
        targets = found.targets
        outside = int(((targets < 0) | (targets >= vocab)).sum())
        repeated = len(targets) - len(np.unique(targets))
        yield fault(
            "vocab-map-range",
            0.9,
            f"d2t read as offsets leaves {_ids(outside)} outside 0..{vocab - 1}, {repeated} repeated and "
            f"{_out_of_order(targets)} out of order.",
            "Export d2t again from the training run's t2d: flatnonzero(t2d) - arange.",
            {"outside": outside, "repeated": repeated},
        )
    elif found.reading == EITHER and found.draft_vocab < vocab and not _keeps_the_first(subject, found.draft_vocab):
        yield fault(
            "vocab-map-missing",
            0.6,
            f"d2t is zero everywhere, so the draft can say the target tokens 0..{found.draft_vocab - 1} only.",
            "Export the map that training used, unless it kept exactly these tokens.",
            {"draft_vocab": found.draft_vocab},
        )
    if found.reading in (OFFSETS, ABSOLUTE) and _out_of_order(found.targets):
        yield note(
            "vocab-map-range",
            0.4,
            f"d2t lists {_out_of_order(found.targets)} of its {found.draft_vocab} tokens out of ascending order, each "
            "once: right where the rows of lm_head stand in the same order.",
            "Nothing, if training wrote both so; drafttrace replay on a training dump tries the ascending order, too.",
            {"out_of_order": _out_of_order(found.targets)},
        )


def _keeps_the_first(subject: Subject, count: int) -> bool:
    """Whether ``t2d`` proves that training kept the first tokens, of which every offset is zero."""
    kept = kept_tokens(subject)
    return kept is not None and np.array_equal(kept, np.arange(count))


def _out_of_order(targets: Ints) -> int:
    return int((np.diff(targets) <= 0).sum())


def _ids(count: int) -> str:
    return "1 target id" if count == 1 else f"{count} target ids"


def _against_t2d(subject: Subject, found: VocabularyMap) -> Iterator[Finding]:
    t2d = integers(subject, "t2d")
    if t2d is None:
        return
    kept = np.flatnonzero(t2d)
    evidence: dict[str, Any] = {"t2d": len(t2d), "kept": len(kept), "d2t": found.draft_vocab}
    is_mask = subject.draft_weights.info("t2d").dtype == "BOOL" or set(np.unique(t2d)) <= {0, 1}
    if not is_mask or np.array_equal(kept, np.sort(found.targets)):
        return
    if len(kept) in (0, len(t2d)) and distinct(found.targets, found.target_vocab):
        yield note(
            "vocab-map-range",
            0.5,
            f"t2d keeps {'no token' if not len(kept) else 'every token'}, so it was never filled; the server reads d2t "
            "only, which names each of its tokens once.",
            "Export t2d with d2t: training from this checkpoint reads it.",
            evidence,
        )
        return
    yield fault(
        "vocab-map-range",
        0.8,
        f"t2d keeps {evidence['kept']} target tokens, d2t names {found.draft_vocab}, and they are not the same ones.",
        "Export both from one training run; the server reads d2t only.",
        evidence,
    )


def decoded_samples(subject: Subject, found: VocabularyMap | None) -> tuple[tuple[int, int, str | None], ...]:
    """(draft id, target id, text) for a few tokens; text is None without the tokenizers library or a tokenizer."""
    if found is None:
        return ()
    decode = _decoder(subject)
    inside = range(found.target_vocab)  # the library takes no id below zero, and none beyond 32 bits
    return tuple((i, k, decode(k) if k in inside else None) for i, k in found.samples())


def _decoder(subject: Subject) -> Callable[[int], str | None]:
    path = subject.target.path.parent / "tokenizer.json"
    if not path.is_file():
        return lambda k: None
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # absent library, or a tokenizer that it cannot read: samples stay without text
        return lambda k: None

    def decode(k: int) -> str | None:
        try:
            return str(tokenizer.decode([k], skip_special_tokens=False))
        except Exception:  # a tokenizer whose parts contradict each other
            return None

    return decode
