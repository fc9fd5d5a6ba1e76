"""A draft whose config gives another rope base than training used: found by replaying it with the target's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import compare_faults as faults
import numpy as np
import pytest
from compare_world import dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.replay.rope_trial import signed_rank, try_target_base
from drafttrace.compare.rope_facts import RopeTrial, rope_base
from drafttrace.tracer.beside import gather
from drafttrace.tracer.capture import Capture, DraftRows
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.trace.reader import read_trace

ROOT = Path(__file__).resolve().parents[2]
TRACES = {"tiny-kimi": ROOT / "traces/tiny-kimi/fixed.h5", "tiny-llama": ROOT / "traces/tiny-llama/healthy.h5"}


def with_base(model: Path, out: Path, base: float) -> Path:
    """A copy of a model's folder with another rope base in its config."""
    shutil.copytree(model, out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"rope_theta": base}))
    return out


# On the trained pairs


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("base", [1000.0, 500000.0])
def test_the_base_of_training_predicts_better(name: str, base: float, pairs: Any, tmp_path: Path) -> None:
    pair = pairs[name]
    sample = open_capture(str(pair.dump))
    trial = try_target_base(sample, pair.target, with_base(pair.draft, tmp_path / "draft", base))
    assert trial is not None and (trial.config_base, trial.target_base) == (base, 10000.0)
    assert trial.trained_with_the_targets, trial
    assert trial.served is None  # a dump has no draft rows


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("base", [1000.0, 500000.0])
def test_a_draft_that_was_trained_with_another_base_is_right(
    name: str, base: float, pairs: Any, tmp_path: Path
) -> None:
    """The same two bases the other way round: the target's is the worse one, and nobody is blamed."""
    pair = pairs[name]
    sample = open_capture(str(pair.dump))
    trial = try_target_base(sample, with_base(pair.target, tmp_path / "target", base), pair.draft)
    assert trial is not None and trial.sigmas < 0 and not trial.trained_with_the_targets, trial


@pytest.mark.parametrize("name", TRACES)
def test_rope_changes_nothing_at_position_0_and_more_the_further_it_looks(
    name: str, pairs: Any, tmp_path: Path
) -> None:
    pair = pairs[name]
    trial = try_target_base(
        read_trace(TRACES[name]), pair.target, with_base(pair.draft, tmp_path / "draft", 500000.0)
    )
    assert trial is not None
    at_zero, early, late = trial.apart
    assert at_zero < 1e-5 < early < late
    assert trial.served is not None  # this server turned with the target's base, as its states tell
    assert trial.served[1] > 0.999 > trial.served[0]


def test_equal_bases_are_not_replayed(pairs: Any) -> None:
    pair = pairs["tiny-kimi"]
    assert try_target_base(read_trace(TRACES["tiny-kimi"]), pair.target, pair.draft) is None


def test_bases_are_found_in_both_spellings() -> None:
    assert rope_base({"rope_theta": 10000}) == 10000.0
    assert rope_base({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}) == 5e5
    assert rope_base({"text_config": {"rope_theta": 50000.0}}) == 50000.0
    assert rope_base({"rope_theta": True}) is None and rope_base({}) is None and rope_base(None) is None


def test_a_few_rows_that_are_confidently_wrong_decide_nothing() -> None:
    gain = np.full(40, -0.01)
    gain[:2] = 50.0  # the mean says otherwise
    assert signed_rank(gain.astype(np.float32)) < -3.5
    assert signed_rank(np.zeros(10, np.float32)) == 0.0


# Which diffs replay at all


def served_with(draft: Path, target: Path) -> Capture:
    arguments = {"model_path": str(target), "speculative_draft_model_path": str(draft)}
    trace = read_trace(TRACES["tiny-kimi"])
    return replace(trace, about={**trace.about, "server_args": arguments})


def test_a_diff_replays_only_where_the_bases_differ(pairs: Any, tmp_path: Path) -> None:
    pair = pairs["tiny-kimi"]
    assert gather(served_with(pair.draft, pair.target), None).rope() is None
    other = with_base(pair.draft, tmp_path / "draft", 500000.0)
    trial = gather(served_with(other, pair.target), None).rope()
    assert trial is not None and trial.config_base == 500000.0
    for lost in (served_with(tmp_path / "gone", pair.target), served_with(other, tmp_path / "gone")):
        assert gather(lost, None).rope() is None
    (other / "model.safetensors").write_bytes(b"cut off")
    assert gather(served_with(other, pair.target), None).rope() is None


# The finding

WORLD = make_world(layers=20)
NOISY = WORLD.noisy(0.01)
WIRING = (2, 8, 14)
BETTER = RopeTrial(500000.0, 10000.0, 48, (0.6, 0.1), 5.0, (1.0, 0.9), (0.0, 0.1, 0.5))


def findings(trial: RopeTrial, dump: Capture | None = None) -> Mapping[str, Any]:
    found = diff(served(WORLD, WIRING), dump or dumped(NOISY, WIRING), rope=lambda: trial)
    return {one.id: one for one in found.findings}


def test_a_better_base_is_named_with_the_line_that_sets_it() -> None:
    found = findings(BETTER)["rope-mismatch"]
    assert found.severity == "fault" and found.evidence["place"] == "attention/rope"
    assert '"rope_theta": 10000' in found.remedy and "0.6" in found.summary and "0.1" in found.summary
    assert "own states are those of the config's base" in found.summary


@pytest.mark.parametrize(
    "trial",
    [
        replace(BETTER, sigmas=2.5),  # chance
        replace(BETTER, loss=(0.6, 0.55)),  # hardly better
        replace(BETTER, sigmas=-5.0, loss=(0.1, 0.6)),  # worse
    ],
)
def test_what_may_be_chance_is_not_named(trial: RopeTrial) -> None:
    assert "rope-mismatch" not in findings(trial)


def test_nothing_is_replayed_while_slots_are_wrong() -> None:
    """Neither base predicts anything from wrong states."""

    def never() -> RopeTrial:
        raise AssertionError("replayed")

    diff(served(WORLD, WIRING), faults.permuted((1, 0, 2))(dumped(NOISY, WIRING)), rope=never)
    diff(served(WORLD, WIRING), None, rope=never)


def test_a_trace_without_a_draft_is_not_replayed(pairs: Any, tmp_path: Path) -> None:
    pair = pairs["tiny-kimi"]
    trace = served_with(with_base(pair.draft, tmp_path / "draft", 500000.0), pair.target)
    assert isinstance(trace.draft, DraftRows)
    assert gather(replace(trace, draft=None), None).rope() is None


def test_a_redacted_trace_is_not_replayed(pairs: Any, tmp_path: Path) -> None:
    """Its tokens are no tokens of the model."""
    pair = pairs["tiny-kimi"]
    trace = served_with(with_base(pair.draft, tmp_path / "draft", 500000.0), pair.target)
    assert gather(trace, None).rope() is not None
    assert gather(replace(trace, about={**trace.about, "redacted": {}}), None).rope() is None
