"""The arrays of an ``.npz``, read in blocks. A compressed one is inflated when it is first read, not for its header."""

from __future__ import annotations

import math
import tokenize
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.dumps import torch_file
from drafttrace.tracer.dumps.file_tensor import FileSource, file_tensor
from drafttrace.tracer.dumps.pickle_values import BadPickle
from drafttrace.tracer.dumps.tensor import STORAGE, Array, Box, Source, Tensor, Unreadable
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes

_NPY_KINDS = {np.dtype(STORAGE[kind]): kind for kind in
              ("fp16", "fp32", "fp64", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
               "bool")}  # fmt: skip


class _OtherNumbers(UnreadableFile):
    """An array that is whole, and holds what no state is made of."""


def read_npy(path: Path, file: FileBytes, archive: zipfile.ZipFile, name: str) -> Tensor | Unreadable:
    """The array ``name`` of an archive. Raises UnreadableFile where it is damaged."""
    try:
        return _array(path, file, archive, name)
    except _OtherNumbers as error:
        return Unreadable(str(error))


def _array(path: Path, file: FileBytes, archive: zipfile.ZipFile, name: str) -> Tensor:
    info = archive.getinfo(name)
    if info.flag_bits & 1:
        raise UnreadableFile(f"The file '{path}' is encrypted; decrypt it first.")
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as stream:
            shape, fortran, kind = _header(path, name, stream)
            begin = stream.tell()
        _refuse_cut_off(path, name, shape, kind, begin, info.file_size)
        return Tensor.of(_Inflating(path, file, info, begin, shape, kind, _strides(shape, fortran, kind)), kind)
    try:
        member = torch_file.member_of(path, file, archive, info)
    except BadPickle as bad:
        raise _not_whole(path, bad) from None
    stored = member.file.stream(member.begin, member.begin + member.size)
    shape, fortran, kind = _header(path, name, stored)
    _refuse_cut_off(path, name, shape, kind, stored.tell(), member.size)
    return file_tensor(member.file, member.begin + stored.tell(), shape, kind, _strides(shape, fortran, kind))


class _Inflating(Source):
    """A compressed array. Its member is inflated, once for all arrays of that file, when something of it is read."""

    def __init__(
        self,
        path: Path,
        file: FileBytes,
        info: zipfile.ZipInfo,
        begin: int,
        shape: tuple[int, ...],
        kind: str,
        strides: Sequence[int] | None,
    ) -> None:
        self.shape = shape
        self._path, self._file, self._info = path, file, info
        self._begin, self._kind, self._strides = begin, kind, strides
        self._inner: FileSource | None = None

    def read(self, box: Box) -> Array:
        if self._inner is None:
            self._inner = self._inflated()
        return self._inner.read(box)

    def _inflated(self) -> FileSource:
        try:
            with zipfile.ZipFile(self._file.stream()) as archive:
                member = torch_file.member_of(self._path, self._file, archive, self._info)
        except BadPickle as bad:
            raise _not_whole(self._path, bad) from None
        except torch_file.ZIP_ERRORS as error:
            raise torch_file.damaged(self._path, torch_file.reason_of(error)) from None
        _refuse_cut_off(self._path, self._info.filename, self.shape, self._kind, self._begin, member.size)
        return FileSource(member.file, self._begin, self.shape, STORAGE[self._kind], self._strides)


def _not_whole(path: Path, bad: BadPickle) -> UnreadableFile:
    return UnreadableFile(f"The file '{path}' is no whole npz file ({bad}); copy or write it again.")


def _strides(shape: tuple[int, ...], fortran: bool, kind: str) -> list[int] | None:
    return [math.prod(shape[:axis]) * STORAGE[kind].itemsize for axis in range(len(shape))] if fortran else None


def _refuse_cut_off(path: Path, name: str, shape: tuple[int, ...], kind: str, begin: int, size: int) -> None:
    if any(axis < 0 for axis in shape) or begin + math.prod(shape) * STORAGE[kind].itemsize > size:
        raise UnreadableFile(f"Array '{name}' of '{path}' is cut off; copy or write it again.")


def _header(path: Path, name: str, stream: Any) -> tuple[tuple[int, ...], bool, str]:
    """Shape, whether the first axis is the innermost, and the number format."""
    shape, fortran, dtype = _npy_header(path, name, stream)
    if dtype.hasobject or dtype.newbyteorder("<") not in _NPY_KINDS:
        raise _OtherNumbers(
            f"Array '{name}' of '{path}' has the number format {dtype}, which drafttrace cannot read; save it as "
            "float16, float32 or int64."
        )
    if dtype.byteorder == ">":
        raise _OtherNumbers(f"Array '{name}' of '{path}' is big-endian; save it in little-endian order.")
    return shape, fortran, _NPY_KINDS[dtype.newbyteorder("<")]


# numpy reads the header with Python's own tokenizer and parser, which raise what they like.
_HEADER_ERRORS = (ValueError, TypeError, SyntaxError, EOFError, KeyError, AttributeError, tokenize.TokenError,
                  RecursionError, OverflowError, MemoryError)  # fmt: skip


def _npy_header(path: Path, name: str, stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    form: Any = np.lib.format
    try:
        version = form.read_magic(stream)
        reader = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
        return tuple(shape), bool(fortran), dtype
    except _HEADER_ERRORS as error:
        raise UnreadableFile(
            f"Array '{name}' of '{path}' has no readable header ({torch_file.reason_of(error)}); save it again."
        ) from None
