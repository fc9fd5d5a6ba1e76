"""``drafttrace check`` on configs with a value of any other kind in a field: an answer or one sentence, no traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audit_folders import specforge, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.config_fields import RARE_DTYPES
from drafttrace.compare.audit.plain_configs import unusual_draft, unusual_target
from drafttrace.compare.draft_config import parse_draft_config
from drafttrace.tracer.errors import DrafttraceError

PAIRS = Path(__file__).parents[2] / "pairs"
IDS = [1, 15, 28]
VALUES: tuple[Any, ...] = (["bfloat16"], [], {}, {"a": [1]}, 7, -1, 0.5, True, None, "x", "", [[1], {"b": None}])
AUDITED = (["bfloat16"], {}, True, None)
"""Those that a whole audit is run on; :mod:`test_audit_hostile` runs it on others."""
EXTRA = ("dtype", "quantization_config", "rope_parameters", "layer_types", "text_config", "sliding_window")


def changed(config: dict[str, Any], values: tuple[Any, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The config with every field of it, and of its ``eagle_config`` and ``rope_scaling``, of every kind of value."""
    for key in dict.fromkeys([*config, *EXTRA]):
        for value in values:
            yield f"{key} {value!r}", {**config, key: value}
    for part in ("eagle_config", "rope_scaling"):
        inner = config.get(part)
        for key in inner if isinstance(inner, dict) else ():
            for value in values:
                yield f"{part}.{key} {value!r}", {**config, part: {**inner, key: value}}


def answer(target: Path, draft: Path) -> None:
    """A whole report, or one sentence."""
    try:
        result = check(target, draft, sglang_version="0.5.23")
        assert str(result) and result.to_json()
    except DrafttraceError as error:
        assert "\n" not in str(error) and str(error).endswith(".")


def test_any_value_in_any_field_of_a_drafts_config_is_no_traceback(tmp_path: Path) -> None:
    """["bfloat16"] or {} for torch_dtype was a TypeError: unhashable type, where SGLang was to be asked."""
    target = write_target(tmp_path / "target", json.loads((PAIRS / "tiny-llama/target/config.json").read_text()))
    draft = write_draft(tmp_path / "draft", specforge(IDS))
    config = json.loads((PAIRS / "tiny-llama/draft/config.json").read_text())
    for name, made in changed(config, VALUES):
        try:
            unusual_draft(parse_draft_config(made, draft / "config.json"))
        except DrafttraceError:
            continue
        except Exception as error:
            raise AssertionError(name) from error
    for _, made in changed(config, AUDITED):
        (draft / "config.json").write_text(json.dumps(made))
        answer(target, draft)


@pytest.mark.parametrize("pair", ["tiny-llama", "tiny-kimi"])
def test_any_value_in_any_field_of_a_targets_config_is_no_traceback(pair: str, tmp_path: Path) -> None:
    """A list for the target's torch_dtype was one, too."""
    config = json.loads((PAIRS / pair / "target/config.json").read_text())
    target = write_target(tmp_path / "target", config)
    draft = write_draft(tmp_path / "draft", specforge(IDS))
    for name, made in changed(config, VALUES):
        try:
            unusual_target(made)
            unusual_target({"model_type": "kimi_k25", "text_config": made})
        except Exception as error:
            raise AssertionError(name) from error
    for _, made in changed(config, AUDITED):
        (target / "config.json").write_text(json.dumps(made))
        answer(target, draft)


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_a_rare_number_format_is_still_asked_about(key: str) -> None:
    config = {**specforge(IDS), key: min(RARE_DTYPES)}
    assert "torch_dtype" in unusual_draft(parse_draft_config(config, Path("config.json")))
