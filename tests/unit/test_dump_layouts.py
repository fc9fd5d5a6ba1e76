"""Every layout, written as its trainer writes it, is recognised by content and read with every slot in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from dump_layouts import CASES, Case

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import Request, folder_layouts, layouts
from drafttrace.tracer.layer_ids import parse_ids
from drafttrace.tracer.open import open_capture


def opened(case: Case, folder: Path) -> Capture:
    path = case.write(folder)
    sample = 0 if case.id.startswith("TS-") else None
    return open_capture(str(path), request=Request(**case.request), sample=sample)


def close(rows: np.ndarray, expected: torch.Tensor, case: Case) -> bool:
    values = expected.float().numpy()
    tolerance = 0.07 if case.id == "SPEC-FP8" else 0.01 if case.id in {"EAGLE12-CKPT", "SG-JSON"} else 0.0
    return bool(np.allclose(rows[: len(values)], values, rtol=tolerance, atol=tolerance))


TABLE = {**layouts(), **folder_layouts()}
IDS = [f"{index}-{case.id}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_read(case: Case, tmp_path: Path) -> None:
    capture = opened(case, tmp_path)
    assert capture.format == case.id
    assert capture.recognised_by
    assert len(capture.slots) == len(case.slots)
    for slot, boundary in zip(capture.slots, case.slots, strict=True):
        assert slot.rows.width == made.H
        assert close(slot.rows.floats(), made.state(boundary), case), f"{slot.name} does not hold B{boundary}"


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_nothing_is_said_that_the_file_does_not_say(case: Case, tmp_path: Path) -> None:
    capture = opened(case, tmp_path)
    if case.declared is None:
        assert set(capture.wiring) <= {None}
        assert all(slot.source.startswith("ASSUMED default") for slot in capture.slots)
    else:
        assert capture.wiring == case.declared
    if case.last is None:
        assert capture.last is None
    else:
        assert capture.last is not None
        expected = made.last_post() if case.last == "post" else made.state(made.LAYERS)
        assert close(capture.last.rows.floats(), expected, case)
        assert capture.last.norm == case.norm
        assert capture.last.proven_by


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_tokens_and_mask(case: Case, tmp_path: Path) -> None:
    capture = opened(case, tmp_path)
    known = made.tokens().numpy()
    start = 0 if case.first_token_known else 1
    assert capture.valid_length == made.LENGTH
    assert capture.tokens[start : made.LENGTH].tolist() == known[start:].tolist()
    assert capture.tokens[0] == (known[0] if start == 0 else -1)
    if case.has_mask:
        assert capture.mask is not None
        assert capture.mask[start : made.LENGTH].tolist() == made.loss_mask()[start:].tolist()
        assert capture.mask_offset == case.mask_offset
    else:
        assert capture.mask is None


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_format_can_be_forced(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    sample = 0 if case.id.startswith("TS-") else None
    request = Request(**case.request)
    assert open_capture(str(path), format=case.id.lower(), request=request, sample=sample).format == case.id


@pytest.mark.parametrize("letter", ["B", "O"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_layer_ids_with_a_letter_mean_the_same_in_every_layout(case: Case, letter: str, tmp_path: Path) -> None:
    """Plain ids are O(id) for some projects and B(id) for others, and nobody could say which he means."""
    if case.declared is not None or not case.slots:
        return
    said, numbering = parse_ids(",".join(f"{letter}{k - (letter == 'O')}" for k in case.slots))
    request = Request(**{**case.request, "layer_ids": said, "numbering": numbering})
    sample = 0 if case.id.startswith("TS-") else None
    capture = open_capture(str(case.write(tmp_path)), request=request, sample=sample)
    assert capture.wiring == case.slots
    assert {slot.source for slot in capture.slots} == {f"layer ids given by the user, {letter}(id)"}
    assert not any("--layer-ids" in note for note in capture.notes)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_table_of_formats_says_what_a_plain_id_means(case: Case) -> None:
    told = TABLE[case.id].ids
    if case.id in {"SG-PASS", "SG-DUMPER"}:
        assert told == "B(id)"
    elif case.declared is not None and case.id != "SPEC-V1":
        assert told == ""
    elif case.slots:
        assert told.split(";")[0] in {"O(id)", "B(id)"}, "say it in Layout.ids, and read it with Convention.resolve"


@pytest.mark.parametrize("write", [made.write_sg_pass, made.write_sg_dumper, made.write_sg_json])
@pytest.mark.parametrize(
    ("said", "wiring"), [("2,4,5", (2, 4, 5)), ("B2,B4,B5", (2, 4, 5)), ("O1,O3,O4", (2, 4, 5))]
)
def test_plain_layer_ids_are_boundaries_in_all_that_sglang_writes(
    write: Callable[[Path], Path], said: str, wiring: tuple[int, ...], tmp_path: Path
) -> None:
    path = write(tmp_path)
    if path.suffix == ".json":  # of a target that captures aux states
        answer = json.loads(path.read_text())
        answer["meta_info"]["hidden_states"] = [made.aux().float().tolist()]
        path.write_text(json.dumps(answer))
    ids, numbering = parse_ids(said)
    request = Request(hidden_size=made.H, layer_ids=ids, numbering=numbering)
    capture = open_capture(str(path), request=request)
    assert capture.wiring == wiring
    for slot, k in zip(capture.slots, wiring, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k).float().numpy())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_layer_ids_of_the_user_are_in_the_numbering_of_the_layout(case: Case, tmp_path: Path) -> None:
    """O ids are outputs, so O(k) is B(k + 1); read as B, every slot would be one layer early.

    The numbering is the one that the layout itself tells (Layout.ids): a new one is in no list of the tests.
    """
    vllm = case.id == "MO-PT" and case.norm == "pre"  # the one backend of three that stores B(id)
    outputs = TABLE[case.id].ids.startswith("O(id)") and not vllm
    if case.declared is not None or not case.slots:
        return
    request = Request(**{**case.request, "layer_ids": tuple(k - 1 if outputs else k for k in case.slots)})
    sample = 0 if case.id.startswith("TS-") else None
    capture = open_capture(str(case.write(tmp_path)), request=request, sample=sample)
    assert capture.wiring == case.slots
    assert {slot.source for slot in capture.slots} == {
        f"layer ids given by the user, {'O' if outputs else 'B'}(id)"
    }
    assert not any("--layer-ids" in note for note in capture.notes)
