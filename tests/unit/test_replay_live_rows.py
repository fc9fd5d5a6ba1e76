"""Garbage in some rows of a live draft, which no median sees, and logits that no first choice sees."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_folders import draft_tensors
from replay_served import honest, pair, served, with_weight
from replay_world import World
from safetensors.torch import load_file, save_file

from drafttrace.compare.replay.live import LiveComparison
from drafttrace.compare.replay.render import markdown
from drafttrace.compare.replay.run import replay
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import ArrayRows, DType

ROOT = Path(__file__).parents[2]


def compared(capture: Capture, world: World) -> tuple[LiveComparison, list[Finding], int]:
    result = replay(capture, world.draft, world.target, switches=False)
    assert result.live is not None
    return result.live, [f for f in result.findings if f.id in ("downstream", "none")], result.exit_code


def with_rows(capture: Capture, tensor: str, every: int, value: float) -> tuple[Capture, int]:
    """Every so-manieth row of a tensor that a trace holds times ``value``; and how many there are."""
    draft = capture.draft
    assert draft is not None
    rows = draft.tensors[tensor].floats().copy()
    chosen = np.flatnonzero(draft.present.get(tensor, np.ones(len(rows), bool)))[::every]
    rows[chosen] *= np.float32(value)
    tensors = {**draft.tensors, tensor: ArrayRows(rows, DType.FP32)}
    return dataclasses.replace(capture, draft=dataclasses.replace(draft, tensors=tensors)), len(chosen)


@pytest.mark.parametrize("tensor", ["embed_in", "hidden_in", "fc_in", "fc_out", "hidden_out", "topk_logits"])
@pytest.mark.parametrize(("every", "value"), [(3, -1.0), (3, 0.0), (3, np.nan), (1000, np.nan), (1000, np.inf)])
def test_garbage_in_some_rows_is_not_called_agreement(
    tmp_path: Path, tensor: str, every: int, value: float
) -> None:
    """Medians alone were looked at: 45 % of the rows negated, or one of them NaN, gave ``none`` and exit code 0."""
    world, replayer = pair(tmp_path)
    capture, count = with_rows(served(world, replayer, honest), tensor, every, value)
    live, (found,), code = compared(capture, world)
    assert found.id == "downstream" and code == 1
    assert live.parted is not None and not live.parted.whole and live.parted.apart is not None
    name = "logits" if tensor == "topk_logits" else tensor
    assert (live.parted.step, live.parted.tensor) == (0, name)
    apart = len(live.parted.apart)
    assert (
        sum(len(stage.apart) for stage in live.stages if stage.apart is not None and stage.tensor == name) == count
    )
    assert f"in {apart} of {live.parted.rows} rows (position" in found.summary
    assert ("NaN or infinite on one side only" in found.summary) == (not np.isfinite(value))
    assert "hardly a weight of the draft" in found.remedy
    assert ("rows of lm_head" in found.remedy) == (name == "logits")
    assert ("rows of embed_tokens" in found.remedy) == (name == "embed_in")
    assert list(found.evidence["positions"]) == list(live.parted.apart.position)


def test_the_two_between_which_a_fault_lies_are_named(tmp_path: Path) -> None:
    """It was "between the two"."""
    world, replayer = pair(tmp_path)
    for tensor, words in (
        ("embed_in", "in the draft's embedding, or in the token ids that it looked up"),
        ("hidden_in", "between the slots that the server hands over and hidden_in of step 1"),
        ("fc_in", "between hidden_in of step 1 and fc_in of step 1"),
        ("fc_out", "between fc_in of step 1 and fc_out of step 1"),
    ):
        capture, _ = with_rows(served(world, replayer, honest), tensor, 1, 2.0)
        _, (found,), _ = compared(capture, world)
        assert words in found.summary


@pytest.mark.parametrize("factor", [0.5, 1.1, 2.0])
def test_other_logits_with_the_same_first_choices_part(tmp_path: Path, factor: float) -> None:
    """Only first choices were compared: a final norm that is twice as long gave ``none``."""
    world, replayer = pair(tmp_path)
    weight = replayer.model.weights["norm.weight"] * factor
    live, (found,), code = compared(served(world, with_weight(replayer, "norm.weight", weight)), world)
    assert code == 1 and live.top1_agreement == 1.0
    assert live.parted is not None and (live.parted.step, live.parted.tensor) == (0, "logits")
    assert f"norm {factor:.3f} times the replay's" in found.summary
    assert found.evidence["parts"] == ["the final norm", "lm_head"]


@pytest.mark.parametrize("with_ids", [True, False])
def test_an_honest_trace_has_the_replay_s_logits(tmp_path: Path, with_ids: bool) -> None:
    """Also where the trace does not hold the ids before the vocabulary map."""
    world, replayer = pair(tmp_path)
    capture = served(world, replayer, honest)
    assert capture.draft is not None
    ids = capture.draft.ids if with_ids else {"topk_ids": capture.draft.ids["topk_ids"]}
    capture = dataclasses.replace(capture, draft=dataclasses.replace(capture.draft, ids=ids))
    live, (found,), code = compared(capture, world)
    logits = [stage for stage in live.stages if stage.tensor == "logits"]
    assert (found.id, code, len(logits)) == ("none", 0, 3)
    assert all(stage.rel_l2_p50 is not None and stage.rel_l2_p50 < 1e-5 for stage in logits)


@pytest.mark.parametrize(
    "name", ["tiny-kimi/as-trained", "tiny-kimi/fixed", "tiny-kimi/shifted", "tiny-llama/healthy"]
)
def test_no_row_of_a_healthy_trace_parts(name: str) -> None:
    """The limit of a row lies far above what healthy servers' rows differ by."""
    pairs = ROOT / "pairs" / name.split("/")[0]
    live = replay(
        open_capture(str(ROOT / "traces" / f"{name}.h5")), pairs / "draft", pairs / "target", switches=False
    ).live
    assert live is not None and live.parted is None
    assert all(stage.apart is None for stage in live.stages)
    far = [stage.rel_l2_p50 for stage in live.stages if stage.rel_l2_p50 is not None]
    assert far and max(far) < 2e-3


def test_a_zero_in_the_replay_prints_no_number_of_thirty_digits(tmp_path: Path) -> None:
    """A draft whose fc is zero was told "relative L2 34574625621035802496842292264960.000"."""
    world, replayer = pair(tmp_path)
    capture = served(world, replayer, honest)
    other, _ = pair(tmp_path / "zero", _zeroed())
    result = replay(capture, other.draft, world.target, switches=False)
    (found,) = [f for f in result.faults if f.id == "downstream"]
    assert "relative L2" in found.summary and "e+3" in found.summary
    assert not any(len(word) > 25 and word[:5].isdigit() for word in markdown(result).split())


def _zeroed() -> dict[str, torch.Tensor]:
    return {name: t * 0 if name == "fc.weight" else t for name, t in draft_tensors().items()}


@pytest.mark.parametrize("counts", [[6] * 6, [1] * 6])
def test_accept_lengths_that_contradict_each_other_are_not_called_agreement(
    tmp_path: Path, counts: list[int]
) -> None:
    """With --no-switches: "accept length 6.00 was observed, the replay gives 1.07" was ``none`` with exit code 0."""
    folder, draft = ROOT / "pairs/tiny-kimi", ROOT / "pairs/tiny-kimi/draft"
    capture = open_capture(str(ROOT / "traces/tiny-kimi/fixed.h5"))
    request = {**capture.about["request"], "accept_counts": counts}
    capture = dataclasses.replace(capture, about={**capture.about, "request": request})
    if counts[0] > 1:  # the draft's own embedding, which SGLang replaces by the target's
        draft = tmp_path / "draft"
        shutil.copytree(folder / "draft", draft)
        tensors = load_file(draft / "model.safetensors")
        config = json.loads((draft / "config.json").read_text())
        rows, width = config["vocab_size"], config["hidden_size"]
        tensors["embed_tokens.weight"] = torch.randn(
            rows, width, generator=torch.Generator().manual_seed(1)
        ).bfloat16()
        save_file(tensors, draft / "model.safetensors")
    result = replay(capture, draft, folder / "target", switches=False)
    assert result.live is not None and result.live.parted is None
    (found,) = [f for f in result.findings if f.id in ("none", "unexplained")]
    assert found.id == "unexplained" and result.exit_code == 1
    assert f"Accept length {counts[0]}.00 was observed over 6 rounds" in found.summary
    assert ("without --no-switches" in found.remedy) == (counts[0] > 1)
    if counts[0] > 1:
        assert found.evidence["changed"] == ["embedding"] and "(embedding)" in found.summary
