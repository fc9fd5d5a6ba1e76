"""What depends on the SGLang version: the window, and every symbol that is hooked. Imports nothing of SGLang."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

OLDEST, NEWEST = (0, 5, 12), (0, 5, 23)

Kind = Literal["after", "around", "before"]


@dataclass(frozen=True)
class HookSpec:
    """One symbol to hook. needed: without it the recorder cannot work; the others are taken where they exist."""

    name: str
    target: str
    kind: Kind
    needed: bool = True


_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_SPEC = "sglang.srt.speculative"

SCHEDULER_HOOKS = (
    HookSpec("load_model", f"{_RUNNER}.load_model", "after"),
    HookSpec("forward", f"{_RUNNER}.forward", "around"),
    HookSpec("run_batch", f"{_SCHEDULER}.run_batch", "around"),
    HookSpec("process_batch_result", f"{_SCHEDULER}.process_batch_result", "after"),
    HookSpec("verify", f"{_SPEC}.eagle_worker_v2.EAGLEWorkerV2.verify", "around"),
    HookSpec("init_attention_backends", f"{_RUNNER}.init_attention_backends", "after", needed=False),
    HookSpec(
        "reset_for_retract", "sglang.srt.managers.schedule_batch.Req.reset_for_retract", "before", needed=False
    ),
    HookSpec("send_abort_output", f"{_SCHEDULER}.send_abort_output", "after", needed=False),
    HookSpec("run_event_loop", f"{_SCHEDULER}.run_event_loop", "around", needed=False),
    HookSpec("draft_forward", f"{_SPEC}.eagle_worker_v2.EagleDraftWorker.draft_forward", "around", needed=False),
    HookSpec(
        "draft_graph",
        f"{_SPEC}.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner.execute",
        "around",
        needed=False,
    ),
    HookSpec(
        "draft_extend_graph",
        f"{_SPEC}.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute",
        "around",
        needed=False,
    ),
    HookSpec("init_device_graphs", f"{_RUNNER}.init_device_graphs", "before", needed=False),
    # Older names of the draft's graph runners' entry.
    HookSpec(
        "draft_graph",
        f"{_SPEC}.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner.replay",
        "around",
        needed=False,
    ),
    HookSpec(
        "draft_extend_graph",
        f"{_SPEC}.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.replay",
        "around",
        needed=False,
    ),
)

HTTP_HOOKS = (
    HookSpec("http", "sglang.srt.entrypoints.http_server._setup_and_run_http_server", "before"),
    HookSpec(
        "regenerate_rid", "sglang.srt.managers.io_struct.GenerateReqInput.regenerate_rid", "around", needed=False
    ),
)


def parse_version(text: str) -> tuple[int, int, int] | None:
    """``(0, 5, 15)`` for "0.5.15.post1"; None for what is no release number, as a checkout's "0.0.0.dev1+gabc"."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    number = (int(found[1]), int(found[2]), int(found[3])) if found else None
    return number if number is not None and any(number) else None


def unsupported(version: str) -> str | None:
    """Why the recorder stays off for this SGLang version, in one sentence; None where it is supported."""
    window = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    parsed = parse_version(version)
    if parsed is None:
        return (
            f"SGLang calls itself '{version}', which is no release number (a source checkout?), so its version cannot be "
            f"told; drafttrace knows {window}."
        )
    if parsed < OLDEST:
        return f"SGLang {version} is older than the plugin framework that drafttrace needs; use {window}."
    if parsed > NEWEST:
        return f"SGLang {version} is newer than what this drafttrace was tested with ({window}); update drafttrace."
    return None
