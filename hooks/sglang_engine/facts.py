"""What a trace says about the server it was recorded on: versions, arguments, configs, widths."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import drafttrace
from drafttrace.hooks.place import Place
from drafttrace.hooks.plan import DraftFacts, ModelFacts
from drafttrace.hooks.sglang_engine import weights, wiring
from drafttrace.hooks.sglang_engine.attach import backbone_of, fc_of, fc_widths
from drafttrace.tracer.rows import DType

_SECRET = re.compile(r"api_key|password|secret|keyfile|auth", re.IGNORECASE)

_DTYPES = {
    torch.bfloat16: DType.BF16,
    torch.float16: DType.FP16,
    torch.float32: DType.FP32,
    torch.float64: DType.FP64,
}


def environment(version: str) -> dict[str, Any]:
    """Versions and machine, as one needs them at the top of a bug report."""
    facts: dict[str, Any] = {
        "drafttrace": drafttrace.__version__,
        "sglang": version,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "argv": [Path(sys.argv[0]).name],
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
    return facts


def server_args(args: Any) -> dict[str, Any]:
    """All arguments of the server; what looks like a credential is left out."""
    if dataclasses.is_dataclass(args):
        names = [field.name for field in dataclasses.fields(args)]
    else:  # a msgspec struct in newer SGLang
        names = list(getattr(args, "__struct_fields__", None) or vars(args))
    values = {name: getattr(args, name, None) for name in names}
    return {
        name: "(not recorded)" if value is not None and _SECRET.search(name) else _plain(value)
        for name, value in values.items()
        if not name.startswith("_")
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)


def raw_config(model_config: Any) -> dict[str, Any]:
    """The checkpoint's own config.json where it can be found, else what transformers made of it."""
    for folder in (getattr(model_config, "model_path", None),):
        path = Path(str(folder)) / "config.json"
        if folder and path.is_file():
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                break
            if isinstance(data, dict):
                return data
    config = getattr(model_config, "hf_config", None)
    made = config.to_dict() if config is not None and hasattr(config, "to_dict") else {}
    return {**_plain(made), "_drafttrace_note": "config.json was not found; this is what transformers made of it"}


def layers_of(model_config: Any) -> int:
    """Decoder layers n of the target."""
    text = getattr(model_config, "hf_text_config", None) or model_config.hf_config
    return int(getattr(text, "num_hidden_layers", 0) or model_config.num_hidden_layers)


def dtype_of(model: torch.nn.Module) -> DType:
    """The number format of the hidden states: that of the embedding (quantized weights say nothing about it)."""
    weight = getattr(getattr(backbone_of(model), "embed_tokens", None), "weight", None)
    return _DTYPES.get(getattr(weight, "dtype", None), DType.BF16)  # type: ignore[arg-type]


def place() -> Place:
    """Where this process stands: the ranks that compute the same rows are those of its attention-TP group."""
    rank, ranks = _of_group("attn_tp", "get_attention_tp_rank", "get_attention_tp_size", None)
    stage, stages = _of_group(
        "pp", "get_pipeline_model_parallel_rank", "get_pipeline_model_parallel_world_size", (0, 1)
    )
    share, shares = _of_group("attn_cp", "get_attention_cp_rank", "get_attention_cp_size", (0, 1))
    replica, replicas = _replica()
    gap = refusal = None
    if stages > 1:
        gap = (
            f"with --pp-size {stages} only the first of {stages} pipeline stages is recorded: the embedding and the "
            "boundaries of its layers, no slots, no last state, no draft; serve with --pp-size 1 for a whole trace"
        )
    if shares > 1:
        refusal = (
            f"with context parallelism of {shares} ranks each holds other rows of a prompt, and none holds a whole trace; "
            "serve without it for tracing"
        )
    return Place(rank, ranks, stage, stages, share, shares, replica, replicas, gap, refusal)


def _of_group(name: str, rank: str, size: str, default: tuple[int, int] | None) -> tuple[int, int]:
    """Rank and size of this process in a group of SGLang's; ``default`` where this release has none of that name (None:
    those of the whole server)."""
    with contextlib.suppress(Exception):
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return int(getattr(parallel, f"{name}_rank")), int(getattr(parallel, f"{name}_size"))
    for module in ("sglang.srt.layers.dp_attention", "sglang.srt.distributed"):
        with contextlib.suppress(Exception):
            found = importlib.import_module(module)
            return int(getattr(found, rank)()), int(getattr(found, size)())
    if default is not None:
        return default
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _replica() -> tuple[int, int]:
    with contextlib.suppress(Exception):
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return int(parallel.dp_rank or 0), int(parallel.num_dp_ranks)
    return _of_group("attn_dp", "get_attention_dp_rank", "get_attention_dp_size", (0, 1))


def layers_held(model: torch.nn.Module) -> int | None:
    """How many layers, from the first on, this pipeline stage has; None where it has all."""
    backbone = backbone_of(model)
    end, layers = getattr(backbone, "end_layer", None), getattr(backbone, "layers", ())
    return int(end) if isinstance(end, int) and end < len(layers) else None


def model_facts(
    target: Any, draft: Any | None, *, version: str, algorithm: str | None, override: Sequence[int] | None
) -> ModelFacts:
    """Facts from the two model runners (``draft`` None without speculation)."""
    config = target.model_config
    n, hidden = layers_of(config), int(config.hidden_size)
    draft_config = raw_config(draft.model_config) if draft is not None else None
    described = wiring.describe(
        target.model,
        n=n,
        hidden_size=hidden,
        config=getattr(config, "hf_text_config", None) or config.hf_config,
        draft_config=draft_config,
        algorithm=algorithm,
        version=version,
        override=override,
    )
    slots = len(described["boundaries"] or ())
    about: dict[str, Any] = {
        "environment": environment(version),
        "server_args": server_args(target.server_args),
        "target_config": raw_config(config),
        "wiring": described,
        "weights": weights.audit(target.model, None if draft is None else draft.model),
    }
    if draft_config is not None:
        about["draft_config"] = draft_config
    return ModelFacts(
        n=n,
        hidden=hidden,
        slots=slots,
        dtype=dtype_of(target.model),
        draft=None if draft is None else draft_facts(draft, slots * hidden or hidden),
        about=about,
        held=layers_held(target.model),
    )


def draft_facts(draft: Any, handed_over: int) -> DraftFacts:
    """Widths of the draft. ``handed_over``: columns that the target gives it."""
    fc = fc_of(draft.model)
    width_in = width_out = 0
    if fc is not None:
        width_in, width_out = fc_widths(fc)
    hidden = int(draft.model_config.hidden_size)
    return DraftFacts(
        hidden=hidden, hidden_in=handed_over, fc_in=width_in, fc_out=width_out, dtype=dtype_of(draft.model)
    )
