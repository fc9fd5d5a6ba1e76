"""An unfinished conversion that is taken up with other options says which, in the words of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from convert_dumps import KNOWN, v1

from drafttrace.tracer.commands.reading import said
from drafttrace.tracer.convert import convert
from drafttrace.tracer.convert_journal import said_of_dump
from drafttrace.tracer.dumps.registry import FieldMap, Request
from drafttrace.tracer.errors import OutputExists


class Stop(Exception):
    pass


def interrupted(source: Path, out: Path, to: str, **options: Any) -> None:
    def stop(done: int, _count: int) -> None:
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        convert(str(source), out, to, progress=stop, **options)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {"request": Request(layer_ids=(1, 3, 4))}, "it was begun without --layer-ids 1,3,4"),
        ({"request": Request(layer_ids=(1, 3, 4))}, {}, "it was begun with --layer-ids 1,3,4"),
        ({"request": Request(layer_ids=(1, 3, 4))}, {"request": Request(layer_ids=(2, 4, 5), numbering="B")},
         "it was begun with --layer-ids 1,3,4, and this one with --layer-ids B2,B4,B5"),
        ({"mask": "ones"}, {}, "it was begun with --mask-ones"),
        ({"lose": ["boundaries", "recording"]}, {}, "it was begun with --lose boundaries --lose recording"),
        ({"format": "SPEC-V1"}, {"format": "spec-v1"}, "it reads the format SPEC-V1"),
    ],
)  # fmt: skip
def test_other_options_are_told_in_the_words_of_the_command_line(
    before: dict[str, Any], now: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """It printed "its said is "Request(hidden_size=None, ...)"."""
    source = v1(tmp_path / "dump")
    known: dict[str, Any] = {"request": KNOWN}
    interrupted(source, tmp_path / "out", "speculators-v1", **(known | before))
    with pytest.raises(OutputExists, match="unfinished conversion of another kind") as refused:
        convert(str(source), tmp_path / "out", "speculators-v1", **(known | now))
    text = str(refused.value)
    assert f"{words};" in text and "Request(" not in text and "said" not in text and "None" not in text
    convert(str(source), tmp_path / "out", "speculators-v1", **(known | before))  # its own command goes on


def test_another_layout_and_another_source_are_told(tmp_path: Path) -> None:
    source, other = v1(tmp_path / "dump"), v1(tmp_path / "other")
    interrupted(source, tmp_path / "out", "speculators-v1", request=KNOWN)
    with pytest.raises(OutputExists, match=f"it reads {source};"):
        convert(str(other), tmp_path / "out", "speculators-v1", request=KNOWN)
    with pytest.raises(
        OutputExists, match="it was begun with --to speculators-v1, and this one with --to safetensors;"
    ):
        convert(str(source), tmp_path / "out", "safetensors", request=KNOWN)


def test_what_is_said_of_a_dump_is_written_as_it_is_given() -> None:
    fields = {"slots": "a,b", "tokens": "t", "last": "l", "last_norm": "pre", "mask": "m", "boundaries": "B2,B4"}
    told = said(hidden_size=16, layer_ids=None, **fields)  # type: ignore[arg-type]
    assert told.mapping is not None
    written = said_of_dump(Request(hidden_size=16, fields=told.mapping))
    assert written == ["--hidden-size 16", "--slots a,b", "--tokens t", "--last l", "--last-norm pre", "--mask m",
                       "--boundaries B2,B4"]  # fmt: skip
    assert said_of_dump(Request(fields=FieldMap()).told(128, 16, 1024)) == []
