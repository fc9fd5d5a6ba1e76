"""The arguments and the environment with which SGLang runs on a CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

# An idle scheduler would otherwise poll without pause, and take a whole CPU.
_FLAGS = ["--skip-server-warmup", "--sleep-on-idle"]


def cpu_args(
    target: str | Path,
    draft: str | Path | None = None,
    *,
    steps: int = 3,
    topk: int = 1,
    num_draft_tokens: int = 4,
    algorithm: str = "EAGLE3",
    tp: int = 1,
    dtype: str | None = None,
    max_total_tokens: int = 4096,
    max_running_requests: int = 8,
    chunked_prefill_size: int | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """Arguments of ``sglang.launch_server`` for a model folder, with speculative decoding if ``draft`` is given.

    ``extra`` comes last, and SGLang takes the last of two equal options.
    """
    args = {
        "--model-path": target,
        "--device": "cpu",
        "--attention-backend": "intel_amx",
        "--tp-size": tp,
        "--mem-fraction-static": 0.3,
        "--max-total-tokens": max_total_tokens,
        "--max-running-requests": max_running_requests,
        "--random-seed": 0,
    }
    if draft is not None:
        args |= {
            "--speculative-algorithm": algorithm,
            "--speculative-draft-model-path": draft,
            "--speculative-num-steps": steps,
            "--speculative-eagle-topk": topk,
            "--speculative-num-draft-tokens": num_draft_tokens,
        }
    if dtype is not None:
        args["--dtype"] = dtype
    if chunked_prefill_size is not None:
        args["--chunked-prefill-size"] = chunked_prefill_size
    return [text for item in args.items() for text in map(str, item)] + [*_FLAGS, *extra]


def cpu_env(*, tp: int = 1, threads: int = 1) -> dict[str, str]:
    """The environment variables that such a server needs, without the caller's own environment.

    ``threads`` is the number of OpenMP threads of each rank. One is the fastest for tiny models, and the only good
    choice where other processes want the same CPUs.
    """
    cpus = sorted(os.sched_getaffinity(0))
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        # One entry per rank. SGLang would otherwise want one NUMA node per rank.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(cpus[rank % len(cpus)]) for rank in range(tp)),
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait starve the process that they wait for.
        "OMP_WAIT_POLICY": "PASSIVE",
        # The functions that SGLang compiles are small: compiling them costs more than it ever saves here.
        "TORCHDYNAMO_DISABLE": "1",
        # SGLang would otherwise load the NCCL that torch depends on, which a machine without a GPU cannot use.
        "SGLANG_NCCL_SO_PATH": os.devnull,
        # /health answers from the HTTP process alone, at once, instead of generating a token.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
