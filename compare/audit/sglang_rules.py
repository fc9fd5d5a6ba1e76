"""What SGLang 0.5.12 to 0.5.23 makes of the layer ids in a draft's config, by target class and release.

Checked against the fifteen wheels of these releases by running each class's own ``set_eagle3_layers_to_capture``,
inherited ones included. The installed class, where there is one, is asked before this table (``installed.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from drafttrace.compare.id_rules import IdRule, boundaries_of, emitted
from drafttrace.tracer.boundary import canonical_wiring

Version = tuple[int, ...]

FIRST_VERSION = "0.5.12"
LAST_VERSION = "0.5.23"

_DEEPSEEK = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK25ForConditionalGeneration",
    "MistralLarge3ForCausalLM",
)
_PLUS_ONE = (
    "ApertusForCausalLM",
    "BailingMoEForCausalLM",
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
    "Cosmos3ForConditionalGeneration",
    "ExaoneMoEForCausalLM",
    "ExaoneMoeForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Glm4MoeForCausalLM",
    "Glm5NextForConditionalGeneration",
    "IQuestCoderForCausalLM",
    "InternLM3ForCausalLM",
    "InternS1ProForConditionalGeneration",
    "InternS2MobiusForConditionalGeneration",
    "InternS2PreviewForConditionalGeneration",
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
    "LlamaForCausalLM",
    "LongcatFlashForCausalLM",
    "MellumForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MiniMaxM3SparseForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration",
    "Ministral3ForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen4ExpForConditionalGeneration",
    "SarvamMoEForCausalLM",
    "TeleFLMForCausalLM",
)
_GPT_OSS = ("GptOssForCausalLM",)

_FIRST_IS_ONE_SINCE = (0, 5, 13)
_HIGHEST_IS_N_SINCE = (0, 5, 17)

_NEWER: dict[str, Version] = {
    "Cosmos3ForConditionalGeneration": (0, 5, 20),
    "ExaoneMoeForCausalLM": (0, 5, 22),
    "Gemma4UnifiedForConditionalGeneration": (0, 5, 13),
    "Glm5NextForConditionalGeneration": (0, 5, 20),
    "InternS2MobiusForConditionalGeneration": (0, 5, 18),
    "MellumForCausalLM": (0, 5, 16),
    "MiniMaxM3SparseForCausalLM": (0, 5, 16),
    "MiniMaxM3SparseForConditionalGeneration": (0, 5, 18),
    "Qwen3_5ForCausalLM": (0, 5, 22),
    "Qwen3_5MoeForCausalLM": (0, 5, 22),
    "Qwen4ExpForConditionalGeneration": (0, 5, 20),
}
"""Classes that came, or learned to capture, after 0.5.12."""

_DEFAULT_IS_LATE = ("MiniMaxM3SparseForConditionalGeneration",)
"""Classes whose default is one boundary later than everybody else's."""

_EMBED_SINCE: dict[str, Version] = {
    **dict.fromkeys(_DEEPSEEK, (0, 5, 14)),
    **dict.fromkeys(
        ("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "InternLM3ForCausalLM"), (0, 5, 22)
    ),
    "GptOssForCausalLM": (0, 5, 17),
}
"""Releases before these add a residual that is None at layer 0: asking for B0 stops the server with a TypeError."""

LOOK_UP = (
    "InternS1ProForConditionalGeneration",
    "MellumForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)
"""Classes that mark ``self.layers[boundary]`` (seen in 0.5.23): a boundary that no layer has stops the server."""

ALGORITHMS = ("EAGLE3", "EAGLE", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP", "NONE")
"""Names that ``--speculative-algorithm`` takes in these releases, in either case; only the first one runs ``fc``."""


@dataclass(frozen=True)
class Capability:
    """What one target class of one release does.

    rule: how it reads ids. default_offset: what it adds to B{2, n//2, n-3} where there are none.
    embed: whether B0 can be captured (None: not known). last: whether B(n) can. source: one phrase for reports.
    exact: False where the release lies outside the table and its nearest neighbour stands in.
    """

    architecture: str
    version: str
    rule: IdRule
    default_offset: int
    embed: bool | None
    last: bool
    source: str
    exact: bool

    def served(self, ids: Sequence[int] | None, n: int) -> tuple[int, ...]:
        """The slots that the server hands over for ``ids`` (None: its default), ascending."""
        return emitted(self.asked(ids, n), n if self.last else n - 1)

    def asked(self, ids: Sequence[int] | None, n: int) -> tuple[int, ...]:
        """The boundaries that the setter stores for ``ids`` (None: its default), as listed."""
        if ids is None:
            return tuple(k + self.default_offset for k in canonical_wiring(n))
        return boundaries_of(ids, self.rule, n)


def parse_version(text: str) -> Version:
    """``(0, 5, 15, 1)`` for ``0.5.15.post1``; suffixes such as ``rc0`` and ``+local`` are dropped.

    Raises ValueError for a text that does not begin with ``number.number``.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.post(\d+))?", text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no SGLang version; expected something like {LAST_VERSION}")
    return tuple(int(part or 0) for part in match.groups())


def capability(architecture: str, version: str) -> Capability | None:
    """The table's entry; None for a class that no release of the table lets capture.

    A release outside the table gets the nearest one's rule with ``exact=False``.
    Raises ValueError as :func:`parse_version` does.
    """
    at = parse_version(version)
    family = _rule(architecture, at)
    since = _NEWER.get(architecture)
    if family is None or (since is not None and at[:3] < since):
        return None
    embed_since = _EMBED_SINCE.get(architecture)
    return Capability(
        architecture=architecture,
        version=version,
        rule=family,
        default_offset=int(architecture in _DEFAULT_IS_LATE),
        embed=None if embed_since is None else at[:3] >= embed_since,
        last=architecture in _GPT_OSS and at[:3] >= _HIGHEST_IS_N_SINCE,
        source=f"built-in table for SGLang {FIRST_VERSION} to {LAST_VERSION}",
        exact=in_table(version),
    )


def in_table(version: str) -> bool:
    """Whether the table has a release, its later builds included. Raises ValueError as :func:`parse_version` does."""
    return parse_version(FIRST_VERSION) <= parse_version(version) <= (*parse_version(LAST_VERSION)[:3], 99)


def embed_since(architecture: str) -> str | None:
    """The first release in which a class can capture B0; None where that is not known."""
    since = _EMBED_SINCE.get(architecture)
    return None if since is None else ".".join(map(str, since))


def _rule(architecture: str, at: Version) -> IdRule | None:
    if architecture in _DEEPSEEK:
        return IdRule.PLUS_ONE_IF_FIRST_IS_ONE if at[:3] >= _FIRST_IS_ONE_SINCE else IdRule.PLUS_ONE
    if architecture in _GPT_OSS:
        return IdRule.RAW_IF_HIGHEST_IS_N if at[:3] >= _HIGHEST_IS_N_SINCE else IdRule.PLUS_ONE
    return IdRule.PLUS_ONE if architecture in _PLUS_ONE else None


def honoured(flag: str, draft_architecture: str, version: str) -> bool:
    """Whether SGLang's draft class of that release reads ``flag`` at all.

    Flags: ``fc_norm``, ``use_aux_norm``, ``norm_output``, ``norm_before_fc``, ``norm_before_residual``.
    """
    at = parse_version(version)[:3]
    since: Version | None
    if "Deepseek" in draft_architecture:
        since = {"fc_norm": (0, 5, 13), "use_aux_norm": (0, 5, 13), "norm_output": (0, 5, 13)}.get(flag)
    else:
        always: Version = (0, 5, 12)
        since = {
            "fc_norm": always,
            "use_aux_norm": always,
            "norm_output": always,
            "norm_before_fc": (0, 5, 17),
        }.get(flag)
    return since is not None and at >= since
