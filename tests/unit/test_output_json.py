"""The machine form: strict JSON that people can read, too."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafttrace.compare.result import load_result
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.output import dump_json
from drafttrace.tracer.report_file import where_json_breaks

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(st.dictionaries(st.text(), PLAIN))
def test_it_reads_back_as_what_was_written(value: dict[str, Any]) -> None:
    assert json.loads(dump_json(value)) == value


def test_objects_are_indented_and_lists_of_values_are_lines() -> None:
    text = dump_json({"a": {"b": [1, 2.5, None]}, "c": [{"d": "é"}, []], "e": {}, "f": ((1, 2), (3,))})
    assert text.splitlines() == [
        "{",
        '  "a": {',
        '    "b": [1, 2.5, null]',
        "  },",
        '  "c": [',
        "    {",
        '      "d": "é"',
        "    },",
        "    []",
        "  ],",
        '  "e": {},',
        '  "f": [',
        "    [1, 2],",
        "    [3]",
        "  ]",
        "}",
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")], {"x": [float("nan")]}])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json({"a": value})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"{", "expecting property name enclosed in double quotes in line 1, column 2"),
        (b"", "expecting value in line 1, column 1"),
        (b"[1,\n2", "expecting ',' delimiter in line 2, column 2"),
        (b"[" * 200_000, "its lists are too deep"),
        (b'{"a": "\xff"}', "it is not UTF-8 text"),
        (b"9" * 10_000, "a number in it has too many digits"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_broken_json_is_told_by_its_place(text: bytes, where: str) -> None:
    """Errors showed what Python raises, "(char 0)" and all; lists that are too deep ended in a traceback."""
    with pytest.raises((ValueError, RecursionError)) as caught:
        json.loads(text.decode("utf-8"))
    assert where_json_breaks(caught.value) == where
    if where.startswith(("expecting", "its")):
        with pytest.raises(UnreadableFile, match=r"in line|too deep"):
            load_result(text.decode())


def test_a_pipe_gets_no_filling_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines were filled up to 120 columns, also in a file."""
    from rich.padding import Padding

    from drafttrace.tracer import output

    pipe = io.StringIO()
    monkeypatch.setattr("sys.stdout", pipe)
    output.console().print(Padding("two  words", (0, 0, 0, 3)))
    assert pipe.getvalue() == "   two  words\n"
