"""Which row of an Arrow table is a sample's, and what is said where none can be told."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.arrow_stream import batches_of
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
