"""What the page about the real model says beside its generated tables, against the files that it names."""

from __future__ import annotations

import json
import re
from pathlib import Path

from doctools.noise_table import at_depths, noise_table, noise_words
from drafttrace.compare.thresholds import DEFAULT, Thresholds
from pairs.smol.prompts import texts_unlike_the_training

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/explanation/real-model.md").read_text("utf-8")
NOISE = json.loads((ROOT / "bench/noise.json").read_text("utf-8"))


def test_the_noise_is_compared_at_like_depth() -> None:
    """The real model's last boundary stood against the toys' middle ones, chosen by hand: "two to four times"."""
    chosen = {(depth, pair): one for depth, pair, one in at_depths(NOISE)}
    assert {key: one["boundary"] for key, one in chosen.items()} == {
        ("half", "tiny-llama"): 8, ("half", "tiny-kimi"): 30, ("half", "smol"): 15,
        ("14/15", "tiny-llama"): 15, ("14/15", "tiny-kimi"): 57, ("14/15", "smol"): 28,
        ("last", "tiny-llama"): 16, ("last", "tiny-kimi"): 61, ("last", "smol"): 30,
    }  # fmt: skip
    times = [
        chosen[depth, "smol"]["served"] / chosen[depth, toy]["served"]
        for depth in ("half", "14/15", "last")
        for toy in ("tiny-llama", "tiny-kimi")
    ]
    (words,) = [" ".join(" ".join(noise_words(NOISE, DEFAULT.match)).split())]
    assert f"{min(times):.1f} to {max(times):.1f} times a toy's" in words
    assert "5 of 17 boundaries of tiny-llama, 4 of 62 boundaries of tiny-kimi and 7 of 7" in words


def test_the_neighbour_of_a_last_boundary_is_the_one_before() -> None:
    """Of B30 the distance of B29 stood under "next boundary"."""
    for one in NOISE:
        assert one["neighbour"] == one["boundary"] + (1 if one["boundary"] < one["layers"] else -1)
    assert any("smol B30 of 30" in row and "(B29)" in row for row in noise_table(NOISE))


def test_the_noise_that_the_thresholds_name_is_what_was_measured() -> None:
    """ "Below 0.03" was said, and the real model's last boundary lies at 0.0314."""
    named = re.search(
        r"transformers\s+bf16\s+lies\s+below\s+([0-9.]+):\s+bench/noise\.json", Thresholds.__doc__ or ""
    )
    assert named is not None
    most = max(one["served"] for one in NOISE)
    assert most < float(named[1]) < most + 0.002 and float(named[1]) < DEFAULT.match


def test_the_figures_of_what_had_to_change_stand_in_their_tests() -> None:
    """The page said that the thresholds of the tiny pairs had held; the limit on accept lengths had not."""
    section = PAGE.partition("## What had to change")[2].partition("\n## ")[0]
    assert f"| 1.3 | {DEFAULT.accept} |" in section
    tests = [ROOT / path for path in re.findall(r"`(tests/[\w/.]+\.py)`", section)]
    assert len(tests) == 4
    kept = " ".join(path.read_text("utf-8") for path in tests)
    for figure in ("2.54", "4.57"):
        assert figure in section and figure in kept, figure


def test_the_texts_unlike_the_training_are_measured_and_not_remembered() -> None:
    """Two figures had been seen on a server once, of texts that nobody kept."""
    measured = json.loads((ROOT / "pairs/smol/accept_length.json").read_text("utf-8"))["unlike_training"]
    asked = texts_unlike_the_training()
    assert {kind: one["prompts"] for kind, one in measured.items()} == {k: len(v) for k, v in asked.items()}
    section = PAGE.partition("## What had to change")[2].partition("\n## ")[0]
    low = {kind for kind, one in measured.items() if one["accept_length"] < 1.3}
    assert low == {"emoji", "Japanese", "one word"} and "on emoji, Japanese and a single word" in section
    hi = measured["one word"]
    assert (hi["tokens"] + 1, hi["rounds"]) == (10, 7) and "ten tokens over 7 rounds" in section
    said = 1 - measured["Japanese"]["outside_draft_vocabulary"]
    assert 5.5 < 1 / said < 6.5 and "one token in six" in section
    # A limit on the accept length alone would accuse a healthy server: what spares it is the draft's vocabulary.
    assert measured["Japanese"]["accept_length"] < DEFAULT.accept < measured["emoji"]["accept_length"]
