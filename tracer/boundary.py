"""How boundaries of the residual stream are written: ``B3``, never a bare "layer 3".

``B(k)`` is the residual stream that enters layer k of a target with n layers, k = 0..n. ``B(0)`` is the
embedding output (also written ``embed``), ``B(n)`` is the stream after the last layer and before the final
norm. Projects that number layer outputs mean ``O(k) = B(k+1)``.
"""

from __future__ import annotations

from collections.abc import Sequence

from drafttrace.tracer.errors import DrafttraceError

# How the source of a slot calls it that is no boundary, for it stands after the final norm.
LAST_STATE = "the last state after the final norm, no boundary"


class WrongWiring(DrafttraceError):
    """The wiring that was asked for cannot work with this target and draft."""


def boundary_name(k: int | None) -> str:
    """``B3`` for 3, ``B0`` for 0, ``?`` where the boundary is not known."""
    return "?" if k is None else f"B{k}"


def wiring_name(wiring: Sequence[int | None]) -> str:
    """``[B0, B3, B31]`` for ``(0, 3, 31)``."""
    return "[" + ", ".join(boundary_name(k) for k in wiring) + "]"


def parse_boundary(text: str) -> int:
    """The boundary that ``B3``, ``3`` or ``embed`` names.

    Raises ValueError for anything else.
    """
    word = text.strip()
    if word.lower() in {"embed", "embedding"}:
        return 0
    digits = word[1:] if word[:1] in {"B", "b"} else word
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"'{text}' is no boundary; write B0, B3, ... or embed")
    return int(digits)


def parse_wiring(text: str) -> tuple[int, ...]:
    """The wiring that ``B0,B3,B31`` names. Raises ValueError as :func:`parse_boundary` does."""
    return tuple(parse_boundary(part) for part in text.strip().strip("[]").split(","))


def check_wiring(
    wiring: Sequence[int], *, n: int, hidden: int, width: int | None, option: str = "--wiring"
) -> None:
    """Raise WrongWiring where a target of ``n`` layers cannot hand over ``wiring``, or a draft cannot read it.

    hidden: how wide a slot is. width: columns of the draft's ``fc``; None where they are not known. A boundary that is
    not there, one named twice, and slots that do not fill ``fc`` are refused. option: what the user calls it.
    """
    name = wiring_name(wiring)
    beyond = [k for k in wiring if not 0 <= k <= n]
    if beyond:
        raise WrongWiring(
            f"{option} {name} names B{beyond[0]}, but the target has {n} layers; name boundaries from B0 to B{n}."
        )
    twice = [k for i, k in enumerate(wiring) if k in wiring[:i]]
    if twice:
        raise WrongWiring(f"{option} {name} names B{twice[0]} twice; name one boundary per slot, each once.")
    if width is not None and len(wiring) * hidden != width:
        if width % hidden:
            raise WrongWiring(
                f"{option} {name} gives slots of {hidden} columns, and the draft's fc with its {width} columns takes no "
                "whole number of them; give the draft that was trained for this target."
            )
        raise WrongWiring(
            f"{option} {name} gives {len(wiring)} slots of {hidden} columns, but the draft's fc takes {width} columns; "
            f"name {width // hidden} boundaries."
        )


def canonical_wiring(n: int) -> tuple[int, int, int]:
    """What EAGLE-3 captures when nobody says otherwise: B{2, n//2, n-3} for n layers.

    Source: SGLang's ``set_eagle3_layers_to_capture(None)`` and the EAGLE-3 trainers
    (``O{1, n//2-1, n-4}`` in their numbering).
    """
    return 2, n // 2, n - 3
