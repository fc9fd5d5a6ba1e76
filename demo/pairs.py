"""What the demo needs to know of each pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class DemoPair:
    """A target, a draft whose config is as its trainer left it, one sample of its dump, and held-out prompts.

    target: called when the demo starts; it may have to fetch and convert a model first.
    """

    name: str
    target: Callable[[], Path]
    draft: Path
    dump: Path
    prompts: Callable[[int], list[str]]
    steps: int = 5


def _committed(name: str) -> Callable[[], Path]:
    return lambda: ROOT / "pairs" / name / "target"


def _tiny_prompts(count: int) -> list[str]:
    from pairs.corpus import held_out_prompts

    return held_out_prompts(count)


def _smol_target() -> Path:
    from pairs.smol.fetch import target_dir

    return target_dir()


def _smol_prompts(count: int) -> list[str]:
    from pairs.smol.prompts import held_out_texts

    return held_out_texts(count)


PAIRS = {
    pair.name: pair
    for pair in (
        DemoPair(
            name="tiny-kimi",
            target=_committed("tiny-kimi"),
            draft=ROOT / "pairs/tiny-kimi/draft",
            dump=ROOT / "pairs/tiny-kimi/dump/data_0.pt",
            prompts=_tiny_prompts,
        ),
        DemoPair(
            name="smol",
            target=_smol_target,
            draft=ROOT / "pairs/smol/draft",
            dump=ROOT / "pairs/smol/dump/data_0.pt",
            prompts=_smol_prompts,
        ),
    )
}
