"""The index of tokens is a help, and never the last word on which sample is meant."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.capture import Capture, RowTable
from drafttrace.tracer.dumps import token_index
from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.dumps.from_mapping import parse_fields
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.token_index import find_sample
from drafttrace.tracer.errors import NothingToCompare
from drafttrace.tracer.open import open_capture

COUNT = 12


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def tokens_of(k: int) -> list[int]:
    return [(k * 37 + t * 11) % 499 + 1 for t in range(24)]


def written(folder: Path) -> Path:
    for k in range(COUNT):
        states = torch.ones(24, 4, 4, dtype=torch.bfloat16)
        save_file(
            {"hidden_states": states, "token_ids": torch.tensor(tokens_of(k))}, folder / f"hs_{k}.safetensors"
        )
    return folder


def like(k: int) -> Capture:
    tokens = np.array(tokens_of(k), np.int64)
    return Capture("trace.h5", "x", "x", tokens, RowTable.of_tokens(tokens), (), valid_length=len(tokens))


def swap(one: Path, two: Path) -> None:
    """Swap the contents of two files of one size, and keep every time that can be kept."""
    stats, contents = [path.stat() for path in (one, two)], [one.read_bytes(), two.read_bytes()]
    assert stats[0].st_size == stats[1].st_size
    for path, content, stat in zip((one, two), reversed(contents), stats, strict=True):
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_mtime_ns == stat.st_mtime_ns


@pytest.mark.parametrize("by_time", [True, False])
def test_two_samples_swapped_under_the_same_time(
    by_time: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample was looked up in the index alone, which trusted size and time. With by_time off no stamp helps."""
    if not by_time:
        monkeypatch.setattr(token_index, "_stamp", lambda stat: (stat.st_size, stat.st_mtime_ns, 0))
    written(tmp_path)
    assert find_sample(str(tmp_path), like(3)) == 3
    swap(tmp_path / "hs_3.safetensors", tmp_path / "hs_8.safetensors")
    assert find_sample(str(tmp_path), like(3)) == 8
    assert find_sample(str(tmp_path), like(8)) == 3


def test_the_index_is_made_anew_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_index, "_stamp", lambda stat: (stat.st_size, stat.st_mtime_ns, 0))
    written(tmp_path)
    find_sample(str(tmp_path), like(3))
    swap(tmp_path / "hs_3.safetensors", tmp_path / "hs_8.safetensors")
    find_sample(str(tmp_path), like(3))
    made = []
    monkeypatch.setattr(token_index, "_make", lambda *arguments: made.append(arguments))
    assert find_sample(str(tmp_path), like(3)) == 8
    assert made == []


def test_a_sample_that_became_unreadable_under_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_index, "_stamp", lambda stat: (stat.st_size, stat.st_mtime_ns, 0))
    path = written(tmp_path) / "hs_3.safetensors"
    find_sample(str(tmp_path), like(3))
    stat = path.stat()
    path.write_bytes(b"\0" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(NothingToCompare, match=r"'hs_3\.safetensors' could not be read"):
        find_sample(str(tmp_path), like(3))


def test_files_that_could_not_be_read_are_said_where_no_sample_is_found(tmp_path: Path) -> None:
    """'None of the 299 samples starts with ...': the one that was meant may have been the damaged one."""
    written(tmp_path)
    with pytest.raises(NothingToCompare, match=r"tokens of 'trace\.h5'; give the dump") as whole:
        find_sample(str(tmp_path), like(100))
    assert "could not" not in str(whole.value)
    for number, words in ((5, r"\('hs_5\.safetensors' could not be read\)"),
                          (2, r"\(2 could not be read, first 'hs_2\.safetensors'\)")):  # fmt: skip
        (tmp_path / f"hs_{number}.safetensors").write_bytes(b"damaged")
        with pytest.raises(NothingToCompare, match=words):
            find_sample(str(tmp_path), like(100))
    with pytest.raises(NothingToCompare, match="2 could not be read"):  # from the cache
        find_sample(str(tmp_path), like(100))


def test_a_sample_of_a_mapped_folder_is_found_by_its_tokens(tmp_path: Path) -> None:
    """'name its fields with --slots and --tokens', which were given."""
    for k in range(COUNT):
        states = {name: np.full((24, 4), k + 1, np.float32) for name in "abc"}
        other = tokens_of(COUNT - 1 - k)  # of the same file, under another name
        np.savez(tmp_path / f"data_{k}.npz", ids=np.array(tokens_of(k)), others=np.array(other), **states)
    for name, number in (("ids", 7), ("others", COUNT - 1 - 7), ("ids", 7)):
        mapping = parse_fields("a,b,c", name)
        found = open_capture(str(tmp_path), mapping=mapping, like=like(7))
        assert (found.sample, found.tokens.tolist()) == (number, tokens_of(7))


@pytest.mark.parametrize(("slots", "tokens"), [("low,hgh", "ids"), ("low,high", "idz")])
def test_a_mistyped_field_is_told_and_not_that_no_sample_has_the_tokens(
    slots: str, tokens: str, tmp_path: Path
) -> None:
    """'None of the 61 samples starts with the tokens': not one of them had been read."""
    for k in range(COUNT):
        np.savez(tmp_path / f"s{k}.npz", low=np.ones((24, 4)), high=np.ones((24, 4)), ids=np.array(tokens_of(k)))
    collection = open_collection(tmp_path, "MAPPED", Request(fields=parse_fields(slots, tokens)))
    wrong = "hgh" if slots == "low,hgh" else "idz"
    for _again in range(2):  # the second time from the cache
        with pytest.raises(
            NothingToCompare, match=rf"None of the {COUNT} samples .* no field '{wrong}'.*'high', 'ids', 'low'"
        ):
            token_index.find_in(collection, like(3))


def test_samples_that_fail_for_different_reasons_are_counted_as_before(tmp_path: Path) -> None:
    for k in range(COUNT):
        np.savez(tmp_path / f"s{k}.npz", **{f"low{k}": np.ones((24, 4)), "ids": np.array(tokens_of(k))})
    collection = open_collection(tmp_path, "MAPPED", Request(fields=parse_fields("low", "ids")))
    with pytest.raises(NothingToCompare, match=rf"starts with the tokens .*\({COUNT} could not be read"):
        token_index.find_in(collection, like(3))
