"""What stands once beside the samples of a folder: the layer ids of speculators v1, the Arrow table of speculators."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from drafttrace.tracer.boundary import boundary_name, wiring_name
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.convert_place import refuse_config_above
from drafttrace.tracer.convert_sample import Sample, give_up, kept_mask, layer_ids_of, refuse
from drafttrace.tracer.dumps.tensor import Array
from drafttrace.tracer.errors import DrafttraceError

_BATCH_TOKENS = 1 << 20  # of one record batch: 16 MiB


class Companions:
    """Told of every sample in the order of its number, before its file is written; this one has nothing to say.

    ``add`` raises DrafttraceError for a sample that does not go with those before it. ``finish`` gives the names of
    what was written. ``close`` may come at any time, and twice.
    """

    FILES: ClassVar[tuple[str, ...]] = ()
    """The names of what may be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, number: int, source: Sample) -> None:
        """The sample ``number``."""

    def finish(self) -> list[str]:
        return []

    def close(self) -> None:
        """Let go of open files."""


class LayerIds(Companions):
    """``data_config.json``: one list of layer ids O(id) for every sample of the folder, the last state's at its end.

    Of a source that has such a file, what that says of the model and the data stays.
    """

    FILES = ("data_config.json",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ids: list[int] | None = None
        self._first: int | None = None
        self._count = 0
        self._config: dict[str, Any] = {}

    def add(self, number: int, source: Sample) -> None:
        ids = layer_ids(source)
        self._count += 1
        if ids is None:
            refuse_config_above(self.folder)
        if self._first is None:
            self._first, self._ids = number, ids
            told = source.capture.about.get("data_config")
            self._config = dict(told) if isinstance(told, dict) else {}
        elif ids != self._ids:
            raise DrafttraceError(
                f"'{source.capture.path}' has {_declared(ids)}, and sample #{self._first} {_declared(self._ids)}, where "
                "the speculators v1 layout has one data_config.json for all; convert them into folders of their own, or "
                "give the declarations up with --lose layer-ids."
            )

    def finish(self) -> list[str]:
        if self._ids is None:
            return []
        config = {"version": "2.0", "format": {"data_format_version": 1}, **self._config}
        states, data = config.get("hidden_states"), config.get("data")
        config["hidden_states"] = {**(states if isinstance(states, dict) else {}), "layer_ids": self._ids}
        if isinstance(data, dict) and "num_samples" in data:
            config["data"] = {**data, "num_samples": self._count}
        (self.folder / self.FILES[0]).write_text(json.dumps(config, indent=1) + "\n", "utf-8")
        return list(self.FILES)


def layer_ids(source: Sample) -> list[int] | None:
    """The ids to declare, None for none. Raises DrafttraceError where only some slots have one."""
    capture = source.capture
    known = [k for k in capture.wiring if k is not None]
    if known and len(known) != len(capture.slots):
        why = "only some of its slots have one"
        refuse(source, "layer-ids", "The speculators v1 layout", why, layer_ids_of(source))
        return None
    if known and "layer-ids" in source.lose:
        give_up(source, layer_ids_of(source))
    if not known or "layer-ids" in source.lose:
        return None
    last = capture.last.boundary if capture.last is not None else None
    n = last if last is not None else source.layers
    stored = [*known, *((n,) if n is not None else ())]
    if stored != sorted(
        stored
    ):  # whoever reads such a list takes it for that of ascending layers, as its writer stores them
        raise DrafttraceError(
            f"The speculators v1 layout stores layers in ascending order, whatever the order of their ids, and "
            f"'{capture.path}' has {wiring_name(known)}"
            f"{f', then {boundary_name(n)} as its last state' if n is not None else ''}; choose --to safetensors, or give "
            "the declarations up with --lose layer-ids."
        )
    return [k - 1 for k in stored]


def _declared(ids: list[int] | None) -> str:
    return "no layer ids" if ids is None else f"the layer ids {ids}"


class ArrowTable(Companions):
    """The dataset that ``datasets.load_from_disk`` reads: row i has input_ids, loss_mask and seq_len of ``hs_{i}``.

    Written batch by batch: the tokens of a whole training set are never in memory. Without masks there is none.
    """

    FILES = ("data-00000-of-00001.arrow", "dataset_info.json", "state.json")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._first: int | None = None
        self._masked = False
        self._writer: Any = None
        self._sink: Any = None
        self._waiting: list[tuple[Ints, Ints]] = []
        self._fingerprint = hashlib.sha256()

    def add(self, number: int, source: Sample) -> None:
        mask = kept_mask(source)
        if self._first is None:
            self._first, self._masked = number, mask is not None
            if mask is not None:
                self._open()
        elif self._masked is not (mask is not None):
            here, there = ("a", "none") if mask is not None else ("no", "one")
            raise DrafttraceError(
                f"'{source.capture.path}' has {here} loss mask, and sample #{self._first} has {there}, where the "
                "speculators layout has one Arrow table for all; give --mask-ones, or give them up with --lose loss-mask."
            )
        if mask is None:
            return
        tokens = np.ascontiguousarray(source.tokens, np.int64)
        self._fingerprint.update(tokens.tobytes())
        self._waiting.append((tokens, np.ascontiguousarray(mask, np.int64)))
        if sum(len(held) for held, _mask in self._waiting) >= _BATCH_TOKENS:
            self._write_batch()

    def finish(self) -> list[str]:
        if not self._masked:
            return []
        self._write_batch()
        self.close()
        fields = {name: {"feature": _VALUE, "_type": "List"} for name in _COLUMNS[:2]}
        info = {"features": {**fields, _COLUMNS[2]: _VALUE}}
        state: dict[str, Any] = {
            "_data_files": [{"filename": self.FILES[0]}],
            "_fingerprint": self._fingerprint.hexdigest()[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        for name, value in zip(self.FILES[1:], (info, state), strict=True):
            (self.folder / name).write_text(json.dumps(value, indent=1) + "\n", "utf-8")
        return list(self.FILES)

    def close(self) -> None:
        for open_file in (self._writer, self._sink):
            if open_file is not None:
                with contextlib.suppress(OSError):
                    open_file.close()
        self._writer = self._sink = None

    def _open(self) -> None:
        try:
            import pyarrow as pa
        except ImportError:
            raise DrafttraceError(
                "The loss mask of the speculators layout lies in an Arrow table, and pyarrow is not installed; pip install "
                "pyarrow, or give the mask up with --lose loss-mask."
            ) from None
        numbers = pa.list_(pa.int64())
        schema = pa.schema(list(zip(_COLUMNS, (numbers, numbers, pa.int64()), strict=True)))
        self._sink = pa.OSFile(str(self.folder / self.FILES[0]), "wb")
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def _write_batch(self) -> None:
        if not self._waiting:
            return
        import pyarrow as pa

        lengths = np.array([len(tokens) for tokens, _mask in self._waiting], np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        columns = [
            pa.ListArray.from_arrays(_array(pa, offsets), _array(pa, np.concatenate(parts)))
            for parts in zip(*self._waiting, strict=True)
        ]
        columns.append(_array(pa, lengths))
        self._writer.write_batch(pa.record_batch(columns, names=_COLUMNS))
        self._waiting = []


_COLUMNS = ("input_ids", "loss_mask", "seq_len")
_VALUE = {"dtype": "int64", "_type": "Value"}


def _array(pa: Any, values: Array) -> Any:
    """A numpy array as Arrow's, without its detour over pandas, which takes half a second to import."""
    kind = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
