"""The canary's last values in Prometheus' text format (exposition format 0.0.4), over HTTP."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.tracer.canary import Run

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HELP = {
    "drafttrace_canary_up": ("gauge", "1 if the last run could be compared with the first trace."),
    "drafttrace_canary_drifted": ("gauge", "1 if the last run drifted."),
    "drafttrace_canary_finding": ("gauge", "1 for every cause that the last run named."),
    "drafttrace_canary_aux_drift": ("gauge", "Median relative L2 of a slot to the first trace."),
    "drafttrace_canary_aux_limit": ("gauge", "The largest median relative L2 that counts as equal."),
    "drafttrace_canary_aux_repeats": ("gauge", "Median relative L2 between two requests right after each other."),
    "drafttrace_canary_accept_length": ("gauge", "Tokens per round of the last run."),
    "drafttrace_canary_first_accept_length": ("gauge", "Tokens per round of the first trace."),
    "drafttrace_canary_runs_total": ("counter", "Runs so far."),
    "drafttrace_canary_drifts_total": ("counter", "Runs so far that drifted."),
}


class Metrics:
    """The last run of each kind, and how many there were."""

    def __init__(self, kinds: Iterable[str] = ()) -> None:
        """kinds: those of the runs to come, so that their counters stand at 0 before the first one ends."""
        self._lock = threading.Lock()
        self._last: dict[str, Run] = {}
        self._runs = dict.fromkeys(kinds, 0)
        self._drifts = dict.fromkeys(kinds, 0)

    def add(self, run: Run) -> None:
        """Take a run into account."""
        with self._lock:
            self._last[run.kind] = run
            self._runs[run.kind] = self._runs.get(run.kind, 0) + 1
            self._drifts[run.kind] = self._drifts.get(run.kind, 0) + bool(run.drift)

    def text(self) -> str:
        """All samples, grouped by name as the format asks."""
        with self._lock:
            samples = [*self._samples()]
        lines = []
        for name, (kind, help_text) in _HELP.items():
            mine = [line for sample, line in samples if sample == name]
            if mine:
                lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *mine]
        return "\n".join(lines) + "\n" if lines else ""

    def _samples(self) -> Iterator[tuple[str, str]]:
        for kind, run in self._last.items():
            of = {"kind": kind}
            yield _sample("drafttrace_canary_up", of, float(run.compared))
            yield _sample("drafttrace_canary_drifted", of, float(bool(run.drift)))
            for name in run.drift:
                yield _sample("drafttrace_canary_finding", {**of, "id": name}, 1.0)
            slots = {"aux_drift": run.aux_drift, "aux_limit": run.limits, "aux_repeats": run.repeats or ()}
            for name, values in slots.items():
                for slot, value in enumerate(values):
                    yield _sample(f"drafttrace_canary_{name}", {**of, "slot": str(slot)}, value)
            if run.accept_length is not None:
                yield _sample("drafttrace_canary_accept_length", of, run.accept_length)
            if run.first_accept_length is not None:
                yield _sample("drafttrace_canary_first_accept_length", of, run.first_accept_length)
        for name, counts in (("runs", self._runs), ("drifts", self._drifts)):
            for kind, number in counts.items():
                yield _sample(f"drafttrace_canary_{name}_total", {"kind": kind}, float(number))


def _sample(name: str, labels: Mapping[str, str], value: float) -> tuple[str, str]:
    shown = ",".join(f'{key}="{text}"' for key, text in labels.items())
    number = "NaN" if math.isnan(value) else f"{value:.9g}"
    return name, f"{name}{{{shown}}} {number}"


def serve(metrics: Metrics, address: str) -> ThreadingHTTPServer:
    """Answer ``GET`` and ``HEAD /metrics`` at ``PORT`` or ``HOST:PORT`` from a thread of its own, until ``shutdown``.

    Only this machine can ask unless a host is given. Raises DrafttraceError for an address that cannot be used.
    """
    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), _handler(metrics))
    except ValueError:
        raise DrafttraceError(f"The address '{address}' is no PORT or HOST:PORT; write it like 9464.") from None
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DrafttraceError(
            f"The address '{address}' cannot be listened on ({reason}); give another port."
        ) from None
    threading.Thread(target=server.serve_forever, name="drafttrace-metrics", daemon=True).start()
    return server


def _handler(metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(self._begin())

        def do_HEAD(self) -> None:
            self._begin()

        def _begin(self) -> bytes:
            """Send the status and the headers; the body that belongs to them."""
            found = self.path.split("?")[0] in {"/metrics", "/"}
            body = metrics.text().encode() if found else b"look at /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return body

        def log_message(self, *args: object) -> None:
            return

    return Handler
