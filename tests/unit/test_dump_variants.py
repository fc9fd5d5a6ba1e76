"""What trainers do differently from run to run, on every layout: batch axes, number formats, padding, NaN, None."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import dump_layouts as made
import dump_variants as variants
import numpy as np
import pytest
import torch
from dump_layouts import LENGTH, Case
from dump_variants import ALL, IDS, MAP, MAPPED, TRACE, TRACE_ID, held, is_state, opened, rewrite, row_axis

from drafttrace.compare.align import plan
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.state_fields import STATE_FIELDS
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.inspecting import Inspection, inspect_capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import Rows


def inspected(case: Case, path: Path) -> Inspection:
    several = case.id in {"TS-DEBUG", "TS-EVAL"}
    mapping = MAP if case.id == "MAPPED" else None
    return inspect_capture(
        str(path), request=Request(**case.request), sample=0 if several else None, mapping=mapping
    )


def refused(case: Case, path: Path, words: str) -> None:
    with pytest.raises(DrafttraceError, match=words) as caught:
        opened(case, path)
    text = str(caught.value)
    assert "\n" not in text and (text.endswith((".", "?")) or case is TRACE)


# --- number formats ------------------------------------------------------------------------------------------


def expected(case: Case, boundary: int, dtype: torch.dtype) -> torch.Tensor:
    """What a slot, or with boundary -1 the last state, must hold to the bit."""
    if case.id == "EAGLE12-CKPT":
        return made.last_post(dtype=torch.float16).to(dtype)
    if case in MAPPED and case.write is made.write_npz:
        return made.state(boundary, dtype=torch.float16).to(dtype)
    if case.id == "SPEC-FP8":
        stacked = torch.stack([*(made.state(k) for k in made.CANON), made.state(made.LAYERS)], 1)
        return made.fp8_rows(stacked)[0][:, -1 if boundary < 0 else made.CANON.index(boundary)].to(dtype)
    last = made.last_post() if case.last == "post" else made.state(made.LAYERS)
    return (last if boundary < 0 else made.state(boundary)).to(dtype)


def holds_bits(rows: Rows, wanted: torch.Tensor) -> None:
    assert rows.dtype is variants.KINDS[wanted.dtype]
    bits = variants.storage(wanted)
    assert np.array_equal(np.ascontiguousarray(rows.raw(0, LENGTH)).view(np.uint8), bits.view(np.uint8))


FORMATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_every_layout_in_every_number_format(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    by_numpy = case.write is made.write_npz
    if by_numpy and dtype not in (torch.float16, torch.float32, torch.float64):
        pytest.skip("numpy has no such number format, so no npz file has it")
    rewrite(tmp_path, lambda _name, tensor: tensor.to(dtype) if is_state(tensor) else tensor)
    if case.write is variants.write_h5 and variants.KINDS[dtype].storage == np.uint8:
        refused(
            case, path, "holds uint8, no hidden states"
        )  # HDF5 has no such floats, and no attribute says so here
        return
    capture = opened(case, path)
    assert capture.format == case.id
    stored = torch.float32 if case.id == "SG-JSON" else dtype  # JSON has numbers, and no number formats
    assert len(capture.slots) == len(case.slots)
    for slot, boundary in zip(capture.slots, case.slots, strict=True):
        holds_bits(slot.rows, expected(case, boundary, dtype).to(stored))
    assert (capture.last is None) is (case.last is None)
    if capture.last is not None:
        holds_bits(capture.last.rows, expected(case, -1, dtype).to(stored))


# --- batch axes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["batched", "unbatched"])
@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_every_layout_with_a_batch_axis_or_none(case: Case, form: str, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    whole = held(opened(case, path))
    rewrite(tmp_path, variants.axes(case, form))
    odd = variants.ODD_AXES.get((case.id, form), "")
    if odd and not odd.startswith("="):
        refused(case, path, odd)
        return
    capture = opened(case, path)
    assert capture.format == (odd.removeprefix("=") or case.id)
    assert held(capture) == whole
    assert capture.valid_length == LENGTH


def test_the_axes_are_really_other_ones(tmp_path: Path) -> None:
    """A test of the tests: of every layout at least one of the two forms is another file."""
    for number, case in enumerate(ALL):
        folders = [tmp_path / f"{number}-{form}" for form in ("own", "batched", "unbatched")]
        for folder, form in zip(folders, ("", "batched", "unbatched"), strict=True):
            folder.mkdir()
            case.write(folder)
            rewrite(folder, variants.axes(case, form) if form else lambda _name, tensor: tensor)
        found = [sorted((p.name, p.read_bytes()) for p in folder.rglob("*") if p.is_file()) for folder in folders]
        assert found[1] != found[2], case.id


def test_a_list_of_one_answer_is_read_as_the_answer(tmp_path: Path) -> None:
    """SGLang answers a batch of one prompt with a list."""
    path = made.write_sg_json(tmp_path)
    case = next(case for case in ALL if case.id == "SG-JSON")
    whole = held(opened(case, path))
    path.write_text(json.dumps([json.loads(path.read_text())]))
    assert held(opened(case, path)) == whole


# --- padded tails --------------------------------------------------------------------------------------------

PADS = [(case, name) for case, name in zip(ALL, IDS, strict=True) if case.padding]
BARE = [(case, name) for case, name in zip(ALL, IDS, strict=True) if not case.padding and case is not TRACE]


@pytest.mark.parametrize("filler", [0.0, 300.0])
@pytest.mark.parametrize("case", [case for case, _ in PADS], ids=[name for _, name in PADS])
def test_padding_is_no_part_of_a_sample(case: Case, filler: float, tmp_path: Path) -> None:
    """Rows behind the sample count in no number, and are paired with nothing."""
    (tmp_path / "own").mkdir()
    (tmp_path / "more").mkdir()
    plain = opened(case, case.write(tmp_path / "own"))
    path = case.write(tmp_path / "more")
    rewrite(tmp_path / "more", variants.Padding(case, filler))
    capture = opened(case, path)
    assert held(capture) == held(plain)
    assert capture.valid_length == plain.valid_length == LENGTH
    for state in inspected(case, path).states:
        numbers = state.statistics
        assert numbers.rows_read == LENGTH
        assert (numbers.nan_rows, numbers.zero_rows, numbers.repeated_rows) == (0, 0, 0)
        assert numbers.norm_max is not None and numbers.norm_max < 300
    own = plan(plain, plain)
    assert len(own) >= LENGTH - 1
    for left, right in ((plain, capture), (capture, plain), (capture, capture)):
        pairs = plan(left, right)
        assert pairs.positions.tolist() == own.positions.tolist()
        assert pairs.left_rows.tolist() == pairs.reference_rows.tolist() == own.left_rows.tolist()


@pytest.mark.parametrize("case", [case for case, _ in BARE], ids=[name for _, name in BARE])
def test_a_tail_that_nothing_marks_is_shown_and_not_guessed_away(case: Case, tmp_path: Path) -> None:
    """Their writers pad no file, and rows of zeros that training read are a fault."""
    path = case.write(tmp_path)
    whole = held(opened(case, path))
    rewrite(tmp_path, variants.Padding(case, 0.0))
    capture = opened(case, path)
    assert capture.format == case.id
    # The Arrow table knows no such tokens, so it has no mask for them.
    assert held(capture) == (dataclasses.replace(whole, mask=None) if case.id == "SPEC-ARROW" else whole)
    assert capture.valid_length == len(capture.tokens) == LENGTH + 5
    found = inspected(case, path)
    for state in found.states:
        assert state.statistics.zero_rows == 5
        assert state.statistics.first_zero_row == LENGTH
    assert f"5 rows (the first is row {LENGTH}) of zeros" in found.problems[0]


def test_a_padded_pass_is_one_request(tmp_path: Path) -> None:
    """Every padding row of a forward pass was taken for a request of its own."""
    for case in (case for case in ALL if case.id == "SG-PASS"):
        path = case.write(tmp_path)
        rewrite(tmp_path, variants.Padding(case, 0.0))
        assert inspected(case, path).sample_count == 1


def test_every_request_of_a_dumped_step_is_a_sample(tmp_path: Path) -> None:
    """Only the first one could be read: nothing named the others."""
    folder = made.write_sg_dumper(tmp_path)

    def two(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor[:4]]) if LENGTH in tensor.shape else tensor

    rewrite(folder, two)
    first, second = (open_capture(f"{folder}#{number}") for number in (0, 1))
    assert first.tokens.tolist() == made.tokens().tolist()
    assert second.tokens.tolist() == made.tokens()[:4].tolist()
    assert np.array_equal(first.boundaries[3].floats(), made.state(3).float().numpy())
    assert np.array_equal(second.boundaries[3].floats(), made.state(3)[:4].float().numpy())
    assert "request 1 of the 2 of step 0" in second.notes
    with pytest.raises(DrafttraceError, match="has no sample 2"):
        open_capture(f"{folder}#2")


# --- broken rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 0.0])
@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_a_broken_row_of_every_layout_is_counted_where_it_is(case: Case, broken: float, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    finite_only = case.id == "SPEC-FP8"  # e4m3 has no infinity: it becomes NaN

    def with_a_broken_row(_name: str, tensor: torch.Tensor) -> torch.Tensor:
        axis = row_axis(case, tensor)
        if not is_state(tensor) or axis is None:
            return tensor
        values = tensor.float()
        values.select(axis, 3).fill_(float("nan") if finite_only and broken else broken)
        return values.to(tensor.dtype)

    rewrite(tmp_path, with_a_broken_row)
    found = inspected(case, path)
    assert found.format == case.id
    assert found.states
    for state in found.states:
        numbers = state.statistics
        places = [numbers.first_nan_row, numbers.first_zero_row]
        assert (numbers.nan_rows, numbers.zero_rows) == ((0, 1) if broken == 0 else (1, 0))
        assert places == ([None, 3] if broken == 0 else [3, None])
    assert sum("1 row (row 3)" in line for line in found.problems) == len(found.states)


def test_null_in_an_answer_is_a_row_that_is_not_finite(tmp_path: Path) -> None:
    """JSON has no NaN: servers write null, or the word."""
    path = made.write_sg_json(tmp_path)
    answer = json.loads(path.read_text())
    answer["meta_info"]["hidden_states"][0][3][2] = None
    path.write_text(json.dumps(answer))
    numbers = inspected(next(case for case in ALL if case.id == "SG-JSON"), path).states[0].statistics
    assert (numbers.nan_rows, numbers.first_nan_row) == (1, 3)


# --- None ----------------------------------------------------------------------------------------------------

TORCH = [
    (case, name)
    for case, name in zip(ALL, IDS, strict=True)
    if case.id not in {"SPEC-ARROW", "SPEC-FP8", "VLLM-HS", "DRAFTTRACE", "AM-EAGLE3", "AM-DSPARK", "SG-DUMPER",
                       "SG-JSON", TRACE_ID, "MAPPED"} and case.write is not made.write_sf_gz
]  # fmt: skip


def one_sentence_about(error: DrafttraceError, name: str) -> None:
    text = str(error)
    assert "\n" not in text and text.endswith((".", "?"))
    assert name.removeprefix("model.") in text and "None" in text, text


def holds_the_rest(capture: Capture, case: Case, whole: variants.Held, name: str) -> None:
    """Without the field ``name`` everything else is as it was."""
    found = held(capture)
    assert found.tokens == whole.tokens
    assert set(found.slots) <= set(whole.slots)
    assert found.last in (None, whole.last)
    if "loss_mask" in name:
        assert found == dataclasses.replace(whole, mask=None)
    elif case.id == "SG-PASS":  # the outputs of modules, of which many are no state
        lost = found.slots != whole.slots
        assert lost is any(note.startswith("no slots: ") for note in capture.notes)
        # Without the final norm the pass may be of the first stage of a pipeline.
        top = f"model.layers.{made.LAYERS - 1}"  # what it hands on proves that it is the last layer
        proof = {"model.norm", f"{top}.post_attention_layernorm", f"{top}.mlp.down_proj"}
        assert lost is (name in proof | {f"model.layers.{k}.input_layernorm" for k in made.CANON})
        assert (found.last is None) is (name == "model.norm")
    elif found.slots != whole.slots or found.last != whole.last or name in STATE_FIELDS:
        assert any(f"{name} is None" in note for note in capture.notes), capture.notes
    else:
        assert name == "attention_mask"


@pytest.mark.parametrize("case", [case for case, _ in TORCH], ids=[name for _, name in TORCH])
def test_none_in_the_place_of_every_field_of_every_layout(case: Case, tmp_path: Path) -> None:
    """A trainer that was told not to store something writes None. It is refused, or it is absent, by its name."""
    path = case.write(tmp_path)
    whole = held(opened(case, path))
    value = torch.load(io.BytesIO(path.read_bytes()), weights_only=True)
    entry = value[0] if isinstance(value, list) else value.get("batch", value)
    stored = {name: item for name, item in entry.items() if item is not None and not isinstance(item, (int, str))}
    for name, kept in stored.items():
        entry[name] = None
        torch.save(value, path)
        entry[name] = kept
        try:
            capture = opened(dataclasses.replace(case, request={"hidden_size": made.H}), path)
        except DrafttraceError as error:
            one_sentence_about(error, name)
            continue
        assert not name.endswith(("input_ids", "token_ids")), name
        holds_the_rest(capture, case, whole, name)


def test_slots_are_not_taken_for_a_last_state_where_that_is_none(tmp_path: Path) -> None:
    """hidden_state is AUX in an online sample of SpecForge; with target None it was read as the last state."""
    path = made.write_sf_online(tmp_path)
    value = torch.load(io.BytesIO(path.read_bytes()), weights_only=True)
    torch.save(value | {"target": None}, path)
    capture = opened(
        Case("SF-ONLINE", made.write_sf_online, made.CANON, None, request={"hidden_size": made.H}), path
    )
    assert capture.format == "SF-ONLINE"
    assert capture.last is None
    assert [slot.rows.width for slot in capture.slots] == [made.H] * 3
    assert "no last state: target is None" in capture.notes


def test_none_in_an_entry_of_a_list_is_named(tmp_path: Path) -> None:
    path = made.write_spec_v1(tmp_path)
    value = torch.load(io.BytesIO(path.read_bytes()), weights_only=True)
    value["hidden_states"][1] = None
    torch.save(value, path)
    refused(next(case for case in ALL if case.id == "SPEC-V1"), path, "Entry 1 of 'hidden_states' .* is NoneType")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("meta_info", "hidden_states"), "hidden_states of .* are null.*return_hidden_states"),
        (("meta_info",), "'meta_info' .None"),
        (("input_ids",), None),
        (("output_ids",), None),
    ],
)
def test_null_in_the_place_of_every_field_of_an_answer(
    place: tuple[str, ...], words: str | None, tmp_path: Path
) -> None:
    path = made.write_sg_json(tmp_path)
    case = next(case for case in ALL if case.id == "SG-JSON")
    whole = held(opened(case, path))
    answer: Any = json.loads(path.read_text())
    inner = answer
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = None
    path.write_text(json.dumps(answer))
    if words is not None:
        refused(case, path, words)
        return
    capture = opened(case, path)
    known = whole.tokens[10:] if place == ("input_ids",) else whole.tokens[:10]
    assert [token for token in capture.tokens.tolist() if token >= 0] == known
    assert held(capture).last == whole.last
    assert capture.notes


@pytest.mark.parametrize("name", ["aux_layer_ids", "target_layer_ids"])
def test_null_in_the_place_of_the_layers_of_a_manifest(name: str, tmp_path: Path) -> None:
    layout = "AM-EAGLE3" if name == "aux_layer_ids" else "AM-DSPARK"
    case = next(case for case in ALL if case.id == layout)
    path = case.write(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {name: None}))
    refused(case, path, f"{name}")


@pytest.mark.parametrize("module", ["model.embed_tokens.output", "model.layers.4.input_layernorm.output.1",
                                    "input_ids", "positions"])  # fmt: skip
def test_none_in_a_file_of_a_dumped_step(module: str, tmp_path: Path) -> None:
    folder = made.write_sg_dumper(tmp_path)
    case = next(case for case in ALL if case.id == "SG-DUMPER")
    path = next(path for path in folder.iterdir() if path.name.endswith(f"name=non_intrusive__{module}.pt")
                or path.name.endswith(f"name={module}.pt"))  # fmt: skip
    torch.save(torch.load(io.BytesIO(path.read_bytes()), weights_only=True) | {"value": None}, path)
    if "." not in module:
        refused(case, folder, "has no input_ids and positions")
        return
    capture = opened(case, folder)
    assert (0 if "embed" in module else 4) not in capture.boundaries
    assert bool(capture.slots) is ("embed" in module)
    assert "embed" in module or any(note.startswith("no slots: ") for note in capture.notes)
