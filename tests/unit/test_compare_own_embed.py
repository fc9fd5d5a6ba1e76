"""The target's embedding that is not B0: of the trace's own sweep, of the reference, or of what the draft looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16
from edited_captures import Floats, dump, trace, with_draft

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture

Change = Callable[[Floats], Floats]
SOME = [10, 13, 20, 31]


def with_embed(capture: Capture, change: Change) -> Capture:
    assert capture.embed is not None
    return replace(capture, embed=replace(capture.embed, rows=bf16(change(capture.embed.rows.floats().copy()))))


def on_rows(change: Change, rows: list[int]) -> Change:
    def put_in(values: Floats) -> Floats:
        values[rows] = change(values[rows])
        return values

    return put_in


def mixed(values: Floats) -> Floats:
    return np.random.default_rng(2).permuted(values, axis=1)


def turned(values: Floats) -> Floats:
    return values @ np.linalg.qr(np.random.default_rng(5).standard_normal((values.shape[1],) * 2))[0]


CASES: dict[str, tuple[str, Change]] = {
    "one row twice as large": ("scale", on_rows(lambda x: 2 * x, [10])),
    "four other rows": ("unexplained", on_rows(mixed, SOME)),
    "rows of other tokens": ("stale-rows", lambda x: on_rows(lambda _: x[[33, 34, 35, 36]], SOME)(x)),
    "a token off": ("token-shift", lambda x: np.roll(x, 1, axis=0)),
    "all rows": ("unexplained", mixed),
    "another basis": ("rotation", turned),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_an_embedding_that_is_not_the_sweep_s_is_named(pair: str, case: str) -> None:
    name, change = CASES[case]
    for reference in (None, dump(pair)):
        found = diff(with_embed(trace(pair), change), reference)
        named = [f for f in found.findings if f.severity == FAULT]
        assert [f.id for f in named] == [name] and named[0].evidence["of"] == "embed", found.findings
        assert found.exit_code == 1 and "limit 0.01)" in named[0].summary


@pytest.mark.parametrize("reference", [True, False])
def test_without_a_sweep_the_reference_s_slot_and_the_draft_s_rows_tell(reference: bool) -> None:
    left = replace(with_embed(trace("kimi"), CASES["four other rows"][1]), boundaries={})
    named = [f for f in diff(left, dump("kimi") if reference else None).findings if f.severity == FAULT]
    assert [f.id for f in named] == ["unexplained" if reference else "stale-rows"]
    assert ("the reference's slot 0" in named[0].summary) is reference


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_what_a_model_does_to_every_row_is_no_fault(pair: str) -> None:
    """A multiplier: the root of the hidden size, one of the config, or one that no config names (then it is noted)."""
    plain = replace(trace(pair), draft=None, probes=())
    width = trace(pair).slots[0].rows.width
    config = {**plain.about["target_config"], "embedding_multiplier": 12.0}
    for factor, about in ((width**-0.5, plain.about), (1 / 12, {**plain.about, "target_config": config})):
        found = diff(replace(with_embed(plain, lambda x, by=factor: by * x), about=about), dump(pair))
        assert not [f for f in found.findings if f.evidence.get("of") == "embed"], found.findings
    found = diff(with_embed(plain, lambda x: x / 7), dump(pair))
    assert [(f.id, f.severity) for f in found.findings if f.evidence.get("of") == "embed"] == [("scale", "note")]


def test_pictures_are_merged_behind_the_embedding() -> None:
    """The placeholder has one vector there, and B0 holds a picture in its rows."""
    left = replace(trace("llama"), draft=None, probes=())
    tokens, table = left.tokens.copy(), left.table
    tokens[10:20] = 7
    here = (table.position >= 10) & (table.position < 20)
    table = replace(table, token_id=np.where(here, 7, table.token_id))
    place = np.flatnonzero(here)
    found = diff(
        with_embed(replace(left, tokens=tokens, table=table), on_rows(lambda x: 0 * x + 1, place.tolist())), None
    )
    assert not [f for f in found.findings if f.evidence.get("of") == "embed"], found.findings


def told(result: Result) -> list[tuple[str, str]]:
    return [
        (f.id, f.severity) for f in result.findings if f.id in {"scale", "stale-rows", "unexplained", "rotation"}
    ]


def wrong_rows(values: Floats) -> Floats:
    return on_rows(mixed, [5, 9, 14, 20, 30])(values)


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_what_is_told_of_the_target_s_embedding_hides_nothing_of_the_draft_s(pair: str) -> None:
    """A note (a multiplier that no config names), a fault of some rows and one of all of them; and the draft that is right
    stays so beside each."""
    cases = {"note": lambda x: x / 7, "some": on_rows(mixed, SOME), "all": turned}
    own = {"note": ("scale", "note"), "some": ("unexplained", "fault"), "all": ("rotation", "fault")}
    drafts: dict[str, tuple[Change, list[str]]] = {
        "right": (lambda x: x, []),
        "rows": (wrong_rows, ["stale-rows"]),
        "scaled": (lambda x: 1.5 * x, ["scale"]),
    }
    for case, change in cases.items():
        for change_draft, expected in drafts.values():
            left = with_embed(with_draft(trace(pair), "embed_in", change_draft), change)
            result = diff(left, None)
            assert sorted(told(result)) == sorted([own[case], *((one, "fault") for one in expected)]), (
                case,
                expected,
            )


def multiplied(pair: str, by: float, embedding: float, config: dict[str, object]) -> Capture:
    """A target with B0 = ``by`` * weight, whose tap recorded ``embedding`` * weight; the draft takes the weight."""
    plain = trace(pair)
    boundaries = {**plain.boundaries, 0: bf16(plain.boundaries[0].floats() * by)}
    about = {**plain.about, "target_config": {**plain.about["target_config"], **config}}
    return with_embed(replace(plain, boundaries=boundaries, about=about), lambda x: x * embedding)


def test_a_target_that_multiplies_inside_its_embedding_is_no_fault_of_a_draft_with_the_plain_weight() -> None:
    """As Gemma 3's embedding module does; with the sweep and without one."""
    root = float(trace("llama").slots[0].rows.width ** 0.5)
    for by, config in ((root, {}), (root, {"model_type": "gemma3_text"}), (12.0, {"embedding_multiplier": 12.0})):
        left = multiplied("llama", by, by, config)
        for one in (left, replace(left, boundaries={})):
            result = diff(one, dump("llama"))
            assert told(result) == [("scale", "note")] and result.exit_code == 0, result.findings
    assert told(diff(multiplied("llama", 12.0, 12.0, {}), dump("llama"))) == [("scale", "fault")]
    assert told(diff(with_draft(trace("llama"), "embed_in", lambda x: x * root), None)) == [("scale", "fault")]
    some = with_draft(multiplied("llama", 1.0, 1.0, {}), "embed_in", on_rows(lambda x: x / root, list(range(8))))
    assert told(diff(some, None)) == [("scale", "fault")]


def test_a_draft_of_the_reference_that_multiplied_as_the_target_makes_it_a_fault() -> None:
    """Served with the plain weight, recorded before with the multiplied one."""
    root = float(trace("llama").slots[0].rows.width ** 0.5)
    left = multiplied("llama", root, root, {"model_type": "gemma3_text"})
    before = with_draft(left, "embed_in", lambda x: x * root)
    assert told(diff(left, before)) == [("scale", "fault")]
    assert told(diff(left, left)) == [("scale", "note")]


@pytest.mark.parametrize(("first", "last", "held"), [(20, 30, 21), (20, 21, 64)])
def test_one_compared_row_of_a_picture_is_no_fault(first: int, last: int, held: int) -> None:
    """The first row of a picture is the last one that the sweep holds; or the picture has no other."""
    left = replace(trace("llama"), draft=None, probes=())
    here = (left.table.position >= first) & (left.table.position < last)
    tokens = left.tokens.copy()
    tokens[first:last] = 7
    left = replace(
        left,
        tokens=tokens,
        table=replace(left.table, token_id=np.where(here, 7, left.table.token_id)),
        boundaries={k: bf16(rows.floats()[:held]) for k, rows in left.boundaries.items()},
    )
    one = 0.01 * np.random.default_rng(1).standard_normal(left.slots[0].rows.width)
    merged = with_embed(left, on_rows(lambda x: 0 * x + one, np.flatnonzero(here).tolist()))
    assert told(diff(merged, None)) == [("unexplained", "note")]
    config = {**left.about["target_config"], "image_token_id": 7}
    assert told(diff(replace(merged, about={**left.about, "target_config": config}), None)) == []
