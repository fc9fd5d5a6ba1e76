"""One job, done in whatever process or machine it was sent to."""

from __future__ import annotations

import functools
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drafttrace.tracer.auditing.jobs import Job, Source
from drafttrace.tracer.auditing.outcome import COMPARED, FAILED, INCOMPARABLE, UNMATCHED, FoundRow, Outcome, SlotRow
from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.compare.result import Result
    from drafttrace.tracer.capture import Capture
    from drafttrace.tracer.dumps.folder import Collection
    from drafttrace.tracer.dumps.registry import FieldMap, Request


@dataclass(frozen=True)
class Settings:
    """What holds for every job.

    thresholds: as ``--threshold`` gives them. hidden_size, layer_ids, numbering, fields: what the dump does not say.
    max_new_tokens, token, api_key, timeout, keep: for a server (keep: a folder for the traces, None to drop them).
    """

    thresholds: tuple[str, ...] = ()
    hidden_size: int | None = None
    layer_ids: tuple[int, ...] | None = None
    numbering: str = ""
    fields: FieldMap | None = None
    max_new_tokens: int = 16
    token: str | None = None
    api_key: str | None = None
    timeout: float = 600.0
    keep: str | None = None

    def request(self, *, tokens_only: bool = False, lenient: bool = False) -> Request:
        """What the dump does not say, as its readers take it."""
        from drafttrace.tracer.dumps.registry import FieldMap, Request

        return Request(
            fields=self.fields or FieldMap(),
            hidden_size=self.hidden_size,
            layer_ids=self.layer_ids,
            numbering=self.numbering,
            tokens_only=tokens_only,
            lenient=lenient,
        )


def run_job(job: Job, settings: Settings) -> Outcome:
    """Compare one sample. Never raises for what is wrong with a file or a server: that is an outcome."""
    start = time.perf_counter()

    def ended(status: str, error: str | None = None, left: str | None = None) -> Outcome:
        named = left if left is not None else job.left.name if job.left is not None else job.url
        return Outcome(
            job.reference.name, named, job.stamp, status, error=error, seconds=time.perf_counter() - start
        )

    try:
        if job.problem is not None:
            return ended(UNMATCHED, job.problem)
        if job.left is None and job.url is None:
            open_source(job.reference, settings, None, tokens_only=True)  # says what is wrong with it
            return ended(UNMATCHED, "the tokens of this sample are not known")
        with tempfile.TemporaryDirectory(prefix="drafttrace-") as folder:
            left = _served(job, settings, Path(folder))
            result = _compare(left, open_source(job.reference, settings, left), settings)
    except DrafttraceError as error:
        return ended(FAILED, str(error))
    except (OSError, MemoryError) as error:
        return ended(FAILED, f"{type(error).__name__}: {error}")
    named = left.path if job.left is None else job.left.name
    return _outcome_of(job, named if settings.keep or job.left is not None else job.url, result, start)


def _served(job: Job, settings: Settings, folder: Path) -> Capture:
    """What was served for the sample's tokens; a server is asked now."""
    if job.left is not None:
        return open_source(job.left, settings, None)
    from drafttrace.tracer.client import Client, Sampling
    from drafttrace.tracer.commands.prompts import prompt_of_capture
    from drafttrace.tracer.commands.record import parse_taps, record_one

    sample = open_source(job.reference, settings, None, tokens_only=True)
    place = Path(settings.keep) if settings.keep is not None else folder
    out = place / f"{_file_name(job.reference)}.h5"
    recorded = record_one(
        Client(job.url or "", api_key=settings.api_key),
        prompt_of_capture(sample, job.reference.name, whole=True),
        Sampling(max_new_tokens=settings.max_new_tokens),
        out,
        taps=parse_taps("auto", None),
        token=settings.token,
        force=True,
        timeout=settings.timeout,
        quiet=True,
    )
    return open_source(Source(str(recorded.path)), settings, None)


def _file_name(source: Source) -> str:
    """A name for the trace of a sample: unique among the samples, and readable."""
    from hashlib import sha256

    stem = Path(source.path).name.split(".", 1)[0] + (f"-{source.number}" if source.number is not None else "")
    return f"{stem}-{sha256(source.name.encode()).hexdigest()[:8]}"


def open_source(source: Source, settings: Settings, like: Capture | None, *, tokens_only: bool = False) -> Capture:
    """The capture of one source; like: the other side of the comparison. Raises DrafttraceError."""
    from drafttrace.tracer.open import open_capture, read_sample

    if source.format is None:
        return open_capture(source.path)
    request = settings.request(tokens_only=tokens_only)
    collection = _collection(source.path, source.format, request)
    number = source.number if source.number is not None else collection.refs[0].number
    return read_sample(collection, number, like, request)


@functools.lru_cache(maxsize=4)
def _collection(path: str, format_id: str, request: object) -> Collection:
    """One listing of a folder serves all the jobs of a worker."""
    from drafttrace.tracer.dumps.folder import open_collection
    from drafttrace.tracer.dumps.registry import Request

    assert isinstance(request, Request)
    return open_collection(Path(path), format_id, request)


def _compare(left: Capture, reference: Capture, settings: Settings) -> Result:
    from drafttrace.compare.diff import diff
    from drafttrace.compare.thresholds import DEFAULT

    return diff(left, reference, thresholds=DEFAULT.replaced(settings.thresholds))


def _outcome_of(job: Job, left: str | None, result: Result, start: float) -> Outcome:
    def number(value: float) -> float | None:
        return float(value) if math.isfinite(value) else None

    slots = tuple(
        SlotRow(
            slot=s.slot,
            left=s.left,
            reference=s.reference,
            verdict=s.verdict,
            rows=s.rows,
            cosine_p50=number(s.cosine.p50),
            cosine_trimmed_p50=number(s.cosine_trimmed.p50),
            norm_ratio_p50=number(s.norm_ratio.p50),
            rel_l2_p50=number(s.rel_l2.p50),
            rel_l2_p99=number(s.rel_l2.p99),
            max_abs=number(s.max_abs),
            nan_rows=s.nan_rows,
            zero_rows=s.zero_rows,
            outlier_rows=s.outlier_rows,
            left_boundary=s.left_boundary,
            reference_boundary=s.reference_boundary,
        )
        for s in (*result.slots, *result.others)
    )
    findings = tuple(
        FoundRow(f.id, f.severity, f.confidence, " ".join(map(str, f.slots)), f.summary, f.remedy)
        for f in result.findings
    )
    return Outcome(
        reference=job.reference.name,
        left=left,
        stamp=job.stamp,
        status=INCOMPARABLE if result.verdict == "incomparable" else COMPARED,
        verdict=result.verdict,
        summary=result.summary,
        rows_compared=result.alignment.rows_compared,
        coverage=result.alignment.coverage,
        seconds=time.perf_counter() - start,
        findings=findings,
        slots=slots,
    )
