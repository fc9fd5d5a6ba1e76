"""Which row of an Arrow table is a sample's, and what is said where none can be told."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.arrow_stream import batches_of
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.open import open_capture

pa = pytest.importorskip("pyarrow")


def table(
    path: Path, rows: list[tuple[list[int], list[int]]], names: tuple[str, str] = ("input_ids", "loss_mask")
) -> None:
    batch = pa.record_batch([pa.array([row[k] for row in rows], pa.list_(pa.int64())) for k in (0, 1)], list(names))
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)


def opened(root: Path, number: int) -> Capture:
    folder = root / "hidden_states"
    folder.mkdir(exist_ok=True)
    states = torch.stack([made.state(k) for k in (*made.CANON, made.LAYERS)], 1)
    save_file({"hidden_states": states, "token_ids": made.tokens()}, folder / f"hs_{number}.safetensors")
    return open_capture(str(folder / f"hs_{number}.safetensors"))


IDS = made.tokens().tolist()
OTHER = [7] * len(IDS)


def masks(*ones: int) -> list[list[int]]:
    return [[int(k >= one) for k in range(len(IDS))] for one in ones]


def test_rows_of_the_same_tokens_with_other_masks_are_not_guessed_between(tmp_path: Path) -> None:
    """Row 0's mask was taken, and "the Arrow row with these token ids is 0" said."""
    table(tmp_path / "data-0.arrow", [(IDS, mask) for mask in masks(2, 4, 6)])
    capture = opened(tmp_path, 17)
    assert capture.mask is None
    assert any(
        "rows 0, 1, 2 of the Arrow table have these token ids, and different masks" in n for n in capture.notes
    )
    own = opened(tmp_path, 1)
    assert own.mask is not None and own.mask.tolist() == masks(4)[0] and not own.notes


def test_rows_of_the_same_tokens_with_one_mask_have_that(tmp_path: Path) -> None:
    table(tmp_path / "data-0.arrow", [(IDS, masks(4)[0])] * 3)
    capture = opened(tmp_path, 17)
    assert capture.mask is not None and np.array_equal(capture.mask, masks(4)[0])


def test_one_cut_shard_does_not_take_the_masks_of_the_others(tmp_path: Path) -> None:
    """ "Arrow table cannot be read (ValueError)": all masks were lost."""
    table(tmp_path / "data-0.arrow", [(IDS, masks(4)[0])])
    table(tmp_path / "data-1.arrow", [(OTHER, masks(5)[0])])
    cut = tmp_path / "data-1.arrow"
    cut.write_bytes(cut.read_bytes()[:300])
    capture = opened(tmp_path, 0)
    assert capture.mask is not None and capture.mask.tolist() == masks(4)[0]
    (tmp_path / "data-0.arrow").rename(tmp_path / "data-2.arrow")  # behind rows that nobody can count
    moved = opened(tmp_path, 0)
    assert moved.mask is not None and moved.mask.tolist() == masks(4)[0]
    [note] = moved.notes  # it was "the Arrow row with these token ids is 1099511627776"
    assert "its number is not known, for a file before it cannot be counted (data-1.arrow cannot be read: " in note
    (tmp_path / "data-2.arrow").unlink()
    lost = opened(tmp_path, 0)
    assert lost.mask is None and any("data-1.arrow cannot be read: " in note for note in lost.notes)


def test_a_table_without_masks_is_said_in_words(tmp_path: Path) -> None:
    """It was "(KeyError)"."""
    table(tmp_path / "data-0.arrow", [(IDS, masks(4)[0])], ("input_ids", "other"))
    capture = opened(tmp_path, 0)
    assert capture.mask is None
    assert any("has no columns input_ids and loss_mask" in note and "Error" not in note for note in capture.notes)


def test_rows_of_other_masks_behind_a_damaged_file_are_counted_and_not_numbered(tmp_path: Path) -> None:
    """ "rows 1099511627776, 1099511627777 of the Arrow table"."""
    table(tmp_path / "data-0.arrow", [(OTHER, masks(5)[0])])
    cut = tmp_path / "data-0.arrow"
    cut.write_bytes(cut.read_bytes()[:300])
    table(tmp_path / "data-1.arrow", [(IDS, mask) for mask in masks(2, 4)])
    capture = opened(tmp_path, 0)
    assert capture.mask is None
    [note] = capture.notes
    assert "no loss mask: 2 rows of the Arrow table have these token ids, and different masks (data-0.arrow" in note


def test_a_batch_that_claims_more_rows_than_it_has_bytes_numbers_nothing(tmp_path: Path) -> None:
    table(tmp_path / "data-0.arrow", [(OTHER, masks(5)[0])])
    head = tmp_path / "data-0.arrow"
    data = bytearray(head.read_bytes())
    (batch,) = batches_of(head)
    place = data.find((1).to_bytes(8, "little"), batch.begin + 8)  # its rows stand before those of its columns
    data[place : place + 8] = (1 << 39).to_bytes(8, "little")
    head.write_bytes(data)
    with pytest.raises(ValueError, match="claims 549,755,813,888 rows in"):
        batches_of(head)
    table(tmp_path / "data-1.arrow", [(IDS, masks(4)[0])])
    capture = opened(tmp_path, 0)
    assert capture.mask is not None and "its number is not known" in capture.notes[0]


def stored(
    root: Path, values: list[object], kind: object = None, rows_of: list[list[int]] | None = None
) -> Capture:
    """Sample 0, whose Arrow table has these masks, of the Arrow type ``kind``."""
    ids = pa.array(rows_of or [IDS] * len(values), pa.list_(pa.int64()))
    batch = pa.record_batch([ids, pa.array(values, kind)], ["input_ids", "loss_mask"])
    with pa.OSFile(str(root / "data-0.arrow"), "wb") as out, pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    return opened(root, 0)


ONES = [0, 0] + [1] * (len(IDS) - 2)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (None, pa.list_(pa.int64()), "its loss_mask is null"),
        (None, pa.null(), "its loss_mask is null"),
        ([None, *ONES[1:]], None, "its loss_mask holds null for 1 entry"),
        (
            [[entry] for entry in ONES],
            None,
            "its loss_mask holds entries of the type list<item: int64>, no numbers",
        ),
        ([float("nan")] * len(IDS), None, "its loss_mask holds nan, which weights no token"),
        (["a"] * len(IDS), None, "its loss_mask holds entries of the type string, no numbers"),
        (1, None, "its loss_mask is no list"),
    ],
)
def test_what_is_no_mask_is_said_of_the_row(value: object, kind: object, said: str, tmp_path: Path) -> None:
    """A null was "AttributeError: 'NoneType' object has no attribute 'type'", with a traceback."""
    capture = stored(tmp_path, [value], kind)
    assert capture.mask is None
    assert capture.notes == (f"no loss mask: row 0 of the Arrow table has these token ids, and {said}",)


def test_a_null_beside_a_mask_leaves_that_alone(tmp_path: Path) -> None:
    capture = stored(tmp_path, [ONES, None], None, [IDS, OTHER])
    assert capture.mask is not None and capture.mask.tolist() == ONES and not capture.notes


def test_a_mask_in_a_batch_of_one_is_its_row_also_for_convert(tmp_path: Path) -> None:
    """numpy's ValueError, with a traceback, came of convert."""
    capture = stored(tmp_path, [[ONES]])
    assert capture.mask is not None and capture.mask.tolist() == ONES
    convert(str(tmp_path / "hidden_states/hs_0.safetensors"), tmp_path / "out.safetensors", "safetensors",
            request=Request(layers=made.LAYERS, layer_ids=made.CANON, numbering="B"))  # fmt: skip
    back = open_capture(str(tmp_path / "out.safetensors"))
    assert back.mask is not None and back.mask.tolist() == ONES


def test_weights_count_as_in_a_torch_file_and_are_told(tmp_path: Path) -> None:
    """[0, 0, .25, .5, 1, ...] was [0, 0, 0, 0, 1, ...] here and [0, 0, 1, 1, 1, ...] there, without a word."""
    weights = [0.0, 0.0, 0.25, 0.5] + [1.0] * (len(IDS) - 4)
    capture = stored(tmp_path, [weights])
    torch.save(made.sf_sample() | {"loss_mask": torch.tensor(weights)}, tmp_path / "data_0.ckpt")
    other = open_capture(str(tmp_path / "data_0.ckpt"))
    for found in (capture, other):
        assert found.mask is not None and found.mask.tolist() == ONES
        [note] = [note for note in found.notes if "weights" in note]
        assert "2 entries are no whole numbers, of 13, the first 0.25 as entry 2" in note
    done = convert(str(tmp_path / "data_0.ckpt"), tmp_path / "out.ckpt", "specforge")
    assert any("only which tokens count is read" in note for note in done.notes)
