"""Replays of rows whose beginning, or middle, has no states: what the draft attended to there is not known."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_served import honest, pair, served, spoiled

from drafttrace.compare.acceptance import expected_of_replay
from drafttrace.compare.replay.render import markdown
from drafttrace.compare.replay.result import ReplayResult
from drafttrace.compare.replay.rope_trial import try_target_base
from drafttrace.compare.replay.run import replay
from drafttrace.compare.replay.switches import Switches
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import ArrayRows, DType

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = [("tiny-llama", "healthy"), ("tiny-kimi", "fixed")]


def kept(capture: Capture, keep: Ints, cached: int = 0) -> Capture:
    """The capture with these rows of the target only, as a recorder leaves out what it did not see."""

    def cut(rows: object) -> ArrayRows:
        return ArrayRows(rows.take(keep), DType.FP32)  # type: ignore[attr-defined]

    table = capture.table
    fields = {field.name: getattr(table, field.name)[keep] for field in dataclasses.fields(table)}
    last, embed = capture.last, capture.embed
    return dataclasses.replace(
        capture,
        table=dataclasses.replace(table, **fields),
        slots=tuple(dataclasses.replace(slot, rows=cut(slot.rows)) for slot in capture.slots),
        last=None if last is None else dataclasses.replace(last, rows=cut(last.rows)),
        embed=None if embed is None else dataclasses.replace(embed, rows=cut(embed.rows)),
        boundaries={},
        padded=None,
        present={name: mask[keep] for name, mask in capture.present.items()},
        about={**capture.about, "request": {**capture.about.get("request", {}), "cached_prefix": cached}},
    )


def behind(capture: Capture, first: int) -> Capture:
    """The capture where the prefix cache supplied the first tokens."""
    return kept(capture, np.flatnonzero(capture.table.position >= first), first)


def of_pair(name: str, trace: str) -> Capture:
    return open_capture(str(ROOT / "traces" / name / f"{trace}.h5"))


def replayed(name: str, capture: Capture, search: bool = False) -> ReplayResult:
    folder = ROOT / "pairs" / name
    return replay(capture, folder / "draft", folder / "target", search_wirings=search, sglang_version="0.5.23")


def compared(result: ReplayResult) -> set[str]:
    assert result.live is not None
    return {stage.tensor for stage in result.live.stages if stage.step == 0}


@pytest.mark.parametrize("first", [1, 9, 22])
@pytest.mark.parametrize(("name", "trace"), HEALTHY)
def test_a_cached_prefix_is_no_fault_of_the_draft_s_layer(name: str, trace: str, first: int) -> None:
    """A healthy server was ``downstream``, confidence 0.90, exit code 1: the replay's attention lacked cached tokens."""
    whole, result = replayed(name, of_pair(name, trace)), replayed(name, behind(of_pair(name, trace), first), True)
    assert whole.exit_code == 0 and compared(whole) >= {"hidden_out", "proposal", "logits"}
    assert whole.absent_tokens == 0 and "prefix-gap" not in {f.id for f in whole.findings}
    assert result.faults == () and result.exit_code == 0
    assert compared(result) == {"embed_in", "hidden_in", "fc_in", "fc_out"}
    (found,) = [f for f in result.findings if f.id == "prefix-gap"]
    assert (
        f"first {first} token{'s' if first > 1 else ''} " in found.summary
        and "the prefix cache supplied them" in found.summary
    )
    assert "embed_in, hidden_in, fc_in" in found.summary and "extra_key" in found.remedy
    assert "accept length to expect is not known" in result.summary and result.absent_tokens == first
    assert "tokens short: lengths compare wirings only" in markdown(result)


def test_no_expected_length_is_taken_from_a_replay_that_lacks_tokens() -> None:
    """tiny-llama with 22 cached tokens: expected 2.54, observed 4.57; a diff would have judged the one by the other."""
    capture = of_pair("tiny-llama", "healthy")
    result = replayed("tiny-llama", behind(capture, 22))
    plain = json.loads(json.dumps(result.to_json()))
    assert result.live is not None and result.live.observed is not None
    assert [round(length, 2) for length in (result.best.score.expected, result.live.observed)] == [2.54, 4.57]
    with pytest.raises(DrafttraceError, match="no states of 22 tokens before its rows"):
        expected_of_replay(plain, "replay.json")
    assert expected_of_replay(replayed("tiny-llama", capture).to_json(), "replay.json").length > 3


@pytest.mark.parametrize("tensor", ["embed_in", "hidden_in", "fc_in", "fc_out"])
def test_what_a_row_makes_by_itself_is_compared_behind_a_cached_prefix(tmp_path: Path, tensor: str) -> None:
    world, replayer = pair(tmp_path)

    def other(value: torch.Tensor) -> torch.Tensor:
        return torch.randn(value.shape, generator=torch.Generator().manual_seed(1))

    capture = behind(served(world, replayer, spoiled(tensor, 0, other)), 5)
    result = replay(capture, world.draft, world.target, switches=False)
    assert result.live is not None and result.live.parted is not None
    assert (result.live.parted.tensor, result.live.parted.step) == (tensor, 0)
    assert [f.id for f in result.faults] == ["downstream"]


@pytest.mark.parametrize("first", [1, 3])
def test_rows_whose_window_ends_before_the_prefix_are_compared(tmp_path: Path, first: int) -> None:
    """A draft that sees five tokens lacks nothing from its fifth row on."""
    world, replayer = pair(tmp_path)
    arguments = {"speculative_draft_window_size": 4}
    switches = Switches(windows=(5,))

    def live(change: Callable[..., torch.Tensor]) -> ReplayResult:
        capture = behind(served(world, replayer, change, switches), first)
        capture = dataclasses.replace(capture, about={**capture.about, "server_args": arguments})
        return replay(capture, world.draft, world.target, switches=False)

    sound = live(honest)
    assert sound.live is not None and sound.live.lacking == 4 and sound.live.parted is None
    rows = {stage.tensor: stage.rows for stage in sound.live.stages if stage.step == 0}
    assert rows["hidden_out"] == rows["fc_out"] - 4 and rows["proposal"] == rows["hidden_out"] > 0
    assert "downstream" not in {f.id for f in sound.findings}
    broken = live(spoiled("hidden_out", 0, lambda value: -value))
    assert broken.live is not None and broken.live.parted is not None
    assert broken.live.parted.tensor == "hidden_out" and [f.id for f in broken.faults] == ["downstream"]


def test_no_rope_base_is_tried_behind_a_cached_prefix(tmp_path: Path) -> None:
    """A draft's base may be blamed by a replay; one that lacks tokens is no witness."""
    capture, folder = of_pair("tiny-llama", "healthy"), ROOT / "pairs/tiny-llama"
    shutil.copytree(folder / "draft", tmp_path / "draft")
    config = json.loads((tmp_path / "draft/config.json").read_text())
    (tmp_path / "draft/config.json").write_text(json.dumps(config | {"rope_theta": 500000.0}))
    assert try_target_base(capture, folder / "target", tmp_path / "draft") is not None
    assert try_target_base(behind(capture, 22), folder / "target", tmp_path / "draft") is None


@pytest.mark.parametrize("hole", [range(12, 15), range(60, 62)])
def test_a_gap_in_the_middle_is_no_fault_and_lengths_are_not_compared_across_it(hole: range) -> None:
    capture = of_pair("tiny-llama", "healthy")
    keep = np.flatnonzero(~np.isin(capture.table.position, list(hole)))
    result = replayed("tiny-llama", kept(capture, keep))
    assert result.faults == () and "none" not in {f.id for f in result.findings}
    (found,) = [f for f in result.findings if f.id == "prefix-gap"]
    assert "behind or before a gap" in found.summary and "Record the whole request again" in found.remedy
    assert ("their rows are missing" in found.summary) == (hole.start < 20)
    assert compared(result) >= ({"fc_out"} if hole.start < 20 else {"fc_out", "hidden_out", "proposal"})
    assert any("the longest run of rows without a gap" in note for note in result.notes)


def test_rows_that_a_tap_did_not_record_are_a_gap_and_not_zeros() -> None:
    """Missing rows of a slot are held as zeros; the replay attended to them and called the draft layer faulty."""
    capture = of_pair("tiny-llama", "healthy")
    mask = np.ones(len(capture.table), bool)
    mask[10:12] = False
    raw = capture.slots[1].rows.take(np.arange(len(mask)))
    raw[~mask] = 0
    slots = list(capture.slots)
    slots[1] = dataclasses.replace(slots[1], rows=ArrayRows(raw, DType.FP32))
    holed = dataclasses.replace(capture, slots=tuple(slots), present={slots[1].name: mask})
    result = replayed("tiny-llama", holed)
    assert result.faults == () and result.live is not None and result.live.lacking > 0
    unread = dataclasses.replace(capture, present={"last": mask})
    result = replayed("tiny-llama", unread)
    assert result.judged_by == "the text's next token"
    assert any("not recorded in all rows" in note for note in result.notes)
