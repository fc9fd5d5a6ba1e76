"""vLLM: its hidden-state connector reads our file, and the file that it writes loads in our reader.

Its wheel has hundreds of megabytes, so the one module is taken out of the source archive (47 MB). What the module
imports of vLLM is stood in for, and its copies on a GPU stream become plain ones; the slots of a request, its blocks
and the file are laid out by the connector itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dump_layouts as made
import pytest
from peer_checks import WRITERS, run, same
from peer_truth import holds

from drafttrace.tracer.capture import Norm
from drafttrace.tracer.open import open_capture

pytestmark = pytest.mark.peers
SOURCE = (
    "vllm", "0.33.0", "vllm/distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py",
)  # fmt: skip
Module = Callable[[str, str, str], Path]


def test_vllm_reads_a_hidden_states_file_as_we_do(peer_module: Module, tmp_path: Path) -> None:
    path = made.write_vllm(tmp_path)
    run("vllm_read", peer_module(*SOURCE), path, tmp_path / "out.npz", program=WRITERS)
    same(open_capture(str(path)), tmp_path / "out.npz")


def test_file_that_the_connector_of_vllm_writes(peer_module: Module, tmp_path: Path) -> None:
    module = peer_module(*SOURCE)
    run("vllm_connector", module, tmp_path / "states", tmp_path / "truth.npz", program=WRITERS)
    path = tmp_path / "states/cmpl-3f2a.safetensors"
    capture = open_capture(str(path))
    assert capture.format == "VLLM-HS"
    assert capture.last is not None
    assert capture.last.norm is Norm.PRE
    holds(capture, tmp_path / "truth.npz", (2, 4, 5), "b8")
