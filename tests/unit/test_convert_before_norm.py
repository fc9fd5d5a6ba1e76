"""Layouts that store the last state before the final norm, from sources that hold B(n) beside the normed one."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from dump_variants import write_trace
from safetensors.torch import load_file

from drafttrace.tracer.capture import Norm
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture

N = made.LAYERS


@pytest.mark.parametrize("to", ["speculators", "speculators-v1", "safetensors"])
@pytest.mark.parametrize("write", [made.write_sg_pass, made.write_sg_dumper])
def test_the_stream_before_the_norm_is_the_last_state_of_layouts_that_store_that(
    write: object, to: str, tmp_path: Path
) -> None:
    """'has it after it; make it with drafttrace reference', while B8 stood in the same file."""
    source = str(write(tmp_path))  # type: ignore[operator]
    out = tmp_path / ("out.safetensors" if to == "safetensors" else "out")
    if to != "safetensors":  # given up, it was stored all the same, and nothing said so
        lost = convert(source, tmp_path / "lost", to, lose=["boundaries", "loss-mask", "last-state"], mask="ones")
        assert "the last state 'norm': B8, which it is after the final norm, is stored" in lost.left_out
    done = convert(source, out, to, lose=["boundaries", "loss-mask"], mask="ones")
    assert "the last state 'norm': B8, which it is after the final norm, is stored" in done.left_out
    back = open_capture(str(out))
    assert back.last is not None and back.last.norm is Norm.PRE
    assert np.array_equal(back.last.rows.floats(), made.state(N).float().numpy())
    for slot, k in zip(back.slots, made.CANON, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k).float().numpy())


def test_boundaries_besides_it_are_given_up_by_name(tmp_path: Path) -> None:
    source = str(made.write_sg_pass(tmp_path))
    with pytest.raises(
        DrafttraceError, match=r"cannot hold the boundaries of .*: 5 boundaries besides the slots, first B0"
    ):
        convert(source, tmp_path / "out", "speculators", mask="ones")


def test_a_layout_that_stores_the_normed_state_still_has_no_place_for_it(tmp_path: Path) -> None:
    source = str(made.write_sg_pass(tmp_path))
    with pytest.raises(DrafttraceError, match="6 boundaries besides the slots, first B0"):
        convert(source, tmp_path / "out.ckpt", "specforge", mask="ones")
    done = convert(source, tmp_path / "out.ckpt", "specforge", mask="ones", lose=["boundaries"])
    assert not any("last state" in what for what in done.left_out)
    last = open_capture(str(tmp_path / "out.ckpt"), request=Request(layers=N)).last
    assert last is not None and np.array_equal(last.rows.floats(), made.last_post().float().numpy())


def test_without_the_number_of_layers_the_target_tells_which_boundary_it_is(tmp_path: Path) -> None:
    path = made.write_sg_pass(tmp_path)
    value = torch.load(path, weights_only=True)
    del value[f"model.layers.{N - 1}.mlp.down_proj"]
    torch.save(value, path)
    lose = ["boundaries", "loss-mask"]
    asked = Request(layer_ids=made.CANON)
    with pytest.raises(DrafttraceError, match="give --target DIR"):
        convert(str(path), tmp_path / "out", "speculators", lose=[*lose, "layer-ids"], mask="ones", request=asked)
    convert(str(path), tmp_path / "out", "speculators", lose=lose, mask="ones", request=Request(layers=N))
    stored = load_file(tmp_path / "out/hidden_states/hs_0.safetensors")["hidden_states"]
    assert torch.equal(stored[:, -1], made.state(N))


def test_a_trace_of_a_sweep_has_it_too(tmp_path: Path) -> None:
    """A sweep that stops before the last token is no last state of every token."""
    tensors = {f"aux/{place}": made.state(k) for place, k in enumerate(made.CANON)} | {"last": made.last_post()}
    trace = write_trace(tmp_path, tensors | {f"boundary/{k}": made.state(k) for k in (*made.CANON, N)})
    done = convert(str(trace), tmp_path / "out", "speculators", lose=["recording", "loss-mask"], mask="ones")
    assert "the last state 'last': B8, which it is after the final norm, is stored" in done.left_out
    stored = load_file(tmp_path / "out/hidden_states/hs_0.safetensors")["hidden_states"]
    assert torch.equal(stored, torch.stack([made.state(k) for k in (*made.CANON, N)], 1))
