"""``drafttrace check --dump``: what a dump proves by its rows, what it only declares, and dumps of another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_folders import DEEPSEEK_TARGET, HIDDEN, dump_of, specforge, target_tensors, write_draft, write_target

from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.result import CheckResult
from drafttrace.tracer.capture import Capture

TOKENS = np.arange(40, dtype=np.int64)
NOISE = np.random.default_rng(0).normal(size=(3, 40, HIDDEN))
EMBEDDING = target_tensors()["model.embed_tokens.weight"].float().numpy()[TOKENS]
SERVED = [2, 30, 58]


def audited(folder: Path, dump: Capture, **options: Any) -> CheckResult:
    draft = write_draft(folder / "draft", specforge(SERVED))
    target = write_target(folder / "target", DEEPSEEK_TARGET)
    return check(target, draft, sglang_version="0.5.23", dump=dump, **options)


FOREIGN = {
    "another width": (dump_of(list(np.ones((3, 40, 2 * HIDDEN))), TOKENS, [0, 16, 28]), "slots are 32 wide"),
    "tokens beyond the vocabulary": (dump_of(list(NOISE), TOKENS + 60, [0, 16, 28]), "token id 99"),
    "another number of slots": (dump_of(list(NOISE[:2]), TOKENS, [0, 16]), "has 2 slots, the draft's fc reads 3"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_dump_of_another_model_is_named_and_nothing_is_taken_from_it(name: str, tmp_path: Path) -> None:
    """ "Training used [B0, B16, B28]", 0.95, and --fix wrote those ids."""
    dump, said = FOREIGN[name]
    result = audited(tmp_path, dump)
    (found,) = result.faults
    assert said in found.summary and "says nothing about this draft's training" in found.summary
    assert result.wanted is None and not result.fix


def test_a_dump_of_another_model_beside_trained_changes_nothing(tmp_path: Path) -> None:
    result = audited(tmp_path, FOREIGN["another width"][0], trained=(0, 3, 31))
    assert result.wanted == (0, 3, 31) and result.fix["eagle_config.eagle_aux_hidden_state_layer_ids"] == [0, 3, 31]
    assert sum("dump" in f.summary for f in result.findings) == 1


def test_a_slot_known_by_value_contradicts_the_server_though_others_are_not_known(tmp_path: Path) -> None:
    """Slots 0 and 1 exchanged: "NO PROBLEM FOUND", exit code 0, "was not compared"."""
    result = audited(tmp_path, dump_of([NOISE[0], EMBEDDING, NOISE[1]], TOKENS, [0, 3, 31]))
    (found,) = result.faults
    assert found.id == "wrong-boundary" and found.slots == (1,) and "serves B30 there" in found.summary
    assert "replay --search" in found.remedy and result.exit_code == 1 and not result.fix


def test_a_slot_that_is_no_embedding_contradicts_a_server_that_serves_it(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", specforge([0, 3, 31]))
    dump = dump_of(list(NOISE), TOKENS, [0, 3, 31])
    found = check(
        write_target(tmp_path / "target", DEEPSEEK_TARGET), draft, sglang_version="0.5.23", dump=dump
    ).faults
    assert [f.slots for f in found] == [(0,)] and "does not hold the target's embedding rows" in found[0].summary


def test_what_a_dump_only_declares_is_said_so_and_less_sure(tmp_path: Path) -> None:
    """Slots 1 and 2 exchanged: "Training used [B0, B3, B31]", 0.95, as if the rows had said it."""
    result = audited(tmp_path, dump_of([EMBEDDING, NOISE[0], NOISE[1]], TOKENS, [0, 3, 31]))
    sure = {f.id: f.confidence for f in result.faults}
    assert sure == {"slot-shift": 0.9, "boundary-offset": 0.9}
    for found in result.faults:
        assert "slot 0 by value, slots 1 and 2 as declared" in found.summary and "replay --search" in found.remedy
        assert found.evidence["by_value"] == [0]
    declared = audited(tmp_path / "declared", dump_of(list(NOISE), TOKENS, [3, 31, 59]))
    assert {f.confidence for f in declared.faults} == {0.8}
    assert all("slots 0, 1 and 2 as declared" in f.summary for f in declared.faults)


@pytest.mark.parametrize(("trained", "fault"), [((1, 3, 31), True), ((0, 3, 30), False)])
def test_a_dump_that_contradicts_trained_is_named(trained: tuple[int, ...], fault: bool, tmp_path: Path) -> None:
    """--trained won without a word."""
    result = audited(tmp_path, dump_of([EMBEDDING, NOISE[0], NOISE[1]], TOKENS, [0, 3, 31]), trained=trained)
    (found,) = [f for f in result.findings if f.summary.startswith("--trained says")]
    assert (found in result.faults) is fault
    assert ("eagle_config.eagle_aux_hidden_state_layer_ids" in result.fix) is not fault
    agreeing = audited(tmp_path / "b", dump_of([EMBEDDING, *NOISE[:2]], TOKENS, [0, 3, 31]), trained=(0, 3, 31))
    assert not any(f.summary.startswith("--trained says") for f in agreeing.findings)
