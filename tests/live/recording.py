"""What the live tests of the recorder share: send a traced request, wait for its trace, read it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Accepted, Capture, Phase
from drafttrace.tracer.trace.reader import read_trace

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Recording:
    """One traced request: what the server answered, and its trace."""

    id: str
    answer: Any
    state: Mapping[str, Any]
    trace: Capture
    path: Path


def start(server: Any, taps: Mapping[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    """Ask for a trace."""
    answer: dict[str, Any] = server.post("/drafttrace/traces", {"taps": dict(taps or {}), **body})
    return answer


def wait(server: Any, trace_id: str, seconds: float = 20.0) -> dict[str, Any]:
    """The state of a trace once it is finished (or when the time is up)."""
    deadline = time.monotonic() + seconds
    while True:
        state: dict[str, Any] = server.get(f"/drafttrace/traces/{trace_id}")
        if state["state"] in ("complete", "incomplete") or time.monotonic() > deadline:
            return state
        time.sleep(0.05)


def record(traced: Any, ids: Sequence[int], *, taps: Mapping[str, Any] | None = None, **request: Any) -> Recording:
    """One traced request with these prompt ids, in a prefix-cache corner of its own unless ``extra_key`` is given."""
    asked = start(traced.server, taps)
    request.setdefault("extra_key", asked["id"])
    answer = traced.server.generate(input_ids=list(ids), rid=asked["rid"], **request)
    return collect(traced, asked["id"], answer)


def collect(traced: Any, trace_id: str, answer: Any = None) -> Recording:
    """Wait for a trace and read it from the server's folder."""
    state = wait(traced.server, trace_id)
    path = traced.trace_dir / f"{trace_id}.h5"
    return Recording(trace_id, answer, state, read_trace(path), path)


def together(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the jobs at the same time; their results in order. Raises the first job's error."""
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = jobs[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def accepted(trace: Capture) -> npt.NDArray[np.int64]:
    """Row numbers of the target table whose tokens are in the text."""
    return np.where(trace.table.accepted == Accepted.ACCEPTED)[0].astype(np.int64)


def packed_slots(trace: Capture) -> Floats:
    """All slots side by side, ``[rows, K * H]``."""
    return np.concatenate([slot.rows.floats() for slot in trace.slots], axis=1)


def cosine(left: Floats, right: Floats) -> Floats:
    """Row-wise cosine."""
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    return np.asarray((left * right).sum(-1) / norms, np.float32)


def assert_text_is_reproduced(trace: Capture) -> None:
    """The accepted rows are the text: every position once, with the right token.

    The last token has a row only where the length limit cut a round after it; otherwise nothing was computed for it.
    """
    rows = accepted(trace)
    position = trace.table.position[rows]
    assert sorted(position.tolist()) in (list(range(len(trace.tokens) - 1)), list(range(len(trace.tokens))))
    assert np.array_equal(trace.table.token_id[rows], trace.tokens[position])


def assert_draft_got_what_the_target_gave(trace: Capture, branches: int = 1) -> None:
    """fc_in equals the target's slots bit for bit: by position after prefill, by accepted row after verify."""
    assert trace.draft is not None
    draft, slots = trace.draft.table, packed_slots(trace)
    fc_in = trace.draft.tensors["fc_in"].floats()
    for given, taken in ((Phase.PREFILL, Phase.DRAFT_EXTEND_PREFILL), (Phase.VERIFY, Phase.DRAFT_EXTEND_VERIFY)):
        left = np.where((trace.table.phase == given) & (trace.table.accepted == Accepted.ACCEPTED))[0]
        right = np.where((draft.phase == taken) & (draft.accepted == Accepted.ACCEPTED))[0]
        # A tree's accepted path stands at scattered rows of the target and at the front of the draft's block.
        left = left[np.lexsort((trace.table.position[left], trace.table.frame[left]))]
        assert len(left) == len(right) > 0
        assert np.array_equal(trace.table.position[left], draft.position[right])
        assert np.array_equal(slots[left], fc_in[right])
