"""Damaged, hostile and odd files: one sentence, never a traceback, never a hang, never a line of code run."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import dump_layouts as made
import numpy as np
import pytest
import torch
from dump_layouts import CASES, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat, UnreadableFile
from drafttrace.tracer.open import open_capture


def read_all(path: Path, request: Request | None = None, **arguments: Any) -> Capture:
    """Open a capture and read every byte of it, as a comparison would."""
    capture = open_capture(str(path), request=request, **arguments)
    for slot in capture.slots:
        slot.rows.floats()
    if capture.last is not None:
        capture.last.rows.floats()
    return capture


def survives(path: Path, case: Case) -> None:
    """Reading gives a capture or a DrafttraceError of one sentence; anything else fails the test."""
    sample = 0 if case.id.startswith("TS-") else None
    try:
        read_all(path, Request(**case.request), sample=sample)
    except DrafttraceError as error:
        text = str(error)
        assert text and "\n" not in text, text
        assert text.endswith((".", "?")), text
        assert len(text) < 900, text


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def largest(root: Path) -> Path:
    """The file with the states of a sample."""
    states = [path for path in files_of(root) if path.stem != "target_embeddings"]
    return max(states, key=lambda path: path.stat().st_size)


IDS = [f"{index}-{case.id}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_truncated_at_twenty_places(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    victim = largest(tmp_path)
    whole = victim.read_bytes()
    refused = 0
    for step in range(20):
        victim.write_bytes(whole[: len(whole) * step // 20])
        try:
            sample = 0 if case.id.startswith("TS-") else None
            read_all(path, Request(**case.request), sample=sample)
        except DrafttraceError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused == 20, "a truncated file was read as whole"


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_bytes_flipped(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    rng = random.Random(7)
    for victim in files_of(tmp_path)[:3]:
        whole = victim.read_bytes()
        for _ in range(25):
            broken = bytearray(whole)
            for _flip in range(rng.randint(1, 8)):
                # headers and directories stand at the ends of a file, and are where damage is interesting
                ends = rng.choice([rng.randrange(len(broken)), rng.randrange(min(2000, len(broken))),
                                   len(broken) - 1 - rng.randrange(min(1500, len(broken)))])  # fmt: skip
                broken[ends] ^= 1 << rng.randrange(8)
            victim.write_bytes(broken)
            survives(path, case)
        victim.write_bytes(whole)


_NO_TORCH = {"DRAFTTRACE", "SPEC-ARROW", "SPEC-FP8", "VLLM-HS", "AM-EAGLE3", "AM-DSPARK", "SG-DUMPER", "SG-JSON"}
TORCH_CASES = [case for case in CASES if case.id not in _NO_TORCH and case.write is not made.write_sf_gz]


def torch_value(case: Case, root: Path) -> tuple[Path, Any]:
    path = case.write(root)
    # loaded from bytes, not from a map of a file that the test replaces
    return path, torch.load(io.BytesIO(path.read_bytes()), weights_only=True)


def leaves(value: Any) -> list[tuple[Any, Any]]:
    """``(container, key)`` of everything in nested dicts and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, item in items:
        found.append((value, key))
        found.extend(leaves(item))
    return found


ODD: list[Any] = [None, [], {}, "text", 3, torch.zeros(0), torch.zeros(2, 2, 2, 2), torch.tensor(1.0), torch.zeros(3),
                  torch.full((1, made.LENGTH, made.H), float("nan")), torch.zeros(made.LENGTH, dtype=torch.complex64),
                  torch.zeros(made.LENGTH, 7), torch.tensor([-5]), torch.tensor([2**40])]  # fmt: skip


@pytest.mark.parametrize("case", TORCH_CASES, ids=[f"{index}-{case.id}" for index, case in enumerate(TORCH_CASES)])
def test_every_field_missing_or_odd(case: Case, tmp_path: Path) -> None:
    path, value = torch_value(case, tmp_path)
    for index, (container, key) in enumerate(leaves(value)):
        old = container[key]
        for odd in ODD if index < 6 else ODD[:2]:
            container[key] = odd
            torch.save(value, path)
            survives(path, case)
        if isinstance(container, dict):
            del container[key]
            torch.save(value, path)
            survives(path, case)
        container[key] = old


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_other_number_formats(dtype: torch.dtype, tmp_path: Path) -> None:
    sample = made.sf_sample(dtype)
    torch.save(sample, tmp_path / "data_0.ckpt")
    capture = read_all(tmp_path / "data_0.ckpt")
    for k, slot in zip(made.CANON, capture.slots, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k, dtype=dtype).float().numpy())


@pytest.mark.parametrize("batched", [True, False])
def test_a_batch_axis_or_none(batched: bool, tmp_path: Path) -> None:
    sample = {name: value.reshape(1, made.LENGTH, *value.shape[2 if value.ndim == 3 else 1 :]) if batched
              else value.reshape(made.LENGTH, *value.shape[2 if value.ndim == 3 else 1 :])
              for name, value in made.sf_sample().items()}  # fmt: skip
    torch.save(sample, tmp_path / "data_0.ckpt")
    capture = read_all(tmp_path / "data_0.ckpt")
    assert capture.format == "SF-EAGLE3"
    assert capture.tokens.tolist() == made.tokens().tolist()
    assert capture.slots[1].rows.shape == (made.LENGTH, made.H)


def test_two_samples_in_one_tensor_are_refused(tmp_path: Path) -> None:
    sample = {name: torch.stack([value, value]).squeeze(1) for name, value in made.sf_sample().items()}
    torch.save(sample, tmp_path / "data_0.ckpt")
    with pytest.raises(UnreadableFile, match="dump one sample per file"):
        read_all(tmp_path / "data_0.ckpt")


def test_padded_tail(tmp_path: Path) -> None:
    sample = made.sf_sample()
    zeros = torch.zeros(5, dtype=torch.int64)
    sample["input_ids"] = torch.cat([sample["input_ids"], zeros])
    sample["loss_mask"] = torch.cat([sample["loss_mask"], zeros])
    for name in ("aux_hidden_state", "hidden_state"):
        state = sample[name]
        sample[name] = torch.cat([state, torch.ones(1, 5, state.shape[-1], dtype=state.dtype)], 1)
    torch.save(sample, tmp_path / "data_0.ckpt")
    capture = read_all(tmp_path / "data_0.ckpt")
    assert len(capture.tokens) == made.LENGTH + 5
    assert capture.valid_length == made.LENGTH
    assert any("5 padded rows" in note for note in capture.notes)


def test_aux_that_is_none(tmp_path: Path) -> None:
    torch.save(made.sf_sample() | {"aux_hidden_state": None}, tmp_path / "data_0.ckpt")
    capture = read_all(tmp_path / "data_0.ckpt")
    assert capture.slots == ()
    assert any("aux_hidden_state is None" in note for note in capture.notes)


def test_nan_rows_are_counted(tmp_path: Path) -> None:
    from drafttrace.tracer.inspecting import inspect_capture

    sample = made.sf_sample()
    sample["aux_hidden_state"][0, 3, : made.H] = float("nan")
    sample["aux_hidden_state"][0, 5, made.H : 2 * made.H] = 0
    sample["hidden_state"][0, 7] = sample["hidden_state"][0, 6]
    torch.save(sample, tmp_path / "data_0.ckpt")
    found = inspect_capture(str(tmp_path / "data_0.ckpt"))
    counts = [(s.statistics.nan_rows, s.statistics.zero_rows, s.statistics.repeated_rows) for s in found.states]
    assert counts == [(1, 0, 0), (0, 1, 0), (0, 0, 0), (0, 0, 1)]
    assert len(found.problems) == 3
    json.dumps(found.to_json(), allow_nan=False)


def test_gzip_with_a_damaged_tail(tmp_path: Path) -> None:
    path = made.write_sf_gz(tmp_path)
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:-8], whole[:-4] + b"\0\0\0\0", whole[:-8] + b"\1\2\3\4" + whole[-4:]):
        path.write_bytes(broken)
        with pytest.raises(UnreadableFile, match="damaged or cut off"):
            read_all(path)


def test_gzip_inside_gzip_is_no_dump(tmp_path: Path) -> None:
    path = tmp_path / "data_0.ckpt.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"x" * 100)))
    with pytest.raises(DrafttraceError):
        read_all(path)


# --- code in files -------------------------------------------------------------------------------------------


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def torch_zip(pickled: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_code_is_named_and_never_run(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pickled = pickle.dumps({"input_ids": Bomb(marker)}, protocol)
    torch_zip(pickled, tmp_path / "data_0.pt")
    with pytest.raises(UnreadableFile, match=r"wants to run '(posix|os)\.system'"):
        read_all(tmp_path / "data_0.pt")
    (tmp_path / "plain.pt").write_bytes(pickled)
    with pytest.raises(DrafttraceError):
        read_all(tmp_path / "plain.pt")
    legacy = io.BytesIO()
    torch.save({"a": Bomb(marker)}, legacy, _use_new_zipfile_serialization=False)
    (tmp_path / "old.pt").write_bytes(legacy.getvalue())
    with pytest.raises(UnreadableFile, match="wants to run"):
        read_all(tmp_path / "old.pt")
    assert not marker.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"c__builtin__\nexec\n(S'1'\ntR.",
        b"ctorch.storage\n_load_from_bytes\n(S'1'\ntR.",
        b"cnumpy.f2py.crackfortran\nmyeval\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
        b"ctorch._utils\n_rebuild_tensor_v2\n}S'__code__'\nNsb.",  # set an attribute of a function
        b"(i__main__\nBomb\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"ccollections\nOrderedDict\n)\x81.",
        b"\x80\x02I1\nQ.",
    ],
)
def test_other_ways_to_run_code(pickled: bytes, tmp_path: Path) -> None:
    torch_zip(pickled, tmp_path / "data_0.pt")
    with pytest.raises(UnreadableFile):
        read_all(tmp_path / "data_0.pt")


def tensor_pickle(size: tuple[int, ...], stride: tuple[int, ...], offset: int, count: int) -> bytes:
    """A pickled float tensor with any geometry."""

    class Storage:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", count) if isinstance(item, Storage) else None

    class Tensor:
        def __reduce__(self) -> tuple[Any, ...]:
            from torch._utils import _rebuild_tensor_v2

            return _rebuild_tensor_v2, (Storage(), offset, size, stride, False, {})

    stream = io.BytesIO()
    Pickler(stream, 2).dump({"input_ids": Tensor(), "hidden_state": Tensor(), "loss_mask": Tensor()})
    return stream.getvalue()


@pytest.mark.parametrize(
    ("size", "stride", "offset", "count"),
    [
        ((4, 4), (4, 1), 0, 400),  # storage larger than its bytes
        ((4, 4), (400, 1), 0, 16),  # stride past the end
        ((4, 4), (4, 1), 8, 16),  # offset past the end
        ((4, 4), (4, 1), -1, 16),
        ((-4, 4), (4, 1), 0, 16),
        ((4, 4), (-4, 1), 0, 16),
        ((1 << 40, 4), (0, 0), 0, 16),  # a few bytes repeated into more than memory
        ((1 << 62, 1 << 62), (0, 0), 0, 16),
        ((4,), (4, 1), 0, 16),
        (tuple([1] * 65), tuple([1] * 65), 0, 16),
    ],
)
def test_tensor_geometry_outside_its_storage(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "data_0.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", tensor_pickle(size, stride, offset, count))
        archive.writestr("archive/data/0", struct.pack("<16f", *range(16)))
    with pytest.raises(UnreadableFile):
        read_all(path)


def test_a_zip_member_that_points_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "data_0.pt"
    torch.save(made.sf_sample(), path)
    whole = bytearray(path.read_bytes())
    first = whole.find(b"PK\x01\x02")
    while first >= 0:
        whole[first + 42 : first + 46] = struct.pack("<I", 0xFFFFFF)
        first = whole.find(b"PK\x01\x02", first + 4)
    path.write_bytes(whole)
    with pytest.raises(UnreadableFile):
        read_all(path)


def test_a_compressed_torch_zip_is_read(tmp_path: Path) -> None:
    torch.save(made.sf_sample(), tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as source,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    one, two = read_all(tmp_path / "stored.pt"), read_all(tmp_path / "packed.pt")
    assert np.array_equal(one.slots[0].rows.floats(), two.slots[0].rows.floats())


def test_legacy_torch_files_are_read(tmp_path: Path) -> None:
    torch.save(made.sf_sample(), tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    capture = read_all(tmp_path / "old.ckpt")
    for k, slot in zip(made.CANON, capture.slots, strict=True):
        assert np.array_equal(slot.rows.floats(), made.state(k).float().numpy())


def test_numpy_arrays_inside_a_pickle_are_data(tmp_path: Path) -> None:
    sample = {"input_ids": made.tokens().numpy(), "hidden_state": made.state(1, dtype=torch.float32).numpy(),
              "loss_mask": made.loss_mask().numpy(), "n": np.float32(3)}  # fmt: skip
    torch_zip(
        pickle.dumps({k: sample[k] for k in ("input_ids", "hidden_state", "loss_mask")}, 2), tmp_path / "d.pt"
    )
    capture = read_all(tmp_path / "d.pt")
    assert capture.format == "EAGLE12-CKPT"
    assert capture.last is not None
    assert np.array_equal(capture.last.rows.floats(), made.state(1, dtype=torch.float32).numpy())


# --- folders -------------------------------------------------------------------------------------------------


def test_empty_things(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.pt").write_bytes(b"")
    for path, words in ((tmp_path / "folder", "no file that could be a dump"), (tmp_path / "empty.pt", "is empty"),
                        (tmp_path / "nowhere", "no file or folder")):  # fmt: skip
        with pytest.raises(DrafttraceError, match=words):
            read_all(path)


def test_symlink_loops(tmp_path: Path) -> None:
    (tmp_path / "a.pt").symlink_to(tmp_path / "b.pt")
    (tmp_path / "b.pt").symlink_to(tmp_path / "a.pt")
    with pytest.raises(DrafttraceError):
        read_all(tmp_path / "a.pt")
    made.write_spec_v1(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    capture = read_all(tmp_path)
    assert capture.format == "SPEC-V1"


def test_a_folder_of_mixed_formats_names_them(tmp_path: Path) -> None:
    made.write_spec_v1(tmp_path)
    made.write_sf_eagle3(tmp_path)
    with pytest.raises(UnknownFormat, match=r"mixes formats: SF-EAGLE3 .*data_0\.ckpt.*SPEC-V1 .*data_0\.pt"):
        read_all(tmp_path)


def test_a_stranger_among_many_files_is_found_when_it_is_asked_for(tmp_path: Path) -> None:
    for k in range(40):
        torch.save(made.sf_sample(), tmp_path / f"data_{k}.ckpt")
    torch.save(made.mo_sample(), tmp_path / "data_7.ckpt")
    assert read_all(tmp_path, sample=6).format == "SF-EAGLE3"
    with pytest.raises(UnknownFormat, match=r"'data_7\.ckpt' is MO-PT, the others are SF-EAGLE3"):
        read_all(tmp_path, sample=7)


def test_ambiguity_names_the_candidates(tmp_path: Path) -> None:
    value = {
        "input_ids": made.tokens(),
        "loss_mask": made.loss_mask(),
        "hidden_state": torch.zeros(1, made.LENGTH, 48),
    }
    torch.save(value, tmp_path / "data_0.ckpt")
    with pytest.raises(UnknownFormat, match=r"could be .*BALD-PLAIN.*SF-35504D45.*SF-LAST.*--format") as caught:
        read_all(tmp_path / "data_0.ckpt")
    assert "\n" not in str(caught.value)
    assert read_all(tmp_path / "data_0.ckpt", format="SF-LAST").last is not None
    three = read_all(tmp_path / "data_0.ckpt", Request(hidden_size=16))
    assert three.format == "SF-35504D45"


def test_a_wrong_extension_does_not_matter(tmp_path: Path) -> None:
    torch.save(made.sf_sample(), tmp_path / "data_0.safetensors")
    assert read_all(tmp_path / "data_0.safetensors").format == "SF-EAGLE3"
    path = made.write_vllm(tmp_path)
    path.rename(tmp_path / "x.pt")
    assert read_all(tmp_path / "x.pt").format == "VLLM-HS"


def test_missing_hidden_size_says_what_to_give(tmp_path: Path) -> None:
    path = made.write_sf_dflash(tmp_path)
    with pytest.raises(DrafttraceError, match="give --target DIR or --hidden-size H"):
        read_all(path)
    with pytest.raises(DrafttraceError, match="no multiple of the hidden size 7"):
        read_all(path, Request(hidden_size=7))


def test_unknown_format_name(tmp_path: Path) -> None:
    path = made.write_sf_eagle3(tmp_path)
    with pytest.raises(UnknownFormat, match="no format 'PARQUET'"):
        read_all(path, format="PARQUET")


# --- fuzz ----------------------------------------------------------------------------------------------------

# DRAFTTRACE_FUZZ=5000 looks longer, and elsewhere each time.
EXAMPLES = int(os.environ.get("DRAFTTRACE_FUZZ", "60"))
FUZZ = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES == 60
)


@FUZZ
@given(
    data=st.binary(min_size=0, max_size=400), name=st.sampled_from(["x.pt", "x.safetensors", "x.json", "hs_0.h5"])
)
def test_fuzz_any_bytes(data: bytes, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data)
    with contextlib.suppress(DrafttraceError):
        read_all(path)


@FUZZ
@given(data=st.binary(min_size=1, max_size=200))
def test_fuzz_any_pickle(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.pt"
    torch_zip(data, path)
    with contextlib.suppress(DrafttraceError):
        read_all(path)


shapes = st.lists(st.integers(0, 5), min_size=0, max_size=4)
kinds = st.sampled_from(
    [torch.bfloat16, torch.float32, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8]
)
tensors = st.builds(lambda shape, kind: torch.ones(shape, dtype=kind), shapes, kinds)
names = st.sampled_from(["input_ids", "token_ids", "hidden_states", "hidden_state", "aux_hidden_state", "loss_mask",
                         "aux_hidden_states", "target", "target_hiddens", "last_hidden_states", "conversation_id",
                         "attention_mask", "target_last_hidden_states", "last_hidden", "target_hidden_states", "batch",
                         "step", "packed_loss_mask", "hidden_states_prenorm", "hidden_states_scales"])  # fmt: skip
plain = st.one_of(
    st.none(), st.integers(), st.text(max_size=5), st.booleans(), tensors, st.lists(tensors, max_size=3)
)
dicts = st.dictionaries(names, st.one_of(plain, st.dictionaries(names, plain, max_size=4)), max_size=6)


@FUZZ
@given(value=st.one_of(dicts, st.lists(dicts, max_size=3), plain), hidden=st.sampled_from([None, 1, 2, 4]))
def test_fuzz_any_dict(value: Any, hidden: int | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz_dict.pt"
    torch.save(value, path)
    with contextlib.suppress(DrafttraceError):
        read_all(path, Request(hidden_size=hidden))


@FUZZ
@given(value=st.dictionaries(names, tensors, min_size=1, max_size=5))
def test_fuzz_any_safetensors(value: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    save_file({name: tensor.clone() for name, tensor in value.items()}, path)
    with contextlib.suppress(DrafttraceError):
        read_all(path)


json_values = st.recursive(
    st.one_of(st.none(), st.integers(-3, 70000), st.floats(allow_nan=True), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(
        ["meta_info", "hidden_states", "input_ids", "output_ids", "prompt_tokens", "input_token_logprobs"]), inner)),
    max_leaves=12,
)  # fmt: skip


@FUZZ
@given(value=json_values)
def test_fuzz_any_json(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_text(json.dumps({"meta_info": {"hidden_states": value}, "input_ids": value}))
    with contextlib.suppress(DrafttraceError):
        read_all(path)
    path.write_text(json.dumps(value) or "{}")
    with contextlib.suppress(DrafttraceError):
        read_all(path)
