"""``--format`` overrules recognition: whatever the file is, the answer is a capture or one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path

import dump_layouts as made
import pytest
import torch
from dump_layouts import CASES, Case

from drafttrace.tracer.dumps.registry import Request, format_ids, layouts
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture

TRACES = Path(__file__).resolve().parents[2] / "traces/tiny-kimi"
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


# --- folders -------------------------------------------------------------------------------------------------


def mixed(folder: Path, eagle3: int, others: int) -> None:
    for number in range(eagle3):
        torch.save(made.sf_sample(), folder / f"data_{number}.ckpt")
    for number in range(others):
        torch.save(made.mo_sample(), folder / f"{number + eagle3}.pt")


@pytest.mark.parametrize(("eagle3", "others"), [(3, 1), (1, 3), (1, 1), (60, 1), (1, 60)])
def test_a_forced_format_selects_its_files_of_a_mixed_folder(eagle3: int, others: int, tmp_path: Path) -> None:
    """The error of a mixed folder says to name the format, and naming it was refused, or took all for it."""
    mixed(tmp_path, eagle3, others)
    for name, here, left in (("SF-EAGLE3", eagle3, others), ("mo-pt", others, eagle3)):
        found = inspect_capture(str(tmp_path), format=name)
        assert found.format == name.upper()
        assert found.sample_count == here
        note = f"{left} file{'s' if left > 1 else ''} of the folder left out, of another format than {name.upper()}"
        # among many files only the spread is looked at, unless that shows another format
        assert any(line.startswith(f"{note}: ") for line in found.notes) or (here == 60 and found.notes == ())


def test_a_file_that_cannot_be_read_is_not_left_out_of_a_mixed_folder(tmp_path: Path) -> None:
    mixed(tmp_path, 3, 1)
    (tmp_path / "data_2.ckpt").write_bytes(b"PK\x03\x04 damaged")
    assert inspect_capture(str(tmp_path), format="SF-EAGLE3", sample=0).sample_count == 3
    with pytest.raises(DrafttraceError, match=r"data_2\.ckpt"):
        inspect_capture(str(tmp_path), format="SF-EAGLE3", sample=2)


def test_a_format_that_no_file_of_a_folder_has_overrules_recognition(tmp_path: Path) -> None:
    for number in range(2):
        value = {"input_ids": made.tokens(), "loss_mask": made.loss_mask(), "hidden_state": made.aux()[None]}
        torch.save(value, tmp_path / f"data_{number}.ckpt")
    found = inspect_capture(str(tmp_path), format="EAGLE12-CKPT", sample=1)
    assert (found.format, found.sample_count, found.notes) == ("EAGLE12-CKPT", 2, ())


def test_a_trace_forced_into_every_format() -> None:
    trace = Path(__file__).resolve().parents[2] / "traces/tiny-llama/healthy.h5"
    for name in format_ids():
        with pytest.raises(DrafttraceError) as caught:
            open_capture(str(trace), format=name)
        one_sentence(caught.value)


def test_a_trace_forced_into_the_format_of_a_dump_is_told_to_be_one(tmp_path: Path) -> None:
    """''input_ids' of trace.h5 is missing; dump the sample again', and nothing was ever dumped."""
    trace = TRACES / "fixed.h5"
    for name in sorted(set(layouts()) - {"MAPPED"}):
        with pytest.raises(
            UnknownFormat, match=rf"is a trace that drafttrace recorded, .* {name}; leave the format"
        ):
            open_capture(str(trace), format=name)
    shutil.copy(trace, tmp_path / "one.h5")
    shutil.copy(trace, tmp_path / "two.h5")
    with pytest.raises(UnknownFormat, match="is a trace that drafttrace recorded"):
        open_capture(str(tmp_path), format="SPEC-V1", sample=0)
