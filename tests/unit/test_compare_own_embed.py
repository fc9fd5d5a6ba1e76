"""The target's embedding that is not B0: of the trace's own sweep, of the reference, or of what the draft looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16
from edited_captures import Floats, dump, trace

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT
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
