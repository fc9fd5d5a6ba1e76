"""Conversions keep every bit, and refuse by name what the other layout cannot hold."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError, OutputExists
from drafttrace.tracer.open import open_capture

N = made.LAYERS
KNOWN = Request(layers=N)


def slots_equal(left: Capture, right: Capture) -> bool:
    return len(left.slots) == len(right.slots) and all(
        np.array_equal(one.rows.raw(0, made.LENGTH), two.rows.raw(0, made.LENGTH))
        for one, two in zip(left.slots, right.slots, strict=True)
    )


def last_equal(left: Capture, right: Capture) -> bool:
    assert left.last is not None
    assert right.last is not None
    one, two = (state.last.rows.raw(0, made.LENGTH) for state in (left, right) if state.last is not None)
    return left.last.norm is right.last.norm and np.array_equal(one, two)


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    (tmp_path / "v1").mkdir()
    made.write_spec_v1(tmp_path / "v1")
    return tmp_path / "v1"


def reference(folder: Path) -> Path:
    """A capture with every boundary, as drafttrace reference writes it."""
    states = torch.stack([made.state(k) for k in range(N + 1)], 1)
    metadata = {"format": "drafttrace.capture/1", "boundaries": str(list(range(N + 1))), "slots": "[2, 4, 5]",
                "layers": str(N), "last": str(N)}  # fmt: skip
    path = folder / "reference.safetensors"
    save_file({"hidden_states": states, "token_ids": made.tokens()}, path, metadata)
    return path


def test_v1_to_safetensors_and_back(v1: Path, tmp_path: Path) -> None:
    convert(str(v1), tmp_path / "a.safetensors", "safetensors", lose=["loss-mask"])
    back = convert(str(tmp_path / "a.safetensors"), tmp_path / "back", "speculators-v1", mask="ones")
    one, two = open_capture(str(v1)), open_capture(str(tmp_path / "back"))
    assert back.left_out == ()
    assert slots_equal(one, two)
    assert last_equal(one, two)
    assert two.wiring == (3, 5, 6)
    assert two.last is not None
    assert two.last.boundary == N
    assert one.tokens.tolist() == two.tokens.tolist()


def test_embedding_slot_keeps_its_name_through_v1(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    made.write_spec_v1_embed(tmp_path / "dump")
    convert(str(tmp_path / "dump"), tmp_path / "again", "speculators-v1")
    again = open_capture(str(tmp_path / "again"))
    assert again.wiring == (0, 3, 5)
    assert again.last is not None
    assert again.last.boundary == 6


def test_to_trace_and_back(v1: Path, tmp_path: Path) -> None:
    with pytest.raises(DrafttraceError, match="whose depth is not known"):
        convert(str(v1), tmp_path / "t.h5", "trace", lose=["loss-mask"])
    convert(str(v1), tmp_path / "t.h5", "trace", lose=["loss-mask"], request=KNOWN)
    one, two = open_capture(str(v1)), open_capture(str(tmp_path / "t.h5"))
    assert two.format.startswith("drafttrace.trace")
    assert two.complete
    assert slots_equal(one, two)
    assert last_equal(one, two)
    assert one.wiring == two.wiring
    assert one.tokens.tolist() == two.tokens.tolist()
    convert(str(tmp_path / "t.h5"), tmp_path / "back", "speculators-v1", mask="ones")
    assert slots_equal(one, open_capture(str(tmp_path / "back")))


def test_an_inner_last_state_is_never_renamed(tmp_path: Path) -> None:
    """The incident: [B0, B3, B5] with B6 where the last state should be, of a target of eight layers."""
    (tmp_path / "dump").mkdir()
    source = str(made.write_spec_v1_embed(tmp_path / "dump"))
    convert(source, tmp_path / "a.safetensors", "safetensors", lose=["loss-mask"], request=KNOWN)
    stored = open_capture(str(tmp_path / "a.safetensors"))
    assert stored.last is not None
    assert stored.last.boundary == 6
    assert stored.about["target_layers"] == N
    with pytest.raises(DrafttraceError, match="no place for a last state B6 that is not B8"):
        convert(source, tmp_path / "t.h5", "trace", lose=["loss-mask"], request=KNOWN)
    convert(source, tmp_path / "t.h5", "trace", lose=["loss-mask", "layer-ids"], request=KNOWN)
    traced = open_capture(str(tmp_path / "t.h5"))
    assert traced.last is not None
    assert traced.last.boundary is None
    with pytest.raises(DrafttraceError, match="with the last state B6 is not its default"):
        convert(source, tmp_path / "out", "speculators", request=KNOWN)


def test_to_specforge(tmp_path: Path) -> None:
    source = reference(tmp_path)
    arguments = {"mask": "ones", "lose": ["boundaries"]}
    with pytest.raises(DrafttraceError, match="boundaries besides the slots, first B0"):
        convert(str(source), tmp_path / "data_0.ckpt", "specforge", mask="ones")
    with pytest.raises(DrafttraceError, match=r"after the final norm, and .* has it before it; give --target"):
        convert(str(source), tmp_path / "data_0.ckpt", "specforge", **arguments)  # type: ignore[arg-type]
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(
        f'{{"num_hidden_layers": {N}, "hidden_size": {made.H}, "vocab_size": 300, "rms_norm_eps": 1e-6}}'
    )
    gain = torch.linspace(0.5, 2, made.H).to(torch.bfloat16)
    save_file({"model.embed_tokens.weight": torch.zeros(300, made.H), "model.norm.weight": gain},
              target / "model.safetensors")  # fmt: skip
    convert(str(source), tmp_path / "data_0.ckpt", "specforge", target=target, **arguments)  # type: ignore[arg-type]
    stored = torch.load(tmp_path / "data_0.ckpt", weights_only=True)
    assert set(stored) == {"input_ids", "loss_mask", "aux_hidden_state", "hidden_state"}
    assert torch.equal(stored["aux_hidden_state"], made.aux()[None])
    before = made.state(N).float()
    normed = before / (before.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * gain.float()
    assert torch.equal(stored["hidden_state"][0], normed.to(torch.bfloat16))


def test_a_wiring_that_specforge_would_not_mean_is_refused(v1: Path, tmp_path: Path) -> None:
    with pytest.raises(DrafttraceError, match=r"layer ids .*\[B3, B5, B6\] is not its default"):
        convert(str(v1), tmp_path / "data_0.ckpt", "specforge", request=Request(layers=N))


def test_to_speculators_with_its_arrow_table(v1: Path, tmp_path: Path) -> None:
    import datasets

    with pytest.raises(DrafttraceError, match="layer ids"):
        convert(str(v1), tmp_path / "out", "speculators")
    convert(str(v1), tmp_path / "out", "speculators", lose=["layer-ids"])
    table = datasets.load_from_disk(str(tmp_path / "out"))
    assert table[0]["input_ids"] == made.tokens().tolist()
    one, two = open_capture(str(v1)), open_capture(str(tmp_path / "out"))
    assert two.format == "SPEC-ARROW"
    assert slots_equal(one, two)
    assert last_equal(one, two)
    assert two.mask is not None
    assert two.mask.tolist() == made.loss_mask().tolist()
    assert set(two.wiring) == {None}


def test_fp8_becomes_float32_with_its_scales_applied(tmp_path: Path) -> None:
    path = made.write_spec_fp8(tmp_path)
    request = Request(layer_ids=(2, 4, 5), layers=N)
    convert(str(path), tmp_path / "x.safetensors", "safetensors", request=request)
    one, two = open_capture(str(path)), open_capture(str(tmp_path / "x.safetensors"))
    for left, right in zip(one.slots, two.slots, strict=True):
        assert right.rows.dtype.value == "fp32"
        assert np.array_equal(left.rows.floats(), right.rows.floats())


def test_padding_is_left_behind(tmp_path: Path) -> None:
    sample = made.sf_sample()
    zeros = torch.zeros(4, dtype=torch.int64)
    padded = {"input_ids": torch.cat([sample["input_ids"], zeros]), "loss_mask": torch.cat([sample["loss_mask"], zeros]),
              "aux_hidden_state": torch.cat([sample["aux_hidden_state"], torch.ones(1, 4, 3 * made.H)], 1).bfloat16(),
              "hidden_state": torch.cat([sample["hidden_state"], torch.ones(1, 4, made.H)], 1).bfloat16()}  # fmt: skip
    torch.save(padded, tmp_path / "data_0.ckpt")
    request = Request(layer_ids=(1, 3, 4), layers=N)
    done = convert(str(tmp_path / "data_0.ckpt"), tmp_path / "t.h5", "trace", request=request, lose=["loss-mask"])
    assert done.left_out == ("the loss mask", "4 rows that are padding, rejected or computed twice")
    trace = open_capture(str(tmp_path / "t.h5"))
    assert len(trace.tokens) == made.LENGTH
    assert trace.wiring == (2, 4, 5)
    assert trace.last is not None
    assert trace.last.norm is Norm.POST


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"to": "lmdb"}, "no layout 'lmdb'"),
        ({"to": "trace", "lose": ["everything"]}, "'everything' is nothing that can be given up"),
        ({"to": "trace", "mask": "zeros"}, "not of 'zeros'"),
    ],
)
def test_bad_arguments(v1: Path, tmp_path: Path, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(DrafttraceError, match=words):
        convert(str(v1), tmp_path / "x", **arguments)  # type: ignore[arg-type]


def test_outputs_are_not_replaced_without_force(v1: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.h5"
    convert(str(v1), out, "trace", lose=["loss-mask", "last-state"], request=KNOWN)
    before = out.read_bytes()
    with pytest.raises(OutputExists, match="--force"):
        convert(str(v1), out, "trace", lose=["loss-mask"], request=KNOWN)
    assert out.read_bytes() == before
    convert(str(v1), out, "trace", lose=["loss-mask"], request=KNOWN, force=True)
    assert open_capture(str(out)).wiring == (3, 5, 6)


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    path = made.write_vllm(tmp_path)
    with pytest.raises(DrafttraceError, match="no loss mask"):
        convert(str(path), tmp_path / "v1", "speculators-v1")
    path = made.write_mo(tmp_path)
    with pytest.raises(DrafttraceError, match="on an unknown side of it"):
        convert(str(path), tmp_path / "v1", "speculators-v1")
    (tmp_path / "am").mkdir()
    with pytest.raises(DrafttraceError, match="does not keep token 0"):
        convert(str(made.write_am_eagle3(tmp_path / "am")), tmp_path / "t.h5", "trace", lose=["loss-mask"])
