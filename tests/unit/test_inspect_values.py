"""Checks by value, on the trained tiny pair: what a dump is must not depend on what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.inspecting import Inspection, inspect_capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.target_weights import TargetWeights

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "pairs/tiny-llama"
TARGET = PAIR / "target"
N = 16


class Sample:
    """One sample of the tiny pair's dump, in pieces that a test can put together wrongly."""

    def __init__(self) -> None:
        capture = open_capture(f"{PAIR / 'dump'}#0")
        assert capture.last is not None
        assert capture.mask is not None
        self.tokens = torch.from_numpy(capture.tokens)
        self.mask = torch.from_numpy(capture.mask)
        self.b2, self.b8, self.b13 = (self.tensor(slot.rows.floats()) for slot in capture.slots)
        self.last_pre = self.tensor(capture.last.rows.floats())
        weights = TargetWeights(TARGET)
        self.embedding = self.tensor(weights.embedding(capture.tokens))
        self.last_post = self.tensor(weights.final_norm(capture.last.rows.floats()))

    @staticmethod
    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(torch.bfloat16)


@pytest.fixture(scope="module")
def sample() -> Sample:
    return Sample()


def v1(folder: Path, sample: Sample, states: list[torch.Tensor], ids: list[int], **changed: Any) -> Inspection:
    """A speculators v1 dump of these states, with these O ids, looked at."""
    (folder / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": ids}}))
    value = {"input_ids": sample.tokens, "loss_mask": sample.mask, "hidden_states": states} | changed
    torch.save(value, folder / "data_0.pt")
    return inspect_capture(str(folder), target=TARGET)


def verdicts(found: Inspection) -> dict[tuple[str, str], str]:
    return {(check.id, check.subject): check.verdict for check in found.checks}


def test_a_right_dump_has_nothing_against_it(sample: Sample, tmp_path: Path) -> None:
    found = v1(tmp_path, sample, [sample.b2, sample.b8, sample.b13, sample.last_pre], [1, 7, 12, 15])
    assert verdicts(found) == {
        ("embedding", "slots"): "consistent",
        ("last-norm", "hidden_states[3]"): "confirmed",
        ("last-is-last", "hidden_states[3]"): "consistent",
        ("token-shift", "hidden_states[3]"): "confirmed",
    }
    assert found.problems == ()
    assert [state.probably for state in found.states[:3]] == ["B2 (declared)", "B8 (declared)", "B13 (declared)"]


def test_the_motivating_fault(sample: Sample, tmp_path: Path) -> None:
    """[embed, B2, B8, B13] declared as [B2, B8, B13, B16]: fc gets the embedding and 'last' is an inner layer."""
    found = v1(tmp_path, sample, [sample.embedding, sample.b2, sample.b8, sample.b13], [1, 7, 12, 15])
    told = verdicts(found)
    assert told["embedding", "hidden_states[0]"] == "found"
    assert any(
        "hidden_states[0] is B0, the embedding, though it is declared B2." in line for line in found.problems
    )
    assert found.states[0].probably.startswith("B0, the embedding")


def test_an_embedding_that_is_declared_is_confirmed(sample: Sample, tmp_path: Path) -> None:
    found = v1(tmp_path, sample, [sample.embedding, sample.b2, sample.b8, sample.last_pre], [-1, 1, 7, 15])
    assert verdicts(found)["embedding", "hidden_states[0]"] == "confirmed"
    assert found.problems == ()


def test_a_declared_embedding_that_is_none_is_refuted(sample: Sample, tmp_path: Path) -> None:
    found = v1(tmp_path, sample, [sample.b2, sample.b8, sample.b13, sample.last_pre], [-1, 7, 12, 15])
    assert verdicts(found)["embedding", "hidden_states[0]"] == "refuted"


def test_an_inner_layer_is_no_last_state(sample: Sample, tmp_path: Path) -> None:
    found = v1(tmp_path, sample, [sample.b2, sample.b8, sample.b13, sample.b2], [1, 7, 12, 15])
    assert verdicts(found)["last-is-last", "hidden_states[3]"] == "refuted"
    assert any("no last state: hidden_states[2] predicts the next token better" in line for line in found.problems)
    alone = v1(tmp_path, sample, [sample.b2, sample.b2, sample.b2, sample.b2], [1, 7, 12, 15])
    assert verdicts(alone)["last-is-last", "hidden_states[3]"] == "refuted"
    assert any("guessing makes 6.93" in line for line in alone.problems)


@pytest.mark.parametrize("normed", [True, False])
def test_a_slot_of_the_last_layer_that_stands_after_the_norm(normed: bool, sample: Sample, tmp_path: Path) -> None:
    """hidden_states[n] of transformers was believed to be B(n), in whatever dump its id stands."""
    state = sample.last_post if normed else sample.last_pre
    found = v1(tmp_path, sample, [sample.b2, sample.b8, state, sample.last_pre], [1, 7, 15, 15])
    said = "hidden_states[2] is declared B16, the stream before the final norm, and stands after it (RMS 1 without"
    assert any(said in line for line in found.problems) is normed
    assert (found.states[2].probably.startswith("the last state after the final norm, no boundary")) is normed
    assert source_of(found, "hidden_states[2]").startswith("REFUTED") is normed


def test_a_normed_last_state_where_the_format_says_pre(sample: Sample, tmp_path: Path) -> None:
    found = v1(tmp_path, sample, [sample.b2, sample.b8, sample.b13, sample.last_post], [1, 7, 12, 15])
    told = verdicts(found)
    assert told["last-norm", "hidden_states[3]"] == "refuted"
    assert told["last-is-last", "hidden_states[3]"] == "consistent"


@pytest.mark.parametrize(("norm", "words"), [("pre", "before"), ("post", "after")])
def test_the_norm_that_a_file_does_not_tell_is_found(norm: str, words: str, sample: Sample, tmp_path: Path) -> None:
    """Model-Optimizer: three backends, two norms, one layout."""
    value = {"input_ids": sample.tokens, "loss_mask": sample.mask, "conversation_id": "x",
             "hidden_states": sample.last_pre if norm == "pre" else sample.last_post,
             "aux_hidden_states": torch.cat([sample.b2, sample.b8, sample.b13], -1)}  # fmt: skip
    torch.save(value, tmp_path / "x.pt")
    found = inspect_capture(str(tmp_path / "x.pt"), target=TARGET)
    check = next(check for check in found.checks if check.id == "last-norm")
    assert check.verdict == "found"
    assert f"stands {words} the final norm" in check.summary
    assert check.evidence["found"] == norm


@pytest.mark.parametrize("shift", [-1, 1])
def test_shifted_ids(shift: int, sample: Sample, tmp_path: Path) -> None:
    shifted = torch.roll(sample.tokens, -shift)
    states = [sample.b2, sample.b8, sample.b13, sample.last_pre]
    found = v1(tmp_path, sample, states, [1, 7, 12, 15], input_ids=shifted)
    check = next(check for check in found.checks if check.id == "token-shift")
    assert check.verdict == "refuted"
    assert f"shifted by {-shift:+d}" in check.summary


def test_an_embedding_slot_with_shifted_ids(sample: Sample, tmp_path: Path) -> None:
    states = [sample.embedding, sample.b2, sample.b8, sample.last_pre]
    found = v1(tmp_path, sample, states, [-1, 1, 7, 15], input_ids=torch.roll(sample.tokens, -1))
    check = next(check for check in found.checks if check.id == "embedding")
    assert "the embedding of the token at t-1" in check.summary


def test_the_incident_in_the_tiny_kimi_dump() -> None:
    """61 layers, stored as [B0, B3, B31, B59]: the embedding is right as declared, the last state is not B61."""
    kimi = ROOT / "pairs/tiny-kimi"
    found = inspect_capture(f"{kimi / 'dump'}#0", target=kimi / "target")
    told = verdicts(found)
    assert told["embedding", "hidden_states[0]"] == "confirmed"
    assert told["last-boundary", "hidden_states[3]"] == "refuted"
    assert any("declared B59, and the last boundary of the target is B61" in line for line in found.problems)


def test_text_of_the_tokens(sample: Sample, tmp_path: Path) -> None:
    found = v1(tmp_path, sample, [sample.b2, sample.b8, sample.b13, sample.last_pre], [1, 7, 12, 15])
    assert found.text is not None
    assert found.text.startswith("<|begin|><|user|>")


def test_another_target(sample: Sample, tmp_path: Path) -> None:
    wide = torch.cat([sample.b2, sample.b2], -1)
    found = v1(tmp_path, sample, [wide, wide, wide, wide], [1, 7, 12, 15])
    assert verdicts(found)["hidden-size", "hidden_states[0]"] == "refuted"
    with pytest.raises(UnreadableFile, match=r"no config\.json"):
        inspect_capture(str(tmp_path), target=tmp_path)


def test_no_torch_for_safetensors(tmp_path: Path) -> None:
    """Looking at a safetensors dump, the target's weights included, imports neither torch nor transformers."""
    import subprocess
    import sys

    program = (
        "import sys; from pathlib import Path; from drafttrace.tracer.inspecting import inspect_capture;"
        f"inspect_capture({str(PAIR / 'dump') + '#1'!r}, target=Path({str(TARGET)!r}));"
        "assert not {'torch', 'transformers', 'sglang', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def model_optimizer(folder: Path, sample: Sample, last: torch.Tensor, **changed: Any) -> Inspection:
    aux = torch.cat([sample.b2, sample.b8, sample.b13], -1)
    value = {"input_ids": sample.tokens, "loss_mask": sample.mask, "hidden_states": last, "aux_hidden_states": aux,
             "conversation_id": "c"} | changed  # fmt: skip
    torch.save(value, folder / "c.pt")
    return inspect_capture(str(folder / "c.pt"), target=TARGET)


def test_tokens_of_another_vocabulary_are_said_and_nothing_is_made_of_them(sample: Sample, tmp_path: Path) -> None:
    """They used to end as 'no last state' and 'shifted by -1', of losses that were all infinite."""
    found = model_optimizer(tmp_path, sample, sample.last_post, input_ids=sample.tokens + 5000)
    assert verdicts(found) == {("vocabulary", "tokens"): "refuted"}
    assert "outside the target's vocabulary, first 5000" in found.problems[0]
    some = sample.tokens.clone()
    some[5] = 5000
    told = verdicts(model_optimizer(tmp_path, sample, sample.last_post, input_ids=some))
    assert told.pop(("vocabulary", "tokens")) == "refuted"
    assert told["token-shift", "hidden_states"] == "confirmed"


def test_the_norm_tells_which_backend_of_model_optimizer_wrote_the_slots(sample: Sample, tmp_path: Path) -> None:
    """vLLM's stores every slot one layer early, and the last state before the norm."""
    after = model_optimizer(tmp_path, sample, sample.last_post)
    before = model_optimizer(tmp_path, sample, sample.last_pre)
    unknown = model_optimizer(tmp_path, sample, torch.full_like(sample.last_pre, float("nan")))
    first = [found.states[0].probably.split(" if ")[0] for found in (after, before, unknown)]
    assert first == ["B2", "B1", "B2 or B1"]


def garbled(sample: Sample) -> torch.Tensor:
    """A last state that predicts nothing: rows of noise of its size."""
    noise = torch.randn(sample.last_pre.shape, generator=torch.Generator().manual_seed(0))
    return (noise * sample.last_pre.float().std()).to(torch.bfloat16)


@pytest.mark.parametrize("shift", [-1, 0])
def test_a_slot_that_predicts_where_the_last_state_does_not_is_said_to_be_deeper(
    shift: int, sample: Sample, tmp_path: Path
) -> None:
    """The slots were read at the garbled state's own best offset alone, where none predicts: 'cannot be judged'."""
    ids = torch.roll(sample.tokens, -shift)
    states = [sample.b2, sample.b8, sample.b13, garbled(sample)]
    found = v1(tmp_path, sample, states, [1, 7, 12, 15], input_ids=ids)
    check = next(check for check in found.checks if check.id == "last-is-last")
    assert check.verdict == "refuted"
    assert "predicts no token better than guessing" in check.summary
    assert "hidden_states[2] stands deeper in the target" in check.summary
    assert check.evidence["offset"] == -shift
    assert ("from where it should be" in check.summary) is (shift != 0)
    assert check.evidence["next_token_loss_of_slots"]["hidden_states[2]"] < check.evidence["chance"] - 1
    assert check.summary in found.problems


def test_a_slot_that_knows_only_its_own_token_is_not_called_deeper(sample: Sample, tmp_path: Path) -> None:
    """The embedding, read by a head that is tied to it, predicts the token it stands at: that is no depth."""
    weights = TargetWeights(TARGET)
    own = weights.embedding(sample.tokens.numpy())
    head = weights._checkpoint.floats(weights.head_name, sample.tokens.numpy())
    knowing = sample.tensor(head if not weights.tied else own)
    found = v1(tmp_path, sample, [knowing, knowing, knowing, garbled(sample)], [1, 7, 12, 15])
    check = next(check for check in found.checks if check.id == "last-is-last")
    assert check.verdict == "refuted"
    assert "predicts the stored token at its own place" in check.summary
    assert "deeper" not in check.summary


def test_ids_moved_the_other_way_are_no_depth_that_is_sure(sample: Sample, tmp_path: Path) -> None:
    """Nothing tells the next token, stored one place early, from the own token of an early state."""
    states = [sample.b2, sample.b8, sample.b13, garbled(sample)]
    found = v1(tmp_path, sample, states, [1, 7, 12, 15], input_ids=torch.roll(sample.tokens, -1))
    check = next(check for check in found.checks if check.id == "last-is-last")
    assert check.verdict == "refuted"
    assert "hidden_states[2] predicts the stored token at its own place" in check.summary
    assert "moved by one row" in check.summary


def test_a_state_that_knows_its_own_token_does_not_hide_the_last_state(sample: Sample, tmp_path: Path) -> None:
    """At offset -1 it has a lower loss than the last state has at its own, and it is no deeper for that."""
    weights = TargetWeights(TARGET)
    knowing = sample.tensor(weights._checkpoint.floats(weights.head_name, sample.tokens.numpy()) * 4)
    found = v1(tmp_path, sample, [knowing, sample.b8, sample.b13, sample.last_pre], [1, 7, 12, 15])
    assert verdicts(found)["last-is-last", "hidden_states[3]"] == "consistent"


def specforge(folder: Path, sample: Sample, slots: list[torch.Tensor], last: torch.Tensor) -> Inspection:
    value = {"input_ids": sample.tokens, "loss_mask": sample.mask, "hidden_state": last[None],
             "aux_hidden_state": torch.cat(slots, -1)[None]}  # fmt: skip
    torch.save(value, folder / "data_0.ckpt")
    return inspect_capture(str(folder / "data_0.ckpt"), target=TARGET)


def source_of(found: Inspection, name: str) -> str:
    return next(state.source for state in found.states if state.name == name)


def test_a_default_that_the_values_refute_is_assumed_no_longer(sample: Sample, tmp_path: Path) -> None:
    """Slot 0 was proven B0, and the other slots were still 'B8 / B13 if the trainer kept its default'."""
    found = specforge(tmp_path, sample, [sample.embedding, sample.b2, sample.b8], sample.last_post)
    check = next(check for check in found.checks if check.id == "assumed-default")
    assert check.verdict == "refuted"
    assert "ASSUMED default [B2, B8, B13]" in check.summary
    assert "aux_hidden_state[0] is B0" in check.summary
    assert check.summary in found.problems
    assert found.states[0].probably.startswith("B0")
    for k in (1, 2):
        assert found.states[k].probably.startswith("unknown: the assumed default is refuted")
    for k in (0, 1, 2):
        told = source_of(found, f"aux_hidden_state[{k}]")
        assert told.startswith("REFUTED by value (aux_hidden_state[0] is B0): ASSUMED default [B2, B8, B13]")


def test_a_default_that_nothing_speaks_against_stays_assumed(sample: Sample, tmp_path: Path) -> None:
    found = specforge(tmp_path, sample, [sample.b2, sample.b8, sample.b13], sample.last_post)
    assert not any(check.id == "assumed-default" for check in found.checks)
    assert source_of(found, "aux_hidden_state[1]").startswith("ASSUMED default [B2, B8, B13]")
    assert found.states[1].probably == "B8 if the trainer kept its default; not recorded"


def test_the_default_of_speculators_v1_is_its_own_and_refuted_too(sample: Sample, tmp_path: Path) -> None:
    states = [sample.b2, sample.b8, sample.b13, sample.last_pre]
    value = {"input_ids": sample.tokens, "loss_mask": sample.mask, "hidden_states": states}
    torch.save(value, tmp_path / "data_0.pt")
    found = inspect_capture(str(tmp_path), target=TARGET)
    assert [state.probably.split(" ")[0] for state in found.states[:3]] == ["B3", "B9", "B14"]
    torch.save(value | {"hidden_states": [sample.embedding, *states[1:]]}, tmp_path / "data_0.pt")
    found = inspect_capture(str(tmp_path), target=TARGET)
    check = next(check for check in found.checks if check.id == "assumed-default")
    assert check.verdict == "refuted" and "[B3, B9, B14]" in check.summary


def test_a_default_that_has_the_embedding_agrees_with_it() -> None:
    """Of a target of three layers, B{2, n//2, n-3} ends in B0."""
    from drafttrace.tracer.assumed_checks import assumed_checks, judged
    from drafttrace.tracer.capture import Capture, RowTable
    from drafttrace.tracer.dumps import build
    from drafttrace.tracer.dumps.registry import Request
    from drafttrace.tracer.dumps.tensor import StoredRows, Tensor
    from drafttrace.tracer.rows import DType
    from drafttrace.tracer.value_checks import Check

    rows = StoredRows(Tensor.held(np.zeros((2, 4), np.float32), "fp32"), DType.FP32)
    _, source = build.OUTPUTS.resolve(Request(layers=3), 3)
    tokens = np.arange(2)
    capture = Capture(path="x", format="X", recognised_by="x", tokens=tokens, table=RowTable.of_tokens(tokens, 2),
                      slots=build.slots_of([rows] * 3, "a", None, source), valid_length=2)  # fmt: skip
    embedding = Check("embedding", "a[2]", "found", "", {})
    checks = assumed_checks(capture, [embedding])
    assert [check.verdict for check in checks] == ["consistent"]
    assert judged(source, "a[1]", None, False, checks).endswith("the values of a[2] agree")
    moved = assumed_checks(capture, [Check("embedding", "a[0]", "found", "", {})])
    assert [check.verdict for check in moved] == ["refuted"]


def test_declared_sources_that_the_values_refute_say_so(sample: Sample, tmp_path: Path) -> None:
    found = v1(tmp_path, sample, [sample.embedding, sample.b8, sample.b13, sample.last_post], [1, 7, 12, 15])
    assert source_of(found, "hidden_states[0]").startswith("REFUTED by value (hidden_states[0] is B0): data_config")
    assert source_of(found, "hidden_states[1]").startswith("data_config")
    assert source_of(found, "hidden_states[3]").startswith("REFUTED by value (it stands after the final norm)")
    inner = v1(tmp_path, sample, [sample.b2, sample.b8, sample.b13, sample.b2], [1, 7, 12, 15])
    assert "it is no last state" in source_of(inner, "hidden_states[3]")
    declared = v1(tmp_path, sample, [sample.b2, sample.b8, sample.b13, sample.b2 * 1.5], [1, 7, 12, 13])
    assert source_of(declared, "hidden_states[3]").startswith("speculators v1")  # an inner layer by its own word


def test_an_assumed_norm_is_confirmed_by_value() -> None:
    found = inspect_capture(f"{PAIR / 'dump'}#0", target=TARGET)
    told = source_of(found, "hidden_states[3]")
    assert told.startswith("ASSUMED default") and told.endswith("the values confirm the side of the norm")


def test_the_evidence_that_decides_the_norm_is_what_is_printed(sample: Sample, tmp_path: Path) -> None:
    """'confirmed ... (next-token loss 0.15 read as post, 0.14 as pre)': the losses spoke for the other side."""
    after = specforge(tmp_path, sample, [sample.b2, sample.b8, sample.b13], sample.last_post)
    check = next(check for check in after.checks if check.id == "last-norm")
    losses = check.evidence["next_token_loss_as_post"], check.evidence["next_token_loss_as_pre"]
    assert check.verdict == "confirmed" and abs(losses[0] - losses[1]) < 0.1
    assert "by its size: RMS 1" in check.summary and "do not tell" in check.summary
    (tmp_path / "data_0.ckpt").unlink()
    before = v1(tmp_path, sample, [sample.b2, sample.b8, sample.b13, sample.last_pre], [1, 7, 12, 15])
    check = next(check for check in before.checks if check.id == "last-norm")
    assert "next-token loss" in check.summary and "size" not in check.summary


def test_a_dump_without_an_embedding_says_that_it_was_looked_for(sample: Sample, tmp_path: Path) -> None:
    """The hint to give --target was printed although it was given."""
    from rich.console import Console

    from drafttrace.tracer.inspect_render import render

    states = {"aux_hidden_state": torch.cat([sample.b2, sample.b8, sample.b13], -1)[None], "hidden_state": None}
    torch.save({"input_ids": sample.tokens, **states}, tmp_path / "data_0.ckpt")
    console = Console(record=True, width=200)
    render(inspect_capture(str(tmp_path / "data_0.ckpt"), target=TARGET), console)
    told = console.export_text()
    assert "None of the 3 slots is B0, the embedding." in told and "hint" not in told
    render(inspect_capture(str(tmp_path / "data_0.ckpt")), console)
    assert "--target DIR checks by value" in console.export_text()


def chosen(sample: Sample, scale: float = 1.0) -> Sample:
    """The same states with the tokens that the head itself chooses for them, as where a target answers greedily."""
    own, states = Sample(), sample.last_pre.float().numpy()
    _losses, top = TargetWeights(TARGET).score(states, np.zeros((len(states), 1), np.int64))
    own.tokens = torch.cat([sample.tokens[:1], torch.from_numpy(top[:-1])])
    own.last_pre = (sample.last_pre.float() * scale).to(torch.bfloat16)
    return own


def norm_check(found: Inspection) -> Any:
    return next(check for check in found.checks if check.id == "last-norm")


@pytest.mark.parametrize("backend", ["specforge", "model-optimizer"])
def test_a_state_before_the_norm_is_told_though_its_loss_is_lower_without_the_norm(
    backend: str, sample: Sample, tmp_path: Path
) -> None:
    """Of greedy answers, larger logits always have the lower loss: 'neither is sure' of a size of 175."""
    own = chosen(sample, 30)
    if backend == "specforge":
        found = specforge(tmp_path, own, [own.b2, own.b8, own.b13], own.last_pre)
    else:
        found = model_optimizer(tmp_path, own, own.last_pre)
    check = norm_check(found)
    assert check.evidence["next_token_loss_as_post"] < check.evidence["next_token_loss_as_pre"] - 0.1
    assert check.evidence["found"] == "pre"
    assert "before the final norm" in check.summary and "RMS" in check.summary
    if backend == "specforge":
        assert check.verdict == "refuted" and check.summary in found.problems
    else:
        assert check.verdict == "found" and found.states[0].probably.startswith("B1")


def test_a_normed_state_that_was_scaled_is_not_called_one_before_the_norm(sample: Sample, tmp_path: Path) -> None:
    own = chosen(sample)
    found = specforge(tmp_path, own, [own.b2, own.b8, own.b13], own.last_post * 30)
    check = norm_check(found)
    assert check.evidence["rms_without_gain_median"] > 20 and check.evidence["found"] != "pre"


def test_the_size_of_a_layer_normed_state_is_told_without_its_bias() -> None:
    from drafttrace.tracer.last_state_checks import size_without_gain

    class Biased:
        def norm_gain(self) -> np.ndarray:
            return np.full(64, 2.0, np.float32)

        def norm_bias(self) -> np.ndarray:
            return np.linspace(-9, 9, 64, dtype=np.float32)

    plain = np.random.default_rng(0).normal(size=(5, 64))
    plain /= np.sqrt((plain**2).mean(-1, keepdims=True))
    sizes = size_without_gain((plain * 2 + Biased().norm_bias()).astype(np.float32), Biased())  # type: ignore[arg-type]
    assert np.allclose(sizes, 1, atol=1e-4)
