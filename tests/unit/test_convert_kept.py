"""What a conversion keeps, asks for before it gives it up, and never writes over."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError, OutputExists
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-kimi/fixed.h5"
KNOWN = Request(layers=made.LAYERS)


@pytest.fixture(scope="module")
def trace() -> Capture:
    return open_capture(str(TRACE))


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    (tmp_path / "v1").mkdir()
    made.write_spec_v1(tmp_path / "v1")
    return tmp_path / "v1"


def test_a_sweep_over_the_first_rows_stays_in_a_trace(trace: Capture, tmp_path: Path) -> None:
    """62 boundaries of 64 rows became none, for a request of 80 tokens."""
    out = tmp_path / "t.h5"
    convert(str(TRACE), out, "trace", lose=["recording"])
    again = open_capture(str(out))
    assert sorted(again.boundaries) == sorted(trace.boundaries)
    rows = trace.table.position[:64].tolist()
    for k in (0, 7, 61):
        assert np.array_equal(again.boundaries[k].floats(), trace.boundaries[k].floats(0, 64)[np.argsort(rows)])


def test_a_trace_stays_what_it_says_of_itself(trace: Capture, tmp_path: Path) -> None:
    """A prompt of 48 tokens became one of 80; request, environment and configurations went unasked."""
    out = tmp_path / "t.h5"
    with pytest.raises(DrafttraceError, match=r"108 draft rows, .*give it up with --lose recording"):
        convert(str(TRACE), out, "trace")
    assert not out.exists()
    done = convert(str(TRACE), out, "trace", lose=["recording"])
    assert done.left_out[0] == "108 draft rows"
    again = open_capture(str(out))
    assert again.prompt_length == trace.prompt_length == 48
    assert again.probes == trace.probes
    for block in ("draft_config", "environment", "request", "server_args", "target_config"):
        assert again.about[block] == trace.about[block]
    assert (again.table.phase[:48] == trace.table.phase[:48]).all() and len(set(again.table.phase.tolist())) == 2


def test_a_dump_gets_no_prompt_length(v1: Path, tmp_path: Path) -> None:
    convert(str(v1), tmp_path / "t.h5", "trace", lose=["loss-mask"], request=KNOWN)
    assert open_capture(str(tmp_path / "t.h5")).prompt_length is None


def test_a_recording_is_not_dropped_unasked(tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    with pytest.raises(DrafttraceError, match="75 probes, the prompt length, the block draft_config"):
        convert(str(TRACE), out, "safetensors", lose=["last-state", "boundaries"])
    with pytest.raises(
        DrafttraceError, match="cover only the first 64 of 80 tokens; give it up with --lose boundaries"
    ):
        convert(str(TRACE), out, "safetensors", lose=["last-state", "recording"])
    assert not out.exists()
    convert(str(TRACE), out, "safetensors", lose=["last-state", "recording", "boundaries"])
    assert open_capture(str(out)).wiring == (0, 3, 31)


def test_an_embedding_is_not_dropped_unasked(trace: Capture, tmp_path: Path) -> None:

    with pytest.raises(DrafttraceError, match="--lose boundaries"):
        convert(str(TRACE), tmp_path / "out", "speculators", lose=["recording", "layer-ids"])


@pytest.mark.parametrize("how", ["same", "link", "hard link"])
def test_a_recording_is_never_converted_onto_itself(how: str, tmp_path: Path) -> None:
    """``convert x.h5 x.h5 --to trace --force`` destroyed the recording."""
    source, out = tmp_path / "x.h5", tmp_path / "y.h5"
    shutil.copy(TRACE, source)
    if how == "link":
        out.symlink_to(source)
    elif how == "hard link":
        os.link(source, out)
    with pytest.raises(OutputExists, match="must not replace what is read"):
        convert(str(source), source if how == "same" else out, "trace", lose=["recording"], force=True)
    assert source.read_bytes() == TRACE.read_bytes()


def test_a_sample_is_not_converted_into_its_own_folder(v1: Path, tmp_path: Path) -> None:
    sample = v1 / "data_0.pt"
    before = sample.read_bytes()
    for out, layout in ((v1, "speculators-v1"), (v1 / "x.safetensors", "safetensors")):
        with pytest.raises(OutputExists, match="must not replace what is read"):
            convert(str(v1), out, layout, lose=["loss-mask"], force=True)
    with pytest.raises(OutputExists, match="must not replace what is read"):
        convert(str(sample), v1, "speculators-v1", force=True)
    assert sample.read_bytes() == before


def test_a_failed_conversion_leaves_the_old_trace(
    v1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drafttrace.tracer.trace.writer import TraceWriter

    out = tmp_path / "t.h5"
    convert(str(v1), out, "trace", lose=["loss-mask"], request=KNOWN)
    before = out.read_bytes()

    def fail(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TraceWriter, "append_target", fail)
    with pytest.raises(OutputExists, match="No space left"):
        convert(str(v1), out, "trace", lose=["loss-mask"], request=KNOWN, force=True)
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.h5", "v1"]


def test_old_layer_ids_are_not_declared_for_a_new_v1_sample(v1: Path, tmp_path: Path) -> None:
    """``--force`` left the old data_config.json beside a sample that has no layer ids."""
    out = tmp_path / "out"
    convert(str(v1), out, "speculators-v1")
    assert open_capture(str(out)).wiring == (3, 5, 6)
    (out / "sample_lengths.json").write_text("{}")
    (out / "README.md").write_text("mine")
    convert(str(v1), out, "speculators-v1", lose=["layer-ids"], force=True)
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "data_0.pt"]
    assert set(open_capture(str(out)).wiring) == {None}


def test_layer_ids_of_the_folder_above_are_not_declared(v1: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    (above / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [1, 2, 3, 4]}}))
    with pytest.raises(DrafttraceError, match="would declare layer ids for the sample"):
        convert(str(v1), above / "out", "speculators-v1", lose=["layer-ids"])


def test_an_old_mask_is_not_that_of_a_new_speculators_sample(v1: Path, tmp_path: Path) -> None:
    """``--force`` left the old Arrow table, whose mask was then taken."""
    out = tmp_path / "out"
    convert(str(v1), out, "speculators", lose=["layer-ids"])
    assert open_capture(str(out)).mask is not None
    convert(str(v1), out, "speculators", lose=["layer-ids", "loss-mask"], force=True)
    assert [path.name for path in out.iterdir()] == ["hidden_states"]
    assert open_capture(str(out)).mask is None


@pytest.mark.parametrize(
    ("layout", "other"),
    [
        ("speculators-v1", "data_1.pt"),
        ("speculators", "hidden_states/hs_1.safetensors"),
        ("speculators", "data-00001-of-00002.arrow"),
        ("speculators", "data_0.pt"),
    ],
)
def test_a_forced_sample_is_not_mixed_with_others(layout: str, other: str, v1: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(str(v1), out, layout, lose=["layer-ids"])
    shutil.copy(v1 / "data_0.pt", out / other)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(OutputExists, match="holds other samples, such as"):
        convert(str(v1), out, layout, lose=["layer-ids"], force=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_two_slots_of_one_boundary_are_no_stack_that_can_be_read(tmp_path: Path) -> None:
    path = made.write_spec_fp8(tmp_path)
    with pytest.raises(DrafttraceError, match="declares B3 for two slots"):
        convert(
            str(path), tmp_path / "x.safetensors", "safetensors", request=Request(layer_ids=(3, 3, 5), layers=8)
        )
