"""Weights of a model folder, read without loading them: safetensors headers, memory maps, shard index.

A folder holds either ``*.safetensors`` files, with or without ``model.safetensors.index.json``, or the older
``pytorch_model*.bin``. Headers are checked strictly (size, dtype, shape against bytes, gaps, overlaps, file
length), because files come from strangers; nothing in them is executed. Headers are read only of the shards that
hold a tensor somebody asks for, so a 200-shard target costs three small reads.

Format source: the safetensors README (8-byte little-endian length, JSON, data without holes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes
from drafttrace.tracer.log import say
from drafttrace.tracer.report_file import where_json_breaks
from drafttrace.tracer.rows import DType, Floats, to_float32
from drafttrace.tracer.torch_weights import load_problem as load_problem
from drafttrace.tracer.torch_weights import load_tensors, stored_array

HEADER_LIMIT = 50_000_000
"""Bytes of JSON that a header may have. The format allows 100 MB; 50 MB already name 400,000 tensors."""

_POINTER = 1024
"""Bytes; a pointer of Git LFS is shorter, and a header that begins like one would be longer than any."""

INDEX_NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

_FLOATS = {
    "BF16": DType.BF16,
    "F16": DType.FP16,
    "F32": DType.FP32,
    "F64": DType.FP64,
    "F8_E4M3": DType.FP8_E4M3,
    "F8_E5M2": DType.FP8_E5M2,
}
_OTHERS: dict[str, Any] = {
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_TORCH_NAMES = {
    "torch.bfloat16": "BF16",
    "torch.float16": "F16",
    "torch.float32": "F32",
    "torch.float64": "F64",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: ``begin..end`` are bytes from the start of ``file``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def float_dtype(self) -> DType | None:
        """The number format as :class:`DType`; None for integers and booleans."""
        return _FLOATS.get(self.dtype)

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The numpy dtype of the stored elements: unsigned integers where numpy has no such float."""
        kind = _FLOATS.get(self.dtype)
        return kind.storage if kind is not None else np.dtype(_OTHERS[self.dtype])


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises UnreadableFile for anything that is none."""
    _refuse_special(path)
    say("%s: read", path)
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read ({error.strerror or error}); check the path.") from error
    except (ValueError, RecursionError) as error:
        where = where_json_breaks(error)
        raise UnreadableFile(f"{path} is no valid JSON ({where}); write it again or copy it anew.") from error
    if not isinstance(value, dict):
        raise UnreadableFile(f"{path} holds a JSON {type(value).__name__}, expected an object; copy it anew.")
    return value


def _refuse_special(path: Path) -> None:
    """A pipe would be waited for without end, a device read without end."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or pipe"
        raise UnreadableFile(f"{path} is {kind} and no file; put the model's own file there.")


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of one safetensors file, by name, in the order of the header.

    Raises UnreadableFile where the header is no header, names a type or range that cannot be, leaves holes or
    overlaps, or where the file's length is not what the header says (a download that was cut off).
    """
    _refuse_special(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(8)
            length = int.from_bytes(first, "little") if size >= 8 else -1
            if first == b"version " and size < _POINTER:
                raise UnreadableFile(f"{path} is a pointer of Git LFS and not the file itself; run git lfs pull.")
            if length < 0:
                raise UnreadableFile(f"{path} has {size} bytes, too few for a safetensors file; copy it again.")
            if length > HEADER_LIMIT:
                raise UnreadableFile(
                    f"{path} claims a header of {length:,} bytes (limit {HEADER_LIMIT:,}), "
                    "so it is damaged or no safetensors file; copy it again."
                )
            if 8 + length > size:
                raise UnreadableFile(
                    f"{path} claims a header of {length:,} bytes but has only {size:,} bytes; copy it again."
                )
            text = file.read(length)
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read ({error.strerror or error}); check the path.") from error
    try:
        entries = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(
            f"{path} has a header that is no JSON ({where_json_breaks(error)}); copy it again."
        ) from error
    if not isinstance(entries, dict):
        raise UnreadableFile(f"{path} has a header that is no JSON object; copy it again.")
    entries.pop("__metadata__", None)
    found = {name: _entry(path, name, entry, 8 + length) for name, entry in entries.items()}
    _check_layout(path, found, 8 + length, size)
    return found


def _entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    """One header entry, checked. ``base`` is the byte at which the data section begins."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError) as error:
        raise UnreadableFile(
            f"{path} describes tensor '{name}' without dtype, shape and data_offsets; copy it again."
        ) from error
    if any(type(number) is not int or number < 0 for number in numbers) or end < begin:
        raise UnreadableFile(
            f"{path} gives tensor '{name}' the impossible shape {shape} or range {begin}..{end}; copy it again."
        )
    if not isinstance(dtype, str) or (dtype not in _FLOATS and dtype not in _OTHERS):
        raise UnreadableFile(
            f"{path} stores tensor '{name}' as {dtype!r}, a number format drafttrace cannot read; "
            "convert the checkpoint to bf16."
        )
    info = TensorInfo(name, dtype, tuple(shape), path, base + begin, base + end)
    if math.prod(info.shape) * info.storage.itemsize != info.nbytes:
        raise UnreadableFile(
            f"{path} gives tensor '{name}' {info.nbytes} bytes, but {dtype} {list(shape)} needs "
            f"{math.prod(info.shape) * info.storage.itemsize}; copy it again."
        )
    return info


def _check_layout(path: Path, found: Mapping[str, TensorInfo], base: int, size: int) -> None:
    """The data section must be covered once, without holes, to the end of the file."""
    at = base
    for info in sorted(found.values(), key=lambda item: (item.begin, item.end)):
        if info.begin < at:
            raise UnreadableFile(
                f"{path} lets tensor '{info.name}' overlap the one before it by {at - info.begin} bytes; "
                "copy it again."
            )
        if info.begin > at:
            raise UnreadableFile(
                f"{path} leaves {info.begin - at} bytes unused before tensor '{info.name}'; copy it again."
            )
        at = info.end
    if at != size:
        state = "cut off" if at > size else "longer than its header says"
        raise UnreadableFile(
            f"{path} is {state}: its header describes {at:,} bytes, it has {size:,}; copy it again."
        )


class Checkpoint:
    """The tensors of a model folder, by name.

    ``root`` is the folder, ``files`` its weight files, ``index`` the shard index (None where there is none).
    Nothing is read before it is asked for.
    """

    def __init__(self, root: Path, files: tuple[Path, ...], index: Path | None, where: Mapping[str, Path]) -> None:
        self.root = root
        self.files = files
        self.index = index
        self._where = where
        self._headers: dict[Path, dict[str, TensorInfo]] = {}
        self._loaded: dict[Path, dict[str, Any]] = {}
        self._opened: dict[Path, FileBytes] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def header(self, file: Path) -> dict[str, TensorInfo]:
        """The tensors of one file of this checkpoint, read once."""
        if file not in self._headers:
            if file.suffix == ".safetensors":
                self._headers[file] = read_header(file)
            else:
                _refuse_special(file)
                self._loaded[file] = load_tensors(file)
                self._headers[file] = {
                    name: _torch_info(file, name, tensor) for name, tensor in self._loaded[file].items()
                }
        return self._headers[file]

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor, by the names alone. Raises KeyError for a name the checkpoint does not have."""
        return self._where[name]

    def info(self, name: str) -> TensorInfo:
        """Dtype, shape and place of one tensor. Raises KeyError for a name the checkpoint does not have."""
        file = self._where[name]
        if file not in self._headers and not file.is_file():
            raise UnreadableFile(
                f"{self.root} lacks the shard '{file.name}', which holds '{name}'; fetch that file."
            )
        try:
            return self.header(file)[name]
        except KeyError:
            raise UnreadableFile(
                f"{self.index} says that '{name}' is in {file.name}, which does not hold it; "
                "fetch the checkpoint again."
            ) from None

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """One tensor as a read-only memory map in storage form (bf16 as uint16), shape as stored."""
        info = self.info(name)
        if info.file in self._loaded:
            return stored_array(self._loaded[info.file][name])
        if info.nbytes == 0:
            return np.empty(info.shape, info.storage)
        flat = np.memmap(info.file, np.uint8, "r", offset=info.begin, shape=(info.nbytes,))
        return np.ndarray(info.shape, info.storage, flat.data)

    def floats(self, name: str, index: Any = None) -> Floats:
        """One tensor, or ``tensor[index]``, as float32. Raises UnreadableFile for integers and booleans."""
        info = self.info(name)
        kind = info.float_dtype
        if kind is None:
            raise UnreadableFile(f"{info.file} stores '{name}' as {info.dtype}, no floating point; copy it again.")
        return to_float32(self._read(info, index), kind)

    def _read(self, info: TensorInfo, index: Any) -> npt.NDArray[np.generic]:
        """A tensor, or rows of it, read and not mapped: a download that starts anew would kill the process."""
        if info.file in self._loaded or info.nbytes == 0 or isinstance(index, tuple):
            raw = self.array(info.name)
            return raw if index is None else raw[index]
        file = self._opened.setdefault(info.file, FileBytes(info.file))
        if index is None:
            return file.read(info.begin, info.nbytes).view(info.storage).reshape(info.shape)
        rows = np.arange(info.shape[0])[index]
        size = info.nbytes // info.shape[0]
        out = np.empty(size * rows.size, np.uint8)
        if rows.size and rows.ndim and (np.diff(rows.reshape(-1)) == 1).all():
            file.gather(out, [info.begin + int(rows.flat[0]) * size], size * rows.size)
        else:
            file.gather(out, (info.begin + int(row) * size for row in rows.reshape(-1)), size)
        return out.view(info.storage).reshape(*rows.shape, *info.shape[1:])

    def tensor(self, name: str) -> Any:
        """One tensor as a torch tensor over the memory map (no copy; read-only by contract)."""
        import warnings

        import torch

        info = self.info(name)
        if info.file in self._loaded:
            return self._loaded[info.file][name]
        raw = self.array(name)
        if info.dtype in {"U16", "U32", "U64"}:
            return torch.from_numpy(raw.astype(np.int64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "array is not writable": nothing here writes
            flat = torch.from_numpy(raw.view(np.int16) if info.dtype == "BF16" else raw)
        kinds = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
        return flat.view(kinds[info.dtype]) if info.dtype in kinds else flat


def open_checkpoint(root: Path, *, partly: bool = False) -> Checkpoint:
    """The checkpoint in a model folder.

    Raises UnreadableFile where the folder is none, has no weights, or its index names a file that is not there.
    """
    if not root.is_dir():
        raise UnreadableFile(f"{root} is no folder; give the folder that holds config.json and the weights.")
    for name in INDEX_NAMES:
        if (root / name).is_file():
            return _from_index(root, root / name, partly)
    plain = tuple(sorted(root.glob("*.safetensors"))) or tuple(sorted(root.glob("pytorch_model*.bin")))
    if not plain:
        raise UnreadableFile(
            f"{root} holds no *.safetensors and no pytorch_model*.bin; give the folder that holds the weights."
        )
    empty = Checkpoint(root, plain, None, {})
    where: dict[str, Path] = {}
    for file in plain:
        for name in empty.header(file):
            if name in where:
                raise UnreadableFile(
                    f"{root} has tensor '{name}' in {where[name].name} and in {file.name}; remove the stale file."
                )
            where[name] = file
    empty._where = where
    return empty


def _from_index(root: Path, index: Path, partly: bool) -> Checkpoint:
    """A sharded checkpoint: every shard must be there (``partly``: those asked for), headers are read later."""
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise UnreadableFile(f"{index} has no weight_map; fetch the checkpoint again.")
    where: dict[str, Path] = {}
    shards: dict[str, Path] = {}
    for name, shard in mapping.items():
        path = shards.get(shard) if isinstance(shard, str) else None
        if path is None:
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise UnreadableFile(
                    f"{index} places '{name}' in {shard!r}, no file of its own folder; fetch the checkpoint again."
                )
            path = shards[shard] = root / shard
        where[name] = path
    missing = [shard for shard, path in shards.items() if not path.is_file()]
    if missing and not (partly and len(missing) < len(shards)):
        raise UnreadableFile(
            f"{root} lacks {len(missing)} of {len(shards)} shards that its index names, first '{min(missing)}'; "
            "fetch the missing files."
        )
    return Checkpoint(root, tuple(shards[name] for name in sorted(shards)), index, where)


def _torch_info(file: Path, name: str, tensor: Any) -> TensorInfo:
    kind = _TORCH_NAMES.get(str(tensor.dtype))
    if kind is None:
        raise UnreadableFile(f"{file} stores '{name}' as {tensor.dtype}; convert the checkpoint to bf16.")
    return TensorInfo(name, kind, tuple(tensor.shape), file, 0, tensor.numel() * tensor.element_size())
