"""Boundaries that are declared and cannot be: beyond the target's layers, or one of two states of other values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dump_layouts as made
import pytest
import torch

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.convert import convert
from drafttrace.tracer.declared_checks import declared_checks
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.open_two import open_two

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "pairs/tiny-llama/target"  # B0 to B16
TRACE = ROOT / "traces/tiny-llama/healthy.h5"


def of_target(path: Path) -> str:
    """A SpecForge sample of the trace's tokens, of the target's width."""
    tokens = torch.from_numpy(open_capture(str(TRACE)).tokens.copy())
    random = torch.Generator().manual_seed(1)
    states = {"aux_hidden_state": torch.randn(1, len(tokens), 384, generator=random).bfloat16(),
              "hidden_state": torch.randn(1, len(tokens), 128, generator=random).bfloat16()}  # fmt: skip
    torch.save({"input_ids": tokens, "loss_mask": torch.ones(len(tokens)).long(), **states}, path)
    return str(path)


def test_a_boundary_beyond_the_target_that_the_user_names_is_a_problem(tmp_path: Path) -> None:
    """``--layer-ids 1,7,999`` printed "B1000 (declared)" and exit code 0."""
    path = of_target(tmp_path / "data_0.ckpt")
    found = inspect_capture(path, target=TARGET, request=Request(layer_ids=(1, 7, 999)))
    assert any(
        "is declared B1000, and a target of 16 layers has the boundaries B0 to B16" in p for p in found.problems
    )
    assert found.states[2].probably == "B1000 (declared, but the target has no B1000)"
    assert found.states[2].source.startswith("REFUTED (the target has no B1000)")
    assert found.states[1].probably == "B8 (declared)"


def test_a_boundary_beyond_the_target_that_a_config_declares_is_a_problem(tmp_path: Path) -> None:
    path = made.write_spec_v1(tmp_path)
    config = json.loads((tmp_path / "data_config.json").read_text())
    config["hidden_states"]["layer_ids"][2:] = [98, 99]
    (tmp_path / "data_config.json").write_text(json.dumps(config))
    capture = open_capture(str(path))
    checks = declared_checks(capture, 8)
    assert [check.subject for check in checks if check.is_problem] == ["hidden_states[2]"]
    assert not declared_checks(capture, None)  # nobody says how many layers there are


@pytest.mark.parametrize(("write", "name"), [(made.write_am_eagle3, "aux_layer_ids"),
                                             (made.write_am_dspark, "target_layer_ids")])  # fmt: skip
def test_a_boundary_beyond_the_target_that_a_manifest_declares_is_a_problem(
    write: Any, name: str, tmp_path: Path
) -> None:
    path = write(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest[name][-1] = 99
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    problems = [
        check.summary for check in declared_checks(open_capture(str(path)), made.LAYERS) if check.is_problem
    ]
    assert len(problems) == 1 and "is declared B100" in problems[0]


def test_one_boundary_of_two_slots_with_other_values_is_a_problem(tmp_path: Path) -> None:
    """layer_ids [2, 8, 8, 15] were accepted, exit code 0, with and without a target."""
    path = made.write_spec_v1(tmp_path)
    config = json.loads((tmp_path / "data_config.json").read_text())
    ids = config["hidden_states"]["layer_ids"]
    config["hidden_states"]["layer_ids"] = [ids[0], ids[1], ids[1], ids[3]]
    (tmp_path / "data_config.json").write_text(json.dumps(config))
    found = inspect_capture(str(path))
    both = "hidden_states[1] and hidden_states[2] are both declared"
    assert any(both in problem and "different values" in problem for problem in found.problems)
    assert all("two states of other values" in found.states[k].probably for k in (1, 2))
    config["hidden_states"]["layer_ids"] = [ids[0], ids[1], ids[3], ids[3]]  # a slot and the last state
    (tmp_path / "data_config.json").write_text(json.dumps(config))
    assert any("hidden_states[2] and hidden_states[3] are both" in p for p in inspect_capture(str(path)).problems)


def test_one_boundary_stored_twice_with_the_same_values_is_found_and_no_problem(tmp_path: Path) -> None:
    same = made.state(2)
    torch.save({"input_ids": made.tokens(), "a": same, "b": same.clone(), "c": made.state(4)}, tmp_path / "x.pt")
    fields = FieldMap(slots=("a", "b", "c"), tokens="input_ids", boundaries=(2, 2, 4))
    found = inspect_capture(str(tmp_path / "x.pt"), mapping=fields)
    assert [check.verdict for check in found.checks] == ["found"] and not found.problems


def test_a_reference_of_another_number_of_layers_is_of_another_target(tmp_path: Path) -> None:
    path = made.write_drafttrace(tmp_path)
    told = [check for check in declared_checks(open_capture(str(path)), 61) if check.id == "layers"]
    assert told and told[0].is_problem and "of 8 layers, and this one has 61" in told[0].summary
    assert not [check for check in declared_checks(open_capture(str(path)), made.LAYERS) if check.is_problem]


def test_declared_boundaries_that_cannot_be_are_told_by_diff_and_refused_by_convert(tmp_path: Path) -> None:
    path = of_target(tmp_path / "data_0.ckpt")
    beyond, twice = Request(layer_ids=(1, 7, 999)), Request(layer_ids=(1, 1, 12))
    for request, said in ((beyond, "is declared B1000"), (twice, "are both declared B2")):
        _ours, theirs = open_two(str(TRACE), path, request=request)
        assert any(said in note for note in theirs.notes)
    with pytest.raises(DrafttraceError, match=r"is declared B1000.*--layer-ids"):
        convert(path, tmp_path / "out.safetensors", "safetensors", request=beyond, target=TARGET)
    with pytest.raises(DrafttraceError, match="declares B2 for two slots"):
        convert(path, tmp_path / "out.safetensors", "safetensors", request=twice, target=TARGET)
    with pytest.raises(DrafttraceError, match=r"is declared B1000.*--boundaries"):
        names = FieldMap(slots=("aux_hidden_state",), tokens="input_ids", boundaries=(2, 8, 1000))
        request = Request(hidden_size=128)
        convert(path, tmp_path / "out.safetensors", "safetensors", mapping=names, request=request, target=TARGET)
    (tmp_path / "v1").mkdir()
    source = made.write_spec_v1(tmp_path / "v1")
    done = convert(str(source), tmp_path / "out", "speculators-v1", request=Request(layer_ids=(2, 2, 5)))
    assert any("are both declared B3" in note for note in done.notes)


@pytest.mark.parametrize("case", made.CASES, ids=[f"{k}-{case.id}" for k, case in enumerate(made.CASES)])
def test_no_layout_as_its_project_writes_it_contradicts_itself(case: made.Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    sample = 0 if case.id.startswith("TS-") else None
    capture = open_capture(str(path), sample=sample, request=Request(**case.request))
    problems = [check.summary for check in declared_checks(capture, made.LAYERS)]
    assert not problems, (problems, [boundary_name(k) for k in capture.wiring])
