"""Layer ids to boundaries and back, for every rule, class and release that the table knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafttrace.compare.audit.sglang_rules import capability, honoured, parse_version
from drafttrace.compare.id_rules import IdRule, boundaries_of, emitted, ids_for

DEEPSEEK, LLAMA, GPT = "DeepseekV3ForCausalLM", "LlamaForCausalLM", "GptOssForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "version", "ids", "n", "served"),
    [
        (LLAMA, "0.5.23", None, 32, (2, 16, 29)),
        (LLAMA, "0.5.23", (1, 15, 28), 32, (2, 16, 29)),
        (LLAMA, "0.5.12", (2, 16, 29), 32, (3, 17, 30)),
        (LLAMA, "0.5.23", (-1, 2, 30), 32, (0, 3, 31)),
        (LLAMA, "0.5.23", (28, 1, 15), 32, (2, 16, 29)),  # list order is lost
        (LLAMA, "0.5.23", (1, 15, 31), 32, (2, 16)),  # B32 is entered by no layer
        (LLAMA, "0.5.23", (1, 1, 28), 32, (2, 29)),
        (DEEPSEEK, "0.5.12.post1", (2, 30, 58), 61, (3, 31, 59)),
        (DEEPSEEK, "0.5.13", (2, 30, 58), 61, (2, 30, 58)),
        (DEEPSEEK, "0.5.15.post1", (2, 30, 58), 61, (2, 30, 58)),
        (DEEPSEEK, "0.5.23", (1, 29, 57), 61, (2, 30, 58)),
        (DEEPSEEK, "0.5.23", (0, 3, 31), 61, (0, 3, 31)),
        (DEEPSEEK, "0.5.12", (-1, 2, 30), 61, (0, 3, 31)),
        ("KimiK25ForConditionalGeneration", "0.5.23", (3, 31, 59), 61, (3, 31, 59)),
        (GPT, "0.5.16", (1, 17, 33), 36, (2, 18, 34)),
        (GPT, "0.5.17", (24, 30, 36), 36, (24, 30, 36)),
        (GPT, "0.5.16", (24, 30, 36), 36, (25, 31)),
        (GPT, "0.5.23", (1, 17, 33), 36, (2, 18, 34)),
    ],
)
def test_what_a_release_serves(
    architecture: str, version: str, ids: tuple[int, ...] | None, n: int, served: tuple[int, ...]
) -> None:
    found = capability(architecture, version)
    assert found is not None and found.exact
    assert found.served(ids, n) == served


def test_classes_that_cannot_capture_are_not_guessed() -> None:
    assert capability("BertModel", "0.5.23") is None
    assert capability("MiniMaxM3SparseForCausalLM", "0.5.12") is None
    assert capability("MiniMaxM3SparseForCausalLM", "0.5.16") is not None
    newer = capability(LLAMA, "0.6.0")
    assert newer is not None and not newer.exact


def test_a_class_whose_default_is_one_late() -> None:
    found = capability("MiniMaxM3SparseForConditionalGeneration", "0.5.20")
    assert found is not None and found.served(None, 60) == (3, 31, 58)


def test_releases_that_cannot_capture_the_embedding() -> None:
    assert [capability(LLAMA, v).embed for v in ("0.5.21", "0.5.22")] == [False, True]  # type: ignore[union-attr]
    assert [capability(DEEPSEEK, v).embed for v in ("0.5.13", "0.5.14")] == [False, True]  # type: ignore[union-attr]


def test_flags_by_release() -> None:
    assert [honoured("norm_before_fc", "LlamaForCausalLMEagle3", v) for v in ("0.5.16", "0.5.17")] == [False, True]
    assert [honoured("fc_norm", "Eagle3DeepseekV2ForCausalLM", v) for v in ("0.5.12", "0.5.13")] == [False, True]
    assert not honoured("norm_before_residual", "LlamaForCausalLMEagle3", "0.5.23")


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5.15.post1", (0, 5, 15, 1)), ("v0.5.23", (0, 5, 23, 0)), ("0.5.16rc0+cu", (0, 5, 16, 0))],
)
def test_versions(text: str, value: tuple[int, ...]) -> None:
    assert parse_version(text) == value


def test_a_text_that_is_no_version() -> None:
    with pytest.raises(ValueError, match="no SGLang version"):
        parse_version("main")


@pytest.mark.parametrize(
    ("rule", "boundaries", "ids"),
    [
        (IdRule.PLUS_ONE, (0, 3, 31), (-1, 2, 30)),
        (IdRule.PLUS_ONE_IF_FIRST_IS_ONE, (0, 3, 31), (0, 3, 31)),
        (IdRule.PLUS_ONE_IF_FIRST_IS_ONE, (2, 30, 58), (1, 29, 57)),
        (IdRule.PLUS_ONE_IF_FIRST_IS_ONE, (1, 30, 58), (30, 58, 1)),  # [1, 30, 58] would mean B2, B31, B59
        (IdRule.PLUS_ONE_IF_FIRST_IS_ONE, (1,), None),  # [1] means B2 and [0] means B0
        (IdRule.RAW_IF_HIGHEST_IS_N, (24, 30, 61), (23, 29, 60)),
        (IdRule.RAW, (2, 30, 58), (2, 30, 58)),
    ],
)
def test_ids_that_give_wanted_boundaries(
    rule: IdRule, boundaries: tuple[int, ...], ids: tuple[int, ...] | None
) -> None:
    assert ids_for(boundaries, rule, 61) == ids


@given(st.sampled_from(list(IdRule)), st.lists(st.integers(0, 60), min_size=1, max_size=5, unique=True))
def test_whatever_ids_are_proposed_give_exactly_the_boundaries(rule: IdRule, boundaries: list[int]) -> None:
    ids = ids_for(boundaries, rule, 61)
    if ids is None:
        assert rule is IdRule.PLUS_ONE_IF_FIRST_IS_ONE and boundaries == [1]
    else:
        assert emitted(boundaries_of(ids, rule, 61), 60) == tuple(sorted(boundaries))
