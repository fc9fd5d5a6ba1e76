"""Answers of /generate with hidden states whose rows do not begin with the prompt's first token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.open import open_capture

PROMPT, OUTPUT, WIDTH = 12, 4, 8


def answer(path: Path, cached: int | None, **more: Any) -> str:
    states = np.random.default_rng(0).normal(size=(PROMPT + OUTPUT - 1, WIDTH))[cached or 0 :]
    first = PROMPT - (cached or 0)
    meta = {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT}
    meta |= {} if cached is None else {"cached_tokens": cached}
    meta |= {"hidden_states": [states[:first].tolist(), *(row.tolist() for row in states[first:])]}
    path.write_text(json.dumps({"output_ids": list(range(50, 50 + OUTPUT)), "meta_info": meta, **more}))
    return str(path)


@pytest.mark.parametrize("ids", [{}, {"input_ids": list(range(PROMPT))}])
@pytest.mark.parametrize("cached", [1, 5, PROMPT - 1])
def test_rows_behind_a_cached_prefix_are_not_placed_at_other_tokens(
    tmp_path: Path, cached: int, ids: dict[str, list[int]]
) -> None:
    """They stood at position 0 on: "token-shift" 0.97 of a healthy server, and "confirmed" by inspect."""
    with pytest.raises(UnreadableFile, match=rf"no rows of its first {cached} tokens?, .*extra_key"):
        open_capture(answer(tmp_path / "a.json", cached, **ids))


def test_fewer_rows_than_the_prompt_has_tokens_are_refused_without_the_count_of_cached_ones(tmp_path: Path) -> None:
    path = Path(answer(tmp_path / "a.json", 8))
    told = json.loads(path.read_text())
    del told["meta_info"]["cached_tokens"]
    path.write_text(json.dumps(told))
    with pytest.raises(UnreadableFile, match="has 7 rows for a prompt of 12 tokens"):
        open_capture(str(path))


@pytest.mark.parametrize("cached", [None, 0])
def test_a_whole_answer_is_read_as_before(tmp_path: Path, cached: int | None) -> None:
    found = open_capture(answer(tmp_path / "a.json", cached, input_ids=list(range(PROMPT))))
    assert len(found.table) == PROMPT + OUTPUT - 1
    assert found.tokens.tolist()[-OUTPUT:] == list(range(50, 50 + OUTPUT))
