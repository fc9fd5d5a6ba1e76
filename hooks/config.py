"""What the environment asks of the plugin. ``drafttrace serve`` sets it; nothing is on without ``DRAFTTRACE=1``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drafttrace.tracer.boundary import parse_wiring
from drafttrace.tracer.errors import DrafttraceError

RID_PREFIX = "drafttrace-"
TRACE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what a client may ask for
# A trace in the folder: an id, and behind it what the recorder itself adds for the parts of a request. These are not
# counted in the length that a client has.
STORED_ID = re.compile(TRACE_ID.pattern + r"(?:_[0-9]{1,9}|_prefix|_rank[0-9]{1,9}){0,4}")
_PART = re.compile(r"(.+)_(?:[0-9]+|prefix)")
_RANK_PART = re.compile(r"(.+)_rank([0-9]+)")

MIB = 1 << 20


class BadSetting(DrafttraceError):
    """An environment variable of the plugin has a value that cannot be used."""


@dataclass(frozen=True)
class Settings:
    """All settings, read once per process.

    directory: the trace folder, shared by all processes of one server. token: needed to start a trace, if set.
    max_trace_bytes, max_traces (at once), max_dir_bytes: budgets. queue_bytes: bound of the host queue between the
    forward pass and the writer thread. graph_bytes: bound of the static buffers that taps inside CUDA graphs write to,
    on the device. wait_seconds: how long a trace that was asked for counts as waiting for its request. all_ranks: every
    rank writes its tensors. writer_process: files are written by a process of their own,
    not by a thread of the scheduler. wiring: boundaries that the target
    is made to hand over, whatever the draft config says.
    """

    directory: Path
    token: str | None = None
    max_trace_bytes: int = 4096 * MIB
    max_traces: int = 16
    max_dir_bytes: int = 32768 * MIB
    queue_bytes: int = 512 * MIB
    graph_bytes: int = 1024 * MIB
    wait_seconds: int = 600
    all_ranks: bool = False
    writer_process: bool = True
    wiring: tuple[int, ...] | None = None

    @staticmethod
    def wanted(environment: Mapping[str, str]) -> bool:
        """Whether the environment asks for the plugin at all."""
        return environment.get("DRAFTTRACE") == "1"

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Settings:
        """The settings that ``DRAFTTRACE_*`` give. Raises BadSetting for a value that cannot be used."""
        folder = environment.get("DRAFTTRACE_DIR", "")
        if not folder:
            raise BadSetting("DRAFTTRACE_DIR is not set; name the folder that traces are written to.")
        return Settings(
            directory=Path(folder).absolute(),
            token=environment.get("DRAFTTRACE_TOKEN") or None,
            max_trace_bytes=_number(environment, "DRAFTTRACE_MAX_TRACE_BYTES", Settings.max_trace_bytes),
            max_traces=_number(environment, "DRAFTTRACE_MAX_TRACES", Settings.max_traces),
            max_dir_bytes=_number(environment, "DRAFTTRACE_MAX_DIR_BYTES", Settings.max_dir_bytes),
            queue_bytes=_number(environment, "DRAFTTRACE_QUEUE_BYTES", Settings.queue_bytes),
            graph_bytes=_number(environment, "DRAFTTRACE_GRAPH_BYTES", Settings.graph_bytes),
            wait_seconds=_number(environment, "DRAFTTRACE_WAIT_SECONDS", Settings.wait_seconds),
            all_ranks=environment.get("DRAFTTRACE_ALL_RANKS") == "1",
            writer_process=environment.get("DRAFTTRACE_WRITER_PROCESS", "1") != "0",
            wiring=_wiring(environment.get("DRAFTTRACE_WIRING", "")),
        )

    def budgets(self) -> dict[str, int]:
        """The limits as the health route reports them."""
        return {
            "max_trace_bytes": self.max_trace_bytes,
            "max_traces": self.max_traces,
            "max_dir_bytes": self.max_dir_bytes,
            "queue_bytes": self.queue_bytes,
            "graph_bytes": self.graph_bytes,
            "wait_seconds": self.wait_seconds,
        }


def trace_id_of(rid: object) -> str | None:
    """The trace id that a request id names, or None: ``drafttrace-<id>``."""
    if not isinstance(rid, str) or not rid.startswith(RID_PREFIX):
        return None
    name = rid[len(RID_PREFIX) :]
    return name if STORED_ID.fullmatch(name) else None


def parent_of(trace_id: str) -> str | None:
    """The trace that a part belongs to: ``x`` for ``x_0`` (request 0 of a batch) and ``x_0_prefix``; None without."""
    found = _PART.fullmatch(trace_id)
    return found[1] if found else None


def rank_part(trace_id: str, rank: int) -> str:
    """The name of another rank's own file of a trace."""
    return f"{trace_id}_rank{rank}"


def rank_of(name: str) -> tuple[str, int] | None:
    """The trace and the rank that :func:`rank_part` made ``name`` of; None for another name."""
    found = _RANK_PART.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def owners_of(name: str) -> list[str]:
    """Every trace that ``name`` could be a part of, the nearest first: ``x_0`` and ``x`` for ``x_0_rank1``."""
    owners: list[str] = []
    while found := _RANK_PART.fullmatch(name) or _PART.fullmatch(name):
        name = found[1]
        owners.append(name)
    return owners


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise BadSetting(f"{name}='{text}' is no positive whole number; give one, or leave it unset.")
    return int(text)


def _wiring(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    try:
        return parse_wiring(text)
    except ValueError as error:
        raise BadSetting(f"DRAFTTRACE_WIRING='{text}' cannot be read: {error}.") from None
