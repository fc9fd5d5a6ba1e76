"""One of something is no plural, in errors, findings and reports alike."""

from __future__ import annotations

import pytest

from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.grammar import in_number


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("it has 1 slots of 1 columns", "it has 1 slot of 1 column"),
        ("1 tokens are outside", "1 token is outside"),
        ("all 1 samples have none", "all 1 sample has none"),
        ("1 boundaries, 1 entries, 1 passes, 1 bytes", "1 boundary, 1 entry, 1 pass, 1 byte"),
        ("1 token ids at the start", "1 token id at the start"),
        ("1 prefill rows hold it", "1 prefill row holds it"),
        ("(1 rows)", "(1 row)"),
        ("over 1 rounds.", "over 1 round."),
        ("1 tokens of 5 have no row", "1 token of 5 has no row"),
        (
            "1 rows at the end stand alone, and 2 rows of 3 stand",
            "1 row at the end stands alone, and 2 rows of 3 stand",
        ),
        ("1 rows in which others are", "1 row in which others are"),
        ("1 rows of slot 2 and all others are", "1 row of slot 2 and all others are"),
        ("1 files of the folder need it", "1 file of the folder needs it"),
    ],
)
def test_one_of_something_is_no_plural(written: str, told: str) -> None:
    assert in_number(written) == told
    assert str(DrafttraceError(written)) == str(UnreadableFile(written)) == told


@pytest.mark.parametrize(
    "text",
    [
        "11 slots of 21 rows",
        "0.1 rows and 3,1 slots",
        "rank 1 rows, slot 1 values and layer 1 heads",
        "B1 rows, #1 samples, 2-1 slots",
        "1 of rows, 1 to slots",
        "the file 'my 1 rows.pt' holds “1 slots”",
        "the server's 10 tokens",
        "1 slotsman",
        "",
    ],
)
def test_what_is_no_number_of_things_stays(text: str) -> None:
    assert in_number(text) == text


def test_an_apostrophe_opens_no_quote() -> None:
    assert in_number("the server's 1 rows, and the draft's") == "the server's 1 row, and the draft's"
