"""Layer ids as a user writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import dump_layouts as made
import pytest

from drafttrace.tracer.dumps.registry import FieldMap, Request, folder_layouts, layouts
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.layer_ids import parse_ids
from drafttrace.tracer.open import open_capture


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2,30,58", ((2, 30, 58), "")),
        (" [-1, 2, 30] ", ((-1, 2, 30), "")),
        ("B3, b31,B59", ((3, 31, 59), "B")),
        ("embed,B3", ((0, 3), "B")),
        ("O-1,O2", ((-1, 2), "O")),
        (None, (None, "")),
    ],
)
def test_layer_ids_as_they_are_written(text: str | None, found: object) -> None:
    assert parse_ids(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [("2,x", "are no numbers"), ("", "are no numbers"), ("2,,3", "are no numbers"), ("B2,O3", "in two ways"),
     ("B2,3", "in two ways"), ("B-1,B3", "below B0"), ("O-2,O3", "below B0"), ("-2,3", "below B0")],
)  # fmt: skip
def test_layer_ids_that_are_none(text: str, words: str) -> None:
    with pytest.raises(DrafttraceError, match=words):
        parse_ids(text)


@pytest.mark.parametrize("said", ["B2,B4,B5", "O1,O3,O4"])
def test_layer_ids_of_a_file_of_no_known_layout(said: str, tmp_path: Path) -> None:
    """They were taken and looked at by nobody."""
    path = str(made.write_npz(tmp_path))
    fields = FieldMap(slots=("s2", "s4", "s5"), tokens="ids")

    def wiring(text: str, mapping: FieldMap = fields) -> tuple[int | None, ...]:
        ids, numbering = parse_ids(text)
        return open_capture(path, mapping=mapping, request=Request(layer_ids=ids, numbering=numbering)).wiring

    assert wiring(said) == (2, 4, 5)
    with pytest.raises(DrafttraceError, match="2 boundaries are given for the 3 slots"):
        wiring(said[:5])
    with pytest.raises(DrafttraceError, match=r"is of no known project.*write them as B"):
        wiring("2,4,5")
    with pytest.raises(DrafttraceError, match=r"both name the slots .*; give one of the two"):
        wiring(said, replace(fields, boundaries=(2, 4, 5)))


@pytest.mark.parametrize("case", [case for case in made.CASES if case.slots], ids=lambda case: case.id)
def test_a_plain_id_below_the_embedding_is_refused_by_its_value(case: made.Case, tmp_path: Path) -> None:
    """'B-1 (declared)' of a layout that numbers boundaries, and no slots in SGLang's passes."""
    path, sample = str(case.write(tmp_path)), 0 if case.id.startswith("TS-") else None
    table = {**layouts(), **folder_layouts()}
    counts_outputs = table[case.id].ids.startswith("O(id)") or case.id in {"AM-EAGLE3", "AM-DSPARK"}
    counts_outputs &= (case.id, case.norm) != ("MO-PT", "pre")  # what its vLLM backend writes
    asked = Request(**{**case.request, "layer_ids": (-1, *range(2, len(case.slots) + 1))})
    if counts_outputs:
        assert -1 not in open_capture(path, sample=sample, request=asked).wiring
        asked = replace(asked, layer_ids=(-2, *asked.layer_ids[1:]))
    with pytest.raises(DrafttraceError, match=r"^--layer-ids names -[12], and ids are [BO]\(id\) in '.*O-1\.$"):
        open_capture(path, sample=sample, request=asked)


def test_an_answer_of_the_server_has_no_boundary_below_the_embedding(tmp_path: Path) -> None:
    path = made.write_sg_json(tmp_path)
    answer = json.loads(path.read_text())
    answer["meta_info"]["hidden_states"] = [made.aux().float().tolist()]
    path.write_text(json.dumps(answer))
    for lenient in (False, True):
        asked = Request(hidden_size=made.H, layer_ids=(-1, 2, 3), lenient=lenient)
        with pytest.raises(DrafttraceError, match=r"names -1, and ids are B\(id\) in .*write B0 for it"):
            open_capture(str(path), request=asked)
    assert open_capture(str(path), request=replace(asked, numbering="O")).wiring == (0, 3, 4)
