"""Hypothesis damages a real file of every layout, and of every container that a mapped file may come in.

Any one file of the layout is hit: states, manifests, configs, Arrow tables, compressed ones. Reading gives a capture or
one sentence; anything else, and anything that hangs, fails the test.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dump_layouts as made
import h5py
import numpy as np
import pytest
from dump_layouts import CASES, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from drafttrace.tracer.dumps.registry import FieldMap, Request, format_ids
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture

# Every run of the same code sees the same examples: a crash that one run of CI finds and the next does not would stop
# whoever comes by, and not who made it. DRAFTTRACE_FUZZ=2000 looks longer and elsewhere each time, and prints how to
# repeat what fails.
EXAMPLES = int(os.environ.get("DRAFTTRACE_FUZZ", "50"))
BUDGET = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="DRAFTTRACE_FUZZ" not in os.environ,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
IDS = [f"{index}-{case.id}" for index, case in enumerate(CASES)]
MAP = FieldMap(slots=("a", "b"), tokens="ids", last="last")


@dataclass(frozen=True)
class Edit:
    """Bytes put at a place of a file (0 to 1 of its length), over what is there or in between, or its end cut off."""

    place: float
    data: bytes
    kind: str

    def apply(self, whole: bytes) -> bytes:
        at = int(self.place * len(whole))
        if self.kind == "cut":
            return whole[:at]
        skip = len(self.data) if self.kind == "over" else 0
        return whole[:at] + self.data + whole[at + skip :]


# Headers stand at the beginning and directories at the end: half of the edits go there.
places = st.one_of(st.floats(0, 1), st.floats(0, 0.02), st.floats(0.95, 1))
odd_bytes = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from(
        [b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7, b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}"]
    ),
)
edits = st.lists(
    st.builds(Edit, places, odd_bytes, st.sampled_from(["over", "over", "between", "cut"])), min_size=1, max_size=4
)


def read_or_refuse(path: Path, request: Request | None = None, **arguments: Any) -> None:
    """Read every byte of a capture; a refusal is one sentence."""
    try:
        capture = open_capture(str(path), request=request, **arguments)
        for slot in capture.slots:
            slot.rows.floats()
        if capture.last is not None:
            capture.last.rows.floats()
    except DrafttraceError as error:
        text = str(error)
        assert text and "\n" not in text and text.endswith((".", "?")) and len(text) < 900, text


def damage(data: st.DataObject, victim: Path, whole: bytes) -> None:
    """Write the file anew with edits that Hypothesis draws."""
    changed = whole
    for edit in data.draw(edits):
        changed = edit.apply(changed)
    victim.write_bytes(changed)


@pytest.mark.parametrize("case", CASES, ids=IDS)
@BUDGET
@given(data=st.data())
def test_a_damaged_file_of_every_layout(
    case: Case, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("fuzz")
    path = case.write(root)
    victim = data.draw(st.sampled_from(sorted(p for p in root.rglob("*") if p.is_file())))
    damage(data, victim, victim.read_bytes())
    name = data.draw(st.one_of(st.none(), st.sampled_from(format_ids())))
    sample = 0 if case.id.startswith("TS-") or name is not None else None
    read_or_refuse(path, Request(**case.request), sample=sample, format=name)


def write_mapped(path: Path) -> None:
    """A file of no known layout, with its fields."""
    fields = {name: made.state(k).float().numpy() for k, name in ((1, "a"), (4, "b"), (8, "last"))}
    fields["ids"] = made.tokens().numpy().astype(np.int64)
    if path.suffix == ".npz":
        np.savez(path, **fields)
    elif path.suffix == ".safetensors":
        save_file(fields, path)
    else:
        with h5py.File(path, "w") as file:
            for number, (name, values) in enumerate(fields.items()):
                file.create_dataset(name, data=values, chunks=True if number % 2 else None)


@pytest.mark.parametrize("name", ["mine.h5", "mine.npz", "mine.safetensors"])
@BUDGET
@given(data=st.data())
def test_a_damaged_file_with_named_fields(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / name
    write_mapped(path)
    read_or_refuse(path, mapping=MAP)  # as it is, it can be read
    damage(data, path, path.read_bytes())
    read_or_refuse(path, mapping=MAP)


TRACE = Path(__file__).resolve().parents[2] / "traces/tiny-llama/healthy.h5"


@BUDGET
@given(data=st.data())
def test_a_damaged_trace(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace.h5"
    damage(data, path, TRACE.read_bytes())
    try:
        capture = open_capture(str(path), format=data.draw(st.one_of(st.none(), st.sampled_from(format_ids()))))
        for slot in capture.slots:
            slot.rows.floats()
    except DrafttraceError as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 900
