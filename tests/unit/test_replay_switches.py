"""What a replay makes of switches: unknown ones are refused, a rope has two readings, and weights speak as in the audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_world import World, make_world
from safetensors.torch import load_file, save_file

from drafttrace.compare.replay.result import ReplayResult
from drafttrace.compare.replay.run import replay
from drafttrace.compare.result import FAULT
from drafttrace.tracer.errors import UnknownFormat

TRUTH = (2, 16, 29)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path, TRUTH)


def changed(world: World, **changes: Any) -> World:
    """The world's draft with other keys in its config; those of ``eagle_config`` are added."""
    path = world.draft / "config.json"
    config = json.loads(path.read_text())
    changes["eagle_config"] = {**config["eagle_config"], **changes.get("eagle_config", {})}
    path.write_text(json.dumps({**config, **changes}))
    return world


def ran(world: World, **more: Any) -> ReplayResult:
    return replay(world.capture(TRUTH), world.draft, world.target, steps=1, **more)


@pytest.mark.parametrize(
    ("changes", "ignored"),
    [({"odd": False}, "odd"), ({"eagle_config": {"odd": 0}}, "eagle_config.odd"), ({"eagle_config": {"odd": 0}}, "odd")],
)  # fmt: skip
def test_the_name_in_the_refusal_is_the_one_that_waves_it_through(
    world: World, changes: dict[str, Any], ignored: str
) -> None:
    """--ignore eagle_config.odd was advised, and only --ignore odd was taken."""
    changed(world, **changes)
    with pytest.raises(UnknownFormat, match="--ignore"):
        ran(world)
    assert ran(world, ignore_switches=[ignored]).exit_code == 0


def test_a_key_to_ignore_that_is_not_there_is_an_error(world: World) -> None:
    """--ignore zzz was taken without a word."""
    with pytest.raises(UnknownFormat, match=r"--ignore zzz names a key that .* does not have"):
        ran(world, ignore_switches=["zzz"])


def attending(world: World, scale: float = 2.0) -> World:
    """The world's draft with an attention that matters, and tokens that its own forward says."""
    path = world.draft / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(5)
    name = "midlayer.self_attn.o_proj.weight"
    tensors[name] = scale * torch.randn(tensors[name].shape, generator=generator)
    for part in "qk":
        tensors[f"midlayer.self_attn.{part}_proj.weight"] *= 3.0
    save_file(tensors, path)
    tokens = world.tokens
    from drafttrace.compare.audit.gathering import gather
    from drafttrace.compare.replay.packs import Pack
    from drafttrace.compare.replay.prepare import open_bench

    subject, _, _ = gather(world.target, world.draft)
    with torch.inference_mode():
        for _ in range(len(tokens)):
            bench = open_bench(subject, [world.capture(TRUTH)], 1, (), False)
            text, model = bench.texts[0], bench.replayer.model
            pack = Pack((text,), (text.rows,))
            fc_out = model.fc(model.fc_in([pack.states(key) for key in TRUTH], bench.trained))
            done = model.steps(fc_out[None], pack.reading(bench.replayer, 1, bench.trained), bench.trained)
            said = bench.replayer.targets(bench.trained)[model.logits(done[0].normed)[0].argmax(-1).numpy()]
            wrong = (tokens[2:] != said[: len(tokens) - 2]).nonzero()[0]
            if not len(wrong):
                break
            tokens[2 + wrong[0] :] = said[wrong[0] : len(tokens) - 2]
    return world


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rope_is_neox_style": False}, True),
        ({"rope_is_neox_style": True}, False),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, True),
    ],
    ids=str,
)
def test_a_rope_that_the_server_turns_otherwise_is_replayed_both_ways(
    tmp_path: Path, changes: dict[str, Any], fault: bool
) -> None:
    """The replay of "rope_is_neox_style": false was the trained draft's to the digit, and exit 0; live 2.11 for 2.96."""
    world = attending(make_world(tmp_path, TRUTH, rows=72))
    assert ran(world).exit_code == 0
    changed(world, **changes)
    result = ran(world)
    assert max(row.score.top1 for row in result.wirings if row.score is not None) > 0.95
    assert [v.value for v in result.variants if v.switch == "rope"] == ["as SGLang"] * fault
    found = [f for f in result.findings if f.id == "rope-mismatch" and f.severity == FAULT]
    assert len(found) == fault and (not fault or "its rope turns otherwise" in found[0].summary)


@pytest.mark.parametrize(
    ("name", "config", "change", "drop"),
    [
        ("nan-inf", {}, "norm.weight", ()),
        ("nan-inf", {}, "midlayer.mlp.up_proj.weight", ()),
        ("vocab-map-missing", {}, None, ("d2t", "t2d")),
        ("fc-not-called", {"eagle_config": {"use_aux_hidden_state": False}}, None, ()),
        ("weights-replaced", {"tie_word_embeddings": True}, None, ()),
    ],
)
def test_the_replay_names_what_its_weights_and_switches_say(
    world: World, name: str, config: dict[str, Any], change: str | None, drop: tuple[str, ...]
) -> None:
    """ "unexplained", with the advice to record all boundaries, or 75 % and exit 0, where check had the cause."""
    path = world.draft / "model.safetensors"
    tensors = {key: tensor for key, tensor in load_file(path).items() if key not in drop}
    if change is not None:
        tensors[change].view(-1)[-1] = float("nan")
    save_file(tensors, path)
    result = ran(changed(world, **config))
    faults = [f.id for f in result.findings if f.severity == FAULT]
    assert name in faults and "unexplained" not in faults
    assert "vocab-coverage" not in [f.id for f in result.findings] or not drop


@pytest.mark.parametrize(
    ("rename", "fault"),
    [("module.{}", True), ("draft_model.{}", True), ("model.{}", False)],
)
def test_names_that_the_server_passes_over_are_no_names_for_the_replay(
    world: World, rename: str, fault: bool
) -> None:
    """75 % and exit 0, where the server fills not one parameter."""
    path = world.draft / "model.safetensors"
    tensors = load_file(path)
    save_file({k if k == "lm_head.weight" and not fault else rename.format(k): t for k, t in tensors.items()}, path)
    result = ran(world)
    assert [f.id for f in result.findings if f.severity == FAULT] == ["weights-missing"] * fault
