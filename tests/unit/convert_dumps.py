"""Dumps of several samples for the tests of convert: sample i has its own tokens, mask, length and states."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import Request

N, H = 8, 16
KNOWN = Request(layers=N)


def rows(seed: int, length: int) -> torch.Tensor:
    return torch.randn(length, H, generator=torch.Generator().manual_seed(seed)).bfloat16()


def tokens(i: int) -> torch.Tensor:
    return (torch.arange(5 + i % 4) * 3 + i + 1).long()


def write_v1(folder: Path, i: int) -> Path:
    length = len(tokens(i))
    mask = (torch.arange(length) >= i % 3).long()
    states = [rows(10 * i + k, length) for k in range(4)]
    torch.save({"input_ids": tokens(i), "loss_mask": mask, "hidden_states": states}, folder / f"data_{i}.pt")
    return folder / f"data_{i}.pt"


def v1(folder: Path, numbers: range | list[int] = range(5)) -> Path:
    folder.mkdir()
    (folder / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [1, 3, 4, N - 1]}}))
    for i in numbers:
        write_v1(folder, i)
    return folder


def specforge(folder: Path, numbers: range | list[int] = range(5)) -> Path:
    for i in numbers:
        length = len(tokens(i))
        place = folder / f"rows_{i - i % 2000}-{i - i % 2000 + 2000}"
        place.mkdir(parents=True, exist_ok=True)
        value = {"input_ids": tokens(i), "loss_mask": torch.ones(length).long(),
                 "aux_hidden_state": torch.cat([rows(10 * i + k, length) for k in range(3)], -1)[None],
                 "hidden_state": rows(10 * i + 3, length)[None]}  # fmt: skip
        torch.save(value, place / f"data_{i}.ckpt")
    return folder


def states(capture: Capture) -> list[bytes]:
    assert capture.last is not None
    return [
        rows.raw(0, len(rows)).tobytes() for rows in (*(slot.rows for slot in capture.slots), capture.last.rows)
    ]


def assert_same(one: Capture, two: Capture, masked: bool = True) -> None:
    assert one.tokens.tolist() == two.tokens.tolist()
    assert states(one) == states(two)
    if masked:
        assert one.mask is not None and two.mask is not None
        assert one.mask.tolist() == two.mask.tolist()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
