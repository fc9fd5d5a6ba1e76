"""``drafttrace serve --wiring``: the running target hands over exactly these boundaries, in this order.

It does not ask the model class to capture them. Every boundary is kept where it passes (as the layer sweep reads it),
and the list that reaches the logits processor is replaced. So it works for the embedding, for B(n) and for any order,
on classes that can capture none of them, and inside CUDA graphs, since the hooks stand before graphs are captured.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from drafttrace.hooks.sglang_engine.attach import backbone_of, fc_of, fc_widths, logits_processor_of, watch_boundary
from drafttrace.hooks.sglang_engine.wiring import layers_to_capture, setter_of
from drafttrace.tracer.boundary import check_wiring, wiring_name

logger = logging.getLogger("drafttrace")


class Override:
    """The hooks that replace the slots of one target."""

    def __init__(self, model: nn.Module, wiring: Sequence[int], n: int) -> None:
        self.wiring = list(wiring)
        self._kept: dict[int, torch.Tensor] = {}
        backbone = backbone_of(model)
        layers: list[nn.Module] = list(backbone.layers)  # type: ignore[arg-type]
        for k in sorted(set(wiring)):
            watch_boundary(backbone, layers, k, n, self._keep)
        logits_processor_of(model).register_forward_pre_hook(self._replace, with_kwargs=True, prepend=True)
        self._make_it_capture(model)

    def _keep(self, k: int, tensor: torch.Tensor) -> None:
        self._kept[k] = tensor.clone()  # the stream is updated in place by the layers that follow

    def _replace(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        missing = [k for k in self.wiring if k not in self._kept]
        if missing:
            raise RuntimeError(
                f"drafttrace: --wiring {wiring_name(list(self.wiring))}: B{missing[0]} did not pass the hook of "
                f"{type(module).__name__}; start without --wiring, and name the boundaries in the draft's config instead."
            )
        slots = [self._kept[k] for k in self.wiring]
        self._kept.clear()
        if "aux_hidden_states" in kwargs or len(args) <= 4:
            return args, {**kwargs, "aux_hidden_states": slots}
        return (*args[:4], slots, *args[5:]), kwargs

    def _make_it_capture(self, model: nn.Module) -> None:
        """The class must hand over some list for ours to take its place."""
        setter = setter_of(model)
        if not layers_to_capture(model) and setter is not None:
            capture: Any = setter.set_eagle3_layers_to_capture
            capture(None)


def install(target: Any, draft: Any | None, wiring: Sequence[int], n: int) -> Override:
    """Check the wiring against the loaded models and put it in force. Raises WrongWiring."""
    hidden = int(target.model_config.hidden_size)
    fc = fc_of(draft.model) if draft is not None else None
    width = None if fc is None else fc_widths(fc)[0]
    check_wiring(wiring, n=n, hidden=hidden, width=width)
    made = Override(target.model, wiring, n)
    logger.warning(
        "drafttrace: the target hands over %s (--wiring), whatever the config says", wiring_name(list(wiring))
    )
    return made
