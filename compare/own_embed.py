"""The target's embedding, as its tap recorded it, against B0: of the trace's own layer sweep, or of the reference.

What enters layer 0 is the embedding's output, or that through what every row of a model goes through: a multiplier, or a
norm. Pictures stand in the rows of their placeholders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.draft_embed import InLayerZero
from drafttrace.compare.hypotheses import Fit, explain, residual
from drafttrace.compare.kernels.blocks import hash_rows
from drafttrace.compare.measure import BLOCK_BYTES, Bools, measure_rows
from drafttrace.compare.sample import MAX_ROWS, spread
from drafttrace.tracer import embedding_scale
from drafttrace.tracer.capture import Accepted, Capture, Ints
from drafttrace.tracer.learned_positions import adds_positions
from drafttrace.tracer.rows import Floats, Rows

ROUNDING = 0.01
"""The relative L2 of a row that another rounding does not leave."""
_BETWEEN = 0.15  # the same between two files: one of them may hold an embedding in fewer bits
_FEWEST = 4
_ALL = 0.9
_EXPLAINS = 0.05
_ADDED = 0.1  # relative L2 of two differences of rounded sums
SAME_FACTOR = 0.02
"""The relative difference up to which a fitted factor is one that is known."""
_MULTIPLIERS = (*embedding_scale.NAMES, "embedding_scale", "embed_scale", "mup_embedding_multiplier")
_PLACEHOLDERS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "audio_token_id",
    "media_placeholder_token_id",
)


@dataclass(frozen=True)
class OddEmbedding:
    """Rows of the embedding that are not B0.

    beside: what B0 was, in words. limit: of a row's relative L2. rows, of: how many differ, of how many that were compared;
    positions: ``[rows]``. rel_l2: their median. fit: what explains them. moved: (position, position of B0's row that it
    holds), where most of them are such. picture: it is one row of a token that no row of the embedding shows to be B0's.
    positional: by what it is known that the target adds a vector per position, None where nothing says so.
    left_rows: ``[rows]``, their numbers in the trace. b0: what they were held against, where it is not the trace's own
    sweep.
    """

    beside: str
    limit: float
    rows: int
    of: int
    positions: tuple[int, ...]
    rel_l2: float
    fit: Fit | None
    moved: tuple[tuple[int, int], ...]
    picture: bool
    positional: str | None
    left_rows: Ints = field(compare=False)
    b0: InLayerZero | None = field(compare=False)

    @property
    def whole(self) -> bool:
        """Whether it is all of them."""
        return self.rows >= _ALL * self.of


@dataclass(frozen=True)
class _Home:
    """Where B0 stands. mine, theirs: row numbers of the embedding and of ``rows``, in pairs. sure: it is B0 whatever its
    rows say; else only where most of them are the embedding's."""

    beside: str
    rows: Rows
    mine: Ints
    theirs: Ints
    sure: bool


def odd_embedding(trace: Capture, reference: Capture | None, pairs: Alignment | None) -> OddEmbedding | None:
    """The rows that differ; None where none does, and where there is nothing to hold the embedding against."""
    if trace.embed is None or not trace.format.startswith("drafttrace.trace"):
        return None
    for home in _homes(trace, reference, pairs):
        if len(home.mine) >= _FEWEST and home.rows.width == trace.embed.rows.width:
            return _against(trace, home)
    return None


def _homes(trace: Capture, reference: Capture | None, pairs: Alignment | None) -> Iterator[_Home]:
    assert trace.embed is not None
    own, count = trace.boundaries.get(0), len(trace.embed.rows)
    kept = np.flatnonzero((trace.table.accepted != Accepted.REJECTED) & trace.in_text(len(trace.table)))
    kept = kept[_held(trace, "embed", kept, count)]
    if own is not None:
        index = kept[_held(trace, "boundary/0", kept, len(own))]
        yield _Home("the B0 of the trace's own layer sweep", own, index, index, True)
    if reference is None or pairs is None or pairs.shift or not (trace.slots and reference.slots):
        return  # without slots, the comparison of the two embeddings is the verdict
    states = [
        (f"the reference's slot {i}", s.name, s.rows, False)
        for i, s in enumerate(reference.slots)
        if s.boundary == 0
    ]
    if reference.embed is not None:
        states.insert(0, ("the reference's embedding", "embed", reference.embed.rows, True))
    if 0 in reference.boundaries:
        states.insert(0, ("the reference's B0", "boundary/0", reference.boundaries[0], True))
    for beside, name, rows, sure in states:
        both = _held(trace, "embed", pairs.left_rows, count) & _held(
            reference, name, pairs.reference_rows, len(rows)
        )
        yield _Home(beside, rows, pairs.left_rows[both], pairs.reference_rows[both], sure)


def _held(capture: Capture, name: str, index: Ints, count: int) -> Bools:
    present = capture.present.get(name)
    inside: Bools = index < count
    return inside if present is None else inside & present[np.minimum(index, len(present) - 1)]


def _against(trace: Capture, home: _Home) -> OddEmbedding | None:
    assert trace.embed is not None
    embed = trace.embed.rows
    rows = measure_rows(embed, home.mine, home.rows, home.theirs)
    states = (rows.norm_left > 0) & (rows.norm_reference > 0) & np.isfinite(rows.rel_l2)
    own = home.rows is trace.boundaries.get(0)
    limit = ROUNDING if own else _BETWEEN
    far = states & (rows.rel_l2 > limit)
    if not far.any():
        return None
    tokens = trace.table.token_id[home.mine]
    far &= ~_pictures(tokens, hash_rows(home.rows, home.theirs, BLOCK_BYTES)) & ~np.isin(
        tokens, _placeholders(trace)
    )
    count, every = int(far.sum()), int(states.sum())
    if count == 0 or (not home.sure and 2 * count > every):
        return None
    positions, chosen = trace.table.position[home.mine], np.flatnonzero(far)
    some = spread(chosen, MAX_ROWS)
    x, y = embed.take(home.mine[some]), home.rows.take(home.theirs[some])
    fits = explain(x, y) if count >= _FEWEST else (_one_factor(x, y),)
    best = next((f for f in fits if f.name != "identity"), None)
    known = best if best is not None and best.residual < _EXPLAINS else None
    moved = _moved(embed, home, chosen, positions)
    alone = count == 1 and int((states & (tokens == tokens[chosen[0]])).sum()) == 1
    odd = OddEmbedding(
        home.beside,
        limit,
        count,
        every,
        tuple(int(p) for p in positions[chosen]),
        float(np.median(rows.rel_l2[far])),
        known,
        moved,
        alone and known is None and not moved,
        _positional(trace, home.rows, own) if known is None and not moved and count >= _ALL * every else None,
        home.mine[chosen],
        None if own else _layer_zero(trace, home),
    )
    return None if odd.whole and _of_the_model(odd, trace, embed.width) else odd


def _positional(trace: Capture, b0: Rows, own: bool) -> str | None:
    """What says that B0 is the embedding with a vector per position added: the config, or rows of different tokens at one
    position (drafted ones that were rejected), to which the same is added."""
    if any(adds_positions(block) for block in _blocks(trace)):
        return "its config"
    if not own or trace.embed is None:
        return None
    table, count = trace.table, min(len(trace.embed.rows), len(b0))
    index = np.flatnonzero(_held(trace, "embed", np.arange(len(table)), count) & (table.token_id >= 0))
    index = index[_held(trace, "boundary/0", index, count)]
    order = index[np.lexsort((table.token_id[index], table.position[index]))]
    twice = table.position[order[1:]] == table.position[order[:-1]]
    twice &= table.token_id[order[1:]] != table.token_id[order[:-1]]
    one, two = order[1:][twice][:MAX_ROWS], order[:-1][twice][:MAX_ROWS]
    if len(one) < _FEWEST:
        return None
    added = [b0.take(rows).astype(np.float64) - trace.embed.rows.take(rows) for rows in (one, two)]
    return "what is added at one position to several tokens" if residual(*added) < _ADDED else None


def _pictures(tokens: Ints, keys: np.ndarray) -> Bools:
    """The rows of tokens that have several vectors in B0: what was merged into placeholders."""
    _, first = np.unique(np.stack([tokens.astype(np.uint64), keys.astype(np.uint64)]), axis=1, return_index=True)
    named, vectors = np.unique(tokens[first], return_counts=True)
    return np.asarray(np.isin(tokens, named[vectors > 1]), np.bool_)


def _placeholders(trace: Capture) -> list[int]:
    """The ids that the target's config says pictures and sounds stand for."""
    if trace.redacted:
        return []
    named = ((name, value) for block in _blocks(trace) for name, value in block.items())
    return [
        value
        for name, value in named
        if name.endswith(_PLACEHOLDERS) and isinstance(value, int) and not isinstance(value, bool) and value >= 0
    ]


def _layer_zero(trace: Capture, home: _Home) -> InLayerZero:
    at = np.full(len(trace.table), -1, np.int64)
    at[home.mine] = home.theirs
    return InLayerZero(home.rows, at)


def _one_factor(x: Floats, y: Floats) -> Fit:
    """A factor of rows too few to be fitted on some and judged on others: there is one number to find."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    factor = float(np.median(np.einsum("rh,rh->r", a, b) / np.einsum("rh,rh->r", b, b)))
    return Fit("scalar", residual(a, factor * b), 1.3, {"factor": factor})


def _moved(embed: Rows, home: _Home, chosen: Ints, positions: Ints) -> tuple[tuple[int, int], ...]:
    """The rows ``chosen`` that are B0's of other positions, where most are; at one distance where one explains them: a
    token stands in several places. Stored bytes are compared."""
    if embed.dtype != home.rows.dtype:
        return ()
    theirs = hash_rows(home.rows, home.theirs, BLOCK_BYTES)
    ours, here = hash_rows(embed, home.mine[chosen], BLOCK_BYTES), positions[chosen]
    at = {int(p): int(key) for p, key in zip(positions, theirs, strict=True)}
    for d in (-1, 1, -2, 2):
        moved = [(int(p), int(p) + d) for p, key in zip(here, ours, strict=True) if at.get(int(p) + d) == int(key)]
        if len(moved) >= max(_FEWEST, _ALL * (len(chosen) - 2)):
            return tuple(moved)
    places = {key: p for p, key in reversed(at.items())}
    found = [(int(p), places[int(k)]) for p, k in zip(here, ours, strict=True) if int(k) in places]
    return tuple(found) if 2 * len(found) > len(chosen) else ()


def _of_the_model(odd: OddEmbedding, trace: Capture, width: int) -> bool:
    """Whether a model does that to every row: the root of the hidden size, a multiplier that its config names, a norm."""
    fit = odd.fit
    if fit is None or odd.moved:
        return False
    if fit.name == "un-normed":
        return True
    known = [width**0.5, *multipliers(trace)]
    return fit.name == "scalar" and any(abs(fit.fitted["factor"] * one - 1) < SAME_FACTOR for one in known)


def multipliers(trace: Capture) -> Iterator[float]:
    """What the target's config says, by name or by its class, that the target multiplies its embedding by."""
    for block in _blocks(trace):
        size = block.get("hidden_size")
        kind, width = str(block.get("model_type", "")), size if isinstance(size, int) else 0
        yield from embedding_scale.multipliers(block, kind, width, _MULTIPLIERS).values()


def _blocks(trace: Capture) -> list[Mapping[str, Any]]:
    """The target's config, and its text part."""
    config = trace.about.get("target_config")
    both = [config, config.get("text_config")] if isinstance(config, Mapping) else []
    return [one for one in both if isinstance(one, Mapping)]
