"""Damaged and odd files of every layout: one sentence, never a traceback, never a hang."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import dump_layouts as made
import numpy as np
import pytest
import torch
from dump_layouts import CASES, Case
from dump_reading import read_all, read_states
from dump_variants import ALL, IDS, TRACE, opened

from drafttrace.tracer.errors import DrafttraceError, UnreadableFile


def survives(path: Path, case: Case) -> None:
    """Reading gives a capture or a DrafttraceError of one sentence; anything else fails the test."""
    try:
        read_states(opened(case, path))
    except DrafttraceError as error:
        text = str(error)
        assert text and "\n" not in text, text
        assert text.endswith((".", "?")) or case is TRACE, text
        assert len(text) < 900, text


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def largest(root: Path) -> Path:
    """The file with the states of a sample."""
    states = [path for path in files_of(root) if path.stem != "target_embeddings"]
    return max(states, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_truncated_at_twenty_places(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    victim = largest(tmp_path)
    whole = victim.read_bytes()
    refused = 0
    for step in range(20):
        victim.write_bytes(whole[: len(whole) * step // 20])
        try:
            read_states(opened(case, path))
        except DrafttraceError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused == 20, "a truncated file was read as whole"


@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_bytes_flipped(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    rng = random.Random(7)
    for victim in files_of(tmp_path)[:3]:
        whole = victim.read_bytes()
        for _ in range(25):
            broken = bytearray(whole)
            for _flip in range(rng.randint(1, 8)):
                # headers and directories stand at the ends of a file, and are where damage is interesting
                ends = rng.choice([rng.randrange(len(broken)), rng.randrange(min(2000, len(broken))),
                                   len(broken) - 1 - rng.randrange(min(1500, len(broken)))])  # fmt: skip
                broken[ends] ^= 1 << rng.randrange(8)
            victim.write_bytes(broken)
            survives(path, case)
        victim.write_bytes(whole)


_NO_TORCH = {"DRAFTTRACE", "SPEC-ARROW", "SPEC-FP8", "VLLM-HS", "AM-EAGLE3", "AM-DSPARK", "SG-DUMPER", "SG-JSON"}
TORCH_CASES = [case for case in CASES if case.id not in _NO_TORCH and case.write is not made.write_sf_gz]


def torch_value(case: Case, root: Path) -> tuple[Path, Any]:
    path = case.write(root)
    # loaded from bytes, not from a map of a file that the test replaces
    return path, torch.load(io.BytesIO(path.read_bytes()), weights_only=True)


def leaves(value: Any) -> list[tuple[Any, Any]]:
    """``(container, key)`` of everything in nested dicts and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, item in items:
        found.append((value, key))
        found.extend(leaves(item))
    return found


ODD: list[Any] = [None, [], {}, "text", 3, torch.zeros(0), torch.zeros(2, 2, 2, 2), torch.tensor(1.0), torch.zeros(3),
                  torch.full((1, made.LENGTH, made.H), float("nan")), torch.zeros(made.LENGTH, dtype=torch.complex64),
                  torch.zeros(made.LENGTH, 7), torch.tensor([-5]), torch.tensor([2**40])]  # fmt: skip


@pytest.mark.parametrize("case", TORCH_CASES, ids=[f"{index}-{case.id}" for index, case in enumerate(TORCH_CASES)])
def test_every_field_missing_or_odd(case: Case, tmp_path: Path) -> None:
    path, value = torch_value(case, tmp_path)
    for index, (container, key) in enumerate(leaves(value)):
        old = container[key]
        for odd in ODD if index < 6 else ODD[:2]:
            container[key] = odd
            torch.save(value, path)
            survives(path, case)
        if isinstance(container, dict):
            del container[key]
            torch.save(value, path)
            survives(path, case)
        container[key] = old


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_other_number_formats(dtype: torch.dtype, tmp_path: Path) -> None:
    sample = made.sf_sample(dtype)
    torch.save(sample, tmp_path / "data_0.ckpt")
    capture = read_all(tmp_path / "data_0.ckpt")
    for k, slot in zip(made.CANON, capture.slots, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k, dtype=dtype).float().numpy())


@pytest.mark.parametrize("batched", [True, False])
def test_a_batch_axis_or_none(batched: bool, tmp_path: Path) -> None:
    sample = {name: value.reshape(1, made.LENGTH, *value.shape[2 if value.ndim == 3 else 1 :]) if batched
              else value.reshape(made.LENGTH, *value.shape[2 if value.ndim == 3 else 1 :])
              for name, value in made.sf_sample().items()}  # fmt: skip
    torch.save(sample, tmp_path / "data_0.ckpt")
    capture = read_all(tmp_path / "data_0.ckpt")
    assert capture.format == "SF-EAGLE3"
    assert capture.tokens.tolist() == made.tokens().tolist()
    assert capture.slots[1].rows.shape == (made.LENGTH, made.H)


def test_two_samples_in_one_tensor_are_refused(tmp_path: Path) -> None:
    sample = {name: torch.stack([value, value]).squeeze(1) for name, value in made.sf_sample().items()}
    torch.save(sample, tmp_path / "data_0.ckpt")
    with pytest.raises(UnreadableFile, match="dump one sample per file"):
        read_all(tmp_path / "data_0.ckpt")


def test_padded_tail(tmp_path: Path) -> None:
    sample = made.sf_sample()
    zeros = torch.zeros(5, dtype=torch.int64)
    sample["input_ids"] = torch.cat([sample["input_ids"], zeros])
    sample["loss_mask"] = torch.cat([sample["loss_mask"], zeros])
    for name in ("aux_hidden_state", "hidden_state"):
        state = sample[name]
        sample[name] = torch.cat([state, torch.ones(1, 5, state.shape[-1], dtype=state.dtype)], 1)
    torch.save(sample, tmp_path / "data_0.ckpt")
    capture = read_all(tmp_path / "data_0.ckpt")
    assert len(capture.tokens) == made.LENGTH + 5
    assert capture.valid_length == made.LENGTH
    assert any("5 padded rows" in note for note in capture.notes)


def test_aux_that_is_none(tmp_path: Path) -> None:
    torch.save(made.sf_sample() | {"aux_hidden_state": None}, tmp_path / "data_0.ckpt")
    capture = read_all(tmp_path / "data_0.ckpt")
    assert capture.slots == ()
    assert any("aux_hidden_state is None" in note for note in capture.notes)


def test_nan_rows_are_counted(tmp_path: Path) -> None:
    from drafttrace.tracer.inspecting import inspect_capture

    sample = made.sf_sample()
    sample["aux_hidden_state"][0, 3, : made.H] = float("nan")
    sample["aux_hidden_state"][0, 5, made.H : 2 * made.H] = 0
    sample["hidden_state"][0, 7] = sample["hidden_state"][0, 6]
    torch.save(sample, tmp_path / "data_0.ckpt")
    found = inspect_capture(str(tmp_path / "data_0.ckpt"))
    counts = [(s.statistics.nan_rows, s.statistics.zero_rows, s.statistics.repeated_rows) for s in found.states]
    assert counts == [(1, 0, 0), (0, 1, 0), (0, 0, 0), (0, 0, 1)]
    assert len(found.problems) == 3
    json.dumps(found.to_json(), allow_nan=False)


def test_gzip_with_a_damaged_tail(tmp_path: Path) -> None:
    path = made.write_sf_gz(tmp_path)
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:-8], whole[:-4] + b"\0\0\0\0", whole[:-8] + b"\1\2\3\4" + whole[-4:]):
        path.write_bytes(broken)
        with pytest.raises(UnreadableFile, match="damaged or cut off"):
            read_all(path)


def test_gzip_inside_gzip_is_no_dump(tmp_path: Path) -> None:
    path = tmp_path / "data_0.ckpt.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"x" * 100)))
    with pytest.raises(DrafttraceError):
        read_all(path)
