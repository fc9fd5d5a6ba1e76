"""Which boundaries the running target hands over, and where each decision stands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch import nn

IDS = "eagle_aux_hidden_state_layer_ids"
_PROBE, _PROBE_ONE = [5, 9], [1, 9]

FROM_CONFIG = f"draft config eagle_config.{IDS}"
FROM_TOP_LEVEL = "draft config (top level, ignored by SGLang) → default"
DEFAULT = "default"
OVERRIDE = "override"


def setter_of(model: nn.Module) -> nn.Module | None:
    """The innermost module whose class chooses the boundaries (wrappers of multimodal models only pass on)."""
    found = [module for module in model.modules() if hasattr(module, "set_eagle3_layers_to_capture")]
    return found[-1] if found else None


def layers_to_capture(model: nn.Module) -> list[int] | None:
    """The live list of the model, as it stands; None where the model has none or captures nothing."""
    for module in model.modules():
        if "layers_to_capture" in vars(module):
            live: Any = module.layers_to_capture
            return [int(k) for k in live] or None
    return None


def rule_of(cls: type, config: Any) -> str:
    """What the installed class makes of ids: found by calling its own setter on a stand-in object."""
    try:
        plain, first_one = _ask(cls, config, _PROBE), _ask(cls, config, _PROBE_ONE)
    except Exception:
        return "unknown"
    if plain == [k + 1 for k in _PROBE]:
        return "plus_one"
    if plain == _PROBE:
        return "plus_one_if_first_is_one" if first_one == [k + 1 for k in _PROBE_ONE] else "raw"
    return "unknown"


def _ask(cls: type, config: Any, ids: list[int]) -> list[int]:
    inner = SimpleNamespace(layers_to_capture=[], config=config)
    stand_in = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True, is_first_rank=True, world_size=1, rank_in_group=0),
        config=config,
        model=inner,
        capture_aux_hidden_states=False,
    )
    cls.set_eagle3_layers_to_capture(stand_in, list(ids))  # type: ignore[attr-defined]
    return [int(k) for k in inner.layers_to_capture]


def boundaries_of(layers: Sequence[int], n: int) -> list[int]:
    """The boundary of every slot: a layer captures what enters it, in the order of the layers, each once."""
    return sorted({k for k in layers if 0 <= k < n})


def source_of(draft_config: Mapping[str, Any] | None) -> tuple[str, list[int] | None]:
    """Where the ids come from, as SGLang reads the draft's config, and the ids."""
    if draft_config is None:
        return DEFAULT, None
    nested = draft_config.get("eagle_config")
    ids = nested.get(IDS) if isinstance(nested, Mapping) else None
    if isinstance(ids, list) and ids:
        return FROM_CONFIG, [int(k) for k in ids]
    if draft_config.get(IDS):
        return FROM_TOP_LEVEL, None
    return DEFAULT, None


def describe(
    model: nn.Module,
    *,
    n: int,
    hidden_size: int,
    config: Any,
    draft_config: Mapping[str, Any] | None,
    algorithm: str | None,
    version: str,
    override: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The ``wiring`` block of a trace."""
    live = layers_to_capture(model)
    source, ids = source_of(draft_config)
    setter = setter_of(model)
    cls = type(setter) if setter is not None else type(model)
    boundaries: list[int] | None
    if override is not None:
        source, boundaries = OVERRIDE, list(override)
    else:
        boundaries = boundaries_of(live, n) if live else None
    reverted = os.environ.get("SGLANG_DEBUG_REVERT_PR", "0")
    return {
        "boundaries": boundaries,
        "layers_to_capture": live,
        "ids": ids,
        "source": source,
        "rule": rule_of(cls, config),
        "n": n,
        "hidden_size": hidden_size,
        "model_class": cls.__name__,
        "sglang_version": version,
        "last_norm": "post",
        "algorithm": algorithm,
        **({} if reverted in {"", "0"} else {"reverted_pr": reverted}),
    }
