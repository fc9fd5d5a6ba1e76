"""A real server's draft and its replay compute the same thing, and the replay finds the trained wiring in a sweep."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recording
from sglang_cpu.arguments import cpu_args

from drafttrace.compare.replay.run import replay

pytestmark = pytest.mark.live

TRAINED = {"tiny-llama": ("[B2, B8, B13]", [1, 7, 12]), "tiny-kimi": ("[B0, B3, B31]", [0, 3, 31])}
"""The wiring of training, and the ids that give it in the SGLang of the tests."""


def rewired(draft: Path, ids: list[int], folder: Path) -> Path:
    """A copy of a draft with other layer ids."""
    copied = Path(shutil.copytree(draft, folder / "draft"))
    config = json.loads((copied / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
    (copied / "config.json").write_text(json.dumps(config))
    return copied


def prompt(pair: Any) -> list[int]:
    """The beginning of a training sample, so that the target speaks as it was trained to."""
    from drafttrace.tracer.open import open_capture

    capture = open_capture(str(pair.dump))
    assert capture.mask is not None
    spoken = [i for i, m in enumerate(capture.mask) if m]
    return [int(k) for k in capture.tokens[: spoken[0]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


def test_live_and_replay_agree(start_server: Callable[..., Any], pair: Any, folder: Path) -> None:
    wiring, ids = TRAINED[pair.name]
    (folder / pair.name).mkdir(exist_ok=True)
    draft = folder / pair.name / "draft"
    draft = draft if draft.exists() else rewired(pair.draft, ids, folder / pair.name)
    traced = start_server(cpu_args(pair.target, draft, steps=4, num_draft_tokens=5))
    one = recording.record(traced, prompt(pair), taps={"boundaries": "all"}, max_new_tokens=96, ignore_eos=True)
    result = replay(one.trace, draft, pair.target, search_wirings=True)
    live = result.live
    assert live is not None and live.steps == 4 and live.topk == 1
    assert live.parted is None, live.stages
    # The ids themselves, not ties: the replay rounds where the server rounds, and takes the first of equal logits.
    assert live.number_format == "bf16"
    assert live.top1_agreement is not None and live.top1_agreement >= 0.99, live.stages
    proposals = [stage for stage in live.stages if stage.tensor == "proposal"]
    assert sum(stage.rows for stage in proposals) > 100 and {stage.step for stage in proposals} == {0, 1, 2, 3}
    tensors = [stage for stage in live.stages if stage.cosine_p50 is not None]
    assert {stage.step for stage in tensors} == {0, 1, 2, 3}
    assert all(stage.cosine_min is not None and stage.cosine_min >= 0.999 for stage in tensors), tensors
    assert live.observed is not None
    served = next(row for row in result.wirings if "file" in row.sources)
    assert served.score is not None and served.wiring == wiring
    assert served.score.simulated == pytest.approx(live.observed, abs=0.35)
    # 1 + a1 + a1·a2 + … of the accuracies on the same text, which holds for rounds that begin anywhere in it.
    assert served.score.expected == pytest.approx(live.observed, rel=0.25)
    # One short text cannot tell a boundary from its neighbour with these drafts: what was served, which is what training
    # used, keeps the first place, and any other wiring is ahead by chance at most.
    assert result.search is not None and result.search.winner == wiring, result.search
    assert result.search.margin > -0.05, result.search
    best = max(row.score.top1 for row in result.wirings if row.score is not None)
    assert served.score.top1 >= best - 0.05


def test_what_enters_the_steps_of_a_tree_agrees_with_its_replay(
    start_server: Callable[..., Any], pairs: Any
) -> None:
    """embed_in and hidden_in of two branches."""
    pair = pairs["tiny-llama"]
    args = cpu_args(pair.target, pair.draft, topk=2, num_draft_tokens=6, extra=["--disable-radix-cache"])
    one = recording.record(start_server(args), prompt(pair), max_new_tokens=24, ignore_eos=True)
    live = replay(one.trace, pair.draft, pair.target, switches=False).live
    assert live is not None and live.topk == 2 and live.parted is None, live
    entered = {(stage.step, stage.tensor) for stage in live.stages if stage.tensor.endswith("_in")}
    assert entered >= {(step, name) for step in (0, 1) for name in ("embed_in", "hidden_in")}


def test_the_incident_is_found_without_any_dump(start_server: Callable[..., Any], pairs: Any) -> None:
    """tiny-kimi as its config has it: the sweep of one trace is enough to see that the embedding is missing."""
    pair = pairs["tiny-kimi"]
    traced = start_server(cpu_args(pair.target, pair.draft, steps=4, num_draft_tokens=5))
    one = recording.record(traced, prompt(pair), taps={"boundaries": "all"}, max_new_tokens=96, ignore_eos=True)
    result = replay(one.trace, pair.draft, pair.target, search_wirings=True)
    assert result.exit_code == 1 and result.search is not None
    assert result.search.winner.startswith("[B0, "), result.search  # the embedding, which the server left out
    assert any("eagle_aux_hidden_state_layer_ids" in fault.remedy for fault in result.faults)
