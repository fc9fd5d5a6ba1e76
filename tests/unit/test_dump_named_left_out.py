"""What a mapped file or an Arrow table holds besides what is read, and masks and passes that say nothing for sure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dump_layouts as made
import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.from_mapping import parse_fields
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.open import open_capture, open_numbered

LOSE = ["layer-ids", "last-state", "loss-mask"]


def write_fields(path: Path, more: dict[str, Any]) -> None:
    arrays = {f"s{k}": made.state(k).float().numpy() for k in made.CANON} | {"ids": made.tokens().numpy()} | more
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pt":
        torch.save({name: torch.from_numpy(value) for name, value in arrays.items()}, path)
    else:
        with h5py.File(path, "w") as file:
            for name, value in arrays.items():
                file[name] = value
            file["about"] = "a text"


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".pt"])
def test_fields_that_the_user_did_not_name_are_refused_or_told(suffix: str, tmp_path: Path) -> None:
    """They went without a word: only layouts of a project told what they leave out."""
    path = tmp_path / f"any{suffix}"
    write_fields(path, {"logits": np.zeros((made.LENGTH, 9), np.float32)})
    request = Request(fields=parse_fields("s2,s4,s5", "ids"))
    assert open_capture(str(path), request=request).unread["logits"] == "fp32 [13, 9]"
    with pytest.raises(DrafttraceError, match=r"besides .*: logits \(fp32 \[13, 9\]\); .*--lose other-fields"):
        convert(str(path), tmp_path / "x.h5", "trace", lose=LOSE, request=request)
    done = convert(str(path), tmp_path / "x.h5", "trace", lose=[*LOSE, "other-fields"], request=request)
    assert "the field logits (fp32 [13, 9])" in done.left_out
    assert ("the field about" in done.left_out) == (suffix == ".h5")  # what is no array of numbers, too


def test_entries_and_groups_beside_those_that_were_named_are_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "any.h5", "w") as file:
        file["g/states"] = torch.stack([made.state(k).float() for k in range(4)], 1).numpy()
        file["g/ids"] = made.tokens().numpy()
        file["h/deep/x"] = np.zeros(3, np.float32)
    fields = parse_fields("g/states[0],g.states[-2]", "g.ids")
    found = open_capture(str(tmp_path / "any.h5"), request=Request(fields=fields)).unread
    assert found == {"g/states[1]": "fp32 [13, 16]", "g/states[3]": "fp32 [13, 16]", "h/deep/x": "fp32 [3]"}
    fields = FieldMap(("g/states",), "g/ids")
    assert set(open_capture(str(tmp_path / "any.h5"), request=Request(fields=fields)).unread) == {"h/deep/x"}


def test_columns_of_an_arrow_table_that_nobody_reads_are_told(tmp_path: Path) -> None:
    path = made.write_spec_arrow(tmp_path)
    assert not open_capture(str(path)).unread
    (arrow,) = (tmp_path / "data").glob("*.arrow")
    columns: dict[str, Any] = {"input_ids": [made.tokens().tolist()], "loss_mask": [made.loss_mask().tolist()]}
    columns |= {"weights": [[0.5, 1.0]], "messages": [[{"role": "user", "n": 1}]], "position_ids": [[0, 1]]}
    table = pa.table(columns)
    with pa.OSFile(str(arrow), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    capture = open_capture(str(path))
    assert capture.mask is not None
    assert capture.unread == {"weights": "list<item: double>", "messages": "", "position_ids": ""}
    with pytest.raises(
        DrafttraceError, match=r": weights \(list<item: double>\); give it up with --lose other-fields"
    ):
        convert(str(path), tmp_path / "x.safetensors", "safetensors", lose=LOSE)


def sample(root: Path, mask: torch.Tensor) -> Path:
    path = made.write_sf_eagle3(root)
    value = torch.load(path, weights_only=True)
    torch.save(value | {"loss_mask": mask}, path)
    return path


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_mask_that_is_not_finite_is_refused(odd: float, tmp_path: Path) -> None:
    """NaN was 0: a token that trained with a loss of NaN was said not to count."""
    mask = made.loss_mask().float()
    mask[3] = odd
    with pytest.raises(
        UnreadableFile, match=rf"'loss_mask' of .* holds {odd} as entry 3 \(1 entry is not finite, of 13\)"
    ):
        open_capture(str(sample(tmp_path, mask)))
    mask[3] = 0.5
    assert open_capture(str(sample(tmp_path, mask))).mask is not None


def test_a_mask_longer_than_the_tokens_weights_none_that_is_not_there(tmp_path: Path) -> None:
    """It was cut without a word of what it weighted."""
    capture = open_capture(str(sample(tmp_path, torch.cat([made.loss_mask(), torch.zeros(4).long()]))))
    assert capture.mask is not None and capture.mask.tolist() == made.loss_mask().tolist()
    assert "the loss mask has 17 entries for 13 tokens; those from 13 on are 0, and left out" in capture.notes
    mask = torch.cat([made.loss_mask(), torch.tensor([0, 1, 0, 1])])
    with pytest.raises(
        UnreadableFile, match=r"17 entries for 13 tokens, and 2 entries .* the first at 14, would weight"
    ):
        open_capture(str(sample(tmp_path, mask)))
    assert "the loss mask has 9 entries for 13 tokens" in open_capture(str(sample(tmp_path, mask[:9]))).notes


def pass_at(root: Path, positions: list[int], lengths: list[int] | None) -> Path:
    path = made.write_sg_pass(root)
    count = len(positions)
    held = torch.load(path, weights_only=True)
    value = {name: [part[:count] for part in v] if isinstance(v, list) else v[:count] for name, v in held.items()}
    value["model.forward_batch_info.positions"] = torch.tensor(positions)
    del value["model.forward_batch_info.seq_lens"]
    if lengths is not None:
        value["model.forward_batch_info.seq_lens"] = torch.tensor(lengths)
    torch.save(value, path)
    return path


@pytest.mark.parametrize(
    ("positions", "lengths", "trees"),
    [
        ([7, 8, 8, 9, 9, 10], None, "a draft tree"),
        ([7, 8, 8, 20, 21, 21], None, "2 draft trees"),
        ([7, 8, 8, 9, 9, 10], [3, 4], "a draft tree"),
    ],
)
def test_a_draft_tree_whose_lengths_nobody_tells_is_refused(
    positions: list[int], lengths: list[int] | None, trees: str, tmp_path: Path
) -> None:
    """Every branch was a request, and its rejected tokens those of the text."""
    path = pass_at(tmp_path, positions, lengths)
    said = "seq_lens that do not fit its positions" if lengths else "no seq_lens"
    with pytest.raises(
        UnreadableFile, match=rf"has {said} \(7, 8, 8, .*may be of {trees} .* dump it again with seq_lens"
    ):
        open_capture(str(path))


@pytest.mark.parametrize("positions", [[7, 7, 8, 9], [0, 1, 2, 0, 1, 2], [7, 8, 20, 21], [30, 7, 12], [4, 5, 6]])
def test_passes_that_are_no_draft_tree_need_no_lengths(positions: list[int], tmp_path: Path) -> None:
    capture, count = open_numbered(str(pass_at(tmp_path, positions, None)))
    assert count >= 1
    may_be = positions[0] > 0 and positions[1] == positions[0] + 1  # a draft of one chain looks like any later pass
    assert any("nobody knows whether these are drafted" in note for note in capture.notes) == may_be
