"""Which of the classes that a draft's config lists SGLang takes: the first one that it has, whatever stands before it.

By its ``ModelRegistry.resolve_model_cls``, which filters the list by the classes of its own.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from drafttrace.compare.audit.model_types import model_sources
from drafttrace.compare.audit.sglang_rules import LAST_VERSION, capability
from drafttrace.compare.draft_config import MLA_CLASS, PLAIN_CLASS, DraftConfig


def with_served_class(draft: DraftConfig) -> DraftConfig:
    """The config with the class that SGLang takes of several; as it is where it has none of them."""
    listed = draft.flat.get("architectures")
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        return draft
    name = next((name for name in listed if _has(name)), draft.architecture)
    return draft if name == draft.architecture else replace(draft, architecture=name)


@functools.cache
def _has(name: str) -> bool:
    """Whether SGLang has a model class of that name: by its sources where it is installed, else by the table."""
    if name in (PLAIN_CLASS, MLA_CLASS) or capability(name, LAST_VERSION) is not None:
        return True
    defined = re.compile(rf"^(class )?{re.escape(name)}\b", re.MULTILINE)
    return any(defined.search(path.read_text("utf-8")) for path in model_sources())
