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


def demo_pair(name: str) -> DemoPair:
    """The pair of that name. Raises KeyError for one that has no demo."""
    tiny_kimi = DemoPair(
        name="tiny-kimi",
        target=_committed("tiny-kimi"),
        draft=ROOT / "pairs/tiny-kimi/draft",
        dump=ROOT / "pairs/tiny-kimi/dump/data_0.pt",
        prompts=_tiny_prompts,
    )
    return {"tiny-kimi": tiny_kimi}[name]


NAMES = ("tiny-kimi",)
