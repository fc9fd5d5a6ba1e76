"""A compressed dump is inflated once per command, however often its readers open it."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps import document, folder, inflated_files, torch_file
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.open_two import open_two

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-llama/healthy.h5"


@pytest.fixture
def inflations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is inflated, by name of the file, of a process that has inflated nothing yet."""
    made: list[str] = []
    real = document.inflated

    def counting(path: Path, *more: object) -> object:
        made.append(path.name)
        return real(path, *more)  # type: ignore[arg-type]

    for module in (document, torch_file):
        monkeypatch.setattr(module, "inflated", counting)
    inflated_files.forget()
    folder._recognised.cache_clear()
    yield made
    inflated_files.forget()


def sample(path: Path) -> Path:
    """A gzip sample of the trace's tokens."""
    tokens = torch.from_numpy(open_capture(str(TRACE)).tokens.copy())
    states = {"aux_hidden_state": torch.zeros(1, len(tokens), 384).bfloat16() + 1,
              "hidden_state": torch.ones(1, len(tokens), 128).bfloat16()}  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"input_ids": tokens, "loss_mask": torch.ones(len(tokens)).long(), **states}, path.with_suffix(""))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes(), 1))
    path.with_suffix("").unlink()
    return path


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dump")
    sample(root / "one/rows_0-2000/data_0.ckpt.gz")
    for k in range(4):
        sample(root / f"four/rows_0-2000/data_{k}.ckpt.gz")
    import time

    time.sleep(2 * inflated_files._SETTLED)
    return root


@pytest.mark.parametrize("spec", ["one/rows_0-2000/data_0.ckpt.gz", "one"])
@pytest.mark.parametrize("command", ["inspect", "diff", "convert"])
def test_a_gzip_dump_is_inflated_once(
    command: str, spec: str, dump: Path, inflations: list[str], tmp_path: Path
) -> None:
    """It took 2 to 7 inflations of one file."""
    path = str(dump / spec)
    if command == "inspect":
        inspect_capture(path)
    elif command == "diff":
        _ours, theirs = open_two(str(TRACE), path)
        theirs.slots[0].rows.floats()
    else:
        convert(path, tmp_path / "out.ckpt", "specforge")
    assert inflations == ["data_0.ckpt.gz"]


@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_a_folder_of_gzip_samples_is_inflated_once_per_sample(
    command: str, dump: Path, inflations: list[str], tmp_path: Path
) -> None:
    """Converting four took 13 inflations."""
    if command == "inspect":
        inspect_capture(str(dump / "four"))
    else:
        convert(str(dump / "four"), tmp_path / "out", "specforge")
    assert sorted(inflations) == [f"data_{k}.ckpt.gz" for k in range(4)]


def test_more_than_is_kept_is_inflated_once_by_convert(
    dump: Path, inflations: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder larger than the bound: looking for files of other formats does not inflate what is not kept."""
    monkeypatch.setattr(inflated_files, "MOST_BYTES", 0)
    shutil.copytree(dump / "four", tmp_path / "many")
    for k in range(4, 30):
        shutil.copy(dump / "four/rows_0-2000/data_0.ckpt.gz", tmp_path / f"many/rows_0-2000/data_{k}.ckpt.gz")
    import time

    time.sleep(2 * inflated_files._SETTLED)
    convert(str(tmp_path / "many"), tmp_path / "out", "specforge")
    twice = {name for name in inflations if inflations.count(name) > 1}
    assert set(inflations) == {f"data_{k}.ckpt.gz" for k in range(30)}
    assert len(twice) <= folder._PROBES + 1 and len(inflations) <= 30 + folder._PROBES + 1
    assert len(inflated_files._kept) <= inflated_files._ALWAYS + 1


def test_only_the_arrays_that_are_asked_for_are_inflated_once(inflations: list[str], tmp_path: Path) -> None:
    """All six arrays of a compressed .npz were inflated twice to read four."""
    random = np.random.default_rng(0)
    states = {name: random.normal(size=(13, 16)).astype(np.float32) for name in ("a", "b", "c", "x", "y")}
    np.savez_compressed(tmp_path / "dump.npz", ids=made.tokens().numpy(), **states)
    import time

    time.sleep(2 * inflated_files._SETTLED)
    fields = FieldMap(slots=("a", "b", "c"), tokens="ids", boundaries=(2, 4, 5))
    found = inspect_capture(str(tmp_path / "dump.npz"), mapping=fields)
    assert [state.shape for state in found.states] == [(13, 16)] * 3
    assert len(inflations) == 4
    capture = open_capture(str(tmp_path / "dump.npz"), mapping=fields)
    for slot, name in zip(capture.slots, "abc", strict=True):
        np.testing.assert_array_equal(slot.rows.floats(), states[name])
    assert len(inflations) == 4


def test_a_damaged_array_of_a_compressed_npz_is_said_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "dump.npz"
    states = {name: np.random.default_rng(k).normal(size=(64, 16)) for k, name in enumerate("abc")}
    np.savez_compressed(path, ids=np.arange(64), **states)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    fields = FieldMap(slots=("a", "b", "c"), tokens="ids")
    with pytest.raises(UnreadableFile, match="copy or write it again"):
        inspect_capture(str(path), mapping=fields)


def test_a_dump_that_is_written_again_is_inflated_again(inflations: list[str], tmp_path: Path) -> None:
    """Whether its content is the same, its size and name do not tell."""
    import time

    for k in (1, 2):
        (tmp_path / "plain").mkdir(exist_ok=True)
        value = made.sf_sample()
        value["input_ids"] = value["input_ids"] + k
        torch.save(value, tmp_path / "plain/x")
        (tmp_path / "data_0.ckpt.gz").write_bytes(gzip.compress((tmp_path / "plain/x").read_bytes(), 0))
        assert int(open_capture(str(tmp_path / "data_0.ckpt.gz")).tokens[0]) == 3 + k
        time.sleep(2 * inflated_files._SETTLED)
        assert int(open_capture(str(tmp_path / "data_0.ckpt.gz")).tokens[0]) == 3 + k
        assert int(open_capture(str(tmp_path / "data_0.ckpt.gz")).tokens[0]) == 3 + k


def test_what_is_kept_gives_way_where_the_disk_is_full(
    dump: Path, inflations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from drafttrace.tracer.dumps import inflate

    first, second = (str(dump / f"four/rows_0-2000/data_{k}.ckpt.gz") for k in (0, 1))
    open_capture(first)
    assert len(inflated_files._kept) == 1
    free = inflate._SPARE + 1000

    def usage(_folder: str) -> object:
        room = free if inflated_files._kept else 1 << 30
        return type("Usage", (), {"free": room})

    monkeypatch.setattr(inflate.shutil, "disk_usage", usage)
    open_capture(second)
    assert [key for key, _kept in inflated_files._kept.items()] and len(inflated_files._kept) == 1
    assert open_capture(first, request=Request()).slots


def test_temporary_files_have_no_name(dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    inflated_files.forget()
    open_capture(str(dump / "one"))
    assert inflated_files._kept and not list(tmp_path.iterdir())
    inflated_files.forget()
