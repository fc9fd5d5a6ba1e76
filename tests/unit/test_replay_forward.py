"""The batched forward against a token-by-token loop, transformers' own layers and rotary embeddings."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from audit_folders import HIDDEN, PRUNED, VOCAB, draft_tensors, specforge, target_tensors, write_draft, write_target

from drafttrace.compare.draft_config import parse_draft_config, read_draft_config
from drafttrace.compare.draft_weights import draft_weights
from drafttrace.compare.replay.loading import Replayer, load_replayer, step_tokens
from drafttrace.compare.replay.model import Reading
from drafttrace.compare.replay.rope import rotation_of
from drafttrace.compare.replay.run import replay
from drafttrace.compare.replay.switches import Switches, switches_of
from drafttrace.compare.target_parts import target_parts
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.errors import UnknownFormat, UnreadableFile


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same states in every run: two tokens that are nearly equally likely change places with the order of sums."""
    torch.manual_seed(0)


def bench_module(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], longest: int = 64) -> Replayer:
    draft = write_draft(folder / "draft", config, tensors)
    target = write_target(folder / "target")
    parts = target_parts(open_checkpoint(target), eps=1e-6, model_type="llama", embed_scale=1.0)
    return load_replayer(read_draft_config(draft), draft_weights(open_checkpoint(draft)), parts, longest)


def outputs(
    replayer: Replayer, slots: torch.Tensor, tokens: np.ndarray, steps: int, switches: Switches
) -> list[Any]:
    reading = replayer.reading(np.stack([step_tokens(tokens, s, len(slots)) for s in range(steps)]), switches)
    state = replayer.model.fc(replayer.model.fc_in(slots.split(HIDDEN, dim=-1), switches))
    return replayer.model.steps(state[None], reading, switches)


def test_all_rows_at_once_equal_one_token_at_a_time(tmp_path: Path) -> None:
    replayer = load(tmp_path, specforge([1, 15, 28]), draft_tensors())
    slots, tokens = torch.randn(40, 3 * HIDDEN), np.random.default_rng(1).integers(0, VOCAB, 42)
    embedding = target_tensors()["model.embed_tokens.weight"].float()
    wanted = bench_module("replay_loop").run_loop(
        replayer.model.weights, replayer.config, slots, embedding, torch.from_numpy(tokens), 4
    )
    made = outputs(replayer, slots, tokens, 4, Switches())
    found = torch.stack([replayer.model.logits(step.normed)[0].argmax(-1) for step in made], dim=1)
    assert torch.equal(found, wanted)
    assert len(set(wanted.flatten().tolist())) > 10  # the comparison is of many different answers


@pytest.mark.parametrize("block", [1, 7, 512])
def test_blocks_of_query_rows_change_nothing(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import drafttrace.compare.replay.attention as attention

    replayer = load(tmp_path, specforge([1, 15, 28]), draft_tensors())
    slots, tokens = torch.randn(20, 3 * HIDDEN), np.arange(22)
    whole = outputs(replayer, slots, tokens, 3, Switches())
    monkeypatch.setattr(attention, "_BLOCK", block)
    monkeypatch.setattr(attention, "_KERNEL", None)
    parts = outputs(replayer, slots, tokens, 3, Switches())
    assert all(torch.allclose(a.state, b.state, atol=1e-5) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("plain", [False, True], ids=["kernel", "plain"])
@pytest.mark.parametrize("block", [5, 512])
@pytest.mark.parametrize("window", [1, 2, 3, 8, 39, 64])
def test_a_sliding_window_equals_one_token_at_a_time(
    tmp_path: Path, window: int, block: int, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import drafttrace.compare.replay.attention as attention

    monkeypatch.setattr(attention, "_BLOCK", block)
    if plain:
        monkeypatch.setattr(attention, "_KERNEL", None)
    config = specforge([1, 15, 28], sliding_window=window, layer_types=["sliding_attention"])
    replayer = load(tmp_path, config, draft_tensors())
    switches = switches_of(replayer.config, replayer.weights)
    assert switches.windows == (window,)
    slots, tokens = torch.randn(40, 3 * HIDDEN), np.random.default_rng(1).integers(0, VOCAB, 42)
    embedding = target_tensors()["model.embed_tokens.weight"].float()
    wanted = bench_module("replay_loop").run_loop(
        replayer.model.weights, replayer.config, slots, embedding, torch.from_numpy(tokens), 4
    )
    made = outputs(replayer, slots, tokens, 4, switches)
    found = torch.stack([replayer.model.logits(step.normed)[0].argmax(-1) for step in made], dim=1)
    assert torch.equal(found, wanted)
    whole = outputs(replayer, slots, tokens, 4, Switches())
    alike = [torch.allclose(a.state, b.state, atol=1e-5) for a, b in zip(made, whole, strict=True)]
    assert all(alike) if window == 64 else not any(alike)


@pytest.mark.parametrize("plain", [False, True], ids=["kernel", "plain"])
@pytest.mark.parametrize("window", [None, 3, 8])
def test_texts_behind_one_another_do_not_see_each_other(
    tmp_path: Path, window: int | None, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import drafttrace.compare.replay.attention as attention

    if plain:
        monkeypatch.setattr(attention, "_KERNEL", None)
    replayer = load(tmp_path, specforge([1, 15, 28]), draft_tensors())
    switches = Switches(windows=() if window is None else (window,))
    random, lengths = np.random.default_rng(1), (20, 9, 31)
    texts = [(torch.randn(rows, 3 * HIDDEN), random.integers(0, VOCAB, rows + 2)) for rows in lengths]
    alone = [outputs(replayer, slots, tokens, 4, switches) for slots, tokens in texts]
    ids = np.stack([np.concatenate([step_tokens(t, s, len(x)) for x, t in texts]) for s in range(4)])
    slots = torch.cat([slots for slots, _ in texts])
    state = replayer.model.fc(replayer.model.fc_in(slots.split(HIDDEN, dim=-1), switches))
    spans = ((0, 20), (20, 29), (29, 60))
    packed = replayer.model.steps(state[None], replayer.reading(ids, switches), switches, spans)
    for step, together in enumerate(packed):
        parts = [together.state[:, begin:end] for begin, end in spans]
        for part, one in zip(parts, alone, strict=True):
            assert torch.allclose(part, one[step].state, atol=1e-5)
    mixed = replayer.model.steps(state[None], replayer.reading(ids, switches), switches)
    assert not torch.allclose(mixed[0].state[:, 20:], packed[0].state[:, 20:], atol=1e-5)


def test_windows_are_read_layer_by_layer(tmp_path: Path) -> None:
    def windows(**config: Any) -> tuple[int | None, ...]:
        return parse_draft_config(specforge([1, 15, 28], num_hidden_layers=2, **config), tmp_path).windows

    assert (
        windows()
        == windows(sliding_window=8)
        == windows(sliding_window=8, use_sliding_window=False)
        == (None, None)
    )
    assert windows(sliding_window=8, layer_types=["full_attention", "sliding_attention"]) == (None, 8)
    assert windows(sliding_window=8, layer_types=["sliding_attention"]) == (8, None)
    assert windows(sliding_window=8, use_sliding_window=True) == (8, 8)
    assert windows(sliding_window=8, use_sliding_window=True, max_window_layers=1) == (None, 8)
    assert windows(sliding_window=None, use_sliding_window=True) == windows(sliding_window=0, model_type="mistral")
    assert windows(sliding_window=8, model_type="mistral") == (8, 8)


def test_switches_do_what_their_names_say(tmp_path: Path) -> None:
    extra = {f"fc_norm.{k}.weight": torch.rand(HIDDEN) + 0.5 for k in range(3)}
    replayer = load(tmp_path, specforge([1, 15, 28], fc_norm=True), {**draft_tensors(), **extra})
    assert switches_of(replayer.config, replayer.weights).fc_norm
    slots, tokens = torch.randn(12, 3 * HIDDEN), np.arange(14)
    base = outputs(replayer, slots, tokens, 2, Switches(fc_norm=True))
    plain = outputs(replayer, slots, tokens, 2, Switches())
    assert not torch.allclose(base[0].state, plain[0].state)
    normed = torch.cat(
        [
            torch.nn.functional.rms_norm(p, (HIDDEN,), extra[f"fc_norm.{k}.weight"], 1e-6)
            for k, p in enumerate(slots.split(HIDDEN, 1))
        ],
        dim=1,
    )
    by_hand = outputs(replayer, normed, tokens, 2, Switches())
    assert torch.allclose(base[0].state, by_hand[0].state, atol=1e-5)
    recycled = outputs(replayer, slots, tokens, 2, Switches(norm_output=True))
    assert torch.equal(recycled[0].normed, plain[0].normed) and torch.equal(recycled[0].handed, plain[0].normed)
    assert not torch.allclose(recycled[1].normed, plain[1].normed)
    residual = outputs(replayer, slots, tokens, 1, Switches(norm_before_residual=True))[0].state
    fc = slots @ replayer.model.weights["fc.weight"].T
    gain = replayer.model.weights["layers.0.hidden_norm.weight"]
    attention = plain[0].state  # residual + everything else; only the residual differs before the MLP
    assert not torch.allclose(residual, attention)
    zeroed = dict(draft_tensors())
    zeroed["midlayer.self_attn.o_proj.weight"].zero_()
    zeroed["midlayer.mlp.down_proj.weight"].zero_()
    bare = load(tmp_path / "bare", specforge([1, 15, 28]), zeroed)
    state = outputs(bare, slots, tokens, 1, Switches(norm_before_residual=True))[0].state[0]
    assert torch.allclose(state, torch.nn.functional.rms_norm(fc, (HIDDEN,), gain, 1e-6), atol=1e-5)


def test_norm_over_the_concatenation(tmp_path: Path) -> None:
    gain = torch.rand(3 * HIDDEN) + 0.5
    replayer = load(
        tmp_path, specforge([1, 15, 28], norm_before_fc=True), {**draft_tensors(), "input_norm.weight": gain}
    )
    assert switches_of(replayer.config, replayer.weights).input_norm
    slots = torch.randn(5, 3 * HIDDEN)
    made = replayer.model.fc_in(slots.split(HIDDEN, 1), Switches(input_norm=True))
    assert torch.allclose(made, torch.nn.functional.rms_norm(slots, (3 * HIDDEN,), gain, 1e-6))


def test_with_both_norms_the_one_over_all_slots_comes_first(tmp_path: Path) -> None:
    """It was the other way round: SGLang and speculators norm the concatenation, then every slot of it."""
    gain = torch.rand(3 * HIDDEN) + 0.5
    gains = {f"fc_norm.{k}.weight": torch.rand(HIDDEN) + 0.5 for k in range(3)}
    config = specforge([1, 15, 28], norm_before_fc=True, fc_norm=True)
    replayer = load(tmp_path, config, {**draft_tensors(), "input_norm.weight": gain, **gains})
    switches = switches_of(replayer.config, replayer.weights)
    assert switches.input_norm and switches.fc_norm
    slots = torch.randn(5, 3 * HIDDEN)
    first = torch.nn.functional.rms_norm(slots, (3 * HIDDEN,), gain, 1e-6)
    then = [
        torch.nn.functional.rms_norm(part, (HIDDEN,), gains[f"fc_norm.{k}.weight"], 1e-6)
        for k, part in enumerate(first.split(HIDDEN, 1))
    ]
    made = replayer.model.fc_in(slots.split(HIDDEN, 1), switches)
    assert torch.allclose(made, torch.cat(then, dim=1), atol=1e-6)


def test_fused_projections_are_split(tmp_path: Path) -> None:
    plain = draft_tensors()
    fused = dict(plain)
    fused["midlayer.self_attn.qkv_proj.weight"] = torch.cat(
        [fused.pop(f"midlayer.self_attn.{p}_proj.weight") for p in "qkv"]
    )
    fused["midlayer.mlp.gate_up_proj.weight"] = torch.cat(
        [fused.pop(f"midlayer.mlp.{p}_proj.weight") for p in ("gate", "up")]
    )
    slots, tokens = torch.randn(9, 3 * HIDDEN), np.arange(11)
    one, two = (load(tmp_path / n, specforge([1, 15, 28]), t) for n, t in (("a", plain), ("b", fused)))
    a, b = (outputs(r, slots, tokens, 2, Switches())[1].state for r in (one, two))
    assert torch.equal(a, b)


def test_several_layers(tmp_path: Path) -> None:
    tensors = draft_tensors()
    for name, tensor in draft_tensors(prefix="layers.1.").items():
        if name.startswith("layers.1.") and not name.endswith("input_layernorm.weight"):
            tensors[name] = (
                tensor[:, :HIDDEN].contiguous() if "self_attn" in name and "o_proj" not in name else tensor
            )
    two = load(tmp_path / "two", specforge([1, 15, 28], num_hidden_layers=2), tensors)
    one = load(tmp_path / "one", specforge([1, 15, 28]), draft_tensors())
    slots, tokens = torch.randn(9, 3 * HIDDEN), np.arange(11)
    assert not torch.allclose(
        outputs(two, slots, tokens, 1, Switches())[0].state, outputs(one, slots, tokens, 1, Switches())[0].state
    )
    tensors["layers.1.self_attn.o_proj.weight"].zero_()
    tensors["layers.1.mlp.down_proj.weight"].zero_()
    silent = load(tmp_path / "silent", specforge([1, 15, 28], num_hidden_layers=2), tensors)
    assert torch.allclose(
        outputs(silent, slots, tokens, 2, Switches())[1].state, outputs(one, slots, tokens, 2, Switches())[1].state
    )


ROPES = [
    {},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16,
        "attention_factor": 1.3,
    },
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
    },
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {
        "rope_type": "longrope",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.5],
        "long_factor": [2.0, 5.0],
    },
]


@pytest.mark.parametrize("scaling", ROPES, ids=lambda s: s.get("rope_type", "default"))
@pytest.mark.parametrize("length", [40, 600])
def test_rotations_equal_transformers(scaling: dict[str, Any], length: int) -> None:
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    raw = specforge(rope_scaling=scaling or None)
    ours = rotation_of(parse_draft_config(raw, Path("config.json")), length)
    kind = scaling.get("rope_type", "default")
    parameters = {**scaling, "rope_type": kind, "rope_theta": 10000.0}
    theirs = LlamaConfig(
        hidden_size=HIDDEN, num_attention_heads=4, max_position_embeddings=512, rope_parameters=parameters
    )
    if kind == "default":
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        inverse, scale = LlamaRotaryEmbedding(theirs).inv_freq, 1.0
    else:
        inverse, scale = rope_utils.ROPE_INIT_FUNCTIONS[kind](theirs, "cpu", seq_len=length)
    assert torch.allclose(ours.inverse, inverse.float(), rtol=1e-5)
    assert math.isclose(ours.scale, scale, rel_tol=1e-5)


@pytest.mark.parametrize("kind", ["yarn", "deepseek_yarn"])
def test_yarns_attn_factor_scales_cosines_as_sglang_does(kind: str) -> None:
    """transformers has no such field; SGLang multiplies yarn's own scale, 0.1 ln(factor) + 1, by it."""
    fields = {"rope_type": kind, "factor": 8.0, "original_max_position_embeddings": 64}
    scales = []
    for attn_factor in (None, 1.0, 0.5, 1.7):
        scaling = {**fields, "attn_factor": attn_factor}
        made = rotation_of(parse_draft_config(specforge(rope_scaling=scaling), Path("config.json")), 40)
        scales.append(made.scale)
        cos, _ = made.angles(torch.zeros(1))
        assert cos[0, 0].item() == pytest.approx(made.scale)
    own = 0.1 * math.log(8.0) + 1
    assert scales == pytest.approx([own, own, 0.5 * own, 1.7 * own])


def test_partial_rotation_leaves_the_tail(tmp_path: Path) -> None:
    config = parse_draft_config(specforge(head_dim=8, partial_rotary_factor=0.5), Path("config.json"))
    rotation = rotation_of(config, 16)
    x = torch.randn(1, 2, 16, 8)
    turned = rotation.rotate(x, *rotation.angles(torch.arange(16)))
    assert torch.equal(turned[..., 4:], x[..., 4:]) and not torch.allclose(turned[..., 1:, :4], x[..., 1:, :4])
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


MLA = {"kv_lora_rank": 12, "q_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}


def mla_tensors() -> dict[str, torch.Tensor]:
    tensors = {k: v for k, v in draft_tensors().items() if "self_attn" not in k}
    generator = torch.Generator().manual_seed(5)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    at = "midlayer.self_attn."
    return tensors | {
        f"{at}q_a_proj.weight": rand(10, 2 * HIDDEN),
        f"{at}q_a_layernorm.weight": 1 + rand(10),
        f"{at}q_b_proj.weight": rand(4 * 12, 10),
        f"{at}kv_a_proj_with_mqa.weight": rand(16, 2 * HIDDEN),
        f"{at}kv_a_layernorm.weight": 1 + rand(12),
        f"{at}kv_b_proj.weight": rand(4 * 14, 12),
        f"{at}o_proj.weight": rand(HIDDEN, 4 * 6),
    }


def test_multi_latent_attention_equals_transformers(tmp_path: Path) -> None:
    """DeepSeek-V3's attention of transformers, on the draft's double-width input, without a cache."""
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    from transformers import DeepseekV3Config

    raw = specforge([1, 29, 57], architectures=["Eagle3DeepseekV2ForCausalLM"], **MLA)
    replayer = load(tmp_path, raw, mla_tensors())
    config = DeepseekV3Config(
        hidden_size=2 * HIDDEN,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
        **MLA,
    )
    attention = modeling.DeepseekV3Attention(config, 0)
    attention.o_proj = torch.nn.Linear(24, HIDDEN, bias=False)
    named = {
        k.removeprefix("layers.0.self_attn."): v for k, v in replayer.model.weights.items() if "self_attn" in k
    }
    attention.load_state_dict(named)
    x, rows = torch.randn(1, 20, 2 * HIDDEN), 20
    rotary = modeling.DeepseekV3RotaryEmbedding(config)(x, torch.arange(rows)[None])
    mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
    wanted = attention(x, rotary, mask)[0]
    model = replayer.model
    this = model._pass(Reading(torch.zeros(1, HIDDEN), torch.zeros(1, rows, dtype=torch.long)), ((0, rows),))
    cos, sin = (table[:rows, None] for table in this.turns)
    made = model._attention(
        "layers.0", lambda name: model._linear(x, f"layers.0.self_attn.{name}"), this, (cos, sin), None
    )
    assert torch.allclose(made, wanted, atol=1e-5)


def test_multi_latent_drafts_chain(tmp_path: Path) -> None:
    raw = specforge([1, 29, 57], architectures=["Eagle3DeepseekV2ForCausalLM"], **MLA)
    replayer = load(tmp_path, raw, mla_tensors())
    slots, tokens = torch.randn(12, 3 * HIDDEN), np.arange(14)
    whole = outputs(replayer, slots, tokens, 3, Switches())
    shorter = outputs(replayer, slots[:7], tokens[:12], 3, Switches())  # later rows cannot change earlier ones
    assert torch.allclose(whole[2].state[:, :7], shorter[2].state, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"parallel_decoding_heads": 4}, "parallel_decoding_heads"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1], "mix_states": True}},
            r"eagle_config\.mix_states",
        ),
        ({"eagle_config": {"use_last_layernorm": False}}, r"eagle_config\.use_last_layernorm"),
        ({"hidden_act": "xielu"}, "xielu"),
    ],
)
def test_unknown_switches_are_refused_by_name(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    draft = write_draft(tmp_path, {**specforge([1, 15, 28]), **config})
    with pytest.raises(UnknownFormat, match=words):
        switches_of(read_draft_config(draft), draft_weights(open_checkpoint(draft)))


def test_a_switch_that_is_off_or_waved_through_is_no_obstacle(tmp_path: Path) -> None:
    draft = write_draft(tmp_path, {**specforge([1, 15, 28]), "parallel_decoding_heads": None, "odd": 3})
    config, weights = read_draft_config(draft), draft_weights(open_checkpoint(draft))
    assert switches_of(config, weights, ("odd",)) == Switches()


def test_the_public_key_layouts_are_known(tmp_path: Path) -> None:
    from audit_folders import angelslim, modelopt, speculators

    for k, config in enumerate((specforge([1, 2, 3]), speculators([1, 2, 3]), modelopt([1, 2, 3]), angelslim())):
        draft = write_draft(tmp_path / str(k), config)
        assert not switches_of(read_draft_config(draft), draft_weights(open_checkpoint(draft))).fc_norm


@pytest.mark.parametrize(
    ("drop", "config", "error"),
    [
        ("midlayer.hidden_norm.weight", {}, UnreadableFile),
        ("fc.weight", {}, UnknownFormat),
        ("lm_head.weight", {"draft_vocab_size": PRUNED}, UnreadableFile),
        ("t2d", {"target_hidden_size": 13}, UnknownFormat),
        ("t2d", {"rope_scaling": {"rope_type": "yarn"}}, UnknownFormat),
        ("t2d", {"rope_scaling": {"rope_type": "spiral"}}, UnknownFormat),
    ],
)
def test_drafts_that_cannot_run_are_refused(tmp_path: Path, drop: str, config: dict[str, Any], error: type) -> None:
    tensors = draft_tensors()
    tensors.pop(drop)
    with pytest.raises(error) as caught:
        load(tmp_path, {**specforge([1, 15, 28]), **config}, tensors)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("d2t", torch.zeros(0, dtype=torch.int64)),
        ("d2t", torch.zeros(PRUNED, 1, dtype=torch.int64)),
        ("d2t", torch.tensor(3)),
        ("d2t", torch.zeros(PRUNED)),
        ("lm_head.weight", torch.zeros(0, HIDDEN)),
        ("lm_head.weight", torch.zeros(PRUNED)),
        ("lm_head.weight", torch.zeros(PRUNED, HIDDEN + 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}-{tuple(value.shape)}",
)
def test_maps_and_heads_that_are_none_are_refused_by_name(tmp_path: Path, name: str, tensor: torch.Tensor) -> None:
    with pytest.raises(UnreadableFile, match=name.split(".")[0]) as caught:
        load(tmp_path, specforge([1, 15, 28]), {**draft_tensors(), name: tensor})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("far", [-(10**12), 10**12, 2**62])
def test_a_map_far_outside_the_vocabulary_costs_no_memory(tmp_path: Path, far: int) -> None:
    from replay_world import make_world

    world = make_world(tmp_path, (2, 16, 29), rows=40)
    spoiled = {**draft_tensors(), "d2t": torch.full((PRUNED,), far, dtype=torch.int64)}
    draft = write_draft(tmp_path / "spoiled", specforge([1, 15, 28]), spoiled)
    result = replay(world.capture((2, 16, 29)), draft, world.target, switches=False)
    assert result.wirings[0].score is not None and result.wirings[0].score.top1 == 0.0
    assert "vocab-coverage" in [found.id for found in result.findings]


def test_the_targets_head_is_shared_where_the_draft_has_none(tmp_path: Path) -> None:
    tensors = draft_tensors()
    for name in ("lm_head.weight", "d2t", "t2d"):
        tensors.pop(name)
    config = {k: v for k, v in specforge([1, 15, 28]).items() if k != "draft_vocab_size"}
    replayer = load(tmp_path, config, tensors)
    assert torch.equal(replayer.model.weights["lm_head.weight"], target_tensors()["lm_head.weight"].float())
    assert np.array_equal(replayer.targets(Switches()), np.arange(VOCAB))
