"""The machine form: strict JSON that people can read, too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafttrace.tracer.output import dump_json

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
