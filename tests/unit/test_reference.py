"""The reference maker against transformers' own hidden states, on tiny random Llama and DeepSeek-V3 targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dump_layouts
import numpy as np
import pytest
import torch

from drafttrace.tracer.capture import Capture, Norm, RowTable
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.safetensors_file import read_safetensors
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnreadableFile
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.reference import LossMask, make_reference, mask_of, plan_boundaries, tokens_of
from drafttrace.tracer.reference_samples import read_source

N = 6
TOKENS = np.arange(3, 40, dtype=np.int64) % 97


def save_llama(folder: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=N,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def save_deepseek(folder: Path) -> Path:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(2)
    config = DeepseekV3Config(vocab_size=128, hidden_size=32, intermediate_size=64, moe_intermediate_size=16,
                              num_hidden_layers=N, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4,
                              num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1, kv_lora_rank=16,
                              q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
                              n_shared_experts=1, max_position_embeddings=128)  # fmt: skip
    DeepseekV3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_deepseek(tmp_path_factory.mktemp("deepseek"))


def truth(target: Path, tokens: np.ndarray, dtype: Any = torch.bfloat16) -> tuple[list[np.ndarray], np.ndarray]:
    """transformers' own hidden states: B(0..n-1), and the last state after the norm."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(target), dtype=dtype)
    with torch.inference_mode():
        out = model(torch.from_numpy(tokens)[None], output_hidden_states=True)
    states = [state[0].float().numpy() for state in out.hidden_states]
    return states[:-1], states[-1]


@pytest.mark.parametrize("which", ["target", "deepseek"])
def test_every_boundary_is_the_one_it_is_called(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    target: Path = request.getfixturevalue(which)
    path = make_reference(target, [TOKENS], tmp_path / "ref.safetensors")[0]
    capture = open_capture(str(path))
    before, post = truth(target, TOKENS)
    assert capture.format == "DRAFTTRACE"
    assert sorted(capture.boundaries) == list(range(N + 1))
    for k in range(N):
        assert np.array_equal(capture.boundaries[k].floats(), before[k]), f"B{k}"
    assert capture.wiring == (2, 3)  # B{2, n//2, n-3} of six layers has two members
    assert capture.last is not None
    assert capture.last.norm is Norm.PRE
    assert capture.last.boundary == N
    assert not np.allclose(capture.last.rows.floats(), post), "B(n) must not be the normed state"
    from drafttrace.tracer.target_weights import TargetWeights

    normed = TargetWeights(target).final_norm(capture.last.rows.floats())
    assert np.abs(normed - post).max() < 0.05
    assert capture.tokens.tolist() == TOKENS.tolist()


def test_chosen_boundaries_and_slots(target: Path, tmp_path: Path) -> None:
    path = make_reference(
        target, [TOKENS], tmp_path / "r.safetensors", boundaries=[3], slots=[0, 3, 5], dtype="fp32"
    )[0]
    capture = open_capture(str(path))
    before, _post = truth(target, TOKENS, torch.float32)
    assert capture.wiring == (0, 3, 5)
    assert capture.embed is not None
    for slot, k in zip(capture.slots, (0, 3, 5), strict=True):
        assert slot.rows.dtype.value == "fp32"
        assert np.array_equal(slot.rows.floats(), before[k])


def test_batches_are_padded_where_a_causal_model_does_not_look(target: Path, tmp_path: Path) -> None:
    samples = [TOKENS, TOKENS[:11], TOKENS[5:20]]
    alone = make_reference(target, samples, tmp_path / "alone", boundaries="canonical", dtype="fp32")
    together = make_reference(
        target, samples, tmp_path / "batch", boundaries="canonical", dtype="fp32", batch_size=3
    )
    for one, two, tokens in zip(alone, together, samples, strict=True):
        left, right = open_capture(str(one)), open_capture(str(two))
        assert left.tokens.tolist() == right.tokens.tolist() == tokens.tolist()
        for slot, other in zip(left.slots, right.slots, strict=True):
            assert np.allclose(slot.rows.floats(), other.rows.floats(), atol=1e-4)


def test_an_interrupted_run_goes_on(target: Path, tmp_path: Path) -> None:
    samples = [TOKENS, TOKENS[:11], TOKENS[5:20]]
    calls: list[tuple[int, int]] = []

    def stop_after_one(done: int, total: int) -> None:
        calls.append((done, total))
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_reference(target, samples, tmp_path / "out", progress=stop_after_one)
    written = tmp_path / "out/hs_0.safetensors"
    first = written.stat().st_mtime_ns
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["hs_0.safetensors"]
    calls.clear()
    make_reference(target, samples, tmp_path / "out", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert written.stat().st_mtime_ns == first


def test_output_of_another_run_is_not_overwritten(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.safetensors"
    make_reference(target, [TOKENS], out, boundaries="canonical")
    with pytest.raises(OutputExists, match="--force"):
        make_reference(target, [TOKENS[:9]], out, boundaries="canonical")
    make_reference(target, [TOKENS[:9]], out, boundaries="canonical", force=True)
    assert len(open_capture(str(out)).tokens) == 9


def test_the_file_has_the_layout_of_the_vllm_connector(target: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    path = make_reference(target, [TOKENS], tmp_path / "r.safetensors", boundaries="canonical")[0]
    with safe_open(str(path), "pt") as file:
        assert set(file.keys()) == {"hidden_states", "token_ids"}
        states = file.get_tensor("hidden_states")
        assert states.shape == (len(TOKENS), 3, 32)
        assert states.dtype is torch.bfloat16
    mine = read_safetensors(path).tensors["hidden_states"].read()
    assert np.array_equal(mine.view(np.int16), states.view(torch.int16).numpy())


def test_ids_outside_the_vocabulary(target: Path, tmp_path: Path) -> None:
    with pytest.raises(DrafttraceError, match="Token 999 is outside the target's vocabulary of 128"):
        make_reference(target, [np.array([1, 999])], tmp_path / "r.safetensors")


def test_a_target_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"no config\.json"):
        make_reference(tmp_path, [TOKENS], tmp_path / "r.safetensors")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 200}')
    with pytest.raises(UnreadableFile, match="cannot load the target"):
        make_reference(tmp_path, [TOKENS], tmp_path / "r.safetensors")


def test_boundaries_that_there_are_not() -> None:
    with pytest.raises(DrafttraceError, match="There is no B7: a target of 6 layers has B0 to B6"):
        plan_boundaries(6, [7])
    assert plan_boundaries(61, "canonical").slots == (2, 30, 58)
    assert plan_boundaries(61, "canonical").stored == (2, 30, 58, 61)
    assert plan_boundaries(61, [0, 3, 31], slots=[0, 3, 31]).slots == (0, 3, 31)


def test_boundaries_add_no_slots() -> None:
    """``--boundaries B0,B3,B31,B59`` declared four slots, and ``diff`` then blamed the server for its three."""
    plan = plan_boundaries(61, [0, 3, 31, 59])
    assert plan.slots == (2, 30, 58)
    assert plan.stored == (0, 3, 31, 59, 2, 30, 58, 61)


def test_a_wiring_that_names_a_boundary_twice_is_refused() -> None:
    """``--wiring B2,B2,B5`` was silently a wiring of two slots."""
    with pytest.raises(DrafttraceError, match=r"The wiring \[B2, B2, B5\] names B2 twice"):
        plan_boundaries(6, "all", slots=[2, 2, 5])


def test_tokens_with_a_hole_are_refused(target: Path, tmp_path: Path) -> None:
    path = make_reference(target, [TOKENS], tmp_path / "r.safetensors", boundaries="canonical")[0]
    capture = open_capture(str(path))
    assert tokens_of(capture).tolist() == TOKENS.tolist()
    import dataclasses

    holed = dataclasses.replace(capture, tokens=np.where(np.arange(len(TOKENS)) == 0, -1, TOKENS))
    assert isinstance(holed, Capture)
    with pytest.raises(DrafttraceError, match="does not keep token 0"):
        tokens_of(holed)


def test_a_loss_mask_stays_with_its_tokens(target: Path, tmp_path: Path) -> None:
    """The loss mask of a dump was dropped, and nothing said so."""
    out, weights = tmp_path / "out", (np.arange(len(TOKENS)) > 4).astype(np.int64)
    samples, masks = [TOKENS, TOKENS[:9], TOKENS[:7]], [LossMask(weights, 1), None, LossMask(weights[:7], 0)]
    paths = make_reference(target, samples, out, masks=masks, boundaries="canonical", batch_size=2)
    for path, mask, tokens in zip(paths, masks, samples, strict=True):
        capture = open_capture(str(path))
        assert capture.tokens.tolist() == tokens.tolist()
        found = mask_of(capture)
        assert (found is None) is (mask is None)
        if found is not None and mask is not None:
            assert (found.values.tolist(), found.offset) == (mask.values.tolist(), mask.offset)
    before = [path.stat().st_ino for path in paths]
    make_reference(target, samples, out, masks=masks, boundaries="canonical", batch_size=2)
    assert before == [path.stat().st_ino for path in paths]
    for others, words in (
        ([None, None, masks[2]], "it has a loss mask"),
        ([masks[0], LossMask(weights[:9], 1), masks[2]], "it has no loss mask"),
        ([LossMask(1 - weights, 1), None, masks[2]], "it has another loss mask"),
        ([LossMask(weights, 0), None, masks[2]], "it has another mask_offset"),
    ):
        with pytest.raises(OutputExists, match=f"of another run: {words}"):
            make_reference(target, samples, out, masks=others, boundaries="canonical")


@pytest.mark.parametrize("length", [5, 13, 20])
def test_a_mask_of_another_length_is_that_of_the_tokens(length: int) -> None:
    capture = Capture(
        "x", "x", "x", TOKENS[:13], RowTable.of_tokens(TOKENS[:13]), (), mask=np.ones(length, np.int64)
    )
    mask = mask_of(capture)
    assert mask is not None and mask.values.tolist() == [1] * min(13, length) + [0] * max(0, 13 - length)


@pytest.mark.parametrize("write", [dump_layouts.write_spec_arrow, dump_layouts.write_sf_eagle3])
def test_the_mask_of_a_dump_is_read_with_its_tokens(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """That of speculators lies in a file beside the sample, which nobody looked at for the tokens alone."""
    path = write(tmp_path)
    source, capture = read_source(str(path)), open_capture(str(path), request=Request(lenient=True))
    [mask] = source.masks
    wanted = mask_of(capture)
    assert mask is not None and wanted is not None and mask.values.any()
    assert (mask.values.tolist(), mask.offset) == (wanted.values.tolist(), capture.mask_offset)


def test_the_reference_names_the_boundaries_of_a_real_dump(tmp_path: Path) -> None:
    """The trained tiny pair's own dump, which declares nothing: the nearest boundary of every slot is the right one."""
    pair = Path(__file__).resolve().parents[2] / "pairs/tiny-llama"
    dump = open_capture(f"{pair / 'dump'}#2")
    path = make_reference(pair / "target", [tokens_of(dump)], tmp_path / "ref.safetensors")[0]
    reference = open_capture(str(path))
    assert dump.last is not None
    found = []
    for rows in (*(slot.rows for slot in dump.slots), dump.last.rows):
        ours = rows.floats()[1:]
        distance = {
            k: np.median(np.linalg.norm(theirs.floats()[1:] - ours, axis=-1) / np.linalg.norm(ours, axis=-1))
            for k, theirs in reference.boundaries.items()
        }
        best = min(distance, key=lambda k: distance[k])
        assert distance[best] < 0.03
        found.append(best)
    assert found == [2, 8, 13, 16]


@pytest.mark.parametrize("device_map", ["auto", "cpu"])
def test_a_device_map_changes_where_and_not_what(device_map: str, target: Path, tmp_path: Path) -> None:
    """Where there is a GPU, ``tests/gpu`` looks at it; accelerate's hooks are in place here, too."""
    plain = make_reference(target, [TOKENS], tmp_path / "plain.safetensors", dtype="fp32")
    spread = make_reference(target, [TOKENS], tmp_path / "map.safetensors", dtype="fp32", device_map=device_map)
    one, two = open_capture(str(plain[0])), open_capture(str(spread[0]))
    for k, rows in one.boundaries.items():
        assert np.allclose(rows.floats(), two.boundaries[k].floats(), rtol=1e-3, atol=1e-3), f"B{k}"
