"""Our reading of a dump against the project's own code: the fc input that it would train on is the one we assemble.

The projects' wheels are fetched with pip and unpacked; nothing of them is installed. Run with ``make test-peers``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from peer_checks import WRITERS, Peer, run, same
from peer_truth import holds
from safetensors.torch import save_file

from drafttrace.tracer.capture import Norm
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.open import open_capture

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("version", ["0.3.0", "0.4.0"])
def test_speculators_v1(version: str, peer: Peer, tmp_path: Path) -> None:
    path = made.write_spec_v1(tmp_path)
    run("speculators_sample", peer("speculators", version), path, tmp_path / "out.npz", "v1")
    same(open_capture(str(path)), tmp_path / "out.npz")


@pytest.mark.parametrize("version", ["0.3.0", "0.4.0"])
def test_order_in_which_speculators_v1_stores_the_layers_of_an_unsorted_list(
    version: str, peer: Peer, tmp_path: Path
) -> None:
    """Layers 4, 1, 7, 3 are stored as B2, B4, B5, B8; they were believed to be B5, B2, B8, B4."""
    out = tmp_path / "out"
    run("speculators_v1", peer("speculators", version), out, tmp_path / "truth.npz", program=WRITERS)
    capture = open_capture(str(out))
    assert capture.wiring == (2, 4, 5)
    assert capture.last is not None and capture.last.boundary == 8
    holds(capture, tmp_path / "truth.npz", (2, 4, 5), "b8")


def test_speculators_v0(peer: Peer, tmp_path: Path) -> None:
    path = made.write_spec_v0(tmp_path)
    run("speculators_sample", peer("speculators", "0.3.0"), path, tmp_path / "out.npz", "v0")
    same(open_capture(str(path)), tmp_path / "out.npz")


def test_what_convert_writes_is_a_v1_sample_to_speculators(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = made.write_spec_v1_embed(tmp_path / "a")
    convert(str(path), tmp_path / "b", "speculators-v1")
    run("speculators_sample", peer("speculators", "0.4.0"), tmp_path / "b/data_0.pt", tmp_path / "out.npz", "v1")
    same(open_capture(str(path)), tmp_path / "out.npz")


def test_speculators_current(peer: Peer, tmp_path: Path) -> None:
    path = made.write_spec_arrow(tmp_path)
    run("speculators_arrow", peer("speculators", "0.9.0"), peer("hs-connectors", "0.9.0"), tmp_path / "data",
        tmp_path / "out.npz")  # fmt: skip
    same(open_capture(str(path)), tmp_path / "out.npz")


def test_what_convert_writes_is_a_dataset_to_speculators(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = made.write_spec_v1(tmp_path / "a")
    convert(str(path), tmp_path / "b", "speculators", lose=["layer-ids"])
    run("speculators_arrow", peer("speculators", "0.9.0"), peer("hs-connectors", "0.9.0"), tmp_path / "b",
        tmp_path / "out.npz")  # fmt: skip
    same(open_capture(str(path)), tmp_path / "out.npz")


def test_fp8_that_hs_connectors_writes(peer: Peer, tmp_path: Path) -> None:
    states = torch.stack([*(made.state(k) for k in made.CANON), made.state(made.LAYERS)], 1)
    save_file({"hidden_states": states, "token_ids": made.tokens()}, tmp_path / "in.safetensors")
    path = tmp_path / "hs_0.safetensors"
    connectors = peer("hs-connectors", "0.9.0")
    run("connectors_fp8", connectors, tmp_path / "in.safetensors", path)
    capture = open_capture(str(path))
    assert capture.format == "SPEC-FP8"
    run("connectors_fp8_read", connectors, path, tmp_path / "out.npz")
    same(capture, tmp_path / "out.npz", tolerance=0.02)  # they multiply in bf16, we in float32
    for k, slot in zip(made.CANON, capture.slots, strict=True):
        assert np.allclose(slot.rows.floats(), made.state(k).float().numpy(), rtol=0.07, atol=0.02)


@pytest.mark.parametrize("write", [made.write_sf_eagle3, made.write_sf_gz])
def test_specforge_eagle3(write: Callable[[Path], Path], peer: Peer, tmp_path: Path) -> None:
    path = write(tmp_path)
    run("specforge_offline", peer("specforge", "0.2.0"), path, tmp_path / "out.npz", "eagle3")
    same(open_capture(str(path)), tmp_path / "out.npz", last_mask=False)  # they zero the mask's last entry


def test_specforge_dspark(peer: Peer, tmp_path: Path) -> None:
    path = made.write_sf_dspark(tmp_path)
    run("specforge_offline", peer("specforge", "0.2.0"), path, tmp_path / "out.npz", "dspark")
    same(open_capture(str(path)), tmp_path / "out.npz")


def test_what_convert_writes_is_a_sample_to_specforge(peer: Peer, tmp_path: Path) -> None:
    path = made.write_as_eagle3(tmp_path)
    convert(str(path), tmp_path / "data_0.ckpt", "specforge")
    run("specforge_offline", peer("specforge", "0.2.0"), tmp_path / "data_0.ckpt", tmp_path / "out.npz", "eagle3")
    same(open_capture(str(path)), tmp_path / "out.npz", last_mask=False)


def test_online_sample_that_specforge_dumps(peer: Peer, tmp_path: Path) -> None:
    """In SpecForge's online path hidden_state is AUX, the opposite of its offline files."""
    ones = torch.ones(1, made.LENGTH, dtype=torch.int64)
    online = {"input_ids": made.tokens()[None], "loss_mask": made.loss_mask()[None], "attention_mask": ones,
              "hidden_state": made.aux()[None], "target": made.last_post()[None]}  # fmt: skip
    torch.save(online, tmp_path / "in.pt")
    (tmp_path / "out").mkdir()
    run("specforge_dump", peer("specforge", "0.2.0"), tmp_path / "in.pt", tmp_path / "out")
    capture = open_capture(str(tmp_path / "out/sample0.ckpt"))
    assert capture.format == "SF-ONLINE"
    for k, slot in zip(made.CANON, capture.slots, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k).float().numpy())
    assert capture.last is not None
    assert capture.last.norm is Norm.POST


@pytest.mark.parametrize(("write", "prenorm"), [(made.write_mo, False), (made.write_mo_prenorm, True)])
def test_modelopt(write: Callable[[Path], Path], prenorm: bool, peer: Peer, tmp_path: Path) -> None:
    path = write(tmp_path)
    run("modelopt", peer("nvidia-modelopt", "0.47.0"), path, tmp_path / "out.npz")
    capture = open_capture(str(path))
    same(capture, tmp_path / "out.npz")
    assert json.loads((tmp_path / "out.json").read_text()) == {"prenorm": prenorm}
    assert capture.last is not None
    # without the flag their reader believes in post-norm; we say that the file does not tell
    assert capture.last.norm is (Norm.PRE if prenorm else Norm.UNKNOWN)


def test_angelslim(peer: Peer, tmp_path: Path) -> None:
    path = made.write_as_eagle3(tmp_path)
    run("angelslim", peer("angelslim", "0.5.0"), path.parent, tmp_path / "out.npz")
    same(open_capture(str(path), request=Request()), tmp_path / "out.npz")
