"""The canary: one prompt, again and again, held against its first trace. Plans only; nothing here sends or sleeps."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from drafttrace.tracer.client import Sampling
from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.compare.result import Result
    from drafttrace.compare.thresholds import Noise, Thresholds
    from drafttrace.tracer.capture import Capture

COLD, WARM = "cold", "warm"
SCHEMA = "drafttrace.canary/1"
PROMPT = (
    "A river runs from the hills to the sea. In spring it is fast and cold, in summer it is slow and clear, and in "
    "autumn it carries the leaves of every tree on its banks. Describe, step by step, what a small boat would meet on "
    "its way from the spring to the harbour, and say for every step how long it takes."
)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Findings about the recording itself say nothing about the server's states.
_OF_THE_TRACER = frozenset({"probe-silent", "rows-dropped", "trace-incomplete"})


@dataclass(frozen=True)
class Run:
    """One request of the canary.

    kind: cold (nothing of the prompt was cached) or warm (the request before it had left the prompt in the cache).
    aux_drift: per slot the median relative L2 to the first trace. limits: per slot the largest that still counts as equal;
    limit: that of the slot that is nearest to its own, or furthest beyond it. repeats: per slot the same distance between
    two requests right after each other, None where it is not known.
    accept_length / first_accept_length: tokens per round. drift: the ids of what is wrong, empty where nothing is.
    problem: why the request could not be compared, else None. trace: the file that was kept, else None.
    """

    number: int
    utc: str
    kind: str
    verdict: str
    rows: int
    aux_drift: tuple[float, ...]
    limit: float | None
    accept_length: float | None
    first_accept_length: float | None
    drift: tuple[str, ...] = ()
    problem: str | None = None
    trace: str | None = None
    limits: tuple[float, ...] = ()
    repeats: tuple[float, ...] | None = None

    @property
    def compared(self) -> bool:
        """Whether the run says anything about the server."""
        return self.problem is None

    def to_json(self) -> dict[str, Any]:
        """One line of the machine form, ``drafttrace.canary/1``; its schema is ``canary.schema.json`` beside this file."""
        return {"schema": SCHEMA, **{name: _plain(value) for name, value in asdict(self).items()}}

    def line(self) -> str:
        """One line for people."""
        head = f"{self.utc}  run {self.number} {self.kind}"
        if self.problem is not None:
            return f"{head}: {self.problem}"
        what = f"DRIFT {', '.join(self.drift)}" if self.drift else "ok"
        worst = _worst(self.aux_drift, self.limits)
        drift = math.nan if worst is None else self.aux_drift[worst]
        own = "" if self.repeats is None else f"own repeats {_short(max(self.repeats, default=math.nan))}, "
        parts = [f"aux drift {_short(drift)} ({own}limit {_short(self.limit)})"]
        if self.accept_length is not None:
            first = self.first_accept_length
            parts.append(f"accept length {self.accept_length:.2f}{'' if first is None else self._told(first)}")
        parts.append(f"{self.rows} rows")
        kept = f"; kept {self.trace}" if self.trace else ""
        return f"{head}: {what}, {', '.join(parts)}{kept}"

    def _told(self, first: float) -> str:
        """The first accept length, and whether the run's is another one though nothing drifted."""
        length = self.accept_length or 0.0
        moved = not self.drift and f"{length:.2f}" != f"{first:.2f}"
        return f" (first {first:.2f}{f': changed by {length / first - 1:+.0%}' if moved and first else ''})"


def _plain(value: Any) -> Any:
    """JSON has neither tuples nor NaN."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _worst(drift: Sequence[float], limits: Sequence[float]) -> int | None:
    """The slot that is nearest to its limit, or furthest beyond it; without limits the one that is furthest off."""
    known = [k for k, value in enumerate(drift) if math.isfinite(value)]
    if len(limits) != len(drift):
        return max(known, key=lambda k: drift[k], default=None)
    return max(known, key=lambda k: (drift[k] / max(limits[k], 1e-12), drift[k]), default=None)


def _short(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.2g}"


def seconds_of(text: str) -> float:
    """``90``, ``90s``, ``10m``, ``1h``, ``1d`` in seconds. Raises DrafttraceError for anything else, and for zero."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    unit = _UNITS.get(match.group(2)) if match else None
    if match is None or unit is None:
        raise DrafttraceError(f"The interval '{text}' cannot be read; write it like 30s, 10m or 1h.")
    if float(match.group(1)) * unit <= 0:
        raise DrafttraceError(f"The interval '{text}' is not positive; write it like 30s, 10m or 1h.")
    return float(match.group(1)) * unit


def repeated(first: Capture) -> tuple[tuple[int, ...], Sampling]:
    """The token ids to send again, and how: greedy, as many new ones as there were, past the end where they went past it.

    Raises DrafttraceError for a trace without its prompt: a redacted one, or one that is not complete.
    """
    length = first.prompt_length
    if length is None or length < 1 or not first.complete:
        raise DrafttraceError(
            f"'{first.path}' is no complete trace of a request; record it with 'drafttrace record'."
        )
    ids = tuple(int(token) for token in first.tokens[:length])
    if "redacted" in first.about or any(token < 0 for token in ids):
        raise DrafttraceError(
            f"'{first.path}' does not hold its prompt (it was redacted); record a new first trace."
        )
    asked = first.about.get("request", {}).get("sampling", {})
    return ids, Sampling(max(1, len(first.tokens) - length), ignore_eos=bool(asked.get("ignore_eos", False)))


def about_first(first: Capture, accept: float | None, asked: int | None) -> list[str]:
    """What a person should know of the first trace before the first run: what it cannot tell, and which option it fixes.

    accept: its accept length. asked: the new tokens that were asked for though the trace was there, None where none were.
    """
    told = []
    if accept is None:
        told.append(
            f"warning: '{first.path}' has no accept length (no round of a draft was recorded), so a fall of it is not "
            "seen; record a first trace with more tokens, on a server with the draft on."
        )
    held = max(1, len(first.tokens) - (first.prompt_length or 0))
    sent = first.about.get("request", {}).get("sampling", {}).get("max_new_tokens", held)
    if asked is not None and asked not in (held, sent):
        told.append(
            f"warning: --max-new-tokens {asked} is not used: the first trace '{first.path}' has {held}; give another "
            "FIRST or --dir for another number."
        )
    return told


def origin_of(first: Capture) -> str:
    """Where a first trace that was taken comes from: when, from which address, of which model, as far as it says."""
    from drafttrace.tracer.trace.summary import trace_summary

    server = first.about.get("server_args", {})
    host, port = server.get("host"), server.get("port")
    parts = [
        f"of {trace_summary(first.path).created_utc}",
        f"from {host}:{port}" if host and port else "",
        f"of {server['model_path']}" if server.get("model_path") else "",
    ]
    said = ", ".join(part for part in parts if part)
    return f" ({said})" if said else ""


def bounds(thresholds: Thresholds) -> Thresholds:
    """The bounds of a run, which is held against the same server's own noise and not against another implementation.

    Above ``match`` nothing is equal, however the floor for two implementations (``floor_match``) stands.
    """
    return replace(thresholds, floor_match=min(thresholds.floor_match, thresholds.match))


def faults_of(result: Result) -> list[str]:
    """The ids of what turns a verdict."""
    return [finding.id for finding in result.findings if finding.severity == "fault"]


def judged(
    number: int,
    utc: str,
    kind: str,
    result: Result,
    first_accept: float | None,
    most_drop: float,
    cold_ok: bool,
    known: frozenset[str] = frozenset(),
    repeats: Noise | None = None,
) -> Run:
    """What one comparison with the first trace says.

    States that do not match have drifted, whether a cause is named (mismatch) or not (noise): an unchanged server gives
    them again bit for bit, or within the noise of its own repeats, which the comparison was given (``repeats``).

    first_accept: the first trace's accept length. most_drop: the part of it that may be lost. cold_ok: whether the cold
    request just before a warm one was fine, so that a fault of the warm one is the cache's. known: faults that the first
    trace has already (see :func:`faults_of`): a draft that was bad from the start has not drifted.
    """
    faults = faults_of(result)
    drift = [name for name in faults if name not in _OF_THE_TRACER and name not in known]
    if not cold_ok:  # a comparison sees the cached prefix; that it is not to blame, only the cold request shows
        drift = ["decay" if name == "cold-warm" else name for name in drift]
    length = result.acceptance.observed
    fell = length is not None and first_accept is not None and length < first_accept * (1 - most_drop)
    if not drift and (fell or _has_moved(result) or (result.verdict == "mismatch" and not faults)):
        drift = ["cold-warm" if kind == WARM and cold_ok else "decay"]
    problem = None
    if result.verdict == "incomparable":
        problem = f"could not compare: {result.summary}"
    elif not drift and length is None and first_accept is not None:
        problem = f"no accept length in this run (first {first_accept:.2f}): no round of a draft was recorded"
    elif not drift and _OF_THE_TRACER & set(faults) and not fell:
        problem = f"the recording is not whole: {result.summary}"
    moved = tuple(slot.rel_l2.p50 for slot in result.slots)
    limits = tuple(slot.judged.match_limit for slot in result.slots)
    worst = _worst(moved, limits)
    return Run(
        number=number,
        utc=utc,
        kind=kind,
        verdict=result.verdict,
        rows=result.alignment.rows_compared,
        aux_drift=moved,
        limit=None if worst is None or not math.isfinite(limits[worst]) else limits[worst],
        accept_length=length,
        first_accept_length=first_accept,
        drift=tuple(dict.fromkeys(drift)) if problem is None else (),
        problem=problem,
        limits=limits,
        repeats=None if repeats is None else repeats.rel_l2,
    )


def _has_moved(result: Result) -> bool:
    """Whether some state does not match. A fault that the first trace has already must not hide it."""
    states = (*result.slots, *result.others)
    return result.verdict == "noise" or any(state.rel_l2.p50 > state.judged.match_limit for state in states)


def failed(number: int, utc: str, kind: str, problem: str) -> Run:
    """A run that gave nothing to compare."""
    return Run(number, utc, kind, "incomparable", 0, (), None, None, None, problem=problem)


def exit_code(runs: Sequence[Run]) -> int:
    """1 where a run drifted, 2 where none could be compared, else 0."""
    if any(run.drift for run in runs):
        return 1
    return 0 if any(run.compared for run in runs) else 2
