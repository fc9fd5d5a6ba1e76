"""Dumps with fewer rows than tokens: a prefix cache leaves out the first ones, a cut the last; the file does not say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.compare.diff import diff
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.convert import convert
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.inspecting import Inspection, inspect_capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.open_two import open_two
from drafttrace.tracer.row_places import missing_rows
from drafttrace.tracer.target_weights import TargetWeights

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "pairs/tiny-llama/target"
DUMP = f"{ROOT / 'pairs/tiny-llama/dump'}#0"
GONE = 20


def whole() -> tuple[Capture, torch.Tensor, torch.Tensor]:
    capture = open_capture(DUMP)
    assert capture.last is not None
    held = [*(slot.rows.floats() for slot in capture.slots), capture.last.rows.floats()]
    return capture, torch.from_numpy(capture.tokens), torch.from_numpy(np.stack(held, 1)).bfloat16()


def vllm(path: Path, rows: slice, embedding: bool = False) -> str:
    """What vLLM's connector writes of a prompt of which a prefix cache held some: all ids, and the states of the others."""
    capture, tokens, held = whole()
    if embedding:
        held[:, 0] = torch.from_numpy(TargetWeights(TARGET).embedding(capture.tokens)).bfloat16()
        held[:, 3] = held[:, 2]
    save_file({"hidden_states": held[rows].contiguous(), "token_ids": tokens}, path)
    return str(path)


def places(found: Inspection) -> list[tuple[str, int | None]]:
    return [(check.verdict, check.evidence.get("start")) for check in found.checks if check.id == "row-places"]


@pytest.mark.parametrize("embedding", [False, True])
def test_rows_that_a_prefix_cache_left_out_are_found_by_value(embedding: bool, tmp_path: Path) -> None:
    """vllm#44485: the rows were taken for those of the first tokens."""
    path = vllm(tmp_path / "cmpl-1.safetensors", slice(GONE, None), embedding)
    found = inspect_capture(path, target=TARGET)
    assert places(found) == [("refuted", GONE)] and any(
        "a prefix cache held the first 20" in p for p in found.problems
    )
    assert not any(check.id == "token-shift" and check.verdict == "refuted" for check in found.checks)
    assert any(check.id == "embedding" and check.verdict == "found" for check in found.checks) is embedding
    alone = inspect_capture(path)
    assert places(alone) == [("undecided", None)]
    assert any(check.summary.endswith("--target DIR may tell.") for check in alone.checks)


def test_rows_that_were_cut_off_at_the_end_are_those_of_the_first_tokens(tmp_path: Path) -> None:
    path = vllm(tmp_path / "cmpl-1.safetensors", slice(None, -GONE))
    assert places(inspect_capture(path, target=TARGET)) == [("confirmed", 0)]


def test_no_misaligned_training_sample_is_written(tmp_path: Path) -> None:
    """``convert`` wrote one: "left out: 20 tokens at the end without a row", which was the wrong end."""
    path, out = vllm(tmp_path / "cmpl-1.safetensors", slice(GONE, None)), tmp_path / "out.ckpt"
    with pytest.raises(DrafttraceError, match=r"nothing tells whether.*--target DIR"):
        convert(path, out, "specforge", mask="ones")
    with pytest.raises(DrafttraceError, match=r"rows from token 20 to \d+ alone, as after a prefix-cache hit"):
        convert(path, out, "specforge", mask="ones", target=TARGET)
    assert not out.exists()
    cut = vllm(tmp_path / "cmpl-2.safetensors", slice(None, -GONE))
    convert(cut, out, "specforge", mask="ones", target=TARGET)
    assert len(open_capture(str(out)).table) == len(open_capture(cut).table)


@pytest.mark.parametrize("rows", [slice(GONE, None), slice(None, -GONE)])
def test_a_comparison_finds_the_place_of_the_rows(rows: slice, tmp_path: Path) -> None:
    """``diff`` said MISMATCH, two slots unexplained."""
    path = vllm(tmp_path / "cmpl-1.safetensors", rows)
    for left, reference in ((DUMP, path), (path, DUMP)):
        found = diff(*open_two(left, reference))
        assert [slot.verdict for slot in found.slots] == ["match"] * 3
        assert [slot.rows for slot in found.slots][:1] == [len(open_capture(path).table)]


def test_a_comparison_with_states_of_another_run_tells_no_place(tmp_path: Path) -> None:
    _capture, tokens, held = whole()
    noise = torch.randn(held[GONE:].shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"hidden_states": noise, "token_ids": tokens}, tmp_path / "cmpl-1.safetensors")
    with pytest.raises(
        DrafttraceError, match="nothing tells whether they are those of the first tokens or of the last"
    ):
        open_two(DUMP, str(tmp_path / "cmpl-1.safetensors"))


def test_an_answer_of_sglang_that_does_not_say_what_was_cached(tmp_path: Path) -> None:
    """Rows of the last tokens, and of the one that was sampled last there is none."""
    capture = open_capture(DUMP)
    assert capture.last is not None
    normed = TargetWeights(TARGET).final_norm(capture.last.rows.floats())
    ids = [int(token) for token in capture.tokens]
    half = len(ids) // 2
    answer = {"text": "", "input_ids": ids[:half], "output_ids": ids[half:],
              "meta_info": {"hidden_states": [normed[GONE:half].tolist(), *normed[half:-1].tolist()]}}  # fmt: skip
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    assert places(inspect_capture(str(tmp_path / "answer.json"), target=TARGET)) == [("refuted", GONE)]


def test_padding_and_the_token_that_was_sampled_last_leave_nothing_open(tmp_path: Path) -> None:
    _capture, tokens, held = whole()
    padded = torch.cat([tokens, torch.full((9,), 2)])
    for name, ids, rows in (("short", tokens, held[:-1]), ("padded", padded, held)):
        save_file({"hidden_states": rows.contiguous(), "token_ids": ids}, tmp_path / f"{name}.safetensors")
        assert missing_rows(open_capture(str(tmp_path / f"{name}.safetensors"))) == 0
