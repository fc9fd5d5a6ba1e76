"""Every cause that drafttrace can name: what is wrong, how a comparison shows it, what puts it right, who met it.

The ids are the closed vocabulary of ``findings[].id``. An entry stands beside the function that finds it, see
:class:`drafttrace.compare.vocabulary.Entry`. Cases are public threads about a fault of that kind, written
``project#number``.
"""

from __future__ import annotations

from collections.abc import Mapping

from drafttrace.compare.vocabulary import Entry, entries

PROJECTS = {
    "sglang": "sgl-project/sglang",
    "SpecForge": "sgl-project/SpecForge",
    "vllm": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
    "speculators": "vllm-project/speculators",
    "EAGLE": "SafeAILab/EAGLE",
    "BaldEagle": "NickL77/BaldEagle",
    "TorchSpec": "lightseekorg/TorchSpec",
    "tokenspeed": "lightseekorg/tokenspeed",
    "Automodel": "NVIDIA-NeMo/Automodel",
    "verl-SpeCo": "verl-project/verl-SpeCo",
}
"""Where the threads of a project are; a project that is not here is named without a link."""


def causes() -> Mapping[str, Entry]:
    """All causes by id, in the order of the documentation."""
    return entries()
