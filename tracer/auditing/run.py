"""An audit from its plan to its table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from drafttrace.tracer.auditing.jobs import Job, is_url, passed_over, plan
from drafttrace.tracer.auditing.pools import run_local, run_ray
from drafttrace.tracer.auditing.table import AuditTable
from drafttrace.tracer.auditing.work import Settings

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Order:
    """One audit. ray: the address of a cluster, "local" for one that is started here, None for plain processes.

    limit: samples at most, 0 for all. force: start the table anew.
    """

    folder: str
    against: str
    table: Path
    format: str | None = None
    workers: int = 0
    ray: str | None = None
    limit: int = 0
    force: bool = False


def run(order: Order, settings: Settings, progress: Progress | None = None) -> None:
    """Do what the table does not hold yet. Raises DrafttraceError where a side holds nothing or the table is taken.

    Outcomes are written as they come: stopped at any moment, the same call goes on.
    """
    jobs = _planned(order, settings)
    about = _about(order, settings)
    if settings.keep is not None:
        Path(settings.keep).mkdir(parents=True, exist_ok=True)
    with AuditTable(order.table, about, force=order.force) as table:
        if not order.limit:
            table.keep_only({job.reference.name for job in jobs})
            table.pass_over(passed_over(jobs, order.against))
        done = table.done()
        open_jobs = [job for job in jobs if done.get(job.reference.name) != job.stamp]
        finished = len(jobs) - len(open_jobs)
        if progress is not None:
            progress(finished, len(jobs))
        for outcome in _outcomes(order, settings, open_jobs):
            table.add(outcome)
            finished += 1
            if progress is not None:
                progress(finished, len(jobs))


def _planned(order: Order, settings: Settings) -> Sequence[Job]:
    jobs = list(plan(order.folder, order.against, order.format, settings.request(lenient=True)))
    return jobs[: order.limit] if order.limit else jobs


def _outcomes(order: Order, settings: Settings, jobs: Sequence[Job]) -> Iterator:  # type: ignore[type-arg]
    if not jobs:
        return iter(())
    if order.ray is not None:
        return run_ray(jobs, settings, None if order.ray == "local" else order.ray)
    return run_local(jobs, settings, max(1, min(order.workers or _processors(), len(jobs))))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _about(order: Order, settings: Settings) -> dict[str, object]:
    """What makes two audits the same one."""
    against = order.against if is_url(order.against) else str(Path(order.against).resolve())
    kept = {k: v for k, v in asdict(settings).items() if k not in {"token", "api_key", "timeout", "keep"}}
    return {"folder": str(Path(order.folder).resolve()), "against": against, "format": order.format, **kept}
