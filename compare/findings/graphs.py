"""I: which forward passes a trace's server replayed as CUDA graphs, by the arguments that the trace keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drafttrace.tracer.capture import Capture

_OFF = "disabled"
PHASES = ("prefill", "decode")


def graph_phases(trace: Capture) -> frozenset[str]:
    """The phases, of PHASES, that ran as graphs where their size was captured; both where nothing switches one off.

    SGLang spells it in four ways, of which the later counts: ``disable_cuda_graph`` for both; since 0.5.23, where that is
    deprecated, ``disable_decode_cuda_graph``, ``cuda_graph_backend_decode`` and ``cuda_graph_config``, for each phase. A
    server on a CPU that drafts has no graphs, whatever it was told.
    """
    found = trace.about.get("server_args")
    args: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    if args.get("device") == "cpu":
        return frozenset()
    return frozenset(phase for phase in PHASES if not _switched_off(args, phase))


def _switched_off(args: Mapping[str, Any], phase: str) -> bool:
    config = args.get("cuda_graph_config")
    chosen = config.get(phase) if isinstance(config, Mapping) else None
    backend = chosen.get("backend") if isinstance(chosen, Mapping) else None
    backend = backend or args.get(f"cuda_graph_backend_{phase}")
    if isinstance(backend, str):
        return backend == _OFF
    return bool(args.get(f"disable_{phase}_cuda_graph") or args.get("disable_cuda_graph"))
