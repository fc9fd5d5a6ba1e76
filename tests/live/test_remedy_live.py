"""A remedy tried on a running server: ``serve --wiring``, then ``diff`` says match; and what ``check --url`` adds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sglang_cpu.arguments import cpu_args
from typed import compared, drafttrace, faults, recorded

from drafttrace.tracer.open import open_capture
from pairs.accept_length import rewired

pytestmark = pytest.mark.live

TRAINED = {"tiny-kimi": [0, 3, 31], "tiny-llama": [2, 8, 13]}


def wrongly_configured(pair: Any, folder: Path) -> Path:
    """The draft with ids that no reading turns into the trained wiring. tiny-kimi's own are such already."""
    return Path(pair.draft if pair.name == "tiny-kimi" else rewired(pair.draft, [2, 6, 11], folder / "draft"))


def audited(pair: Any, draft: Path, *more: str | Path) -> tuple[dict[str, Any], int]:
    done = drafttrace("check", "--target", pair.target, "--draft", draft, "--json", "-", *more)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), done.returncode


@pytest.mark.parametrize("name", sorted(TRAINED))
def test_a_wiring_on_the_command_line_turns_a_mismatch_into_a_match(
    name: str, start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    pair, wanted = pairs[name], TRAINED[name]
    draft = wrongly_configured(pair, tmp_path)
    asked = ",".join(f"B{k}" for k in wanted)
    server = start_server(cpu_args(pair.target, draft, steps=5, num_draft_tokens=6), serve=("--wiring", asked))
    trace = recorded(server.url, pair.dump, tmp_path / "t.h5")
    wiring = open_capture(str(trace)).about["wiring"]
    assert wiring["source"] == "override" and wiring["boundaries"] == wanted
    result, code = compared(trace, pair.dump)
    assert code == 0 and result["verdict"] == "match" and not faults(result), result["findings"]

    # The server now does what training did, the config still does not: the audit says both.
    live, code = audited(pair, draft, "--url", server.url, "--trained", asked)
    assert live["live"] == wanted and code == 1
    assert not [found for found in live["findings"] if "live server" in found["summary"]], live["findings"]
    # Without --trained nothing says what training used: the advice is about the override and not to undo it.
    alone, code = audited(pair, draft, "--url", server.url)
    assert code == 1
    (said,) = [found for found in alone["findings"] if found["summary"].startswith("The live server hands over")]
    assert "as its --wiring says" in said["summary"] and said["evidence"]["live"] == wanted
    assert "make the config say the same" in said["remedy"] and "with this config" not in said["remedy"]
    # Another model's folders are no matter of layer ids.
    other = pairs[next(one for one in TRAINED if one != name)]
    done = drafttrace("check", "--target", other.target, "--draft", other.draft, "--url", server.url)
    assert done.returncode == 2 and "runs another model" in done.stderr and str(pair.target) in done.stderr, (
        done.stderr
    )
