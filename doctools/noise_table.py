"""What ``bench/noise.py`` measured, as a table at like depths and as the sentences that follow from it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from doctools.markdown import table

REAL = "smol"
DEPTHS = {"half": 1 / 2, "14/15": 14 / 15, "last": 1.0}
"""Parts of a target's layers, by name; of every pair the swept boundary nearest to each is shown (the lower of two)."""
TOY_LIMIT = 0.01
"""What a limit tuned on a small model's middle layers might be."""

Measured = Sequence[Mapping[str, Any]]


def at_depths(found: Measured) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Depth, pair and measurement: depth by depth, the pairs in the file's order."""
    pairs = dict.fromkeys(one["pair"] for one in found)
    for depth, part in DEPTHS.items():
        for pair in pairs:
            own = [one for one in found if one["pair"] == pair]
            yield (
                depth,
                pair,
                min(own, key=lambda one: (abs(one["boundary"] - part * one["layers"]), one["boundary"])),
            )


def noise_table(found: Measured) -> Iterator[str]:
    """One row per depth and pair."""
    yield from table(
        "depth",
        "pair, boundary",
        "SGLang against transformers",
        "bf16 against float32",
        "distance of a neighbour",
        "its cosine",
        "norm of row 0 over the median",
        rows=[
            (
                depth,
                f"{pair} B{one['boundary']} of {one['layers']}",
                f"{one['served']:.3f}",
                f"{one['dtype']:.3f}",
                f"{one['neighbour_distance']:.2f} (B{one['neighbour']})",
                f"{one['neighbour_cosine']:.3f}",
                f"{one['row0']:.0f}",
            )
            for depth, pair, one in at_depths(found)
        ],
    )


def noise_words(found: Measured, match: float) -> Iterator[str]:
    """The sentences. match: the default limit of that name."""
    chosen = list(at_depths(found))
    real = {depth: one["served"] for depth, pair, one in chosen if pair == REAL}
    times = [real[depth] / one["served"] for depth, pair, one in chosen if pair != REAL]
    above, most = [], max(found, key=lambda one: one["served"])
    for pair in dict.fromkeys(one["pair"] for one in found):
        own = [one["served"] for one in found if one["pair"] == pair]
        above.append(f"{sum(value > TOY_LIMIT for value in own)} of {len(own)} boundaries of {pair}")
    words = (
        f"**At like depth the noise of a healthy server is {min(times):.1f} to {max(times):.1f} times a toy's.**",
        f"A limit of {TOY_LIMIT} is passed at {', '.join(above[:-1])} and {above[-1]} that were measured,",
        f"all of them healthy. The highest value is {most['served']:.3f} ({most['pair']} B{most['boundary']}); the default",
        f"limit `match` is {match}, and beside it count the neighbouring boundary's distance and the number format's",
        "rounding, which are measured in place.",
    )
    text = " ".join(words)
    yield from textwrap.wrap(text, 124, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
