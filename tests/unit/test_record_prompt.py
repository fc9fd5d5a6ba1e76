"""Which of a training sample's tokens `record --from-dump` sends."""

from __future__ import annotations

import numpy as np
import pytest

from drafttrace.tracer.capture import Capture, RowTable
from drafttrace.tracer.commands.prompts import answer_start


def sample(mask: list[int] | None, length: int = 8, valid: int = 0) -> Capture:
    tokens = np.arange(length, dtype=np.int64)
    return Capture(
        path="x",
        format="x",
        recognised_by="x",
        tokens=tokens,
        table=RowTable.of_tokens(tokens),
        slots=(),
        mask=None if mask is None else np.array(mask, np.int64),
        valid_length=valid,
    )


@pytest.mark.parametrize(
    ("mask", "valid", "start"),
    [
        ([0, 0, 0, 1, 1, 1, 1, 1], 0, 3),
        ([0, 1, 1, 0, 0, 1, 1, 1], 0, 5),  # the last of two answers
        ([0, 0, 1, 1, 0, 0, 0, 0], 4, 2),  # a padded tail
        ([0, 0, 1, 1, 1, 0, 0, 0], 0, 2),  # tokens after the answer that carry no loss
        ([1, 1, 1, 1, 1, 1, 1, 1], 0, None),  # no prompt to tell apart
        ([0, 0, 0, 0, 0, 0, 0, 0], 0, None),
        (None, 0, None),
    ],
)
def test_the_last_answer_is_found_by_the_mask(mask: list[int] | None, valid: int, start: int | None) -> None:
    assert answer_start(sample(mask, valid=valid)) == start
