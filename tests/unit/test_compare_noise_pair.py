"""A noise floor of another model was taken without a word; a slot of another width was a ValueError of Python's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16
from edited_captures import TRACES, dump, trace

import drafttrace
from drafttrace.compare.diff import diff
from drafttrace.compare.noise_pair import measure_noise
from drafttrace.tracer.cli import main
from drafttrace.tracer.errors import NothingToCompare


def test_a_noise_floor_of_another_model_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = trace("llama")
    with pytest.raises(
        NothingToCompare, match=r"another model than .*hidden size is 128, not 96; record the same prompt"
    ):
        measure_noise(llama, llama, of=trace("kimi"))
    paths = [str(TRACES / name) for name in ("tiny-kimi/fixed.h5", "tiny-kimi/dump/data_0.pt")]
    again = str(TRACES / "tiny-llama/healthy.h5")
    monkeypatch.setattr("sys.argv", ["drafttrace", "diff", *paths, "--noise", again, again])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "another model" in capsys.readouterr().err


def test_a_noise_floor_of_another_prompt_is_told_as_such() -> None:
    kimi = trace("kimi")
    other = replace(kimi, tokens=np.roll(kimi.tokens, 7))
    assert "another prompt" in measure_noise(kimi, kimi, of=other).source
    assert "another prompt" not in measure_noise(kimi, kimi, of=kimi).source


def test_a_slot_of_another_width_is_refused_in_words() -> None:
    reference = dump("kimi")
    narrow = replace(reference.slots[1], rows=bf16(reference.slots[1].rows.floats()[:, :48]))
    with pytest.raises(NothingToCompare, match=r"Slot 1 is 96 wide in .* and 48 in"):
        diff(trace("kimi"), replace(reference, slots=(reference.slots[0], narrow, reference.slots[2])))


def test_python_refuses_another_models_noise_as_the_command_does() -> None:
    """drafttrace.diff(..., noise=(A, B)) judged tiny-kimi by a floor of tiny-llama."""
    paths = [str(TRACES / name) for name in ("tiny-kimi/fixed.h5", "tiny-kimi/dump/data_0.pt")]
    again = str(TRACES / "tiny-llama/healthy.h5")
    with pytest.raises(NothingToCompare, match=r"another model than .*hidden size is 128, not 96"):
        drafttrace.diff(*paths, noise=(again, again))
    with pytest.raises(NothingToCompare, match="another model"):
        drafttrace.noise(again, again, of=paths[0])
