"""A half of a layer in the stream's place: which layer's, and what one slot says about another."""

from __future__ import annotations

import numpy as np
from compare_world import Floats, bf16

from drafttrace.compare.explain import stream_facts
from drafttrace.compare.facts import StreamFacts
from drafttrace.compare.halves import find_half
from drafttrace.compare.locate import locate, neighbour_distances
from drafttrace.compare.sample import Sample, Stream
from drafttrace.compare.thresholds import DEFAULT

ROWS, WIDTH, LAYERS = 40, 64, 8
AT = np.arange(ROWS, dtype=np.int64)
SAMPLE = Sample(AT, AT, AT)


def made(alike: float) -> tuple[tuple[Stream, ...], list[Floats]]:
    """A layer sweep, and the MLP half of every layer; ``alike``: how much of it all layers share."""
    rng = np.random.default_rng(4)
    shared = rng.standard_normal((ROWS, WIDTH))
    stream = 4 * rng.standard_normal((ROWS, WIDTH))
    streams, halves = [stream], []
    for _ in range(LAYERS):
        half = alike * shared + rng.standard_normal((ROWS, WIDTH))
        stream = stream + half + 0.5 * rng.standard_normal((ROWS, WIDTH))
        streams.append(stream)
        halves.append(half.astype(np.float32))
    atlas = tuple(Stream("left", "sweep", f"boundary/{k}", bf16(s), k) for k, s in enumerate(streams))
    return atlas, halves


def facts_of(atlas: tuple[Stream, ...], slots: list[tuple[int, Floats]]) -> tuple[StreamFacts, ...]:
    streams = tuple(Stream("left", "slot", f"aux/{i}", bf16(x), k, i) for i, (k, x) in enumerate(slots))
    places = locate(SAMPLE, streams, atlas, DEFAULT.located, neighbour_distances(SAMPLE, atlas))
    return stream_facts(streams, places, SAMPLE, atlas, (), DEFAULT)


def test_a_half_that_fits_two_layers_stays_where_it_is_declared() -> None:
    """It was told as one boundary off: neighbouring layers of tiny-kimi add nearly the same."""
    atlas, halves = made(alike=4.0)
    x = (halves[3] + 0.15 * (halves[4] - halves[3])).astype(np.float32)
    found = find_half(x, 4, SAMPLE, atlas)
    assert found is not None and found.fit.name == "residual-half" and found.boundary == 4
    nowhere = find_half(x, 1, SAMPLE, atlas)  # fits far worse there: the values win
    assert nowhere is not None and nowhere.boundary in (4, 5)


def test_a_faint_half_is_believed_beside_a_clear_one() -> None:
    """It was unexplained: the attention's half outweighed the MLP's in one of three slots."""
    atlas, halves = made(alike=0.0)
    rng = np.random.default_rng(8)
    faint = (halves[5] + 1.6 * rng.standard_normal((ROWS, WIDTH))).astype(np.float32)
    assert find_half(faint, 6, SAMPLE, atlas) is None
    both = facts_of(atlas, [(2, halves[1]), (6, faint)])
    assert [f.boundary for f in both] == [2, 6]
    assert all(f.explanation is not None and f.explanation.fit.name == "residual-half" for f in both)
    alone = facts_of(atlas, [(6, faint)])
    assert alone[0].explanation is None
    strange = facts_of(atlas, [(2, halves[1]), (3, faint)])  # not what it is declared to be a half of
    assert strange[1].explanation is None
