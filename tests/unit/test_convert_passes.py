"""A folder of SGLang's passes: prefills and decode steps beside each other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from convert_dumps import files

from drafttrace.tracer.convert import convert
from drafttrace.tracer.convert_layouts import OUT_LAYOUTS
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture, open_numbered
from drafttrace.tracer.reference_samples import read_source


def passes(root: Path) -> Path:
    """A prefill as pass 0, and two decode steps after it."""
    prefill = made.write_sg_pass(root)
    held = torch.load(prefill, weights_only=True)
    for step in (1, 2):
        rows = {
            name: [part[:1] for part in value] if isinstance(value, list) else value[:1]
            for name, value in held.items()
        }
        rows["model.forward_batch_info.positions"] = torch.tensor([made.LENGTH + step - 1])
        torch.save(rows, prefill.with_name(f"Pass{step:05}.pt"))
    return root


def test_a_decode_step_is_no_lost_row_and_names_its_prefill(tmp_path: Path) -> None:
    """'14 of 15 are missing, as after a prefix-cache hit; record it again with a cold cache', said of a decode step."""
    folder = passes(tmp_path / "pass")
    with pytest.raises(DrafttraceError, match=rf"Sample #1 .* a decode step has.*as '{folder}#0'\.$") as told:
        convert(str(folder), tmp_path / "out", to="safetensors", lose=["last-state"])
    assert "cold cache" not in str(told.value)
    with pytest.raises(
        DrafttraceError, match=rf"one row, of token {made.LENGTH + 1}, .*as '{folder}#0'\.$"
    ) as alone:
        convert(f"{folder}#2", tmp_path / "x.safetensors", to="safetensors", lose=["last-state", "later-passes"])
    assert "--lose" not in str(alone.value)
    convert(f"{folder}#0", tmp_path / "x.safetensors", to="safetensors", lose=["last-state"])
    assert (tmp_path / "x.safetensors").is_file()


def test_a_decode_step_without_its_prefill_names_no_sample(tmp_path: Path) -> None:
    folder = passes(tmp_path / "pass")
    next(folder.rglob("Pass00000.pt")).unlink()
    with pytest.raises(
        DrafttraceError, match=r"a decode step has.*later-passes, or record it again with a cold cache"
    ) as told:
        convert(str(folder), tmp_path / "out", to="safetensors", lose=["last-state"])
    assert "#0" not in str(told.value)


LOSE = ["last-state", "later-passes"]


def test_a_folder_of_passes_is_converted_without_its_decode_steps(tmp_path: Path) -> None:
    """It was refused, and no option went on without them."""
    folder = passes(tmp_path / "pass")
    done = convert(str(folder), tmp_path / "out", "safetensors", lose=LOSE)
    assert (done.paths, done.samples) == ((tmp_path / "out",), 1)
    assert done.left_out == (
        "the last state 'norm' (1 sample)",
        "2 of 3 samples: one row each, as decode steps have (#1, #2)",
    )
    assert files(tmp_path / "out") == [".drafttrace-convert.json", "hs_0.safetensors"]
    mark = json.loads((tmp_path / "out/.drafttrace-convert.json").read_text())
    assert (mark["samples"], mark["samples_left_out"]) == (1, [1, 2])
    assert open_capture(str(tmp_path / "out")).tokens.tolist() == made.tokens().tolist()


def test_a_conversion_that_stopped_at_a_decode_step_goes_on_without_it(tmp_path: Path) -> None:
    folder = passes(tmp_path / "pass")
    with pytest.raises(DrafttraceError, match="after 1 of 3 samples, which are kept"):
        convert(str(folder), tmp_path / "out", "safetensors", lose=["last-state"])
    kept = tmp_path / ".out.unfinished/hs_0.safetensors"
    written = kept.stat().st_ino
    assert convert(str(folder), tmp_path / "out", "safetensors", lose=LOSE).samples == 1
    assert (tmp_path / "out/hs_0.safetensors").stat().st_ino == written


def test_passes_after_a_cached_prefix_are_told_from_decode_steps(tmp_path: Path) -> None:
    """A cached prefix is a request that is lost, a decode step is none."""
    folder = passes(tmp_path / "pass")
    step = next(folder.rglob("Pass00001.pt"))
    held = torch.load(next(folder.rglob("Pass00000.pt")), weights_only=True)
    held["model.forward_batch_info.positions"] = torch.arange(made.LENGTH) + 20
    torch.save(held, step)
    done = convert(str(folder), tmp_path / "out", "safetensors", lose=LOSE)
    assert done.left_out == (
        "the last state 'norm' (1 sample)",
        "1 of 3 samples: one row, as a decode step has (#2)",
        "1 of 3 samples: rows from a later token on, as after a prefix-cache hit (#1)",
    )


def test_a_verify_pass_is_told_as_one_and_not_as_a_decode_step(tmp_path: Path) -> None:
    """'one row, as a decode step has', said of passes of six rows: all but the root of the tree are drafted tokens."""
    folder = passes(tmp_path / "pass")
    held = torch.load(next(folder.rglob("Pass00000.pt")), weights_only=True)
    rows = {name: [part[:6] for part in v] if isinstance(v, list) else v[:6] for name, v in held.items()}
    rows["model.forward_batch_info.positions"] = torch.tensor([13, 14, 14, 15, 15, 16])
    rows["model.forward_batch_info.seq_lens"] = torch.tensor([13])
    torch.save(rows, next(folder.rglob("Pass00001.pt")))
    done = convert(str(folder), tmp_path / "out", "safetensors", lose=LOSE)
    assert "1 of 3 samples: a verify pass, whose rows are of drafted tokens (#1)" in done.left_out
    assert "1 of 3 samples: one row, as a decode step has (#2)" in done.left_out
    with pytest.raises(DrafttraceError, match="verify pass: the row of token 13, and 5 rows of drafted tokens"):
        convert(str(folder), tmp_path / "other", "safetensors", lose=["last-state"])


def test_decode_steps_alone_are_nothing_to_convert(tmp_path: Path) -> None:
    folder = passes(tmp_path / "pass")
    next(folder.rglob("Pass00000.pt")).unlink()
    with pytest.raises(
        DrafttraceError, match=r"All 2 samples .* begin after token 0.*; give the passes of their prefills"
    ):
        convert(str(folder), tmp_path / "out", "safetensors", lose=LOSE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pass"]


def test_a_table_has_no_gap_where_a_pass_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OUT_LAYOUTS, "safetensors", dataclasses.replace(OUT_LAYOUTS["safetensors"], rows=True))
    folder = passes(tmp_path / "pass")
    prefill = next(folder.rglob("Pass00000.pt"))
    prefill.with_name("Pass00003.pt").write_bytes(prefill.read_bytes())
    with pytest.raises(DrafttraceError, match=r"#1, which begins after token 0, is none; .*--lose sample-numbers"):
        convert(str(folder), tmp_path / "out", "safetensors", lose=LOSE)
    assert convert(str(folder), tmp_path / "out", "safetensors", lose=[*LOSE, "sample-numbers"]).samples == 2
    assert files(tmp_path / "out")[1:] == ["hs_0.safetensors", "hs_1.safetensors"]


@pytest.mark.parametrize("lengths", [True, False])
def test_two_decode_steps_at_consecutive_positions_are_two_requests(lengths: bool, tmp_path: Path) -> None:
    """They were one sample, of the tokens of both."""
    path = made.write_sg_pass(tmp_path)
    held = torch.load(path, weights_only=True)
    rows = {name: [part[:2] for part in v] if isinstance(v, list) else v[:2] for name, v in held.items()}
    rows["model.forward_batch_info.positions"] = torch.tensor([13, 14])
    rows["model.forward_batch_info.seq_lens"] = torch.tensor([14, 15] if lengths else [7, 7])
    torch.save(rows, path)
    capture, count = open_numbered(str(path))
    assert count == (2 if lengths else 1)  # lengths that do not fit tell nothing
    assert np.flatnonzero(capture.tokens >= 0).tolist() == ([13] if lengths else [13, 14])


def test_every_request_of_every_pass_of_a_folder_is_converted(tmp_path: Path) -> None:
    """Of each file of a folder only the first sample was: the others went without a word."""
    path = made.write_sg_pass(tmp_path / "pass")
    held = torch.load(path, weights_only=True)

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor[:5]])

    two = {name: [twice(part) for part in v] if isinstance(v, list) else twice(v) for name, v in held.items()}
    two["model.forward_batch_info.seq_lens"] = torch.tensor([made.LENGTH, 5])
    torch.save(two, path.with_name("Pass00001.pt"))
    done = convert(str(tmp_path / "pass"), tmp_path / "out", "safetensors", lose=["last-state"])
    assert done.samples == 3
    lengths = [len(open_capture(f"{tmp_path / 'out'}#{number}").tokens) for number in range(3)]
    assert lengths == [made.LENGTH, made.LENGTH, 5]


def test_a_reference_of_a_folder_of_passes_names_the_sample_that_has_its_tokens(tmp_path: Path) -> None:
    """'does not keep token 0; give the prompt instead', said of the second of a thousand passes."""
    folder = passes(tmp_path / "pass")
    with pytest.raises(
        DrafttraceError, match=rf"Sample #1 of .* as a decode step does not.*name one .* as '{folder}#0'\.$"
    ):
        read_source(str(folder))
    assert read_source(f"{folder}#0").tokens[0].tolist() == made.tokens().tolist()
