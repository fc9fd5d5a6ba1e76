"""Keys that nobody reads: told by name, with the key that was meant, and without alarm about everybody's ordinary keys."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from audit_folders import angelslim, modelopt, specforge, speculators, write_draft, write_target
from family_configs import FAMILIES

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import corrected
from drafttrace.compare.audit.mistyped_keys import mistyped_keys
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.config_switches import NEUTRAL, near_name, strange_switches
from drafttrace.compare.draft_config import parse_draft_config
from drafttrace.compare.draft_weights import draft_weights
from drafttrace.compare.replay.switches import switches_of
from drafttrace.compare.result import FAULT
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat

IDS = [1, 15, 28]
NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"


def audited(folder: Path, config: dict[str, Any], **more: Any) -> CheckResult:
    return check(
        write_target(folder / "target"), write_draft(folder / "draft", config), sglang_version="0.5.23", **more
    )


@pytest.mark.parametrize("key", ["norm_magic", "embed_scale", "scaled_residual", "gated_attn"])
def test_a_switch_of_no_known_name_is_a_hint_by_name(key: str, tmp_path: Path) -> None:
    """The replay refused it by name, and the summary of check said that nothing was wrong."""
    result = audited(tmp_path, specforge(IDS, **{key: 2.0}))
    (found,) = result.findings
    assert found.severity != FAULT and found.evidence["field"] == key and f"--ignore {key}" in found.remedy
    assert found.id in result.summary


@pytest.mark.parametrize(
    ("key", "value", "near"),
    [
        ("norm_befor_fc", True, "norm_before_fc"),
        ("fcNorm", True, "fc_norm"),
        ("num_aux_hidden_state", 3, "num_aux_hidden_states"),
        ("draft-vocab-size", 7, "draft_vocab_size"),
        ("use_aux_hidden_state", False, "eagle_config.use_aux_hidden_state"),
        ("eagle_config.use_aux_hidden_states", False, "eagle_config.use_aux_hidden_state"),
        ("eagle_config.target_hidden_size", 32, "target_hidden_size"),
        ("eagle_config.eagle_aux_hidden_states_layer_ids", [3, 4, 5], NESTED),
    ],
)  # fmt: skip
def test_a_mistyped_key_is_told_with_the_one_that_is_meant(key: str, value: Any, near: str, tmp_path: Path) -> None:
    config = corrected(specforge(IDS), {key: value})
    (found,) = audited(tmp_path, config).findings
    assert f"did you mean {near}?" in found.summary and found.evidence["near"] == near and found.severity != FAULT
    parsed = parse_draft_config(config, tmp_path / "draft/config.json")
    with pytest.raises(UnknownFormat, match=f"did you mean '{near}'"):
        switches_of(parsed, draft_weights(open_checkpoint(tmp_path / "draft")))


def test_a_second_spelling_with_the_same_value_is_no_finding(tmp_path: Path) -> None:
    config = corrected(specforge(IDS), {"eagle_config.eagle_aux_hidden_state_layers_ids": IDS})
    assert not audited(tmp_path, config).findings


@pytest.mark.parametrize("ids", [[2, 16, 29], IDS], ids=["other than the default", "the default"])
def test_ids_under_a_mistyped_name_are_what_the_default_stands_for(ids: list[int], tmp_path: Path) -> None:
    """The s in layers_ids was passed over, and the default said to be all that there is."""
    config = specforge(None, eagle_config={"eagle_aux_hidden_state_layers_ids": ids})
    result = audited(tmp_path, config)
    (found,) = result.findings
    assert found.id == "default-wiring" and "layers_ids, which nobody reads" in found.summary
    assert (found.severity == FAULT) == (ids != IDS) and str(ids) in found.remedy
    assert result.fix == {NESTED: ids}
    again = audited(tmp_path / "fixed", corrected(config, result.fix))
    assert not again.findings or again.readings[-1].ids == tuple(ids)
    assert not again.faults


@pytest.mark.parametrize("key", ["eagle_aux_hidden_state_layers_ids", "eagle_layer_ids", "aux_layers_to_capture"])
def test_ids_under_another_name_at_the_top_are_not_guessed(key: str, tmp_path: Path) -> None:
    """There id k may mean B(k), as speculators writes it, or the output of layer k."""
    config = specforge(None, **{key: [3, 7, 12]})
    result = audited(tmp_path, config)
    (found,) = result.faults
    assert found.id == "default-wiring" and f"{key}, which nobody reads" in found.summary and not result.fix
    assert "[2, 6, 11]" in found.remedy and "[3, 7, 12]" in found.remedy
    told = audited(tmp_path / "told", config, trained=(3, 7, 12))
    assert told.fix == {NESTED: [2, 6, 11]} and any(f"stand in {key}" in f.summary for f in told.faults)


@pytest.mark.parametrize("name", FAMILIES)
def test_ordinary_keys_of_public_families_are_no_mistypings(name: str) -> None:
    """A draft's config may be its target's, copied whole."""
    target = FAMILIES[name]
    part = {
        key: value for key, value in (target.get("text_config") or target).items() if not isinstance(value, dict)
    }
    whole = {**part, **{key: value for key, value in target.items() if not isinstance(value, dict)}}
    draft = parse_draft_config({**specforge(IDS), **whole, **specforge(IDS)}, Path("config.json"))
    assert not mistyped_keys(draft)
    assert not [key for key, _ in strange_switches(draft) if "token" in key or "mtp" in key]


@pytest.mark.parametrize("config", [specforge(IDS), speculators(IDS), modelopt(IDS), angelslim()], ids=str)
def test_the_layouts_of_trainers_have_no_unknown_key(config: dict[str, Any]) -> None:
    assert not strange_switches(parse_draft_config(config, Path("config.json")))


def test_fields_of_transformers_configs_are_no_mistypings() -> None:
    """Of two thousand; the few that are near a draft's key are near it for a reader, too."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.submodule_search_locations
    sources = Path(next(iter(spec.submodule_search_locations))) / "models"
    names = {
        name
        for path in sources.glob("*/configuration_*.py")
        for name in re.findall(r"^    (\w+)\s*:\s*[\w|\[\]., ]+=", path.read_text("utf-8"), re.MULTILINE)
    }
    assert len(names) > 1000
    near = {name for name in names - set(NEUTRAL) if (found := near_name(name)) is not None and found != name}
    strange = {name for name in near if _unknown(name)}
    assert strange <= {"hidden_sizes", "layer_type", "sliding_windows", "architecture"}


def _unknown(name: str) -> bool:
    config = {**specforge(IDS), name: "x"} if name not in specforge(IDS) else specforge(IDS)
    try:
        return name in dict(strange_switches(parse_draft_config(config, Path("config.json"))))
    except DrafttraceError:  # a key of a draft, with a value that it cannot have
        return False
