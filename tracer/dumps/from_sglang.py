"""What SGLang's ``--debug-tensor-dump-output-folder`` writes of a forward pass: ``Pass*.pt``.

Source: SGLang ``srt/debug_utils/tensor_dump_forward_hook.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.document import Document, open_document
from drafttrace.tracer.dumps.registry import Layout, Request, register
from drafttrace.tracer.dumps.sglang_passes import LENGTHS, NEEDED, Batch, batch_of, pass_capture
from drafttrace.tracer.dumps.sglang_processes import (
    about_draft,
    missing_beside,
    of_one_run,
    other_stages,
    rank_of,
    ranks_beside,
    refuse_draft,
)
from drafttrace.tracer.dumps.sglang_states import LAYER
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnreadableFile


def _field_ending(value: Mapping[str, Any], ending: str) -> Tensor | None:
    for name, item in value.items():
        if isinstance(name, str) and name.endswith(ending) and isinstance(item, Tensor):
            return item
    return None


def _detect_pass(document: Document, _request: Request) -> str | None:
    if not isinstance(document.value, dict):
        return None
    if _field_ending(document.value, ".forward_batch_info.input_ids") is None:
        return None
    return "a dict of module outputs with forward_batch_info.input_ids (--debug-tensor-dump-output-folder)"


def _batch_of(document: Document) -> Batch:
    """Raises UnreadableFile for a pass without its input_ids or positions."""
    value = document.value if isinstance(document.value, dict) else {}
    found = {name: _field_ending(value, f".forward_batch_info.{name}") for name in (*NEEDED, LENGTHS)}
    missing = next((name for name in NEEDED if found[name] is None), None)
    if missing is not None:
        raise UnreadableFile(
            f"The field 'forward_batch_info.{missing}' of '{document.path}' is missing or None; read the file without "
            "--format, or dump the pass again."
        )
    return batch_of(document.path, found, f"'{document.path}'")


def _outputs(document: Document) -> dict[str, list[Tensor]]:
    outputs: dict[str, list[Tensor]] = {}
    for name, item in document.value.items():
        tensors = [item] if isinstance(item, Tensor) else item if isinstance(item, list) else []
        outputs[str(name)] = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    return outputs


def _joined(path: Path, outputs: dict[str, list[Tensor]], batch: Batch) -> list[str]:
    """Add to ``outputs`` what the other stages of a pipeline wrote of the same pass, and say so.

    Raises UnreadableFile where the stages do not fit: other tokens, or a layer that two of them have.
    """
    own = {name for name in outputs if LAYER.search(name)}
    others = other_stages(path)
    for other in others:
        document = open_document(other)
        theirs = _batch_of(document)
        more = _outputs(document)
        same = np.array_equal(theirs.tokens, batch.tokens) and np.array_equal(theirs.positions, batch.positions)
        twice = sorted(name for name in more if name in own)
        if not same or twice:
            why = f"{twice[0]} is in both" if same else "their tokens differ"
            raise UnreadableFile(
                f"'{path}' and '{other}' are of two stages of a pipeline and do not belong together ({why}); move the one "
                "that is of another run away."
            )
        own |= {name for name in more if LAYER.search(name)}
        outputs.update((name, tensors) for name, tensors in more.items() if name not in outputs)
    names = ", ".join(f"'{other.parent.name}'" for other in others)
    return [f"joined with the layers that other stages of the pipeline wrote: {names}"] if others else []


def _read_pass(document: Document, inner: int, request: Request) -> Capture:
    why = build.recognised(_detect_pass, document, request)
    batch, path = _batch_of(document), document.path
    outputs = _outputs(document)
    refuse_draft(path, outputs)
    notes = _joined(path, outputs, batch)
    made = pass_capture(path, "SG-PASS", why, outputs, batch, inner, request)
    rank, ranks = rank_of(path), ranks_beside(path)
    if rank is not None and ranks > 1:
        notes.insert(0, f"rank {rank} of {ranks} ranks")
    if rank is not None and not request.tokens_only:
        notes += missing_beside(path)
    return replace(made, notes=(*made.notes, *notes, *about_draft(path)))


register(
    Layout(
        "SG-PASS",
        "SGLang's own dumps",
        "SGLang --debug-tensor-dump-output-folder",
        _detect_pass,
        _read_pass,
        lambda document: max(1, len(_batch_of(document).runs)),
        several=True,
        ids="B(id)",
        of_run=of_one_run,
    )
)
