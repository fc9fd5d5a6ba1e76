"""The traces in the repository tell the story without any server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"
LLAMA = ROOT / "traces/tiny-llama"
KIMI_DUMP = KIMI / "dump/data_0.pt"


def drafttrace(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
        **more,
    )


def result_of(trace: Path, dump: Path, *more: str | Path) -> dict[str, Any]:
    done = drafttrace("diff", trace, dump, "--json", "-", *more)
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["schema"] == "drafttrace.result/1"
    assert result["exit_code"] == done.returncode
    return result


def faults(result: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"] if finding["severity"] == "fault"]


def test_the_config_as_the_trainer_left_it() -> None:
    result = result_of(KIMI / "as-trained.h5", KIMI_DUMP)
    assert result["verdict"] == "mismatch"
    assert faults(result)[:2] == ["slot-shift", "boundary-offset"]
    assert '"eagle_aux_hidden_state_layer_ids": [0, 3, 31]' in result["findings"][0]["remedy"]


def test_the_incident_on_a_real_language_model() -> None:
    result = result_of(ROOT / "traces/smol/as-trained.h5", ROOT / "traces/smol/dump/data_0.pt")
    assert result["verdict"] == "mismatch" and faults(result) == ["slot-shift"]
    assert '"eagle_aux_hidden_state_layer_ids": [-1, 15, 27]' in result["findings"][0]["remedy"]


def test_the_original_incident() -> None:
    result = result_of(KIMI / "shifted.h5", KIMI_DUMP)
    assert result["verdict"] == "mismatch"
    assert faults(result)[0] == "slot-shift"
    assert "boundary-offset" not in faults(result)


@pytest.mark.parametrize(
    ("trace", "dump"),
    [(KIMI / "fixed.h5", KIMI_DUMP), (LLAMA / "healthy.h5", LLAMA / "dump/hidden_states/hs_0.safetensors")],
)
def test_what_is_wired_well_matches(trace: Path, dump: Path) -> None:
    result = result_of(trace, dump)
    assert result["verdict"] == "match"
    assert not faults(result)


INCIDENT, FIXED = (1, "slot-shift"), (0, "MATCH")


def test_the_commands_of_the_readmes_print_a_report() -> None:
    expected = {"README.md": [INCIDENT, FIXED], "traces/README.md": [INCIDENT, FIXED, INCIDENT, FIXED]}
    for name, wanted in expected.items():
        readme = ROOT / name
        text = (line.removeprefix("$ ") for line in readme.read_text().splitlines())
        lines = [line for line in text if line.startswith("drafttrace diff traces/")]
        for line, (code, word) in zip(lines, wanted, strict=True):
            done = drafttrace(*line.split()[1:], cwd=ROOT)
            assert done.returncode == code, (line, done.stdout, done.stderr)
            assert word in done.stdout
            assert "\x1b" not in done.stdout


def test_a_saved_result_is_judged_again(tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    trace, dump = LLAMA / "healthy.h5", LLAMA / "dump/hidden_states/hs_0.safetensors"
    drafttrace("diff", trace, dump, "--json", saved, "--quiet")
    again = drafttrace("report", saved, "--json", "-")
    assert again.returncode == 0 and json.loads(again.stdout)["verdict"] == "match"
    bounds = ["match=0.000001", "noise=0.000002", "neighbour_noise=0.00001"]
    strict = drafttrace("report", saved, *(word for b in bounds for word in ("--threshold", b)), "--json", "-")
    assert strict.returncode == 1 and json.loads(strict.stdout)["verdict"] == "mismatch"
    wrong = drafttrace("report", saved, "--threshold", "nonsense=1")
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr


def test_nothing_compared_is_never_success(tmp_path: Path) -> None:
    done = drafttrace("diff", LLAMA / "healthy.h5", KIMI_DUMP, "--json", "-")
    assert done.returncode == 2


def test_inspect_tells_what_a_trace_and_a_dump_are() -> None:
    for path, word in ((KIMI / "as-trained.h5", "drafttrace.trace"), (KIMI_DUMP, "SPEC-V1")):
        done = drafttrace("inspect", path, "--json", "-")
        assert done.returncode == 0, done.stderr
        assert word in done.stdout


def test_cheap_commands_do_not_import_torch() -> None:
    """inspect and diff of HDF5 and safetensors files start without it."""
    code = (
        "import sys\nfrom drafttrace.tracer.cli import main\n"
        "sys.argv = ['drafttrace', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'transformers', 'sglang'} & set(sys.modules), 'heavy modules were imported'\n"
    )
    trace, dump = LLAMA / "healthy.h5", LLAMA / "dump/hidden_states/hs_0.safetensors"
    for arguments in (["inspect", trace], ["inspect", dump], ["diff", trace, dump]):
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", sorted((ROOT / "traces").rglob("*.h5")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_viewer_that_follows_nexus_plots_a_recorded_trace(path: Path) -> None:
    """What H5Web and silx do on a double click: along ``default`` to an NXdata group, its signals over its axis."""
    with h5py.File(path, "r") as file:
        group: Any = file
        for kind in ("NXroot", "NXentry", "NXdata"):
            assert group.attrs["NX_class"].decode() == kind
            if kind != "NXdata":
                group = group[group.attrs["default"].decode()]
        (axis,) = (name.decode() for name in group.attrs["axes"])
        position = group[axis][:]
        assert len(position) >= 40 and (np.diff(position) > 0).all()
        signals = [group.attrs["signal"].decode(), *(name.decode() for name in group.attrs["auxiliary_signals"])]
        assert signals == ["aux_0", "aux_1", "aux_2", "embed", "last"]
        assert group["aux_0"].attrs["long_name"].decode() == "norm of aux/0"
        assert group["title"][()].decode() == "row norms over token position"
        for name in signals:
            norms = group[name][:]
            assert norms.shape == position.shape and np.isfinite(norms).all() and (norms > 0).all()
        slot, rows = file["target/aux/0"], file["target/rows"][:]
        row = int(np.flatnonzero(rows["position"] == position[3])[0])
        assert np.isclose(group["aux_0"][3], np.linalg.norm(slot[row].astype(np.float64)), rtol=0.01)
