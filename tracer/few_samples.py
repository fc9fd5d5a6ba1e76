"""A few samples of a dump, spread over it: enough to say what is true of all of them."""

from __future__ import annotations

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.open import open_capture, open_numbered, split_spec

FEW = 3


def open_few(
    spec: str, *, format: str | None = None, mapping: FieldMap | None = None, request: Request | None = None
) -> list[Capture]:
    """The sample that ``PATH#i`` names, else the first, the middle and the last one of ``PATH``.

    Arguments and errors as :func:`~drafttrace.tracer.open.open_capture`.
    """
    first, count = open_numbered(spec, format=format, mapping=mapping, request=request)
    if split_spec(spec)[1] is not None or count == 1:
        return [first]
    places = sorted({k * (count - 1) // (FEW - 1) for k in range(FEW)})
    return [
        first,
        *(
            open_capture(spec, format=format, sample=number, mapping=mapping, request=request)
            for number in places[1:]
        ),
    ]
