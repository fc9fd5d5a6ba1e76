"""The Python interface: what the commands do, as functions over captures and results.

Everything here is also an attribute of :mod:`drafttrace`. A *source* is a path (``PATH`` or ``PATH#i`` for sample i of
a dump with several) or a :class:`~drafttrace.tracer.capture.Capture` that is open already. Errors that a user can
cause are :class:`~drafttrace.tracer.errors.DrafttraceError`: one sentence with what happened, the value, the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttrace.arguments import refuse_no_source, refuse_other
from drafttrace.public import public
from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.wirings import Wiring, wiring_of, wirings_of

if TYPE_CHECKING:
    from drafttrace.compare.audit.result import CheckResult
    from drafttrace.compare.replay.result import ReplayResult
    from drafttrace.compare.result import Result
    from drafttrace.compare.thresholds import Noise, Thresholds
    from drafttrace.row_table import RowTable
    from drafttrace.tracer.client import Prompt
    from drafttrace.tracer.commands.record import Recorded
    from drafttrace.tracer.dumps.registry import Request

PathLike = str | os.PathLike[str]
Source = PathLike | Capture


@public
def open(
    path: PathLike,
    *,
    format: str | None = None,
    sample: int | None = None,
    hidden_size: int | None = None,
    layer_ids: str | Sequence[int | str] | None = None,
    slots: str | Sequence[str] | None = None,
    tokens: str | None = None,
    last: str | None = None,
    last_norm: str = "unknown",
    mask: str | None = None,
    boundaries: Wiring | None = None,
    like: Capture | None = None,
) -> Capture:
    """Open a trace or a training dump.

    Nothing of the hidden states is read yet: every ``capture.slots[i].rows`` is a ``[rows, hidden size]`` matrix that
    hands out blocks as float32 (``rows.floats(start, stop)``).

    format: id of a dump layout, to overrule recognition. sample: which one, where the file holds several.
    hidden_size, layer_ids: what a dump does not say of itself (ids in the numbering of its own project, or as "B3" or
    "O2"). slots, tokens, last, mask: names of the fields, for a file of no known layout (slots and layer_ids also as one
    text with commas, as the commands take them); last_norm ("pre", "post") and boundaries say what they
    hold. like: the other side of a comparison; among several
    samples the one with its tokens is taken.

    Raises UnreadableFile for what cannot be read, UnknownFormat for what is not known, DrafttraceError where a sample
    must be chosen.
    """
    from drafttrace.tracer.dumps.from_mapping import checked_fields
    from drafttrace.tracer.dumps.registry import FieldMap, Request
    from drafttrace.tracer.layer_ids import parse_ids
    from drafttrace.tracer.open import open_capture

    refuse_other(last_norm, "last_norm", set(Norm))
    more = any(value is not None for value in (last, mask, boundaries))
    if (slots is None) is not (tokens is None) or (slots is None and more):
        raise DrafttraceError(
            "A file of no known layout needs both 'slots' and 'tokens'; give the names of its fields."
        )
    mapping = None
    if slots is not None and tokens is not None:
        wiring = None if boundaries is None else wiring_of(boundaries, "boundaries")
        names = [name.strip() for name in slots.split(",")] if isinstance(slots, str) else slots
        mapping = checked_fields(FieldMap(tuple(names), tokens, last, last_norm, mask, wiring))
    said = layer_ids if layer_ids is None or isinstance(layer_ids, str) else ",".join(map(str, layer_ids))
    ids, numbering = parse_ids(said)
    return open_capture(
        os.fspath(path),
        format=format,
        sample=sample,
        mapping=mapping,
        like=like,
        request=Request(hidden_size=hidden_size, layer_ids=ids, numbering=numbering),
    )


@public
def diff(
    left: Source,
    reference: Source | None = None,
    *,
    thresholds: Mapping[str, float] | None = None,
    noise: Noise | tuple[Source, Source] | None = None,
    tokenizer: PathLike | None = None,
    target: PathLike | None = None,
    expected: PathLike | float | None = None,
    others: PathLike | Sequence[PathLike] = (),
    rank_traces: PathLike | Sequence[PathLike] = (),
) -> Result:
    """Compare what the server computed with what training stored, and name the cause.

    Without a reference the left trace is checked against itself. thresholds: bounds by name, as ``--threshold`` takes
    them; relative L2 distances are medians over rows, without unit. noise: the noise floor, or two recordings of one
    prompt to measure it from. tokenizer: a folder with tokenizer.json, to show tokens as text (default: the target
    that the trace names, where it is on this machine). target: the target's folder, to read paths by: how many layers it
    has and how wide a slot is. expected: the accept length that the draft should reach, as ``--expected`` takes it.
    others: traces of other requests to the same server (or folders of them), to find rows that belong to those.
    rank_traces: the same request on the other ranks.

    A training dump given as ``left`` of a server's recording is exchanged with it, and ``result.left.notes`` says so.

    The result says what was measured (``result.slots``), which causes hold (``result.findings``, those that explain most
    first) and a verdict: match, noise, mismatch or incomparable. Raises NothingToCompare where the two cannot
    belong together or are one and the same, where the noise recordings are of another model, and what :func:`open`
    raises.
    """
    from drafttrace.compare.diff import diff as compare
    from drafttrace.tracer.beside import gather
    from drafttrace.tracer.decoding import decoder, tokenizer_folder
    from drafttrace.tracer.exchanged_sides import are_exchanged, told
    from drafttrace.tracer.open_two import refuse_itself

    request = _said_of(target)
    exchanged = reference is not None and are_exchanged(left, reference, request=request)
    if exchanged and reference is not None:
        left, reference = reference, left
    ours, theirs = _sides(left, reference, request)
    if exchanged and theirs is not None:
        ours = told(ours, theirs)
    # Two captures of one file may be two things: one that the caller changed, or another reading of it.
    if theirs is not None and (
        ours is theirs or (not isinstance(left, Capture) and not isinstance(reference, Capture))
    ):
        refuse_itself(ours, theirs)
    folder = tokenizer_folder(None if tokenizer is None else Path(tokenizer), ours, theirs)
    floor = _noise(noise, ours)
    beside = gather(
        ours,
        theirs,
        tokenizer=folder,
        rank_traces=_paths(rank_traces),
        others=_paths(others),
        expected=None if expected is None else str(expected),
    )
    return compare(
        ours,
        theirs,
        thresholds=_thresholds(thresholds),
        noise=floor,
        decode=decoder(folder),
        **beside.arguments(),
    )


@public
def noise(one: Source, two: Source, *, of: Source | None = None) -> Noise:
    """The noise floor from two recordings of one prompt: relative L2 per slot, median and 99th percentile over rows.

    of: the capture that is to be judged by it. Raises NothingToCompare where the two share no rows, have no slots or
    differ by more than noise, and where they are of another model than ``of``.
    """
    from drafttrace.compare.noise_pair import measure_noise

    judged = None if of is None else _capture(of)
    return measure_noise(_capture(one), _capture(two), of=judged)


@public
def measure(left: Source, reference: Source) -> RowTable:
    """Every paired row of every slot, measured: one table row per pair and slot.

    Rows are paired as :func:`diff` pairs them. See :class:`~drafttrace.row_table.RowTable` for the columns, and its
    ``to_pandas`` and ``to_polars``. Raises NothingToCompare where no row belongs to one of the other side.
    """
    from drafttrace.row_table import of_captures

    return of_captures(*_two(left, reference))


@public
def rows(result: Result) -> RowTable:
    """The row measures that a result keeps for its plots: at most 2000 rows per slot, spread evenly, in six digits.

    For all rows and all measures use :func:`measure`, which needs the files.
    """
    from drafttrace.row_table import of_result

    return of_result(result)


@public
def load(path: PathLike, *, thresholds: Mapping[str, float] | None = None) -> Result:
    """A result that ``drafttrace diff --json`` or ``result.save`` wrote; with thresholds, judged again by them.

    Raises UnreadableFile for a damaged file, UnknownFormat for what is no result.
    """
    from drafttrace.compare.judge import rejudge
    from drafttrace.tracer.commands.report import read_result

    result = read_result(Path(path))
    return result if not thresholds else rejudge(result, result.thresholds.replaced(_settings(thresholds)))


@public
def check(
    target: PathLike,
    draft: PathLike,
    dump: Source | None = None,
    *,
    trained: Wiring | None = None,
    sglang_version: str | None = None,
    algorithm: str | None = None,
    hash_weights: bool = False,
) -> CheckResult:
    """Audit a draft's configuration and weights. No server and no hidden states are needed.

    target, draft: folders. dump: a training dump, whose wiring is the one wanted; or name the boundaries in ``trained``,
    as numbers k of B(k) or as "B0,B3,B31".
    sglang_version: audit for this release (default: the installed one). algorithm: the --speculative-algorithm that will be
    served with. Raises UnreadableFile for damaged checkpoints.
    """
    from drafttrace.compare.audit.check import check as audit

    return audit(
        Path(target),
        Path(draft),
        dump=None if dump is None else _of_target(dump, target),
        trained=None if trained is None else wiring_of(trained, "trained"),
        sglang_version=sglang_version,
        algorithm=algorithm,
        hash_weights=hash_weights,
    )


@public
def replay(
    captures: Source | Sequence[Source],
    draft: PathLike,
    target: PathLike,
    *,
    wirings: Wiring | Sequence[Wiring] = (),
    search: bool = False,
    switches: bool = True,
    steps: int | None = None,
    sglang_version: str | None = None,
    ignore: str | Sequence[str] = (),
    slots_are: Wiring | None = None,
) -> ReplayResult:
    """Run the draft by itself in plain torch on stored hidden states: accuracy and accept length per wiring.

    wirings: further ones to try, as lists of boundaries or as texts like "B0,B3,B31". search: rank all ordered wirings over
    the boundaries there are. switches: also try every norm and vocabulary switch the other way. steps: draft steps
    (default: the trace's, else 3). ignore: config switches that are not known, to be passed over. slots_are: the boundaries
    of the file's slots, where it does not say them. Accept lengths are in tokens per round, bonus included. Raises
    UnreadableFile and NothingToCompare.
    """
    from drafttrace.compare.replay.run import replay as run

    given = [captures] if isinstance(captures, (str, os.PathLike, Capture)) else list(captures)
    return run(
        [_of_target(source, target) for source in given],
        Path(draft),
        Path(target),
        wirings=wirings_of(wirings, "wirings"),
        search_wirings=search,
        switches=switches,
        steps=steps,
        sglang_version=sglang_version,
        ignore_switches=(ignore,) if isinstance(ignore, str) else tuple(ignore),
        slots_are=None if slots_are is None else wiring_of(slots_are, "slots_are"),
    )


@public
def record(
    out: PathLike,
    *,
    url: str = "http://127.0.0.1:30000",
    prompt: str | None = None,
    input_ids: Sequence[int] | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    from_dump: Source | None = None,
    whole: bool = False,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    boundaries: str = "auto",
    boundary_rows: int | None = None,
    token: str | None = None,
    api_key: str | None = None,
    keep: bool = False,
    force: bool = False,
    timeout: float = 600.0,
) -> Recorded:
    """Send one request to a live server with the plugin on, and fetch its trace into ``out``.

    Give exactly one of prompt, input_ids, messages, from_dump (a path, or an open capture). whole: with from_dump, send the
    sample's last answer, too, as part of the prompt. boundaries: which of the target's boundaries to sweep (auto: all, on
    the first 64 rows; all; none; or a list like ``"B3,B31"``). boundary_rows: rows that the sweep covers. token: the one
    that ``serve --token`` asks for. api_key: that of SGLang. keep: leave the trace on the server, too. timeout: seconds for
    the answer.
    Raises ServerProblem where the server is not there, has no plugin or refuses; OutputExists for a taken ``out``.
    """
    from drafttrace.tracer.client import Client, Sampling
    from drafttrace.tracer.commands.record import parse_taps, record_one

    return record_one(
        Client(url, api_key=api_key),
        _prompt(prompt, input_ids, messages, from_dump, whole),
        Sampling(max_new_tokens=max_new_tokens, temperature=temperature),
        Path(out),
        taps=parse_taps(boundaries, boundary_rows),
        token=token,
        force=force,
        keep_on_server=keep,
        timeout=timeout,
        quiet=True,
        ranks=True,
    )


def _prompt(
    text: str | None,
    input_ids: Sequence[int] | None,
    messages: Sequence[Mapping[str, Any]] | None,
    from_dump: Source | None,
    whole: bool,
) -> Prompt:
    from drafttrace.tracer.client import Prompt
    from drafttrace.tracer.commands.prompts import prompt_of_capture, prompt_of_dump

    given = [value for value in (text, input_ids, messages, from_dump) if value is not None]
    if len(given) != 1:
        raise DrafttraceError(
            f"{len(given)} prompts were given; give one of prompt, input_ids, messages, from_dump."
        )
    if isinstance(from_dump, Capture):
        return prompt_of_capture(from_dump, from_dump.path, whole=whole)
    if from_dump is not None:
        return prompt_of_dump(os.fspath(from_dump), whole=whole)
    ids = None if input_ids is None else tuple(int(token) for token in input_ids)
    return Prompt(text=text, input_ids=ids, messages=None if messages is None else tuple(messages))


def _paths(given: PathLike | Sequence[PathLike]) -> list[Path]:
    """One path, or several: a text is a sequence, too, of its letters."""
    return [Path(path) for path in ([given] if isinstance(given, (str, os.PathLike)) else given)]


def _capture(source: Source, like: Capture | None = None) -> Capture:
    refuse_no_source(source, "source")
    return source if isinstance(source, Capture) else open(source, like=like)


def _of_target(source: Source, target: PathLike) -> Capture:
    """A capture of the target in that folder, which may tell what the file does not: its layers, and how wide a slot is."""
    from drafttrace.tracer.dumps.registry import Request
    from drafttrace.tracer.open import open_capture
    from drafttrace.tracer.target_weights import said_of

    refuse_no_source(source, "source")
    if isinstance(source, Capture):
        return source
    return open_capture(os.fspath(source), request=said_of(Path(target), Request(), lenient=True))


def _said_of(target: PathLike | None) -> Request | None:
    """What a target's folder says of files that do not say it themselves."""
    if target is None:
        return None
    from drafttrace.tracer.dumps.registry import Request
    from drafttrace.tracer.hub_cache import model_folder
    from drafttrace.tracer.target_weights import said_of

    return said_of(model_folder(Path(target), "target"), Request())


def _sides(left: Source, reference: Source | None, request: Request | None) -> tuple[Capture, Capture | None]:
    from drafttrace.tracer.open_two import open_alone

    if reference is not None:
        return _two(left, reference, request)
    return (left if isinstance(left, Capture) else open_alone(os.fspath(left), request=request)), None


def _two(left: Source, reference: Source, request: Request | None = None) -> tuple[Capture, Capture]:
    """Both sides; of a dump of several samples the one with the other side's tokens."""
    from drafttrace.tracer.open import open_capture
    from drafttrace.tracer.open_two import open_two, refuse_without_slots

    if isinstance(left, Capture) and isinstance(reference, Capture):
        ours, theirs = left, reference
    elif isinstance(left, Capture):
        ours, theirs = left, open_capture(os.fspath(reference), like=left, request=request)  # type: ignore[arg-type]
    elif isinstance(reference, Capture):
        ours, theirs = open_capture(os.fspath(left), like=reference, request=request), reference
    else:
        return open_two(os.fspath(left), os.fspath(reference), request=request)
    refuse_without_slots(ours, theirs)
    return ours, theirs


def _noise(given: Noise | tuple[Source, Source] | None, of: Capture) -> Noise | None:
    from drafttrace.compare.thresholds import Noise

    if given is None or isinstance(given, Noise):
        return given
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise DrafttraceError(
            f"The noise {given!r:.60} is no noise floor; give two recordings of one prompt, as (ONE, TWO), or what "
            "drafttrace.noise returned."
        )
    return noise(*given, of=of)


def _settings(thresholds: Mapping[str, float]) -> list[str]:
    return [f"{name}={value}" for name, value in thresholds.items()]


def _thresholds(thresholds: Mapping[str, float] | None) -> Thresholds:
    from drafttrace.compare.thresholds import DEFAULT

    return DEFAULT.replaced(_settings(thresholds or {}))
