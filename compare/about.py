"""Numbers in the configs that a trace carries."""

from __future__ import annotations

from collections.abc import Mapping

from drafttrace.tracer.capture import Capture


def config_number(capture: Capture, block: str, key: str) -> int | None:
    """An integer of ``target_config`` or ``draft_config``, also where it stands in the text part; None if there is none."""
    config = capture.about.get(block)
    if not isinstance(config, Mapping):
        return None
    nested = config.get("text_config")
    value = config.get(key, nested.get(key) if isinstance(nested, Mapping) else None)
    return value if isinstance(value, int) else None
