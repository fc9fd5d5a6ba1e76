"""A few samples of a dump, spread over it: enough to say what is true of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.open import open_some

FEW = 3


def open_few(
    spec: str, *, format: str | None = None, mapping: FieldMap | None = None, request: Request | None = None
) -> list[Capture]:
    """The sample that ``PATH#i`` names, else the first, the middle and the last one of ``PATH``.

    Arguments and errors as :func:`~drafttrace.tracer.open.open_capture`.
    """
    return list(open_some(spec, _spread, format=format, mapping=mapping, request=request))


def _spread(numbers: Sequence[int]) -> list[int]:
    places = sorted({k * (len(numbers) - 1) // (FEW - 1) for k in range(FEW)})
    return [numbers[place] for place in places]
