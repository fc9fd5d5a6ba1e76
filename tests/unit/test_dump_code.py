"""Code in files: named, and never run."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_reading import read_all

from drafttrace.tracer.errors import DrafttraceError, UnreadableFile


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
