"""Dumps that record no layer ids: no layout may mean other layers than they do."""

from __future__ import annotations

import json
from pathlib import Path

import dump_layouts as made
import pytest
import torch

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture


def v1(root: Path, name: str = "data_0.pt") -> Path:
    root.mkdir(exist_ok=True)
    states = [made.state(k) for k in (3, 5, 6, 8)]
    torch.save({"input_ids": made.tokens(), "loss_mask": made.loss_mask(), "hidden_states": states}, root / name)
    return root / name


def target(root: Path) -> Path:
    folder = root / "target"
    folder.mkdir()
    config = {"num_hidden_layers": made.LAYERS, "hidden_size": made.H, "vocab_size": 300}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SAID = r"cannot do without layer ids here: .* records none, .*; give them up with --lose layer-ids, or say .*--layer-ids"


@pytest.mark.parametrize("known", [False, True])
def test_v1_without_ids_is_no_file_of_another_default(known: bool, tmp_path: Path) -> None:
    """B{3, n//2+1, n-2} became B{2, n//2, n-3}, and nothing said so."""
    source, given = v1(tmp_path / "v1"), target(tmp_path) if known else None
    with pytest.raises(DrafttraceError, match=SAID):
        convert(str(source), tmp_path / "sp", to="speculators", target=given)
    assert not (tmp_path / "sp").exists()
    convert(str(source), tmp_path / "lost", to="speculators", lose=["layer-ids"])
    convert(str(source), tmp_path / "same", to="speculators-v1")
    assert not (tmp_path / "same/data_config.json").exists()


def test_v1_without_ids_is_no_file_of_specforge(tmp_path: Path) -> None:
    """As SpecForge's, with a last state that stands after the norm, so that nothing else stops it."""
    traced = tmp_path / "x.h5"
    convert(str(v1(tmp_path / "v1")), traced, to="trace", lose=["loss-mask", "layer-ids"])
    for spec in (str(tmp_path / "v1"), str(traced)):
        with pytest.raises(DrafttraceError, match=r"SpecForge layout cannot do without layer ids"):
            convert(spec, tmp_path / "x.ckpt", to="specforge", mask="ones", lose=["recording"])


@pytest.mark.parametrize("write", [made.write_vllm, made.write_mo_prenorm, made.write_spec_arrow])
def test_a_file_of_the_current_default_is_no_v1_file_without_ids(write: object, tmp_path: Path) -> None:
    source = write(tmp_path)  # type: ignore[operator]
    with pytest.raises(DrafttraceError, match=SAID):
        convert(str(source), tmp_path / "v1", to="speculators-v1", mask="ones")
    said = Request(layer_ids=(2, 4, 5), numbering="B")
    convert(str(source), tmp_path / "said", to="speculators-v1", mask="ones", request=said, target=target(tmp_path))
    assert json.loads((tmp_path / "said/data_config.json").read_text())["hidden_states"]["layer_ids"] == [
        1,
        3,
        4,
        7,
    ]
    assert open_capture(str(tmp_path / "said")).wiring == (2, 4, 5)
    convert(str(source), tmp_path / "lost", to="speculators-v1", mask="ones", lose=["layer-ids"])


def test_named_fields_without_boundaries_are_no_default(tmp_path: Path) -> None:
    path = made.write_npz(tmp_path)
    fields = FieldMap(slots=("s2", "s4"), tokens="ids", last="s5", last_norm="pre")
    for to in ("speculators", "speculators-v1"):
        with pytest.raises(
            DrafttraceError, match=r"give them up with --lose layer-ids, or say them with --boundaries"
        ):
            convert(str(path), tmp_path / to, to=to, mapping=fields, mask="ones")
