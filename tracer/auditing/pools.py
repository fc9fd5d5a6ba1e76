"""Who does the jobs: processes on this machine, or a Ray cluster. Both hand back outcomes as they come."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from drafttrace.tracer.auditing.jobs import Job
from drafttrace.tracer.auditing.outcome import FAILED, Outcome
from drafttrace.tracer.auditing.work import Settings, run_job
from drafttrace.tracer.errors import DrafttraceError

_AHEAD = 4  # jobs that wait for each worker: enough to keep it busy, few enough to hold no thousands in memory
_DIED = "the process that worked on it died (most often: out of memory); try fewer --workers"

Work = Callable[[Job, Settings], Outcome]


def run_local(jobs: Iterable[Job], settings: Settings, workers: int, work: Work = run_job) -> Iterator[Outcome]:
    """Outcomes from ``workers`` processes, in the order in which they are done.

    A job whose process dies is done again alone; if that dies too, its outcome says so and the others go on.
    """
    waiting = iter(jobs)
    held: dict[Future[Outcome], Job] = {}
    suspects: list[Job] = []
    pool = _pool(workers)
    try:
        while True:
            try:
                while len(held) < _AHEAD * workers and (job := next(waiting, None)) is not None:
                    suspects.append(job)  # a pool that is broken already refuses it
                    held[pool.submit(work, job, settings)] = suspects.pop()
                if not held:
                    return
                for future in wait(held, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    del held[future]
                    yield outcome
            except BrokenProcessPool:
                for future, job in held.items():
                    if future.done() and future.exception() is None:
                        yield future.result()
                    else:
                        suspects.append(job)
                held = {}
                pool.shutdown(wait=False, cancel_futures=True)
                for job in suspects:
                    yield _alone(job, settings, work)
                suspects = []
                pool = _pool(workers)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _pool(workers: int) -> ProcessPoolExecutor:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["drafttrace.compare.diff", "drafttrace.tracer.auditing.work"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)


def _begin() -> None:
    """Workers share the processors: one thread each."""
    from drafttrace.compare.kernels import blocks

    blocks.use_threads(1)


def _alone(job: Job, settings: Settings, work: Work) -> Outcome:
    try:
        with _pool(1) as pool:
            return pool.submit(work, job, settings).result()
    except BrokenProcessPool:
        left = job.left.name if job.left is not None else job.url
        return Outcome(job.reference.name, left, job.stamp, FAILED, error=_DIED)


def run_ray(jobs: Iterable[Job], settings: Settings, address: str | None) -> Iterator[Outcome]:
    """Outcomes from a Ray cluster: the one at ``address`` ("auto" for the one this machine belongs to), or a local
    one that is started for it (None). Files must have the same paths on every node.

    Raises DrafttraceError where Ray is not installed or the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError:
        raise DrafttraceError(
            "Ray is not installed, which --ray needs; install it with pip install 'drafttrace[cluster]', or leave --ray "
            "out to use this machine's processes."
        ) from None
    try:
        context: Any = ray.init(
            address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise DrafttraceError(
            f"The Ray cluster '{address}' cannot be reached ({str(error).splitlines()[0]}); check its address."
        ) from None
    try:
        yield from _ray_outcomes(ray, jobs, settings)
    finally:
        if context is not None:
            ray.shutdown()


def _ray_outcomes(ray: Any, jobs: Iterable[Job], settings: Settings) -> Iterator[Outcome]:
    @ray.remote(num_cpus=1, max_retries=2)  # type: ignore[untyped-decorator]
    def work(job: Job, given: Settings) -> Outcome:
        _begin()
        return run_job(job, given)

    waiting = iter(jobs)
    held: dict[Any, Job] = {}
    given = ray.put(settings)
    workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
    while True:
        while len(held) < _AHEAD * workers and (job := next(waiting, None)) is not None:
            held[work.remote(job, given)] = job
        if not held:
            return
        done, _rest = ray.wait(list(held), num_returns=1)
        for reference in done:
            job = held.pop(reference)
            try:
                yield ray.get(reference)
            except ray.exceptions.RayError as error:
                left = job.left.name if job.left is not None else job.url
                text = str(error).strip().splitlines()[0][:200]
                yield Outcome(job.reference.name, left, job.stamp, FAILED, error=f"the cluster gave it up: {text}")
