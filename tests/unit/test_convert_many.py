"""A dump of many samples: converted whole, equal sample by sample, and never half there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from convert_dumps import KNOWN, N, assert_same, files, rows, specforge, tokens, v1, write_v1
from safetensors.torch import save_file

from drafttrace.tracer.convert import convert
from drafttrace.tracer.convert_layouts import OUT_LAYOUTS
from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnreadableFile
from drafttrace.tracer.open import open_capture, open_numbered

NAMES = {
    "trace": "trace_{}.h5",
    "safetensors": "hs_{}.safetensors",
    "specforge": "rows_0-2000/data_{}.ckpt",
    "speculators-v1": "data_{}.pt",
    "speculators": "hidden_states/hs_{}.safetensors",
}


@pytest.mark.parametrize("to", OUT_LAYOUTS)
def test_a_dump_is_converted_whole_and_equal_sample_by_sample(to: str, tmp_path: Path) -> None:
    """Only ``PATH#i`` could be converted: ten thousand samples were ten thousand commands."""
    source = specforge(tmp_path / "dump") if to == "specforge" else v1(tmp_path / "dump")
    seen: list[tuple[int, int]] = []
    lose = ["loss-mask"] if to == "trace" else []
    done = convert(str(source), tmp_path / "out", to, request=KNOWN, lose=lose, progress=lambda *a: seen.append(a))
    given_up = ("the loss mask (5 samples)",) if to == "trace" else ()
    assert (done.paths, done.samples, done.left_out) == ((tmp_path / "out",), 5, given_up)
    assert seen == [(k, 5) for k in range(6)]
    assert sorted(os.listdir(tmp_path)) == ["dump", "out"]
    held = set(files(tmp_path / "out"))
    assert {NAMES[to].format(i) for i in range(5)} <= held
    assert [ref.number for ref in open_collection(tmp_path / "out").refs] == list(range(5))
    for i in range(5):
        one, two = open_capture(f"{source}#{i}"), open_capture(f"{tmp_path / 'out'}#{i}")
        assert one.tokens.tolist() == tokens(i).tolist()
        assert_same(one, two, masked=to != "trace")


def test_the_layer_ids_of_v1_stand_once(tmp_path: Path) -> None:
    convert(str(v1(tmp_path / "dump")), tmp_path / "out", "speculators-v1")
    assert open_capture(f"{tmp_path / 'out'}#3").wiring == (2, 4, 5)
    named = [name for name in files(tmp_path / "out") if name.endswith("config.json")]
    assert named == ["data_config.json"]


def test_what_the_dump_says_of_its_making_stays_or_is_told(tmp_path: Path) -> None:
    """It went without a word."""
    source = v1(tmp_path / "dump")
    config = json.loads((source / "data_config.json").read_text()) | {
        "model": {"name": "m"},
        "data": {"num_samples": 9},
    }
    (source / "data_config.json").write_text(json.dumps(config))
    assert convert(str(source), tmp_path / "out", "speculators-v1").left_out == ()
    again = json.loads((tmp_path / "out/data_config.json").read_text())
    assert again["model"] == {"name": "m"}
    assert again["data"] == {"num_samples": 5}
    assert again["hidden_states"] == {"layer_ids": [1, 3, 4, N - 1]}
    told = convert(str(source), tmp_path / "there", "safetensors").left_out
    assert told == ("what data_config.json says of model and data (5 samples)",)


def test_a_reference_stays_the_reference_of_its_target(tmp_path: Path) -> None:
    made = {"target": "llama", "target_hash": "abc", "made_with": "torch 2", "dtype": "bf16"}
    source = references(tmp_path / "dump", [[2, 4, 5]] * 2, [True] * 2, **made)
    assert convert(str(source), tmp_path / "out", "safetensors").left_out == ()
    metadata = open_capture(f"{tmp_path / 'out'}#1").about["metadata"]
    assert metadata.items() >= made.items()
    told = convert(str(source), tmp_path / "v1", "speculators-v1").left_out
    assert told == ("what its metadata says of its making (target, target_hash, dtype, made_with) (2 samples)",)


def test_row_i_of_the_arrow_table_is_sample_i(tmp_path: Path) -> None:
    import datasets

    convert(str(v1(tmp_path / "dump", range(12))), tmp_path / "out", "speculators", request=KNOWN)
    table = datasets.load_from_disk(str(tmp_path / "out"))
    assert [row["input_ids"] for row in table] == [tokens(i).tolist() for i in range(12)]
    assert [row["seq_len"] for row in table] == [len(tokens(i)) for i in range(12)]
    assert [row["loss_mask"].count(0) for row in table] == [i % 3 for i in range(12)]


def test_the_arrow_table_is_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    from drafttrace.tracer import convert_companions
    from drafttrace.tracer.dumps.arrow_stream import batches_of

    monkeypatch.setattr(convert_companions, "_BATCH_TOKENS", 20)
    convert(str(v1(tmp_path / "dump", range(12))), tmp_path / "out", "speculators", request=KNOWN)
    batches = batches_of(tmp_path / "out/data-00000-of-00001.arrow")
    assert len(batches) > 2 and sum(batch.rows for batch in batches) == 12
    assert len(datasets.load_from_disk(str(tmp_path / "out"))) == 12
    assert_same(open_capture(f"{tmp_path / 'dump'}#11"), open_capture(f"{tmp_path / 'out'}#11"))


def test_samples_keep_their_numbers(tmp_path: Path) -> None:
    source = specforge(tmp_path / "dump", [0, 3, 2001])  # gaps are samples that the trainer skipped
    convert(str(source), tmp_path / "out", "specforge")
    assert [name for name in files(tmp_path / "out") if name.endswith(".ckpt")] == [
        "rows_0-2000/data_0.ckpt", "rows_0-2000/data_3.ckpt", "rows_2000-4000/data_2001.ckpt"
    ]  # fmt: skip
    assert_same(open_capture(f"{source}#2001"), open_capture(f"{tmp_path / 'out'}#2001"))


def test_numbers_with_gaps_are_no_rows_of_a_table(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump", [0, 2, 5])
    with pytest.raises(DrafttraceError, match=r"has no sample 1 .*--lose sample-numbers"):
        convert(str(source), tmp_path / "out", "speculators", request=KNOWN)
    convert(str(source), tmp_path / "out", "speculators", request=KNOWN, lose=["sample-numbers"])
    for new, old in enumerate((0, 2, 5)):
        assert_same(open_capture(f"{source}#{old}"), open_capture(f"{tmp_path / 'out'}#{new}"))


def test_several_samples_in_one_file(tmp_path: Path) -> None:
    def sample(i: int) -> dict[str, Any]:
        length = len(tokens(i))
        aux = torch.cat([rows(i + k, length) for k in range(3)], -1)
        return {"input_ids": tokens(i)[None], "hidden_states": aux[None],
                "last_hidden_states": rows(i + 5, length)[None], "packed_loss_mask": "1,4"}  # fmt: skip

    held = [sample(i) for i in range(3)]
    (tmp_path / "eval_cache").mkdir()
    torch.save(held, tmp_path / "eval_cache/eval_rank_0.pt")
    source = tmp_path / "eval_cache/eval_rank_0.pt"
    convert(str(source), tmp_path / "out", "trace", lose=["loss-mask"], request=KNOWN)
    for i in range(3):
        assert_same(open_capture(f"{source}#{i}"), open_capture(f"{tmp_path / 'out'}#{i}"), masked=False)


@pytest.mark.parametrize(("spec", "sample"), [("dump#2", None), ("dump", 2)])
def test_one_sample_is_still_one(spec: str, sample: int | None, tmp_path: Path) -> None:
    v1(tmp_path / "dump")
    done = convert(str(tmp_path / spec), tmp_path / "x.safetensors", "safetensors", sample=sample)
    assert done.samples == 1
    assert_same(open_capture(f"{tmp_path / 'dump'}#2"), open_capture(str(tmp_path / "x.safetensors")))


# --- a sample that stops it ----------------------------------------------------------------------------------


def test_a_bad_sample_is_named_and_those_before_it_are_kept(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    whole = (source / "data_3.pt").read_bytes()
    (source / "data_3.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        UnreadableFile, match=r"^Sample #3 of '.*dump' stops the conversion after 3 of 5 samples, which"
    ):
        convert(str(source), tmp_path / "out", "safetensors")
    assert not (tmp_path / "out").exists()
    kept = {i: (tmp_path / f".out.unfinished/hs_{i}.safetensors").stat().st_ino for i in range(3)}
    (source / "data_3.pt").write_bytes(whole)
    convert(str(source), tmp_path / "out", "safetensors")
    assert {i: (tmp_path / f"out/hs_{i}.safetensors").stat().st_ino for i in range(3)} == kept
    assert_same(open_capture(f"{source}#3"), open_capture(f"{tmp_path / 'out'}#3"))


def test_a_bad_sample_may_be_moved_away(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    (source / "data_3.pt").write_bytes(b"broken")
    with pytest.raises(DrafttraceError, match="Sample #3"):
        convert(str(source), tmp_path / "out", "safetensors")
    (source / "data_3.pt").unlink()
    assert convert(str(source), tmp_path / "out", "safetensors").samples == 4
    assert [ref.number for ref in open_collection(tmp_path / "out").refs] == [0, 1, 2, 4]


def test_what_has_changed_meanwhile_is_made_again_and_what_has_gone_is_removed(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    (source / "data_4.pt").write_bytes(b"broken")
    with pytest.raises(DrafttraceError, match="Sample #4"):
        convert(str(source), tmp_path / "out", "safetensors")
    write_v1(tmp_path, 9).replace(source / "data_1.pt")
    (source / "data_2.pt").unlink()
    (source / "data_4.pt").unlink()
    convert(str(source), tmp_path / "out", "safetensors")
    assert [name for name in files(tmp_path / "out") if name[0] != "."] == [
        f"hs_{i}.safetensors" for i in (0, 1, 3)
    ]
    assert open_capture(f"{tmp_path / 'out'}#1").tokens.tolist() == tokens(9).tolist()


def test_new_layer_ids_are_not_those_of_the_samples_done_before(tmp_path: Path) -> None:
    """They stand in a file beside the samples, which themselves do not change."""
    source = v1(tmp_path / "dump")
    whole = (source / "data_4.pt").read_bytes()
    (source / "data_4.pt").write_bytes(b"broken")
    with pytest.raises(DrafttraceError, match="Sample #4"):
        convert(str(source), tmp_path / "out", "safetensors")
    (source / "data_4.pt").write_bytes(whole)
    (source / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [2, 3, 4, N - 1]}}))
    convert(str(source), tmp_path / "out", "safetensors")
    assert {open_capture(f"{tmp_path / 'out'}#{i}").wiring for i in range(5)} == {(3, 4, 5)}


KILLED = """
import os, signal, sys
from pathlib import Path
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
import drafttrace.tracer.convert_layouts as layouts

source, out, to, when = sys.argv[1:]
real = layouts.blocks
def blocks(sample, part):
    for block in real(sample, part):
        if os.path.basename(sample.capture.path) == "data_3.pt":
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of a file
        yield block
if when == "writing":
    layouts.blocks = blocks
def progress(done, total):
    if when == "between" and done == 3 or when == "end" and done == total:
        os.kill(os.getpid(), signal.SIGKILL)
convert(source, Path(out), to, request=Request(layers=8), progress=progress)
"""


@pytest.mark.parametrize("when", ["writing", "between", "end"])
@pytest.mark.parametrize("to", ["safetensors", "speculators-v1", "speculators"])
def test_a_killed_conversion_is_no_dump_and_goes_on(to: str, when: str, tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    killed = subprocess.run([sys.executable, "-c", KILLED, source, tmp_path / "out", to, when], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out").exists()
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {"dump"}
    unfinished = tmp_path / ".out.unfinished"
    kept = {i: (unfinished / NAMES[to].format(i)).stat().st_ino for i in range(3)}
    for format in (None, "SPEC-V1"):  # inspect read it, and nobody was told that samples are missing
        with pytest.raises(
            UnreadableFile, match=r"holds an unfinished conversion; give the same drafttrace convert"
        ):
            open_numbered(str(unfinished), format=format)
    convert(str(source), tmp_path / "out", to, request=KNOWN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump", "out"]
    assert not [name for name in files(tmp_path / "out") if name.endswith(".part") or "unfinished" in name]
    assert {i: (tmp_path / "out" / NAMES[to].format(i)).stat().st_ino for i in range(3)} == kept
    for i in range(5):
        assert_same(open_capture(f"{source}#{i}"), open_capture(f"{tmp_path / 'out'}#{i}"))


def test_two_conversions_do_not_write_into_one_folder(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    refused: list[str] = []

    def second(done: int, _total: int) -> None:
        if done == 2:
            with pytest.raises(OutputExists) as error:
                convert(str(source), tmp_path / "out", "safetensors")
            refused.append(str(error.value))

    convert(str(source), tmp_path / "out", "safetensors", progress=second)
    assert "Another conversion writes into" in refused[0]
    assert len(open_collection(tmp_path / "out").refs) == 5


def test_files_are_closed_sample_by_sample(tmp_path: Path) -> None:
    """Ten thousand samples must not need ten thousand open files."""
    source = v1(tmp_path / "dump", range(30))
    counts: list[int] = []
    convert(str(source), tmp_path / "out", "trace", lose=["loss-mask"], request=KNOWN,
            progress=lambda *_a: counts.append(len(os.listdir("/proc/self/fd"))))  # fmt: skip
    assert max(counts) - counts[0] < 12, counts
    again: list[int] = []
    convert(str(tmp_path / "out"), tmp_path / "back", "speculators-v1", mask="ones", request=KNOWN,
            progress=lambda *_a: again.append(len(os.listdir("/proc/self/fd"))))  # fmt: skip
    assert max(again) - again[0] < 12, again


# --- samples that do not go together -------------------------------------------------------------------------


def references(folder: Path, wirings: list[list[int]], masks: list[bool], **more: str) -> Path:
    folder.mkdir()
    for i, (wiring, masked) in enumerate(zip(wirings, masks, strict=True)):
        about = {"format": "drafttrace.capture/1", "boundaries": json.dumps([*wiring, N]), "slots": json.dumps(wiring),
                 "layers": str(N), "last": str(N), **more}  # fmt: skip
        length = len(tokens(i))
        held = {
            "hidden_states": torch.stack([rows(i + k, length) for k in (*wiring, N)], 1),
            "token_ids": tokens(i),
        }
        if masked:
            held["loss_mask"] = torch.ones(length).long()
        save_file(held, folder / f"hs_{i}.safetensors", about)
    return folder


def test_samples_of_different_layer_ids_are_no_v1_folder(tmp_path: Path) -> None:
    source = references(tmp_path / "dump", [[2, 4, 5], [2, 4, 5], [3, 4, 5]], [True] * 3)
    with pytest.raises(
        DrafttraceError, match=r"Sample #2 .*the layer ids \[2, 3, 4, 7\], and sample #0 the layer ids"
    ):
        convert(str(source), tmp_path / "out", "speculators-v1")
    assert not (tmp_path / "out").exists()
    convert(str(source), tmp_path / "out", "speculators-v1", lose=["layer-ids"], force=True)
    assert set(open_capture(f"{tmp_path / 'out'}#2").wiring) == {None}
    assert not (tmp_path / "out/data_config.json").exists()


@pytest.mark.parametrize("masks", [[True, False], [False, True]])
def test_samples_with_and_without_a_mask_are_no_arrow_table(masks: list[bool], tmp_path: Path) -> None:
    source = references(tmp_path / "dump", [[2, 4, 5]] * 2, masks)
    with pytest.raises(DrafttraceError, match=r"Sample #1 .*loss mask, and sample #0 has .*--mask-ones"):
        convert(str(source), tmp_path / "out", "speculators")
    convert(str(source), tmp_path / "out", "speculators", mask="ones", force=True)
    assert open_capture(f"{tmp_path / 'out'}#1").mask is not None


def test_layer_ids_above_are_not_declared_for_many_samples(tmp_path: Path) -> None:
    source = v1(tmp_path / "dump")
    (tmp_path / "above").mkdir()
    (tmp_path / "above/data_config.json").write_text("{}")
    with pytest.raises(DrafttraceError, match="would declare layer ids for the samples"):
        convert(str(source), tmp_path / "above/out", "speculators-v1", lose=["layer-ids"])


def test_what_is_left_out_is_added_up(tmp_path: Path) -> None:
    source = specforge(tmp_path / "dump")
    for i in (1, 3):
        path = source / f"rows_0-2000/data_{i}.ckpt"
        value = torch.load(path, weights_only=True)
        for name, extra in (("input_ids", 2), ("loss_mask", 2)):
            value[name] = torch.cat([value[name], torch.zeros(extra).long()])
        for name in ("aux_hidden_state", "hidden_state"):
            value[name] = torch.cat([value[name], torch.ones(1, 2, value[name].shape[-1]).bfloat16()], 1)
        torch.save(value, path)
    done = convert(str(source), tmp_path / "out", "specforge")
    assert done.left_out == ("4 rows that are padding, rejected or computed twice (2 samples)",)


# --- a folder of traces --------------------------------------------------------------------------------------


def test_a_folder_of_traces_is_a_dump_of_many(tmp_path: Path) -> None:
    convert(str(v1(tmp_path / "dump")), tmp_path / "out", "trace", lose=["loss-mask"], request=KNOWN)
    collection = open_collection(tmp_path / "out")
    assert collection.layout.id == "DRAFTTRACE-TRACES"
    like = open_capture(f"{tmp_path / 'dump'}#3")
    assert open_capture(str(tmp_path / "out"), like=like).sample == 3
    convert(str(tmp_path / "out"), tmp_path / "back", "speculators-v1", mask="ones")
    assert_same(like, open_capture(f"{tmp_path / 'back'}#3"), masked=False)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "other.h5").write_bytes(b"x"),
        lambda folder: (folder / "more").mkdir(),
        lambda folder: (folder / "trace_0.h5").write_bytes(b"x"),
    ],
)
def test_a_folder_with_other_things_is_no_folder_of_traces(spoil: Callable[[Path], Any], tmp_path: Path) -> None:
    convert(str(v1(tmp_path / "dump")), tmp_path / "out", "trace", lose=["loss-mask"], request=KNOWN)
    spoil(tmp_path / "out")
    with pytest.raises(DrafttraceError):
        open_collection(tmp_path / "out")


def test_traces_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Samples #i of the two sides are the same for every i, also where a name has several digits."""
    source = v1(tmp_path / "dump", [2, 10, 100])
    convert(str(source), tmp_path / "out", "trace", lose=["loss-mask"], request=KNOWN)
    assert [ref.number for ref in open_collection(tmp_path / "out").refs] == [2, 10, 100]
    found = [open_capture(f"{tmp_path / 'out'}#{i}").tokens for i in (2, 10, 100)]
    assert all(np.array_equal(held, tokens(i).numpy()) for held, i in zip(found, (2, 10, 100), strict=True))
