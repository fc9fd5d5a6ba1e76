"""``check --fix`` replaces nothing but the copies that it made itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from audit_folders import DEEPSEEK_TARGET, draft_tensors, specforge, write_draft, write_target
from safetensors.torch import load_file, save_file

import drafttrace
from drafttrace.compare.audit.fix import fix
from drafttrace.tracer.errors import DrafttraceError, OutputExists

ROOT = Path(__file__).resolve().parents[2]

CHANGES = {"tie_word_embeddings": False}


def link(made: Callable[[Path, Path], object]) -> Callable[[Path, Path], Path]:
    """A place that leads to a model's config: by a link to the folder, a link to the file, or a hard link."""

    def place(model: Path, base: Path) -> Path:
        out = base / "out"
        made(model, out)
        return out

    return place


def _hard(model: Path, out: Path) -> None:
    out.mkdir()
    os.link(model / "config.json", out / "config.json")


def _soft(model: Path, out: Path) -> None:
    out.mkdir()
    (out / "config.json").symlink_to(model / "config.json")


PLACES: dict[str, Callable[[Path, Path], Path]] = {
    "the folder": lambda model, base: model,
    "its config": lambda model, base: model / "config.json",
    "a new name in it": lambda model, base: model / "generation_config.json",
    "a link to the folder": link(lambda model, out: out.symlink_to(model)),
    "a link to the config": link(_soft),
    "a hard link": link(_hard),
}


@pytest.mark.parametrize("whose", ["target", "draft"])
@pytest.mark.parametrize("place", PLACES)
def test_fix_with_force_never_reaches_target_or_draft(whose: str, place: str, tmp_path: Path) -> None:
    """`check --fix TARGETDIR --force` overwrote the target's config."""
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge([1, 15, 28]))
    before = {path: path.read_bytes() for path in (*target.iterdir(), *draft.iterdir())}
    out = PLACES[place](target if whose == "target" else draft, tmp_path)
    with pytest.raises(DrafttraceError, match=f"{whose}'s own"):
        fix(draft, out, CHANGES, target_dir=target, force=True)
    assert before == {path: path.read_bytes() for path in (*target.iterdir(), *draft.iterdir())}


def test_fix_replaces_only_a_copy_that_it_made(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", specforge([1, 15, 28]))
    other = write_draft(tmp_path / "other", specforge([2, 3, 4]))
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "README").write_text("mine")
    file = tmp_path / "some.json"
    file.write_text("{}")
    for foreign in (other, notes, file):
        with pytest.raises(OutputExists, match="no copy that --fix made"):
            fix(draft, foreign, CHANGES, force=True)
    assert json.loads((other / "config.json").read_text()) == specforge([2, 3, 4])
    assert file.read_text() == "{}" and [path.name for path in notes.iterdir()] == ["README"]

    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "new/deep", tmp_path / "one.json"):
        path = fix(draft, out, CHANGES)
        with pytest.raises(OutputExists, match="--force"):
            fix(draft, out, CHANGES)
        fix(draft, out, {**CHANGES, "fc_norm": True}, force=True)
        assert json.loads(path.read_text())["fc_norm"] is True
        path.write_text(path.read_text() + " ")  # somebody's own work from now on
        with pytest.raises(OutputExists, match="changed since"):
            fix(draft, out, CHANGES, force=True)


def test_a_refused_fix_is_refused_before_any_report_is_written(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", DEEPSEEK_TARGET)
    draft = write_draft(tmp_path / "draft", specforge([2, 30, 58]))
    before = (target / "config.json").read_bytes()
    order = [sys.executable, "-m", "drafttrace.tracer.cli", "check", "--target", str(target), "--draft", str(draft)]
    order += ["--sglang-version", "0.5.23", "--trained", "B0,B3,B31", "--md", str(tmp_path / "r.md"), "--force"]
    done = subprocess.run([*order, "--fix", str(target)], capture_output=True, text=True)
    assert done.returncode == 2 and "never changed in place" in done.stderr, done.stderr
    assert (target / "config.json").read_bytes() == before and not (tmp_path / "r.md").exists()
    twice = subprocess.run(
        [*order, "--fix", str(tmp_path / "x.json"), "--json", str(tmp_path / "x.json")],
        capture_output=True,
        text=True,
    )
    assert twice.returncode == 2 and "same file" in twice.stderr, twice.stderr


def test_a_switch_that_is_overruled_inside_eagle_config_is_told_with_its_place(tmp_path: Path) -> None:
    """The remedy was "norm_before_fc": true, which stood in the file already; --fix wrote it once more."""
    pair = ROOT / "pairs/tiny-llama"
    draft = tmp_path / "draft"
    shutil.copytree(pair / "draft", draft)
    (weights,) = draft.glob("*.safetensors")
    tensors = load_file(weights)
    wide = torch.full((tensors["fc.weight"].shape[1],), 1.5, dtype=torch.bfloat16)
    save_file(tensors | {"input_norm.weight": wide}, weights)
    config = json.loads((draft / "config.json").read_text())
    config["norm_before_fc"] = True
    config["eagle_config"]["norm_before_fc"] = False
    (draft / "config.json").write_text(json.dumps(config))
    found = drafttrace.check(pair / "target", draft)
    (missing,) = [f for f in found.findings if f.id == "norm-missing"]
    assert "eagle_config.norm_before_fc is set to false" in missing.summary
    assert missing.remedy.startswith('"norm_before_fc": true inside "eagle_config"') and found.left == (missing,)
    config["eagle_config"]["norm_before_fc"] = True
    (draft / "config.json").write_text(json.dumps(config))
    assert not [f for f in drafttrace.check(pair / "target", draft).findings if f.severity == "fault"]


def test_fix_writes_the_default_ids_where_the_remedy_is_to_write_them(tmp_path: Path) -> None:
    """The line was printed and left out of the copy."""
    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", specforge(None))
    for trained in (None, (2, 16, 29)):
        result = drafttrace.check(target, draft, sglang_version="0.5.23", trained=trained)
        (found,) = result.findings
        assert found.id == "default-wiring" and "[1, 15, 28]" in found.remedy
        assert result.fix == {"eagle_config.eagle_aux_hidden_state_layer_ids": [1, 15, 28]}
        fix(draft, tmp_path / f"out{len(trained or ())}", result.fix)
        shutil.copy(draft / "model.safetensors", tmp_path / f"out{len(trained or ())}")
        again = drafttrace.check(
            target, tmp_path / f"out{len(trained or ())}", sglang_version="0.5.23", trained=trained
        )
        assert not again.findings and again.readings[-1].boundaries == (2, 16, 29)


@pytest.mark.parametrize(("value", "severity"), [(1.0, "note"), (1.5, "fault")])
@pytest.mark.parametrize("flag", ["fc_norm", "norm_before_fc"])
def test_fix_leaves_a_norm_that_only_the_replay_can_judge(
    flag: str, value: float, severity: str, tmp_path: Path
) -> None:
    """--fix switched a norm on of which the replay says that training did not use it."""
    names = {"fc_norm": [f"fc_norm.{k}.weight" for k in range(3)], "norm_before_fc": ["input_norm.weight"]}[flag]
    width = 16 if flag == "fc_norm" else 48
    tensors = {**draft_tensors(), **{name: torch.full((width,), value) for name in names}}
    draft = write_draft(tmp_path / "draft", specforge([1, 15, 28]), tensors)
    result = drafttrace.check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    (found,) = [f for f in result.findings if f.id == "norm-missing"]
    assert found.severity == severity and "drafttrace replay" in found.remedy and result.fix == {}
    assert [f.id for f in result.left] == ["norm-missing"] * (severity == "fault")


def test_fix_says_on_the_terminal_what_it_leaves(tmp_path: Path) -> None:
    from drafttrace.compare.audit.render import left_over, markdown

    target = write_target(tmp_path / "target")
    broken = {**draft_tensors(), "norm.weight": torch.full((16,), float("nan")), "fc.weight": torch.zeros(16, 48)}
    draft = write_draft(tmp_path / "draft", specforge([1, 15, 28], num_aux_hidden_states=5), broken)
    result = drafttrace.check(target, draft, sglang_version="0.5.23")
    assert result.fix == {"num_aux_hidden_states": 3} and {f.id for f in result.left} == {
        "nan-inf",
        "weights-missing",
    }
    assert "2 problems that no line of the config is sure to put right are left" in left_over(result)
    assert "and would leave" in markdown(result) and result.to_json()["left"][0]["id"]
