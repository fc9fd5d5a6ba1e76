"""Torch hooks on the loaded models: every tap of the target and of the draft.

All hooks do one cheap check while nothing is traced, and none of them may raise into the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from drafttrace.hooks.recorder import Recorder, graph_is_captured

PREFILL = "target/prefill"  # scope of the static buffers of prefill graphs


def backbone_of(model: nn.Module) -> nn.Module:
    """The module that holds the embedding and the decoder layers (or ``fc``). Raises LookupError without one."""
    found: list[nn.Module] = [
        module
        for module in model.modules()
        if hasattr(module, "embed_tokens") and (hasattr(module, "layers") or hasattr(module, "fc"))
    ]
    if not found:
        raise LookupError(f"{type(model).__name__} has no module with embed_tokens and layers")
    return found[0]


def logits_processor_of(model: nn.Module) -> nn.Module:
    """The module that turns the last state into logits. Raises LookupError without one."""
    found = _named(model, "logits_processor")
    if found is None:
        raise LookupError(f"{type(model).__name__} has no logits_processor")
    return found


def _named(model: nn.Module, last: str) -> nn.Module | None:
    found: list[nn.Module] = [module for name, module in model.named_modules() if name.rsplit(".", 1)[-1] == last]
    return found[0] if found else None


def fc_of(model: nn.Module) -> nn.Module | None:
    """The draft's ``fc``, where it has one."""
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] == "fc" and hasattr(module, "weight"):
            return model.get_submodule(name)
    return None


def fc_widths(fc: nn.Module) -> tuple[int, int]:
    """Columns that ``fc`` takes and gives (torch's linear layer, or SGLang's parallel ones before sharding)."""
    module: Any = fc
    if hasattr(module, "in_features"):
        return int(module.in_features), int(module.out_features)
    return int(module.input_size), int(module.output_size)


Attach = Callable[[], RemovableHandle]


class Taps:
    """The taps of one model: planned once, attached while graphs are captured and while there is a traced request.

    A module that has hooks costs microseconds more at every call, traced or not: an idle recorder has none attached.
    """

    def __init__(self, recorder: Recorder, side: str) -> None:
        self._recorder = recorder
        self.side = side
        self._plan: list[Attach] = []
        self._sweep_plan: list[Attach] = []
        self._handles: list[RemovableHandle] = []
        self._sweep_handles: list[RemovableHandle] = []
        self.names: list[str] = []

    def attach(self, sweep: bool = True) -> None:
        """Put the hooks on, those of the layer sweep only for a sweep. What is on stays on."""
        if not self._handles:
            self._handles = [attach() for attach in self._plan]
        if not sweep:
            _remove(self._sweep_handles)
        elif not self._sweep_handles:
            self._sweep_handles = [attach() for attach in self._sweep_plan]

    def detach(self) -> None:
        """Take all hooks off."""
        _remove(self._handles)
        _remove(self._sweep_handles)

    def plan(self, attach: Attach) -> None:
        """One more hook."""
        self._plan.append(attach)

    def emit(self, name: str, tensor: torch.Tensor) -> None:
        """Hand one tensor of a running forward pass to the recorder."""
        self._recorder.tap(self.side, name, tensor)

    def guarded(self, name: str, read: Callable[..., None]) -> Callable[..., None]:
        """A torch hook that costs one check while nothing is traced, and that never raises."""
        recorder = self._recorder

        def hook(*args: Any) -> None:
            if recorder.frame is None and not (recorder.starting and graph_is_captured()):
                return
            try:
                read(*args)
            except Exception as error:
                recorder.fail(f"the hook for {name}", error, recorder.frame)

        return hook

    def target(self, model: nn.Module, layers: int) -> None:
        """Embedding, slots, last state and the sweep over B(0)..B(n) of a target with ``layers`` layers."""
        backbone = backbone_of(model)
        self._embedding("embed", backbone)
        head = self.guarded("last, aux", self._target_head)
        self.plan(partial(logits_processor_of(model).register_forward_pre_hook, head, with_kwargs=True))
        self.names += ["aux", "last"]
        found = list(getattr(backbone, "layers", ()))
        for k in range(min(layers, len(found)) + 1):
            guard = partial(self.guarded, f"boundary/{k}")
            attach = boundary_hook(backbone, found, k, layers, self._sweep, guard)
            if attach is not None:
                self._sweep_plan.append(attach)
            self.names.append(f"boundary/{k}")

    def _embedding(self, name: str, backbone: nn.Module) -> None:
        embedding = getattr(backbone, "embed_tokens", None)
        if isinstance(embedding, nn.Module):
            hook = self.guarded(name, lambda module, args, out: self.emit(name, out))
            self.plan(partial(embedding.register_forward_hook, hook))
            self.names.append(name)

    def _sweep(self, k: int, tensor: torch.Tensor) -> None:
        # Inside a graph a copy of every layer would cost every replay: there, the first rows of a prefill must do.
        if self._recorder.frame is not None or self._recorder.scope == PREFILL:
            self.emit(f"boundary/{k}", tensor)

    def draft(self, model: nn.Module) -> None:
        """Embedding, ``fc`` and the state that leaves the draft."""
        self._embedding("embed_in", backbone_of(model))
        fc = fc_of(model)
        if fc is not None:
            before = self.guarded("fc_in", lambda module, args: self.emit("fc_in", args[0]))
            after = self.guarded("fc_out", lambda module, args, out: self.emit("fc_out", _first(out)))
            self.plan(partial(fc.register_forward_pre_hook, before))
            self.plan(partial(fc.register_forward_hook, after))
            self.names += ["fc_in", "fc_out"]
        head = self.guarded("hidden_out", self._draft_head)
        self.plan(partial(logits_processor_of(model).register_forward_pre_hook, head, with_kwargs=True))
        self.names.append("hidden_out")

    def _target_head(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.emit("last", argument(args, kwargs, 1, "hidden_states"))
        self.slots(argument(args, kwargs, 4, "aux_hidden_states"))

    def slots(self, aux: Any) -> None:
        """The slots: a list of K tensors, or one packed ``[rows, K * H]``."""
        if aux is None:
            return
        for slot, tensor in enumerate(split_slots(aux, self._slots())):
            self.emit(f"aux/{slot}", tensor)

    def _slots(self) -> int:
        return self._recorder.slots()

    def _draft_head(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the next step recycles: the aux state where the draft hands one over, else what the head reads."""
        aux = argument(args, kwargs, 4, "aux_hidden_states")
        state = argument(args, kwargs, 1, "hidden_states") if aux is None else _first(aux)
        self.emit("hidden_out", state)


def watch_boundary(
    backbone: nn.Module, layers: list[nn.Module], k: int, n: int, sink: Callable[[int, torch.Tensor], None]
) -> RemovableHandle | None:
    """Hand B(k) to ``sink`` from now on; None where there is no place to attach to."""
    attach = boundary_hook(backbone, layers, k, n, sink)
    return None if attach is None else attach()


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def boundary_hook(
    backbone: nn.Module,
    layers: list[nn.Module],
    k: int,
    n: int,
    sink: Callable[[int, torch.Tensor], None],
    guard: Callable[[Callable[..., None]], Callable[..., None]] = lambda read: read,
) -> Attach | None:
    """Puts on a hook that hands B(k) to ``sink``; None where there is no place for it (a stage without layer k).

    Newer SGLang keeps the residual stream beside the layers; it is read after the attention's entry, where it is B(k)
    and no rank has to add or reduce anything. Older SGLang passes hidden states and residual from layer to layer.
    B(n) is what the final norm adds up. ``guard`` wraps the hook.
    """
    if k == n:
        norm = getattr(backbone, "norm", None)
        if not isinstance(norm, nn.Module):
            return None
        return partial(norm.register_forward_hook, guard(_after_norm(k, sink)))
    layer = layers[k]
    parameters = list(inspect.signature(layer.forward).parameters)
    if "residual" in parameters:
        read = guard(_between_layers(k, sink, parameters))
        return partial(layer.register_forward_pre_hook, read, with_kwargs=True)
    attention = next((getattr(layer, part) for part in ("self_attn", "attn") if hasattr(layer, part)), None)
    if not isinstance(attention, nn.Module):
        return None
    return partial(attention.register_forward_pre_hook, guard(_in_stream(k, sink)), with_kwargs=True)


def _between_layers(
    k: int, sink: Callable[[int, torch.Tensor], None], parameters: list[str]
) -> Callable[..., None]:
    hidden_at, residual_at = parameters.index("hidden_states"), parameters.index("residual")

    def read(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = argument(args, kwargs, hidden_at, "hidden_states")
        residual = argument(args, kwargs, residual_at, "residual")
        sink(k, hidden if residual is None else hidden + residual)

    return read


def _in_stream(k: int, sink: Callable[[int, torch.Tensor], None]) -> Callable[..., None]:
    def read(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = (*kwargs.values(), *args)
        stream = next((value.residual_stream for value in values if hasattr(value, "residual_stream")), None)
        if stream is not None and stream.residual is not None:
            sink(k, stream.residual)

    return read


def _after_norm(k: int, sink: Callable[[int, torch.Tensor], None]) -> Callable[..., None]:
    def read(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if isinstance(out, tuple) and len(out) > 1:
            sink(k, out[1])

    return read


def argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], at: int, name: str) -> Any:
    """A call's argument, given by position or by name; None where it was not given."""
    if name in kwargs:
        return kwargs[name]
    return args[at] if at < len(args) else None


def split_slots(aux: Any, slots: int) -> tuple[torch.Tensor, ...]:
    """K tensors ``[rows, H]`` from a list of them or from one packed ``[rows, K * H]``."""
    if isinstance(aux, torch.Tensor):
        return aux.chunk(slots, dim=-1) if slots else ()
    return tuple(aux)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) else value
