"""A list of answers of /generate, as scripts save it: prompts that were not kept, requests that failed, one state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dump_layouts as made
import pytest

from drafttrace.tracer.dumps.folder import open_collection
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare, UnreadableFile
from drafttrace.tracer.open import open_capture


def answers(root: Path, *entries: Any) -> str:
    path = root / "answers.json"
    path.write_text(json.dumps(entries))
    return str(path)


@pytest.fixture
def answer(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.write_sg_json(tmp_path).read_text())
    return found


def test_answers_without_the_ids_of_their_prompts_say_so(answer: dict[str, Any], tmp_path: Path) -> None:
    """'None of the 4 samples starts with the tokens of ...; give the dump of the same text': it was of the same text."""
    like = open_capture(str(made.write_ts_test(tmp_path)))
    bare = {name: value for name, value in answer.items() if name != "input_ids"}
    path = answers(tmp_path, *[bare] * 4)
    with pytest.raises(
        NothingToCompare, match=r"None of the 4 samples .* keeps the token ids of its start, so .*#0'"
    ):
        open_capture(path, like=like)
    assert len(open_capture(f"{path}#0", like=like).tokens) == made.LENGTH
    other = answer | {"input_ids": [9] * 10}
    with pytest.raises(NothingToCompare, match=r"starts with .* \(1 of them keeps no token ids of its start\)"):
        open_capture(answers(tmp_path, bare, other), like=like)
    assert open_capture(answers(tmp_path, bare, other, answer), like=like).sample == 2


@pytest.mark.parametrize("bad", [{"error": {"message": "out of memory"}}, None, {"meta_info": {}}, "late"])
def test_one_bad_answer_does_not_hide_the_others(bad: Any, answer: dict[str, Any], tmp_path: Path) -> None:
    """'holds a list of 3 entries, which is no dump format that drafttrace knows'."""
    path = answers(tmp_path, bad, answer, answer | {"input_ids": [9] * 10})
    found = open_collection(Path(path))
    assert (found.layout.id, len(found.refs)) == ("SG-JSON", 3)
    with pytest.raises(UnreadableFile, match=r"Answer 0 of .* has no meta_info\.hidden_states; .*answers\.json#1'"):
        open_capture(f"{path}#0")
    assert open_capture(path, like=open_capture(str(made.write_ts_test(tmp_path)))).sample == 1
    with pytest.raises(NothingToCompare, match=r"starts with the tokens of .* \(#0 could not be read\)"):
        open_capture(
            answers(tmp_path, bad, answer | {"input_ids": [9] * 10}, answer | {"input_ids": [8] * 10}),
            like=open_capture(str(made.write_ts_test(tmp_path))),
        )
    with pytest.raises(DrafttraceError, match="no dump format"):
        open_capture(answers(tmp_path, bad, bad))


def test_layer_ids_of_an_uncut_answer_name_the_hidden_size(answer: dict[str, Any], tmp_path: Path) -> None:
    """'3 layer ids are given where the dump has 0 slots; give one for each': the width to cut them by was missing."""
    rows = made.aux().float()
    answer["meta_info"]["hidden_states"] = [rows[:10].tolist(), *rows[10:].tolist()]
    path, ids = answers(tmp_path, answer), (2, 4, 5)
    for lenient in (False, True):
        with pytest.raises(DrafttraceError, match=r"3 layer ids .* 48 wide, .* without slots; .*--hidden-size"):
            open_capture(path, request=Request(layer_ids=ids, lenient=lenient))
    assert open_capture(path, request=Request(layer_ids=ids, hidden_size=made.H)).wiring == made.CANON
    with pytest.raises(
        DrafttraceError, match=r"48 wide, is read as a last state without slots; leave --layer-ids out"
    ):
        open_capture(path, request=Request(layer_ids=ids, hidden_size=48))
