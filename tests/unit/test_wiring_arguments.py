"""Wirings as people write them, on the command line and in Python: none is guessed, and none ends in a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drafttrace
from drafttrace.tracer.commands.reading import said
from drafttrace.tracer.commands.record import parse_taps
from drafttrace.tracer.commands.wirings import boundaries_of
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.wirings import wiring_of, wirings_of


@pytest.mark.parametrize(
    ("text", "wiring"),
    [
        ("B0,B3,B31", (0, 3, 31)),
        ("[b3, B31]", (3, 31)),
        ("embed,B3", (0, 3)),
        ("O2,O30,O58", (3, 31, 59)),
        ("B3,O30", (3, 31)),
    ],
)
def test_boundaries_by_name(text: str, wiring: tuple[int, ...]) -> None:
    assert boundaries_of(text, "wiring") == wiring


def test_a_bare_number_is_not_guessed() -> None:
    """`check --trained 2,30,58`, as SpecForge writes B3, B31, B59, was [B2, B30, B58] and NO PROBLEM FOUND, exit 0."""
    with pytest.raises(DrafttraceError, match=r"write B2,B30,B58 .* or O2,O30,O58 .* B3,B31,B59"):
        boundaries_of("2,30,58", "wiring")
    for call in (
        lambda: parse_taps("3,31", None),
        lambda: said(None, None, "a,b", "ids", None, None, None, "3,31"),
        lambda: drafttrace.check("target", "draft", trained="2,30,58"),
    ):
        with pytest.raises(DrafttraceError, match="two ways"):
            call()


@pytest.mark.parametrize("text", ["", "B", "B3,", "three", "B-1", "B3.0", "3;31"])
def test_what_is_no_wiring(text: str) -> None:
    with pytest.raises(DrafttraceError, match="no boundary"):
        boundaries_of(text, "wiring")


@pytest.mark.parametrize(
    "given", ["B0,B3,B31", ("B0", "B3", "B31"), [0, 3, 31], np.array([0, 3, 31]), ["embed", 3, "O30"]]
)
def test_a_wiring_in_python(given: Any) -> None:
    """`trained="B0,B3,B31"` and `trained=("B0", "B3", "B31")` were a TypeError, `wirings=(0, 3, 31)`, too."""
    assert wiring_of(given, "trained") == (0, 3, 31)
    assert wirings_of(given, "wirings") == [(0, 3, 31)]
    assert wirings_of([given, [2, 30, 58]], "wirings") == [(0, 3, 31), (2, 30, 58)]
    assert wirings_of((), "wirings") == []


@pytest.mark.parametrize("given", [3, 1.5, [1.5], [None], ["B0,B3", 3], [[0], 3]])
def test_what_is_no_wiring_in_python(given: Any, tmp_path: Path) -> None:
    with pytest.raises(DrafttraceError, match="wiring"):
        wirings_of(given, "wirings")
    with pytest.raises(DrafttraceError):
        drafttrace.check(tmp_path, tmp_path, trained=given)
    with pytest.raises(DrafttraceError):
        drafttrace.reference([1, 2], tmp_path / "r.safetensors", target=tmp_path, wiring=given)
