"""What the module outputs of one forward pass of SGLang are: boundaries of the residual stream, last state, slots.

SGLang's fused norm returns ``(normed, residual)``, so the second output of ``layers.{k}.input_layernorm`` is the residual
stream that enters layer k: B(k); that of the final norm is B(n), and n stands in no file. A dump may hold some of the
layers (``--debug-tensor-dump-layers``, a rank of a pipeline) and the final norm all the same, so n is counted only
where the layers from 0 on, the final norm, and nothing in the numbers against it, are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.tracer.boundary import boundary_name, canonical_wiring, wiring_name
from drafttrace.tracer.capture import Slot
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.layer_ids import refuse_below
from drafttrace.tracer.rows import Rows

LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,4})\.input_layernorm$")
EMBED = re.compile(r"(?:^|\.)(?:embed_tokens|embeddings|wte)$")
NORM = re.compile(r"(?:^|\.)(?:model|backbone)\.norm$")
_SOURCE = "module name: the second output of layers.k.input_layernorm is the stream entering layer k"
_PROBED = 64  # rows
# Of what the last layer adds to the stream: rounding is far below it, the layers that a dump leaves out are above it.
_SAME_STREAM = 0.3

Outputs = Mapping[str, Sequence[Tensor]]


@dataclass(frozen=True)
class States:
    """What one forward pass holds: boundaries ``{k: [rows, H]}`` and the last state after the norm.

    layers: n, where it is known. shown: the layers that have a norm of their input. odd: outputs of the residual stream
    that have another number of rows, and are left out. unnamed: whether the stream before the final norm is there, and
    left out, for nobody says which boundary it is.
    """

    boundaries: dict[int, Tensor]
    last: Tensor | None
    layers: int | None
    shown: tuple[int, ...]
    odd: tuple[str, ...] = ()
    unnamed: bool = False

    @property
    def held(self) -> str:
        """The boundaries in words."""
        names = ", ".join(boundary_name(k) for k in sorted(self.boundaries)) or "none"
        return names + (", and the last one, whose number is not known" if self.unnamed else "")


def collect(outputs: Outputs, count: int, request: Request, *, summed: bool = True) -> States:
    """The states of a pass of ``count`` rows. outputs: module name -> its output tensors in order. summed: whether what
    an MLP returns is whole; one rank of several returns its part of the sum."""
    found: dict[int, Tensor] = {}
    shown: set[int] = set()
    last: Tensor | None = None
    final: Tensor | None = None
    for name, tensors in outputs.items():
        layer = LAYER.search(name)
        if layer:
            shown.add(int(layer[1]))
            if len(tensors) == 2:
                found[int(layer[1])] = tensors[1]
        elif EMBED.search(name) and tensors:
            found[0] = tensors[0]
        elif NORM.search(name) and tensors:
            last = tensors[0]
            final = tensors[1] if len(tensors) == 2 else None
    n = _layers(outputs if summed else {}, shown, last is not None, final, request.layers)
    if final is not None and n is not None:
        found[n] = final
    fits = {k: tensor for k, tensor in sorted(found.items()) if tensor.shape and tensor.shape[0] == count}
    odd = [f"B{k} {list(tensor.shape)}" for k, tensor in sorted(found.items()) if k not in fits]
    if last is not None and (not last.shape or last.shape[0] != count):
        odd.append(f"norm {list(last.shape)}")
        last = None
    return States(fits, last, n, tuple(sorted(shown)), tuple(odd), final is not None and n is None)


def _layers(outputs: Outputs, shown: set[int], normed: bool, final: Tensor | None, told: int | None) -> int | None:
    """n: what is ``told`` where the pass shows no later layer, else the count of a pass that shows them all."""
    whole = bool(shown) and normed and shown == set(range(len(shown)))
    agrees = _reaches_the_norm(outputs, len(shown) - 1, final) if whole and final is not None else None
    if agrees:
        return len(shown)
    if told is not None and told > max(shown, default=-1):
        return told
    return len(shown) if whole and agrees is None else None


def _reaches_the_norm(outputs: Outputs, top: int, final: Tensor) -> bool | None:
    """Whether layer ``top`` is the one before the final norm: its stream after attention and what its MLP adds are the
    norm's stream. None where the pass does not hold both, or not of the same rows."""
    attention = re.compile(rf"(?:^|\.)layers\.{top}\.post_attention_layernorm$")
    added = re.compile(rf"(?:^|\.)layers\.{top}\.mlp(?:\.down_proj)?$")
    streams = [tensors[1] for name, tensors in outputs.items() if attention.search(name) and len(tensors) == 2]
    mlps = [tensors[0] for name, tensors in outputs.items() if added.search(name) and tensors]
    if len(streams) != 1 or len(mlps) != 1:
        return None
    parts = [final, streams[0], mlps[0]]
    if len({part.shape for part in parts}) > 1 or final.ndim != 2 or any(part.float_kind is None for part in parts):
        return None
    rows = min(_PROBED, final.shape[0])
    after, before, step = (part.cut(0, 0, rows).floats().astype(np.float64) for part in parts)
    with np.errstate(all="ignore"):
        left = np.linalg.norm(after - before - step, axis=-1) / np.linalg.norm(after - before, axis=-1)
    return bool(np.median(left) < _SAME_STREAM) if np.isfinite(left).all() else None


def slots_of(
    boundaries: Mapping[int, Rows], states: States, request: Request, where: str
) -> tuple[tuple[Slot, ...], list[str]]:
    """The wiring that the user gave (``k`` is ``layers.k``, B(k)), else the canonical one where n is known and the pass
    holds it, else none, and a note that says so.

    Raises DrafttraceError where the user names a boundary that the pass does not hold. where: the pass, in an error.
    """
    said = request.layer_ids
    if said is not None:
        wanted = [k + (request.numbering == "O") for k in said]
        refuse_below(said, "O" if request.numbering == "O" else "B", where)
        missing = list(dict.fromkeys(boundary_name(k) for k in wanted if k not in boundaries))
        if missing and not request.tokens_only:
            raise DrafttraceError(
                f"--layer-ids names {' and '.join(missing)}, which {where} does not hold: its boundaries are "
                f"{states.held}; name some of them, or dump that layer too."
            )
        return tuple(Slot(f"layers.{k}", boundaries[k], k, _SOURCE) for k in wanted if k in boundaries), []
    n, name_them = states.layers, "name them with --layer-ids"
    if n is None:
        shown = ", ".join(map(str, states.shown)) or "none"
        last = ", and which boundary the stream before the final norm is" if states.unnamed else ""
        why = f"the number of layers of the target is not known (the pass shows the layers {shown}){last}; give --target "
        return (), [f"no slots: {why}DIR, or {name_them}; the boundaries are {states.held}"]
    usual = canonical_wiring(n)
    if len(set(usual)) < len(usual) or any(k not in boundaries for k in usual):
        why = f"the pass does not hold every boundary of the default {wiring_name(usual)} of {n} layers"
        if len(set(usual)) < len(usual) or min(usual) < 0:
            why = f"a target of {n} layers has no default of three boundaries"
        return (), [f"no slots: {why}; {name_them}; the boundaries are {states.held}"]
    source = f"{_SOURCE}; the choice of slots is an {build.ASSUMED}"
    if request.layers != n:
        source += f", n = {n} by the layers that the pass shows"
    return tuple(Slot(f"layers.{k}", boundaries[k], k, source) for k in usual), []
