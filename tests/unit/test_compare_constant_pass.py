"""A buffer that one kind of pass does not fill anew, and tokens that the draft embeds now so, now so: both were a match."""

from __future__ import annotations

import numpy as np
import pytest
from edited_captures import Floats, draft_of, dump, faults, in_phase, trace, with_draft

from drafttrace.compare.diff import diff
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture, Phase

PAIRS = pytest.mark.parametrize("pair", ["kimi", "llama"])
AFTER_PREFILL, AFTER_VERIFY, DECODE = Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY, Phase.DRAFT_DECODE


def one_row(values: Floats) -> Floats:
    return np.repeat(values[2:3], len(values), 0)


def only(left: Capture, name: str, beside: Capture | None = None) -> Finding:
    result = diff(left, beside)
    assert faults(result) == [name] and result.exit_code == 1, [(f.id, f.summary) for f in result.findings]
    return result.findings[0]


@PAIRS
@pytest.mark.parametrize(
    ("tensor", "phase"),
    [
        ("hidden_in", AFTER_VERIFY),
        ("fc_in", AFTER_VERIFY),
        ("fc_out", AFTER_VERIFY),
        ("embed_in", AFTER_PREFILL),
        ("embed_in", DECODE),
        ("hidden_out", AFTER_PREFILL),
        ("hidden_out", DECODE),
        ("topk_logits", DECODE),
    ],
)
def test_a_tensor_that_is_one_row_in_one_kind_of_pass_is_named(pair: str, tensor: str, phase: Phase) -> None:
    """Less than half of all rows were alike, so nothing was said."""
    left = with_draft(trace(pair), tensor, one_row, in_phase(trace(pair), phase))
    found = only(left, "constant-rows")
    assert tensor in found.summary and "--disable-cuda-graph" in found.remedy and "weight (" not in found.remedy
    assert only(left, "constant-rows", dump(pair)).id == "constant-rows"


@PAIRS
def test_one_draft_step_that_is_one_row_is_named(pair: str) -> None:
    second = in_phase(trace(pair), DECODE) & (draft_of(trace(pair)).table.step == 1)
    only(with_draft(trace(pair), "topk_logits", one_row, second), "constant-rows")


@PAIRS
@pytest.mark.parametrize("d", [1, -1])
def test_an_embedding_of_the_draft_s_own_that_is_a_row_late_is_named(pair: str, d: int) -> None:
    """It agrees with the target's nowhere, as one that is right does; but equal tokens have unequal rows."""
    width = trace(pair).slots[0].rows.width
    q = np.linalg.qr(np.random.default_rng(1).standard_normal((width, width)))[0].astype(np.float32)
    own = with_draft(trace(pair), "embed_in", lambda values: values @ q)
    assert faults(diff(own, None)) == []
    found = only(with_draft(own, "embed_in", lambda values: np.roll(values, d, axis=0)), "token-shift")
    assert f"the token {'before' if d > 0 else 'behind'} it" in found.summary
