"""The accept length of what follows a finished text says nothing about the draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drafttrace.compare.acceptance import after_the_end
from drafttrace.tracer.capture import Capture, RowTable


def trace(tokens: list[int], prompt: int | None, config: Any) -> Capture:
    ids = np.array(tokens, np.int64)
    return Capture(
        path="t.h5",
        format="drafttrace.trace",
        recognised_by="test",
        tokens=ids,
        table=RowTable.of_tokens(ids),
        slots=(),
        prompt_length=prompt,
        about={"target_config": config},
    )


@pytest.mark.parametrize(
    ("tokens", "prompt", "config", "ended"),
    [
        ([5, 6, 1, 0, 0], 3, {"eos_token_id": 1}, True),
        ([5, 6, 1, 0, 0], 3, {"eos_token_id": [7, 1]}, True),
        ([5, 6, 1, 0, 0], 3, {"text_config": {"eos_token_id": 1}}, True),
        ([5, 1, 6, 0, 0], 3, {"eos_token_id": 1}, False),  # inside the prompt: an earlier turn
        ([5, 6, 1, 0, 0], None, {"eos_token_id": 1}, False),
        ([5, 6, 1, 0, 0], 3, {}, False),
        ([5, 6, 1, 0, 0], 3, None, False),
    ],
)
def test_a_prompt_that_ends_with_the_end_of_text(
    tokens: list[int], prompt: int | None, config: Any, ended: bool
) -> None:
    assert after_the_end(trace(tokens, prompt, config)) is ended
