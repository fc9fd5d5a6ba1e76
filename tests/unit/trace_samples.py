"""Small traces for the tests of the trace file. Values are bit patterns, so that equality means bit equality."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Accepted, Phase, Probe
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.writer import TraceWriter

H = 16
PROMPT = 11
ROUNDS = 3
WIDE = 4  # rows of one verify pass
WIRING = {
    "boundaries": [2, 30, 58],
    "ids": [2, 30, 58],
    "source": "draft config eagle_config.eagle_aux_hidden_state_layer_ids",
    "rule": "raw",
    "n": 61,
    "model_class": "DeepseekV3ForCausalLM",
}
LAYOUT = TraceLayout(
    target=tuple(TensorSpec(name, H, DType.BF16) for name in ("aux/0", "aux/1", "aux/2", "embed", "last")),
    draft=(
        TensorSpec("hidden_in", 3 * H, DType.BF16),
        TensorSpec("fc_in", 3 * H, DType.BF16),
        TensorSpec("topk/ids", 2, "int64"),
        TensorSpec("topk/draft_ids", 2, "int32"),
        TensorSpec("topk/logits", 2, DType.FP32),
    ),
)
TOKENS = np.random.default_rng(7).integers(0, 150_000, PROMPT + 2 * ROUNDS + 1)


def bits(shape: tuple[int, ...], seed: int, dtype: DType = DType.BF16) -> npt.NDArray[Any]:
    """Random bit patterns in storage form: every NaN payload, infinity and subnormal may come."""
    size = int(np.prod(shape)) * dtype.storage.itemsize
    raw = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return raw.view(dtype.storage).reshape(shape)


def target_frame(index: int) -> tuple[schema.Records, dict[str, npt.NDArray[Any]]]:
    """Frame 0 is the prefill; frame r + 1 the verify pass of round r, of whose rows the first two are accepted."""
    if index == 0:
        rows = schema.records(
            schema.TARGET_ROW,
            PROMPT,
            position=np.arange(PROMPT),
            token_id=TOKENS[:PROMPT],
            phase=Phase.PREFILL,
            accepted=Accepted.ACCEPTED,
            live_rows=PROMPT,
            padded_rows=PROMPT,
        )
    else:
        start = PROMPT + 2 * (index - 1)
        position = np.arange(start, start + WIDE)
        right = np.arange(WIDE) < 2
        rows = schema.records(
            schema.TARGET_ROW,
            WIDE,
            position=position,
            token_id=np.where(right, TOKENS[np.minimum(position, len(TOKENS) - 1)], 1),
            phase=Phase.VERIFY,
            round=index - 1,
            accepted=np.where(right, Accepted.ACCEPTED, Accepted.REJECTED),
            frame=index,
            graph=schema.GRAPH_REPLAY,
            source=schema.SOURCE_GRAPH_BUFFER,
            live_rows=WIDE,
            padded_rows=8,
        )
    tensors = {
        spec.name: bits((len(rows), spec.width), 100 * index + place, DType(str(spec.dtype)))
        for place, spec in enumerate(LAYOUT.target)
    }
    return rows, tensors


def draft_frame(index: int) -> tuple[schema.Records, dict[str, npt.NDArray[Any]]]:
    """The draft extend that follows target frame ``index``: it has no ``hidden_in`` and its ids are small."""
    target, _ = target_frame(index)
    phase = Phase.DRAFT_EXTEND_PREFILL if index == 0 else Phase.DRAFT_EXTEND_VERIFY
    rows = schema.records(
        schema.DRAFT_ROW,
        len(target),
        position=target["position"],
        token_id=target["token_id"],
        phase=phase,
        round=index - 1,
        frame=index,
        step=0,
    )
    pairs = np.arange(2 * len(rows)).reshape(-1, 2)
    return rows, {
        "fc_in": bits((len(rows), 3 * H), 1000 + index),
        "topk/ids": (pairs + 7).astype(np.int64),
        "topk/draft_ids": pairs.astype(np.int32),
        "topk/logits": bits((len(rows), 2), 2000 + index, DType.FP32),
    }


def open_writer(path: Path, layout: TraceLayout = LAYOUT, **options: Any) -> TraceWriter:
    """A writer with the about blocks that the hooks would give."""
    about = {"wiring": WIRING, "server_args": {"model_path": "target", "api_key": "hush"}}
    return TraceWriter(path, layout, **({"request_id": "dt-1", "about": about} | options))


def write_sample(path: Path, *, rounds: int = ROUNDS, finish: bool = True, **ending: Any) -> Path:
    """A whole trace at ``path``: the prefill and ``rounds`` rounds."""
    writer = open_writer(path)
    for index in range(rounds + 1):
        writer.append_target(*target_frame(index))
        writer.append_draft(*draft_frame(index))
        writer.flush()
    if finish:
        probes = [Probe("target.aux", rounds + 1, rounds + 1, writer.target_rows, 0)]
        options: Mapping[str, Any] = {
            "complete": True,
            "tokens": TOKENS,
            "prompt_length": PROMPT,
            "about": {"request": {"text": "the answer", "accept_lengths": [2] * rounds}},
            "probes": probes,
        } | ending
        writer.finish(**options)
    else:
        writer.close()
    return path


def expected(name: str, rounds: int = ROUNDS) -> npt.NDArray[Any]:
    """What a sample trace holds for the target tensor ``name``."""
    return np.concatenate([target_frame(index)[1][name] for index in range(rounds + 1)])
