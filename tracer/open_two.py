"""The sides of a comparison. One may be a dump of several samples: the tokens of the other tell which is meant."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.convert_recording import is_trace
from drafttrace.tracer.declared_checks import layers_of, with_declared_notes
from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare, UnknownFormat
from drafttrace.tracer.open import is_trace_file, names_several, open_capture, several_in, split_spec
from drafttrace.tracer.position_rows import position_rows
from drafttrace.tracer.row_places import missing_rows, placed_beside


def open_two(
    left: str,
    reference: str,
    *,
    left_format: str | None = None,
    reference_format: str | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
) -> tuple[Capture, Capture]:
    """LEFT and REFERENCE of a comparison, each ``PATH`` or ``PATH#i``.

    mapping: the fields of the sides that have no layout of their own, or of the reference where both have one. request:
    what the reference does not say of itself; hidden size and layers are also said of the left side, which may be of
    another target. Raises DrafttraceError where both hold several samples, what :func:`refuse_without_slots` raises, and
    what :func:`~drafttrace.tracer.open.open_capture` raises.
    """
    of_both = _of_both(request)
    left_mapping = reference_mapping = None
    if mapping is not None:
        with _names_left_format():
            left_mapping = None if _is_known(left, left_format, of_both) else mapping
        if left_mapping is None or not _is_known(reference, reference_format, request):
            reference_mapping = mapping
    like = None
    with _names_left_format():
        several = names_several(left, format=left_format, mapping=left_mapping, request=of_both)
    if several:
        if names_several(reference, format=reference_format, mapping=reference_mapping, request=request):
            raise _both_several(left, reference)
        like = open_capture(reference, format=reference_format, mapping=reference_mapping, request=request)
    with _names_left_format():
        ours = open_capture(left, format=left_format, like=like, mapping=left_mapping, request=of_both)
    theirs = open_capture(reference, format=reference_format, like=ours, mapping=reference_mapping, request=request)
    if _has_no_slots(ours):  # the reference may say how many layers there are, which tells the default ones
        ours = open_capture(left, format=left_format, like=theirs, mapping=left_mapping, request=of_both)
    refuse_without_slots(ours, theirs)
    ours, theirs = _placed(ours, theirs), _placed(theirs, ours)
    n = (request or Request()).layers
    return with_declared_notes(ours, n or layers_of(theirs)), with_declared_notes(theirs, n or layers_of(ours))


@contextlib.contextmanager
def _names_left_format() -> Iterator[None]:
    """The readers' remedy is ``--format``, which is of REFERENCE; that of LEFT has another name."""
    try:
        yield
    except UnknownFormat as error:
        raise type(error)(str(error).replace(" --format", " --left-format")) from None


def open_alone(
    left: str,
    *,
    format: str | None = None,
    mapping: FieldMap | None = None,
    request: Request | None = None,
) -> Capture:
    """LEFT, where there is no REFERENCE. Raises NothingToCompare where it holds several samples: none of them is meant
    more than the others, and in a training dump none could be checked."""
    with _names_left_format():
        several = several_in(left, format=format, mapping=mapping, request=request)
        if several is None:
            return open_capture(left, format=format, mapping=mapping, request=request)
    from drafttrace.tracer.dumps.from_traces import FORMAT

    if several.layout.id == FORMAT:
        raise NothingToCompare(
            f"'{left}' holds {len(several.refs)} traces, and without a REFERENCE one is looked into at a time; name it, as "
            f"'{left}#{several.refs[0].number}'."
        )
    raise NothingToCompare(
        f"'{left}' holds {len(several.refs)} samples of a dump ({several.layout.id}), in which nothing can be checked "
        f"without a REFERENCE; compare it with the trace of the same tokens: drafttrace diff TRACE {left}."
    )


def _is_known(spec: str, format: str | None, request: Request | None) -> bool:
    """Whether a side has a layout of its own, or cannot be read at all, which whoever opens it says."""
    if format is not None:
        return format.upper() != "MAPPED"
    path, _number = split_spec(spec)
    if is_trace_file(path):
        return True
    try:
        open_collection(path, None, request)
    except DrafttraceError as error:
        return not isinstance(error, UnknownFormat)
    return True


def _both_several(left: str, reference: str) -> DrafttraceError:
    """Neither side says which sample is meant. No number is suggested: the first of a server's may be its warm-up."""
    return DrafttraceError(
        f"'{left}' and '{reference}' hold several samples each; name the one to compare in one of them, as PATH#i."
    )


def _has_no_slots(capture: Capture) -> bool:
    """Whether a dump holds boundaries by name, and none of them is a slot: what training took, it does not say."""
    return not capture.slots and any(capture.boundaries) and not is_trace(capture)


def _placed(side: Capture, other: Capture) -> Capture:
    """The side with its rows at their tokens, where it is a dump that lacks some: the other one's rows tell."""
    return placed_beside(side, other, position_rows(other)) if missing_rows(side) else side


def refuse_without_slots(ours: Capture, theirs: Capture) -> None:
    """Raise DrafttraceError: without slots on one side nothing of the other's would be compared."""
    for side, other in ((ours, theirs), (theirs, ours)):
        if side.hidden_size is None and not is_trace(side):
            why = f" ({'; '.join(side.notes)})" if side.notes else ""
            raise NothingToCompare(
                f"'{side.path}', read as {side.format}, holds no hidden states{why}; give a dump that holds them."
            )
        if not _has_no_slots(side) or not other.slots:
            continue
        same = len(set(other.wiring) & set(side.boundaries)) == len(other.slots)
        such = f" {','.join(map(boundary_name, other.wiring))}" if same else f" ({len(other.slots)} of these)"
        held = ", ".join(map(boundary_name, sorted(side.boundaries)))
        unknown = side.about.get("target_layers") is None
        target = "with --target DIR, which tells the default ones, or " if unknown else ""
        raise DrafttraceError(
            f"'{side.path}' holds the boundaries {held}, and does not say which of them are the slots that '{other.path}' "
            f"has; say it {target}with --layer-ids{such}{'' if side is theirs else ', and give it as REFERENCE'}."
        )


def refuse_itself(left: Capture, reference: Capture) -> None:
    """A file matches itself whatever the server did, and the exit code would say that all is well.

    Two readings of one file are two things that can differ.
    """
    same = left.format == reference.format and left.sample == reference.sample
    if same and os.path.realpath(left.path) == os.path.realpath(reference.path):
        raise NothingToCompare(
            f"LEFT and REFERENCE are the same file '{reference.path}', which always matches itself; give what training "
            "stored as REFERENCE."
        )


def _of_both(request: Request | None) -> Request:
    """What is said of the reference and helps to read the other side: how wide a slot is, unless the file knows better,
    and how many layers the target has."""
    return Request() if request is None else Request().told(request.hidden_size, request.layers, request.vocabulary)
