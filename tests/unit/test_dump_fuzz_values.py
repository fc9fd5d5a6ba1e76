"""Hypothesis makes values and bytes that no trainer wrote: a capture or one sentence."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_reading import read_all
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError


def capture_or_sentence(path: Path, request: Request | None = None) -> None:
    """What a reader makes of any file: rows for its tokens, or one sentence that names the file."""
    try:
        capture = read_all(path, request)
    except DrafttraceError as error:
        assert "\n" not in str(error) and str(path) in str(error), str(error)
        return
    widths = {slot.rows.width for slot in capture.slots}
    assert all(width > 0 for width in widths) and capture.path


def torch_zip(pickled: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")


# DRAFTTRACE_FUZZ=5000 looks longer, and elsewhere each time.
EXAMPLES = int(os.environ.get("DRAFTTRACE_FUZZ", "60"))
FUZZ = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES == 60
)


@FUZZ
@given(
    data=st.binary(min_size=0, max_size=400), name=st.sampled_from(["x.pt", "x.safetensors", "x.json", "hs_0.h5"])
)
def test_fuzz_any_bytes(data: bytes, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data)
    capture_or_sentence(path)


@FUZZ
@given(data=st.binary(min_size=1, max_size=200))
def test_fuzz_any_pickle(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.pt"
    torch_zip(data, path)
    capture_or_sentence(path)


shapes = st.lists(st.integers(0, 5), min_size=0, max_size=4)
kinds = st.sampled_from(
    [torch.bfloat16, torch.float32, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8]
)
tensors = st.builds(lambda shape, kind: torch.ones(shape, dtype=kind), shapes, kinds)
names = st.sampled_from(["input_ids", "token_ids", "hidden_states", "hidden_state", "aux_hidden_state", "loss_mask",
                         "aux_hidden_states", "target", "target_hiddens", "last_hidden_states", "conversation_id",
                         "attention_mask", "target_last_hidden_states", "last_hidden", "target_hidden_states", "batch",
                         "step", "packed_loss_mask", "hidden_states_prenorm", "hidden_states_scales"])  # fmt: skip
plain = st.one_of(
    st.none(), st.integers(), st.text(max_size=5), st.booleans(), tensors, st.lists(tensors, max_size=3)
)
dicts = st.dictionaries(names, st.one_of(plain, st.dictionaries(names, plain, max_size=4)), max_size=6)


@FUZZ
@given(value=st.one_of(dicts, st.lists(dicts, max_size=3), plain), hidden=st.sampled_from([None, 1, 2, 4]))
def test_fuzz_any_dict(value: Any, hidden: int | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz_dict.pt"
    torch.save(value, path)
    capture_or_sentence(path, Request(hidden_size=hidden))


@FUZZ
@given(value=st.dictionaries(names, tensors, min_size=1, max_size=5))
def test_fuzz_any_safetensors(value: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    save_file({name: tensor.clone() for name, tensor in value.items()}, path)
    capture_or_sentence(path)


json_values = st.recursive(
    st.one_of(st.none(), st.integers(-3, 70000), st.floats(allow_nan=True), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(
        ["meta_info", "hidden_states", "input_ids", "output_ids", "prompt_tokens", "input_token_logprobs"]), inner)),
    max_leaves=12,
)  # fmt: skip


@FUZZ
@given(value=json_values)
def test_fuzz_any_json(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_text(json.dumps({"meta_info": {"hidden_states": value}, "input_ids": value}))
    capture_or_sentence(path)
    path.write_text(json.dumps(value) or "{}")
    capture_or_sentence(path)
