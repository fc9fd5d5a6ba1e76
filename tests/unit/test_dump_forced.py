"""``--format`` overrules recognition: whatever the file is, the answer is a capture or one sentence."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import pytest
import torch
from dump_layouts import CASES, Case

from drafttrace.tracer.dumps.registry import Request, format_ids
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture

IDS = [f"{index}-{case.id}" for index, case in enumerate(CASES)]


def one_sentence(error: DrafttraceError) -> None:
    text = str(error)
    assert text and "\n" not in text and text.endswith((".", "?")) and len(text) < 900, text


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_layout_forced_into_every_format(case: Case, tmp_path: Path) -> None:
    """``--format SPEC-V1`` ended in a KeyError for any file without hidden_states, and a TypeError for a list."""
    path = case.write(tmp_path)
    for name in format_ids():
        for request in (Request(**case.request), Request(lenient=True), Request(hidden_size=7, layers=8)):
            try:
                capture = open_capture(str(path), format=name, request=request, sample=0)
            except DrafttraceError as error:
                one_sentence(error)
                continue
            for slot in capture.slots:
                slot.rows.floats()
        try:
            inspect_capture(str(path), format=name, sample=0)
        except DrafttraceError as error:
            one_sentence(error)


ODD_VALUES = [[], {}, [1, 2], [{}], [{"hidden_states": 3}], {"hidden_states": 3}, {"hidden_states": None},
              {"hidden_states": [], "input_ids": made.tokens()}, {"input_ids": made.tokens()}, torch.zeros(3), "text",
              {"batch": 3, "step": 1}, {"batch": {}, "step": 1}, {"hidden_states": {"a": 1}, "input_ids": [1, 2]},
              {3: 4, None: 5}, {"input_ids": made.tokens(), "hidden_states": [[made.state(1)]]}]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ODD_VALUES)))
def test_every_odd_value_forced_into_every_format(number: int, tmp_path: Path) -> None:
    path = tmp_path / "data_0.ckpt"
    torch.save(ODD_VALUES[number], path)
    for name in format_ids():
        with pytest.raises(DrafttraceError) as caught:
            open_capture(str(path), format=name)
        one_sentence(caught.value)


@pytest.mark.parametrize("name", ["x.json", "x.h5", "x.npz", "x.safetensors"])
def test_every_container_forced_into_every_format(name: str, tmp_path: Path) -> None:
    import h5py
    import numpy as np
    from safetensors.numpy import save_file

    path = tmp_path / name
    if name.endswith("json"):
        path.write_text('{"a": [1, 2], "hidden_states": [[1.0]]}')
    elif name.endswith("h5"):
        with h5py.File(path, "w") as file:
            file["hidden_states"] = np.zeros((4, 4), np.float32)
    elif name.endswith("npz"):
        np.savez(path, hidden_states=np.zeros((4, 4), np.float32))
    else:
        save_file({"hidden_states": np.zeros((4, 4), np.float32)}, path)
    for format_id in format_ids():
        with pytest.raises(DrafttraceError) as caught:
            open_capture(str(path), format=format_id)
        one_sentence(caught.value)
