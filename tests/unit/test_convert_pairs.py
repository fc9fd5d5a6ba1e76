"""Every layout into every other one and back: bit for bit where it can be said there, refused by name where not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dump_layouts as made
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.capture import Accepted, Capture, Phase
from drafttrace.tracer.convert import convert
from drafttrace.tracer.convert_layouts import OUT_LAYOUTS
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.writer import TraceWriter

N, L, H = made.LAYERS, made.LENGTH, made.H
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# NaN with two payloads, both infinities, -0, the least and the greatest subnormal, the greatest finite number
SPECIAL = {
    "bf16": (0x7FC0, 0xFFA1, 0x7F80, 0xFF80, 0x8000, 0x0001, 0x807F, 0x7F7F),
    "fp16": (0x7E00, 0xFD01, 0x7C00, 0xFC00, 0x8000, 0x0001, 0x83FF, 0x7BFF),
    "fp32": (0x7FC00000, 0xFFA00001, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF),
}
# What the user says of a layout that names no layers, in its own project's numbering.
IDS = {"speculators": (2, 4, 5), "specforge": (1, 3, 4)}


def state(kind: str, seed: int) -> npt.NDArray[Any]:
    """``[L, H]`` in storage form: random bits, which are every kind of number, and the special ones for sure."""
    width = np.dtype(f"u{DType(kind).storage.itemsize}")
    raw = np.random.default_rng(seed).integers(0, 256, L * H * width.itemsize, dtype=np.uint8).view(width)
    raw = raw.reshape(L, H).copy()
    raw[seed % L, : len(SPECIAL[kind])] = np.array(SPECIAL[kind], width)
    return raw.view(DType(kind).storage)


def tensor(kind: str, seed: int) -> torch.Tensor:
    raw = state(kind, seed)
    return torch.from_numpy(raw.view(f"i{raw.itemsize}").copy()).view(TORCH[kind])


def write(layout: str, root: Path, kind: str, mask: torch.Tensor, norm: str) -> Path:
    """A sample as the layout's own project writes it: slots 1, 2, 3 and the last state 4."""
    root.mkdir()
    return {
        "speculators-v1": write_v1,
        "speculators": write_speculators,
        "safetensors": write_safetensors,
        "specforge": write_specforge,
        "trace": write_trace,
    }[layout](root, kind, mask, norm)


def write_v1(root: Path, kind: str, mask: torch.Tensor, _norm: str) -> Path:
    (root / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [1, 3, 4, N - 1]}}))
    value = {
        "input_ids": made.tokens(),
        "loss_mask": mask,
        "hidden_states": [tensor(kind, k) for k in (1, 2, 3, 4)],
    }
    torch.save(value, root / "data_0.pt")
    return root


def write_speculators(root: Path, kind: str, mask: torch.Tensor, _norm: str) -> Path:
    import datasets

    row = {"input_ids": made.tokens().tolist(), "loss_mask": mask.tolist(), "seq_len": L}
    datasets.Dataset.from_list([row]).save_to_disk(str(root))
    (root / "hidden_states").mkdir()
    stacked = torch.stack([tensor(kind, k) for k in (1, 2, 3, 4)], 1)
    save_file({"hidden_states": stacked, "token_ids": made.tokens()}, root / "hidden_states/hs_0.safetensors")
    return root


def write_safetensors(root: Path, kind: str, mask: torch.Tensor, _norm: str) -> Path:
    about = {"format": "drafttrace.capture/1", "boundaries": f"[2, 4, 5, {N}]", "slots": "[2, 4, 5]",
             "layers": str(N), "last": str(N), "mask_offset": "1"}  # fmt: skip
    stacked = torch.stack([tensor(kind, k) for k in (1, 2, 3, 4)], 1)
    held = {"hidden_states": stacked, "token_ids": made.tokens(), "loss_mask": mask}
    save_file(held, root / "x.safetensors", about)
    return root / "x.safetensors"


def write_specforge(root: Path, kind: str, mask: torch.Tensor, _norm: str) -> Path:
    aux = torch.cat([tensor(kind, k) for k in (1, 2, 3)], -1)
    value = {"input_ids": made.tokens(), "loss_mask": mask, "aux_hidden_state": aux[None],
             "hidden_state": tensor(kind, 4)[None]}  # fmt: skip
    torch.save(value, root / "data_0.ckpt")
    return root / "data_0.ckpt"


def write_trace(root: Path, kind: str, _mask: torch.Tensor, norm: str) -> Path:
    names = ("aux/0", "aux/1", "aux/2", "last")
    layout = TraceLayout(tuple(TensorSpec(name, H, DType(kind)) for name in names))
    wiring = {"boundaries": [2, 4, 5], "source": "a test", "last_norm": norm, "n": N}
    tokens = made.tokens().numpy()
    rows = schema.records(schema.TARGET_ROW, L, position=np.arange(L), token_id=tokens,
                          phase=Phase.PREFILL, accepted=Accepted.ACCEPTED)  # fmt: skip
    with TraceWriter(root / "t.h5", layout, request_id="converted", about={"wiring": wiring}) as writer:
        writer.append_target(rows, {name: state(kind, k) for k, name in enumerate(names, 1)})
        writer.finish(complete=True, tokens=tokens)
    return root / "t.h5"


def read(layout: str, path: Path) -> Capture:
    return open_capture(str(path), request=Request(layers=N, layer_ids=IDS.get(layout)))


def assert_equal(one: Capture, two: Capture) -> None:
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.wiring == two.wiring == (2, 4, 5)
    assert (one.mask is None) is (two.mask is None)
    if one.mask is not None and two.mask is not None:
        assert one.mask.tolist() == two.mask.tolist()
    assert one.last is not None and two.last is not None
    assert one.last.norm is two.last.norm
    states = [(a.rows, b.rows) for a, b in zip(one.slots, two.slots, strict=True)]
    for left, right in [*states, (one.last.rows, two.last.rows)]:
        assert left.dtype is right.dtype
        assert left.raw(0, L).tobytes() == right.raw(0, L).tobytes()


PAIRS = [(one, two) for one in OUT_LAYOUTS for two in OUT_LAYOUTS]
POST = {"specforge"}  # holds the last state after the final norm; a trace holds either, all others that before it
EITHER = {"trace"}
EXPRESSIBLE = [(a, b) for a, b in PAIRS if {a, b} <= POST | EITHER or not {a, b} & POST]
REFUSED = [pair for pair in PAIRS if pair not in EXPRESSIBLE]


def about_masks(one: str, two: str) -> dict[str, Any]:
    """A trace has none: it is given up on the way there, and made of ones, which it was, on the way back."""
    if one == two or "trace" not in {one, two}:
        return {}
    return {"lose": ["loss-mask"]} if two == "trace" else {"mask": "ones"}


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize(("layout", "other"), EXPRESSIBLE)
def test_there_and_back_is_bit_for_bit_the_same(layout: str, other: str, kind: str, tmp_path: Path) -> None:
    maskless = "trace" in {layout, other}
    mask = torch.ones(L, dtype=torch.int64) if maskless else made.loss_mask()
    source = write(layout, tmp_path / "source", kind, mask, "post" if {layout, other} & POST else "pre")
    for one, two, path, out in ((layout, other, source, "there"), (other, layout, tmp_path / "there", "back")):
        request = Request(layers=N, layer_ids=IDS.get(one))
        convert(str(path), tmp_path / out, two, request=request, **about_masks(one, two))
    first = read(layout, source)
    assert first.wiring == (2, 4, 5)
    assert first.slots[0].rows.raw(0, L).tobytes() == state(kind, 1).tobytes()
    assert_equal(first, read(layout, tmp_path / "back"))
    there = read(other, tmp_path / "there")
    if maskless:  # the mask is what a trace has no place for
        first, there = (dataclasses.replace(capture, mask=None) for capture in (first, there))
    assert_equal(first, there)


@pytest.mark.parametrize(("layout", "other"), REFUSED)
def test_a_last_state_on_the_other_side_of_the_norm_is_refused(layout: str, other: str, tmp_path: Path) -> None:
    source = write(layout, tmp_path / "source", "bf16", made.loss_mask(), "pre")
    has, wants = ("after", "before") if layout in POST else ("before", "after")
    with pytest.raises(
        DrafttraceError, match=f"stores the last state {wants} the final norm, and .* has it {has} it"
    ):
        convert(str(source), tmp_path / "out", other, request=Request(layers=N, layer_ids=IDS.get(layout)))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def no_last(root: Path) -> Path:
    value = made.sf_sample() | {"hidden_state": None}
    torch.save(value, root / "data_0.ckpt")
    return root / "data_0.ckpt"


def no_ids(root: Path) -> Path:
    return made.write_spec_v0(root)


def four_slots(root: Path) -> Path:
    (root / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [1, 2, 3, 4, N - 1]}}))
    states = [made.state(k) for k in (2, 3, 4, 5, N)]
    torch.save(
        {"input_ids": made.tokens(), "loss_mask": made.loss_mask(), "hidden_states": states}, root / "data_0.pt"
    )
    return root


def mixed_formats(root: Path) -> Path:
    (root / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [1, 3, 4, N - 1]}}))
    states = [made.state(2), made.state(4, dtype=torch.float16), made.state(5), made.state(N)]
    torch.save(
        {"input_ids": made.tokens(), "loss_mask": made.loss_mask(), "hidden_states": states}, root / "data_0.pt"
    )
    return root


def with_mask(root: Path) -> Path:
    return made.write_drafttrace(root)


@pytest.mark.parametrize(
    ("source", "to", "words"),
    [
        (no_last, "speculators-v1", "has no last state"),
        (no_last, "speculators", "has no last state"),
        (no_last, "specforge", "has no last state"),
        (no_ids, "safetensors", "names the boundary of every slot"),
        (four_slots, "specforge", r"layer ids .*\[B2, B3, B4, B5\] is not its default"),
        (four_slots, "speculators", r"layer ids .*\[B2, B3, B4, B5\] is not its default"),
        (mixed_formats, "safetensors", "the number formats bf16, fp16"),
        (mixed_formats, "speculators", "the number formats bf16, fp16"),
        (with_mask, "trace", "cannot hold the loss mask"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_a_layout_has_no_place_for_is_named(
    source: Callable[[Path], Path], to: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    path = source(tmp_path / "source")
    with pytest.raises(DrafttraceError, match=words):
        convert(str(path), tmp_path / "out", to, request=Request(layers=N))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_mask_goes_with_its_sample_into_safetensors(tmp_path: Path) -> None:
    """It was refused, though the layout that is read has a place for it."""
    (tmp_path / "v1").mkdir()
    made.write_spec_v1(tmp_path / "v1")
    convert(str(tmp_path / "v1"), tmp_path / "x.safetensors", "safetensors")
    one, two = open_capture(str(tmp_path / "v1")), open_capture(str(tmp_path / "x.safetensors"))
    assert one.mask is not None and two.mask is not None
    assert one.mask.tolist() == two.mask.tolist()
    assert one.mask_offset == two.mask_offset == 1
    convert(str(tmp_path / "v1"), tmp_path / "y.safetensors", "safetensors", lose=["loss-mask"])
    assert open_capture(str(tmp_path / "y.safetensors")).mask is None
