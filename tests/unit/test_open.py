"""Opening by name: paths, samples, the sample with given tokens, mapped fields."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import dump_layouts as made
import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafttrace.tracer.capture import Capture, RowTable
from drafttrace.tracer.dumps.from_mapping import parse_fields
from drafttrace.tracer.dumps.registry import Request, format_ids
from drafttrace.tracer.dumps.token_index import find_sample
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare, UnreadableFile
from drafttrace.tracer.open import open_capture, split_spec


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def of_tokens(tokens: list[int]) -> Capture:
    """The other side of a comparison: only its tokens matter here."""
    ids = np.array(tokens, np.int64)
    return Capture("trace.h5", "x", "x", ids, RowTable.of_tokens(ids), (), valid_length=len(ids))


def hs_file(path: Path, tokens: list[int]) -> None:
    states = torch.zeros(len(tokens), 4, 8, dtype=torch.bfloat16)
    save_file({"hidden_states": states, "token_ids": torch.tensor(tokens)}, path)


def text_of(k: int, length: int = 24) -> list[int]:
    rng = np.random.default_rng(k)
    return [1, 2, 3, 4, 5, *rng.integers(10, 30000, length).tolist()]  # every text starts alike


def test_split_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert split_spec("a/b.pt") == (Path("a/b.pt"), None)
    assert split_spec("a/b.pt#17") == (Path("a/b.pt"), 17)
    assert split_spec("a#b.pt") == (Path("a#b.pt"), None)
    Path("real#3").touch()
    assert split_spec("real#3") == (Path("real#3"), None)
    for bad in ("", "a\0b"):
        with pytest.raises(UnreadableFile):
            split_spec(bad)


def test_samples_of_a_folder_are_numbered_as_their_files_are(tmp_path: Path) -> None:
    for k in (0, 3, 12):
        hs_file(tmp_path / f"hs_{k}.safetensors", text_of(k))
    assert open_capture(f"{tmp_path}#12").tokens.tolist() == text_of(12)
    assert open_capture(str(tmp_path), sample=3).sample == 3
    with pytest.raises(DrafttraceError, match="has no sample 1: it holds 3, numbered 0, 3 and 12;"):
        open_capture(f"{tmp_path}#1")
    with pytest.raises(DrafttraceError, match=r"holds 3 samples; name one as '.*#0'"):
        open_capture(str(tmp_path))
    with pytest.raises(DrafttraceError, match="names sample 3 and --sample says 0"):
        open_capture(f"{tmp_path}#3", sample=0)


def test_samples_with_equal_numbers_are_numbered_by_position(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}").mkdir()
        hs_file(tmp_path / f"rank_{rank}/hs_0.safetensors", text_of(rank))
    assert open_capture(f"{tmp_path}#1").tokens.tolist() == text_of(1)


def test_samples_inside_one_file(tmp_path: Path) -> None:
    path = made.write_ts_eval(tmp_path)
    assert open_capture(f"{path}#0").tokens.tolist() == made.tokens().tolist()
    assert open_capture(f"{path}#1").tokens.tolist() == made.tokens().flip(0).tolist()
    assert open_capture(str(path), like=of_tokens(made.tokens().flip(0).tolist())).sample == 1


# --- the sample with given tokens ----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [9, 24, 29, 60])
def test_the_sample_with_the_same_tokens_is_found(length: int, tmp_path: Path) -> None:
    for k in range(20):
        hs_file(tmp_path / f"hs_{k}.safetensors", text_of(k))
    wanted = (text_of(13) + [7] * 40)[:length]  # cut short, or going on where the dump stopped
    assert find_sample(str(tmp_path), of_tokens(wanted)) == 13
    assert open_capture(str(tmp_path), like=of_tokens(wanted)).sample == 13


def test_a_doubled_or_lost_first_token_is_no_obstacle(tmp_path: Path) -> None:
    for k in range(12):
        hs_file(tmp_path / f"hs_{k}.safetensors", text_of(k))
    assert find_sample(str(tmp_path), of_tokens([1, *text_of(5)])) == 5
    assert find_sample(str(tmp_path), of_tokens(text_of(5)[1:])) == 5
    assert find_sample(str(tmp_path), of_tokens([-1, *text_of(5)[1:]])) == 5


def half_known(path: Path, tokens: list[int], rows: int = 40) -> None:
    """A file with fewer ids than state rows: a reader makes the others -1."""
    states = torch.zeros(rows, 4, 8, dtype=torch.bfloat16)
    save_file({"hidden_states": states, "token_ids": torch.tensor(tokens)}, path)


def test_unknown_tokens_are_no_likeness_of_samples(tmp_path: Path) -> None:
    """The tokens that both know choose the sample; unknown ones are no tokens that two samples share."""
    folder = tmp_path / "dump"
    folder.mkdir()
    for k in range(10):
        hs_file(folder / f"hs_{k}.safetensors", text_of(k))
    for k in (20, 21):
        half_known(folder / f"hs_{k}.safetensors", text_of(4)[:6])
    half_known(tmp_path / "like.safetensors", text_of(4)[:12])
    like = open_capture(str(tmp_path / "like.safetensors"))
    assert len(like.tokens) == 40 and find_sample(str(folder), like) == 4
    assert find_sample(str(folder), of_tokens(text_of(4))) == 4
    middle = [*text_of(5)[:14], -1, -1, *text_of(5)[16:]]
    assert find_sample(str(folder), of_tokens(middle)) == 5


@pytest.mark.parametrize("tokens", [[-1] * 30, [-1, -1, *text_of(3)], [*text_of(3)[:3], -1, -1, -1]])
def test_tokens_that_are_not_known_find_no_sample(tokens: list[int], tmp_path: Path) -> None:
    for k in range(9):
        hs_file(tmp_path / f"hs_{k}.safetensors", text_of(k))
    with pytest.raises(
        NothingToCompare, match=r"'trace.h5' keeps .* token ids at its start, .* name the sample as .*#0'"
    ):
        find_sample(str(tmp_path), of_tokens(tokens))


def test_no_sample_and_two_samples(tmp_path: Path) -> None:
    for k in range(9):
        hs_file(tmp_path / f"hs_{k}.safetensors", text_of(k))
    with pytest.raises(NothingToCompare, match="None of the 9 samples"):
        find_sample(str(tmp_path), of_tokens([9, 8, 7, 6, 5, 4, 3]))
    hs_file(tmp_path / "hs_50.safetensors", text_of(4))
    with pytest.raises(NothingToCompare, match=r"Samples #4, #50 .* share equally many tokens"):
        find_sample(str(tmp_path), of_tokens(text_of(4)))


def test_a_damaged_sample_does_not_hide_the_others(tmp_path: Path) -> None:
    for k in range(30):
        hs_file(tmp_path / f"hs_{k}.safetensors", text_of(k))
    (tmp_path / "hs_7.safetensors").write_bytes(b"\0" * 50)
    assert find_sample(str(tmp_path), of_tokens(text_of(29))) == 29


def test_the_index_follows_changed_files_and_survives_a_damaged_cache(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    for k in range(12):
        hs_file(folder / f"hs_{k}.safetensors", text_of(k))
    assert find_sample(str(folder), of_tokens(text_of(3))) == 3
    index = next(cache.rglob("*.npz"))
    hs_file(folder / "hs_3.safetensors", text_of(100))
    os.utime(folder / "hs_3.safetensors", ns=(1, 1))
    assert find_sample(str(folder), of_tokens(text_of(100))) == 3
    with pytest.raises(NothingToCompare):
        find_sample(str(folder), of_tokens([99, *text_of(3)[5:]]))
    for content in (b"", b"PK\x03\x04" + b"\0" * 40, b"not a cache"):
        index.write_bytes(content)
        assert find_sample(str(folder), of_tokens(text_of(5))) == 5


def test_thousands_of_files_from_the_cache(tmp_path: Path) -> None:
    """The first search reads every header; the next ones read the index only."""
    folder = tmp_path / "dump"
    folder.mkdir()
    states = torch.zeros(12, 4, 2, dtype=torch.bfloat16)
    hs_file(folder / "seed.safetensors", text_of(0))
    for k in range(1000):
        tokens = torch.tensor(text_of(k, 7))
        save_file({"hidden_states": states, "token_ids": tokens}, folder / f"hs_{k}.safetensors")
    (folder / "seed.safetensors").unlink()
    assert find_sample(str(folder), of_tokens(text_of(271, 7))) == 271
    start = time.process_time()
    assert find_sample(str(folder), of_tokens(text_of(814, 7))) == 814
    assert time.process_time() - start < 1.0


# --- fields named by the user --------------------------------------------------------------------------------


def test_npz(tmp_path: Path) -> None:
    path = made.write_npz(tmp_path)
    fields = parse_fields("s2,s4,s5", "ids", boundaries="B2,B4,5")
    capture = open_capture(str(path), mapping=fields)
    assert capture.wiring == (2, 4, 5)
    assert capture.tokens.tolist() == made.tokens().tolist()
    for k, slot in zip(made.CANON, capture.slots, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k, dtype=torch.float16).float().numpy())
    unknown = open_capture(str(path), mapping=parse_fields("s2", "ids"))
    assert unknown.wiring == (None,)
    compressed = tmp_path / "z.npz"
    np.savez_compressed(compressed, **dict(np.load(path)))
    assert open_capture(str(compressed), mapping=fields).wiring == (2, 4, 5)


def test_hdf5_with_nested_names(tmp_path: Path) -> None:
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["run/states"] = np.stack([made.state(k, dtype=torch.float32).numpy() for k in made.CANON], 1)
        file.create_dataset("run/packed", data=made.last_post(dtype=torch.float32).numpy(), compression="gzip")
        file["ids"] = made.tokens().numpy().astype(">i8")
        file["loop"] = h5py.SoftLink("/")
    fields = parse_fields("run/states[0],run/states[2]", "ids", "run/packed", last_norm="post")
    capture = open_capture(str(path), mapping=fields)
    for k, slot in zip((2, 5), capture.slots, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k, dtype=torch.float32).numpy())
    assert capture.last is not None
    assert np.array_equal(capture.last.rows.floats(), made.last_post(dtype=torch.float32).numpy())
    whole = open_capture(str(path), mapping=parse_fields("run/states", "ids"))
    assert len(whole.slots) == 3


def test_safetensors_and_torch_with_any_names(tmp_path: Path) -> None:
    save_file({"x": made.aux(), "t": made.tokens()}, tmp_path / "a.safetensors")
    capture = open_capture(str(tmp_path / "a.safetensors"), mapping=parse_fields("x", "t"), request=Request(made.H))
    assert [slot.rows.width for slot in capture.slots] == [made.H] * 3
    torch.save({"run": {"s": [made.state(1), made.state(2)]}, "t": made.tokens()}, tmp_path / "a.pt")
    capture = open_capture(str(tmp_path / "a.pt"), mapping=parse_fields("run.s", "t", mask=None))
    assert len(capture.slots) == 2


def test_json_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"rows": made.state(1).float().tolist(), "ids": made.tokens().tolist()}))
    capture = open_capture(str(path), mapping=parse_fields("rows", "ids"))
    assert np.allclose(capture.slots[0].rows.floats(), made.state(1).float().numpy())


@pytest.mark.parametrize(
    ("slots", "tokens", "words"),
    [
        ("nothing", "ids", "no field 'nothing' in .*, which holds 'ids', 's2', 's4', 's5'; name a field"),
        ("s2[9]", "ids", "no entry 9"),
        ("s2", "s4", "1 axes are expected"),
        ("ids", "ids", "axes are expected|holds int64"),
    ],
)
def test_wrong_names(slots: str, tokens: str, words: str, tmp_path: Path) -> None:
    path = made.write_npz(tmp_path)
    with pytest.raises(DrafttraceError, match=words):
        open_capture(str(path), mapping=parse_fields(slots, tokens))


def test_wrong_mappings() -> None:
    with pytest.raises(DrafttraceError, match="'layer 3' is no boundary"):
        parse_fields("a", boundaries="layer 3")
    with pytest.raises(DrafttraceError, match="give pre, post or unknown"):
        parse_fields("a", last_norm="rms")


# --- what it costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [made.write_vllm, made.write_sf_eagle3, made.write_spec_v1, made.write_npz])
def test_no_format_imports_torch(write: object, tmp_path: Path) -> None:
    path = write(tmp_path)  # type: ignore[operator]
    mapping = "parse_fields('s2,s4', 'ids')" if path.suffix == ".npz" else "None"
    program = (
        "import sys; from drafttrace.tracer.open import open_capture;"
        "from drafttrace.tracer.dumps.from_mapping import parse_fields;"
        f"c = open_capture({str(path)!r}, mapping={mapping}); c.slots[0].rows.floats();"
        "assert not {'torch', 'transformers', 'safetensors', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_layout_of_the_design_has_an_id() -> None:
    designed = {
        "SF-EAGLE3", "SF-35504D45", "SF-D5DE56F7", "SF-DFLASH", "SF-DSPARK", "SF-MTP-FORK", "SPEC-ARROW", "SPEC-FP8",
        "VLLM-HS", "SPEC-V1", "SPEC-V0", "EAGLE12-CKPT", "BALD-PLAIN", "BALD-FUSED", "MO-PT", "MO-TRT-RAW", "TS-DEBUG",
        "TS-EVAL", "TS-TESTDUMP", "TS-ORPHAN", "AS-EAGLE3", "AS-DFLASH", "AM-EAGLE3", "AM-DSPARK",
    }  # fmt: skip
    assert designed <= set(format_ids())
    others = {"MAPPED", "DRAFTTRACE", "SF-ONLINE", "DRAFTTRACE-TRACES"}
    assert {case.id for case in made.CASES} | others == set(format_ids())


def test_the_order_of_the_layouts_is_not_that_of_their_imports() -> None:
    """A module of a layout that was imported by itself stood first: in the pages, in help, and in what is tried first."""
    code = (
        "import drafttrace.tracer.dumps.from_traces, drafttrace.tracer.dumps.from_specforge\n"
        "from drafttrace.tracer.dumps import registry\n"
        "print([*registry.layouts()], [*registry.folder_layouts()])"
    )
    plain = code.split("\n", 1)[1]
    told = [
        subprocess.run([sys.executable, "-c", c], capture_output=True, text=True, check=True) for c in (code, plain)
    ]
    assert told[0].stdout == told[1].stdout and "SF-EAGLE3" in told[0].stdout


def test_a_stranger_adds_a_format(tmp_path: Path) -> None:
    """One function that recognises, one that reads, one call of register: nothing else needs to know."""
    from drafttrace.tracer.dumps import build, registry
    from drafttrace.tracer.dumps.document import Document

    def detect(document: Document, _request: Request) -> str | None:
        return "a dict with my_states" if "my_states" in document.keys else None

    def read(document: Document, _inner: int, _request: Request) -> Capture:
        ids = build.token_ids(build.field(document, "my_ids"), "my_ids", document.path)
        parts = build.axis_slots(build.field(document, "my_states"), "my_states", document.path, 1)
        slots = build.slots_of(parts, "my_states", [2, 4], "my trainer's rule")
        return build.capture(document.path, "MINE", detect(document, _request) or "", ids, slots)

    format_ids()  # the layouts of the package first
    registry.register(registry.Layout("MINE", "me", "my trainer", detect, read))
    try:
        states = torch.stack([made.state(2), made.state(4)], 1)
        torch.save({"my_ids": made.tokens(), "my_states": states}, tmp_path / "x.bin")
        capture = open_capture(str(tmp_path / "x.bin"))
        assert capture.format == "MINE"
        assert capture.wiring == (2, 4)
        with pytest.raises(ValueError, match="registered twice"):
            registry.register(registry.Layout("MINE", "me", "again", detect, read))
    finally:
        registry._LAYOUTS.pop("MINE")


def test_the_sample_of_left_is_found_by_the_tokens_of_the_reference() -> None:
    """'holds 8 samples; name one as ...#0': only those of REFERENCE were looked through."""
    from drafttrace.tracer.commands.diff import compare_paths

    root = Path(__file__).parents[2]
    dump, trace = str(root / "pairs/tiny-llama/dump"), str(root / "traces/tiny-llama/healthy.h5")
    wanted = open_capture(dump, like=open_capture(trace))
    assert compare_paths(dump, trace).to_json() == compare_paths(f"{dump}#{wanted.sample}", trace).to_json()
    for sample in (1, 3):  # the one with these tokens, which is the file itself
        with pytest.raises(DrafttraceError, match=rf"same file '.*hs_{sample}\.safetensors'"):
            compare_paths(dump, f"{dump}#{sample}")
    with pytest.raises(DrafttraceError, match=r"hold several samples each; .* PATH#i"):
        compare_paths(dump, dump)


def test_a_text_that_no_sample_holds_is_not_taken_for_the_nearest(tmp_path: Path) -> None:
    """Only the system prompt was shared, and ``diff`` called it template-divergence, confidence 0.97, of sample #0."""
    system = list(range(1000, 1026))
    for k in range(3):
        hs_file(tmp_path / f"hs_{k}.safetensors", [*system, *text_of(k)])
    with pytest.raises(NothingToCompare, match=r"No sample of .* shares the first 31 of .*name the sample, as"):
        find_sample(str(tmp_path), of_tokens([*system, *text_of(7)]))
    assert find_sample(str(tmp_path), of_tokens([*system, *text_of(1)])) == 1
    diverging = [*system, *text_of(1)[:12], 77, *text_of(1)[12:]]  # the same prompt, in another template
    assert find_sample(str(tmp_path), of_tokens(diverging)) == 1
