"""The result as JSON: the schema, the way back, numbers that are not finite, and judging again."""

from __future__ import annotations

import copy
import dataclasses
import json
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from compare_faults import nan_at, one_unknown_row, permuted, scaled, zeroed
from compare_world import dumped, make_world, served

import drafttrace.compare
from drafttrace.compare import result as schema_module
from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.plain import from_plain, to_plain
from drafttrace.compare.result import SCHEMA, Result, load_result
from drafttrace.compare.thresholds import DEFAULT, Limits, Thresholds, slot_limits
from drafttrace.compare.vocabulary import entries
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat, UnreadableFile

WORLD = make_world(layers=10, tokens=30)
SCHEMA_FILE = Path(drafttrace.compare.__file__).parent / "result.schema.json"


def example(**options: Any) -> Result:
    return diff(
        served(WORLD, (2, 5, 7), prompt=20), permuted((1, 0, 2))(dumped(WORLD.noisy(0.02), (2, 5, 7))), **options
    )


def validate(value: Any) -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize(
    "found",
    [
        example(),
        diff(served(WORLD, (2, 5, 7)), nan_at(4)(dumped(WORLD, (2, 5, 7)))),
        diff(served(WORLD, (2, 5, 7), sweep=()), zeroed((0, 1, 2))(dumped(WORLD, (2, 5, 7), last=None))),
        diff(served(WORLD, (2, 5, 7)), None),
        diff(served(WORLD, (2, 5, 7)), replace(dumped(WORLD, (2, 5, 7)), tokens=WORLD.tokens + 900)),
    ],
    ids=["mismatch", "nan", "zeros", "one trace", "no overlap"],
)
def test_every_result_is_strict_json_of_the_schema_and_comes_back_whole(found: Result) -> None:
    text = json.dumps(found.to_json(), allow_nan=False)
    validate(json.loads(text))
    back = load_result(text)
    assert back.to_json() == found.to_json()
    assert back.exit_code == {"match": 0, "noise": 0, "mismatch": 1, "incomparable": 2}[back.verdict]


def test_the_schema_refuses_what_is_no_result() -> None:
    good = example().to_json()
    for spoil in (
        lambda r: r.update(verdict="fine"),
        lambda r: r.update(schema="drafttrace.result/2"),
        lambda r: r.pop("findings"),
        lambda r: r["findings"][0].update(id="gremlins"),
        lambda r: r["findings"][0].update(confidence=1.5),
        lambda r: r["slots"][0]["rel_l2"].update(p50="much"),
        lambda r: r["slots"][0].update(left_boundary="layer 3"),
    ):
        bad = copy.deepcopy(good)
        spoil(bad)
        with pytest.raises(jsonschema.ValidationError):
            validate(bad)


def test_the_schema_names_every_field_and_every_cause() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    definitions = {**schema["$defs"], "Result": schema}
    classes = [c for c in vars(schema_module).values() if dataclasses.is_dataclass(c)]
    for kind in (*classes, Thresholds):
        fields = {f.metadata.get("key", f.name) for f in dataclasses.fields(kind)}
        assert set(definitions[kind.__name__]["properties"]) == fields, kind
    assert set(schema["$defs"]["Finding"]["properties"]["id"]["enum"]) == set(entries())


def test_the_contract_of_architecture_md_is_there() -> None:
    plain = example().to_json()
    assert plain["schema"] == SCHEMA
    assert {
        "verdict",
        "exit_code",
        "left",
        "reference",
        "alignment",
        "slots",
        "matrix",
        "findings",
        "noise",
    } <= set(plain)
    assert {"rows_compared", "rows_left", "rows_reference", "token_shift", "coverage", "skipped"} <= set(
        plain["alignment"]
    )
    slot = plain["slots"][0]
    assert {"mean", "min", "p01", "p50"} <= set(slot["cosine"]) and {"mean", "max", "p50", "p99"} <= set(
        slot["rel_l2"]
    )
    assert {"reference", "boundary", "rel_l2", "margin"} <= set(slot["best_match"])
    assert {"id", "class", "confidence", "slots", "summary", "evidence", "remedy"} <= set(plain["findings"][0])
    assert slot["worst"] and {"position", "token_id", "token", "phase", "round", "cosine"} <= set(slot["worst"][0])


def test_numbers_that_are_not_finite_become_null_and_back() -> None:
    limits = Limits(float("nan"), float("inf"), "x")
    assert to_plain(limits) == {"match": None, "noise": None, "against": "x"}
    assert np.isnan(from_plain(Limits, to_plain(limits)).match)
    assert to_plain({"a": np.float32(1.5), "b": np.array([1, 2]), "c": (np.bool_(True),)}) == {
        "a": 1.5,
        "b": [1, 2],
        "c": [True],
    }


def test_damaged_and_foreign_files_are_one_sentence() -> None:
    good = example().to_json()
    with pytest.raises(UnknownFormat, match="no drafttrace result"):
        Result.from_json({"schema": "other"})
    with pytest.raises(UnknownFormat, match="no drafttrace result"):
        Result.from_json([])
    with pytest.raises(UnreadableFile, match="is no JSON"):
        load_result("{")
    for path in (("slots",), ("alignment", "rows_compared"), ("slots", 0, "rel_l2", "p50")):
        bad = copy.deepcopy(good)
        place: Any = bad
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "nonsense"
        with pytest.raises(UnreadableFile, match="is damaged"):
            Result.from_json(bad)
        del place[path[-1]]
        with pytest.raises(UnreadableFile, match="is damaged"):
            Result.from_json(bad)


def test_a_newer_minor_version_may_add_fields() -> None:
    plain = example().to_json()
    plain["weather"] = "fair"
    plain["slots"][0]["colour"] = "green"
    assert Result.from_json(plain).verdict == "mismatch"


def test_a_saved_result_is_judged_again_without_tensors() -> None:
    left = served(WORLD, (2, 5, 7))
    saved = load_result(json.dumps(diff(left, dumped(WORLD.noisy(0.03), (2, 5, 7))).to_json()))
    assert saved.verdict == "match"
    strict = rejudge(saved, replace(DEFAULT, match=0.01, neighbour_noise=0.1))
    assert (strict.verdict, strict.exit_code) == ("mismatch", 1)
    assert strict.findings[0].id == "unexplained"
    assert "none" not in {f.id for f in strict.findings}
    middle = rejudge(saved, replace(DEFAULT, match=0.01))
    assert (middle.verdict, middle.exit_code) == ("noise", 0)
    assert rejudge(strict, DEFAULT).verdict == "match"


def test_no_threshold_makes_a_named_fault_go_away() -> None:
    saved = diff(served(WORLD, (2, 5, 7)), scaled(1.04)(dumped(WORLD, (2, 5, 7))))
    assert saved.findings[0].id == "scale"
    loose = rejudge(saved, replace(DEFAULT, match=10, noise=10, neighbour_match=10, neighbour_noise=10))
    assert loose.verdict == "mismatch" and loose.findings[0].id == "scale"


def test_odd_rows_are_counted_again_by_other_limits() -> None:
    left = served(WORLD, (2, 5, 7))
    saved = load_result(json.dumps(diff(left, one_unknown_row(20)(dumped(WORLD.noisy(0.02), (2, 5, 7)))).to_json()))
    assert [f.id for f in saved.findings] == ["unexplained"] and saved.slots[1].outlier_rows == 1
    loose = rejudge(saved, replace(DEFAULT, row=5, row_hidden=-1))
    assert (loose.verdict, [f.id for f in loose.findings]) == ("match", ["none"])
    assert loose.slots[1].outlier_rows == 0
    assert rejudge(loose, DEFAULT).to_json() == saved.to_json()


def test_a_last_state_is_judged_again_too() -> None:
    saved = diff(served(WORLD, (2, 5, 7)), dumped(WORLD.noisy(0.02), (2, 5, 7)))
    strict = rejudge(saved, replace(DEFAULT, match=0.001, noise=0.001, neighbour_noise=0.001))
    assert [s.verdict for s in strict.others] == ["mismatch"]
    assert "the last state" in {f.evidence.get("state") for f in strict.findings}


@pytest.mark.parametrize("name", ["located", "scale"])
def test_what_was_decided_with_the_tensors_is_not_judged_again(name: str) -> None:
    with pytest.raises(DrafttraceError, match=f"--threshold {name}=0.3"):
        rejudge(example(), replace(DEFAULT, **{name: 0.3}))


def test_an_accept_length_is_judged_again() -> None:
    left = served(WORLD, (2, 5, 7))
    left = replace(left, about={**left.about, "request": {"accept_counts": [2] * 12}})
    saved = diff(left, dumped(WORLD.noisy(0.02), (2, 5, 7)))
    assert saved.findings[0].id == "none"
    strict = rejudge(saved, replace(DEFAULT, accept=2.5))
    assert (strict.findings[0].id, strict.exit_code) == ("downstream", 1)
    assert "too low below 2.50" in strict.summary
    assert rejudge(strict, DEFAULT).to_json() == saved.to_json()


def test_limits_say_what_they_rest_on() -> None:
    blind = slot_limits(DEFAULT, None, None)
    assert blind == Limits(0.05, 0.07, "the default limits, no neighbouring boundary measured")
    near = slot_limits(DEFAULT, None, 0.08)
    assert (near.match, round(near.noise, 6)) == (0.04, 0.048) and "0.08" in near.against
    noisy = slot_limits(DEFAULT, (0.02, 0.03), None)
    assert (noisy.match, noisy.noise) == (0.04, 0.08)
    blurred = slot_limits(DEFAULT, (0.2, 0.3), 0.1)
    assert (blurred.match, blurred.noise) == (
        0.05,
        DEFAULT.noise,
    ) and "does not tell the two apart" in blurred.against
    assert slot_limits(DEFAULT, (0.02, 0.03), 0.1).noise <= 0.06


def test_a_far_neighbour_does_not_turn_garbage_into_noise() -> None:
    """The embedding's next boundary can be 65 times its norm away: six tenths of that is no limit."""
    far = slot_limits(DEFAULT, None, 65.0)
    assert (far.match, far.noise) == (0.05, DEFAULT.noise)
    assert slot_limits(replace(DEFAULT, noise=0.1), None, 65.0).noise == 0.1


def test_types_of_the_result_can_be_resolved() -> None:
    assert typing.get_type_hints(Result)["findings"]
