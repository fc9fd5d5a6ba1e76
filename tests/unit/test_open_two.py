"""Both sides of a comparison, or one alone: which sample is meant, and what is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import dump_layouts
import pytest

import drafttrace
from drafttrace.compare import report_markdown
from drafttrace.compare.judge import rejudge
from drafttrace.tracer.commands.diff import compare_paths
from drafttrace.tracer.commands.replay import _captures
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.from_mapping import parse_fields
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.few_samples import open_few
from drafttrace.tracer.open import open_some

ROOT = Path(__file__).resolve().parents[2]


def test_a_left_of_several_samples_without_a_reference_says_what_is_missing(tmp_path: Path) -> None:
    """'holds 8 samples; name one as ...#0', and then nothing could be compared of that, either."""
    dump = str(ROOT / "pairs/tiny-kimi/dump")
    for compare in (lambda path: compare_paths(path, None), drafttrace.diff):
        with pytest.raises(
            DrafttraceError, match=rf"holds 8 samples of a dump .*: drafttrace diff TRACE {dump}\.$"
        ):
            compare(dump)
    for number in (0, 1):
        shutil.copy(ROOT / "traces/tiny-kimi/fixed.h5", tmp_path / f"trace_{number}.h5")
    with pytest.raises(DrafttraceError, match=rf"holds 2 traces, .*; name it, as '{tmp_path}#0'\.$"):
        compare_paths(str(tmp_path), None)
    assert compare_paths(f"{tmp_path}#0", None).verdict == "match"


def test_one_sample_without_a_reference_says_what_is_missing(tmp_path: Path) -> None:
    """'Nothing could be compared.', and no word of what to give."""
    dump = f"{ROOT}/pairs/tiny-kimi/dump"
    result = drafttrace.diff(f"{dump}#0")
    assert (result.verdict, result.exit_code) == ("incomparable", 2)
    assert result.summary.endswith(f"drafttrace diff TRACE {dump}/data_0.pt.")
    assert rejudge(result, result.thresholds).summary == result.summary
    trace = tmp_path / "x.h5"
    convert(f"{dump}#0", trace, "trace", lose=["loss-mask", "layer-ids"])
    assert drafttrace.diff(trace).summary.endswith(f"drafttrace diff {trace} DUMP.")


def test_the_python_interface_finds_the_sample_of_left_too() -> None:
    """Only the command line did; here it was 'holds 8 samples; name one'."""
    dump, trace = ROOT / "pairs/tiny-llama/dump", ROOT / "traces/tiny-llama/healthy.h5"
    assert drafttrace.diff(dump, trace).left.path == drafttrace.diff(dump, drafttrace.open(trace)).left.path
    assert len(drafttrace.measure(dump, trace)) > 0


def test_samples_with_gaps_in_their_numbers_are_all_opened(tmp_path: Path) -> None:
    """'has no sample 1: it holds 3, numbered 1 to 7': places were taken for numbers, by check --dump and replay --all."""
    for number in (1, 3, 7):
        shutil.copy(ROOT / f"pairs/tiny-kimi/dump/data_{number}.pt", tmp_path)
    assert [one.sample for one in open_few(str(tmp_path))] == [1, 3, 7]
    assert [one.sample for one in open_some(str(tmp_path), lambda numbers: numbers[1:])] == [3, 7]
    assert [one.sample for one in open_few(f"{tmp_path}#3")] == [3]
    with pytest.raises(DrafttraceError, match=rf"name one as '{tmp_path}#1', or replay all of them with --all"):
        _captures(str(tmp_path), every=False, format=None, mapping=None, request=Request())
    assert len(_captures(str(tmp_path), every=True, format=None, mapping=None, request=Request())) == 3


def test_the_result_names_the_sample_that_was_chosen_of_a_file(tmp_path: Path) -> None:
    """The path of a list, with no word of which of its samples was compared, in any of the reports."""
    left = str(dump_layouts.write_ts_test(tmp_path))
    debug, cache = dump_layouts.write_ts_debug(tmp_path), dump_layouts.write_ts_eval(tmp_path)
    one = json.loads(dump_layouts.write_sg_json(tmp_path).read_text())
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps([one | {"input_ids": [5, 4, 3, 2, 1, 6, 7, 8, 9, 10]}, one]))
    for path, number in ((debug, 0), (cache, 0), (answers, 1)):
        result = compare_paths(left, str(path), request=Request(hidden_size=dump_layouts.H))
        assert result.reference is not None and result.reference.path == f"{path}#{number}"
        assert f"{path}#{number}(" in "".join(str(result).split())  # its lines are broken
        assert f'"path": "{path}#{number}"' in report_markdown.render(result)
        assert result.to_json()["reference"]["path"] == f"{path}#{number}"
        assert compare_paths(f"{path}#{number}", None).left.path == f"{path}#{number}"
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.json", "b.json"):
        shutil.copy(answers, folder / name)
    assert drafttrace.diff(f"{folder}#3").left.path == f"{folder}#3"


def test_the_result_names_the_file_of_a_sample_that_has_its_own() -> None:
    """PATH#i of such a file would be refused: it holds no sample i."""
    dump = ROOT / "pairs/tiny-kimi/dump"
    assert drafttrace.diff(f"{dump}#3").left.path == f"{dump}/data_3.pt"


def test_named_fields_are_of_the_side_that_has_no_known_layout(tmp_path: Path) -> None:
    """'name its fields with --slots and --tokens', which were given: they were taken for the reference's alone."""
    arrays, dump = str(dump_layouts.write_npz(tmp_path)), str(dump_layouts.write_ts_test(tmp_path))
    fields, request = parse_fields("s2,s4,s5", "ids"), Request(hidden_size=dump_layouts.H)
    for left, reference in ((arrays, dump), (dump, arrays)):
        result = compare_paths(left, reference, mapping=fields, request=request)
        assert result.reference is not None and (len(result.slots), result.verdict) == (3, "match")
        assert {result.left.format, result.reference.format} == {"MAPPED", "TS-TESTDUMP"}
    result = compare_paths(arrays, str(shutil.copy(arrays, tmp_path / "other.npz")), mapping=fields)
    assert result.reference is not None and result.left.format == result.reference.format == "MAPPED"
    with pytest.raises(DrafttraceError, match=r"There is no field 's9' in '.*any\.npz'"):
        compare_paths(f"{arrays}#0", dump, mapping=parse_fields("s9", "ids"), request=request)
    dump = str(dump_layouts.write_ts_eval(tmp_path))  # of several samples, and on either side
    assert compare_paths(arrays, dump, mapping=fields, request=request).verdict == "match"
    assert compare_paths(dump, arrays, mapping=fields, request=request).left.path == f"{dump}#0"
    with pytest.raises(DrafttraceError, match="There is no field 's2'"):  # both known: the reference is overruled
        compare_paths(f"{dump}#0", str(dump_layouts.write_sf_eagle3(tmp_path)), mapping=fields, request=request)
