"""Which slot is the embedding, in whatever number format it is stored, and however near the next boundaries are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_folders import DEEPSEEK_TARGET, dump_of, specforge, target_tensors, write_draft, write_target
from safetensors.torch import save_file

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.evidence_checks import IS_EMBEDDING, dump_wiring
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.embedding_match import Match, match, nearest
from drafttrace.tracer.inspecting import Inspection, inspect_capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import ArrayRows, DType
from drafttrace.tracer.target_weights import TargetWeights

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "pairs/tiny-llama/target"


def states(wiring: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens ``[T]`` and four states ``[T, 4, H]`` of the tiny pair: with "shifted" the embedding in front."""
    capture = open_capture(f"{ROOT / 'pairs/tiny-llama/dump'}#0")
    assert capture.last is not None
    held = [slot.rows.floats() for slot in capture.slots]
    embedding = TargetWeights(TARGET).embedding(capture.tokens)
    parts = [embedding, *held] if wiring == "shifted" else [*held, capture.last.rows.floats()]
    return torch.from_numpy(capture.tokens), torch.from_numpy(np.stack(parts, 1))


def fp8(folder: Path, wiring: str) -> Path:
    """speculators 0.9 in fp8: one scale for all slots of a token."""
    tokens, held = states(wiring)
    scales = held.abs().amax((1, 2), keepdim=True) / 448
    stored = (held / scales).to(torch.float8_e4m3fn).contiguous()
    path = folder / "hs_0.safetensors"
    save_file({"hidden_states": stored, "hidden_states_scales": scales, "token_ids": tokens}, path)
    return path


def of_embedding(found: Inspection) -> dict[str, str]:
    return {check.subject: check.verdict for check in found.checks if check.id == "embedding"}


def test_the_embedding_in_eight_bits_with_scales_is_found(tmp_path: Path) -> None:
    """ "None of the 3 slots is B0": rounding to fp8 leaves 0.026, and the bound was 0.02."""
    path = fp8(tmp_path, "shifted")
    assert of_embedding(inspect_capture(str(path), target=TARGET)) == {"hidden_states[0]": "found"}
    declared = inspect_capture(str(path), target=TARGET, request=Request(layer_ids=(0, 2, 8)))
    assert of_embedding(declared) == {"hidden_states[0]": "confirmed"}


def test_a_right_dump_in_eight_bits_has_no_embedding(tmp_path: Path) -> None:
    path = fp8(tmp_path, "canonical")
    assert of_embedding(inspect_capture(str(path), target=TARGET)) == {"slots": "consistent"}
    declared = inspect_capture(str(path), target=TARGET, request=Request(layer_ids=(0, 8, 13)))
    assert of_embedding(declared) == {"hidden_states[0]": "refuted"}


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.float32])
def test_the_embedding_is_found_in_every_number_format(kind: torch.dtype, tmp_path: Path) -> None:
    tokens, held = states("shifted")
    value = {"input_ids": tokens, "loss_mask": torch.ones_like(tokens)}
    (tmp_path / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [1, 7, 12, 15]}}))
    torch.save(value | {"hidden_states": [held[:, k].to(kind) for k in range(4)]}, tmp_path / "data_0.pt")
    assert of_embedding(inspect_capture(str(tmp_path), target=TARGET))["hidden_states[0]"] == "found"


def test_what_is_stored_too_coarsely_is_said_to_be_open(tmp_path: Path) -> None:
    """A row whose numbers all share the scale of one a hundred thousand times as large keeps no bit of the small ones."""
    tokens, held = states("shifted")
    scales = torch.full((len(tokens), 1, 1), float(held[:, 0].abs().max()) * 20)
    stored = (held / scales).to(torch.float8_e4m3fn).contiguous()
    coarse = stored.float() * 2**-7  # into the numbers below the smallest normal one
    save_file(
        {
            "hidden_states": coarse.to(torch.float8_e4m3fn).contiguous(),
            "hidden_states_scales": scales * 2**7,
            "token_ids": tokens,
        },
        tmp_path / "hs_0.safetensors",
    )
    found = inspect_capture(str(tmp_path / "hs_0.safetensors"), target=TARGET)
    assert of_embedding(found)["hidden_states[0]"] == "undecided" and "slots" not in of_embedding(found)


def made(factor: float, rows: np.ndarray, moved: float) -> Match:
    """Rows of a table, moved by so much of their own length."""
    noise = np.random.default_rng(1).normal(size=rows.shape).astype(np.float32)
    held = factor * (rows + moved * noise * np.linalg.norm(rows, axis=1)[:, None] / np.sqrt(rows.shape[1]))
    stored = torch.from_numpy(held.astype(np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return match(stored, DType.BF16, None, rows * np.float32(factor))


def test_of_boundaries_that_all_lie_at_the_embedding_only_the_nearest_is_it() -> None:
    """A target that multiplies its embedding by 12 (Granite) adds 0.5 % a layer: three slots were all called B0."""
    rows = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    b0, b2, b5 = (made(12.0, rows, moved) for moved in (0.0, 0.005, 0.012))
    assert nearest([b2, b0, b5]) == [False, True, False] and nearest([b0, None, made(12.0, rows, 0.0)]) == [
        True,
        False,
        True,
    ]
    assert not b5.is_same and b5.is_open  # alone, it is not told: something coarser may have rounded it before
    assert not made(12.0, rows, 0.1).is_open


def test_check_finds_the_embedding_in_a_dump_of_eight_bits(tmp_path: Path) -> None:
    """``check --dump`` said NO PROBLEM FOUND of the motivating fault in fp8."""
    tokens = np.arange(40, dtype=np.int64)
    table = target_tensors()["model.embed_tokens.weight"].float().numpy()[tokens]
    noise = np.random.default_rng(0).normal(size=(2, *table.shape))
    dump = dump_of([table, *noise], tokens, [2, 30, 58])
    stored = torch.from_numpy(table / 0.01).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    rows = ArrayRows(stored, DType.FP8_E4M3, np.full(len(tokens), 0.01, np.float32))
    object.__setattr__(dump.slots[0], "rows", rows)
    target = write_target(tmp_path / "target", DEEPSEEK_TARGET)
    _wiring, how = dump_wiring(dump, open_checkpoint(target), 1.0)
    assert how[0] == IS_EMBEDDING and how.count(IS_EMBEDDING) == 1
    draft = write_draft(tmp_path / "draft", specforge([2, 30, 58]))
    result = check(target, draft, sglang_version="0.5.23", dump=dump)
    assert any(fault.id == "wrong-boundary" and 0 in fault.slots for fault in result.faults)
