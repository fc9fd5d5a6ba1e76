"""What the module outputs of one forward pass of SGLang are: boundaries of the residual stream, last state, slots.

SGLang's fused norm returns ``(normed, residual)``, so the second output of ``layers.{k}.input_layernorm`` is the residual
stream that enters layer k: B(k); that of the final norm is B(n), and n stands in no file. A dump may hold some of the
layers (``--debug-tensor-dump-layers``, a rank of a pipeline) and the final norm all the same, so n is known only where
the numbers show that what the highest layer hands on is what the final norm takes in, within rounding, or where it is
told.
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
# What layer k hands on: the stream after its attention, and what its MLP adds to it.
ENDING = re.compile(r"(?:^|\.)layers\.(\d{1,4})\.(post_attention_layernorm|mlp|mlp\.down_proj)$")
_SOURCE = "module name: the second output of layers.k.input_layernorm is the stream entering layer k"
_PROBED = 64  # rows
# Of the elements of a row, so many may be further from the sum than rounding: a kernel may add in another order. What a
# layer that the dump leaves out adds is above rounding in most elements, however large a few of the stream are.
_FURTHER = 0.01
# How far rounding may move a number, of its own size, and a little more.
_ROUNDING = {
    "fp8_e5m2": 1.01 * 2.0**-3,
    "fp8_e4m3": 1.01 * 2.0**-4,
    "bf16": 1.01 * 2.0**-8,
    "fp16": 1.01 * 2.0**-11,
    "fp32": 1.01 * 2.0**-23,
    "fp64": 1.01 * 2.0**-23,  # read as fp32
}

Outputs = Mapping[str, Sequence[Tensor]]


@dataclass(frozen=True)
class States:
    """What one forward pass holds: boundaries ``{k: [rows, H]}`` and the last state after the norm.

    layers: n, where it is known. shown: the layers that have a norm of their input. odd: outputs of the residual stream
    that have another number of rows, and are left out. unnamed: whether the stream before the final norm is there, and
    left out, for nobody says which boundary it is. told: the n that the target was said to have.
    """

    boundaries: dict[int, Tensor]
    last: Tensor | None
    layers: int | None
    shown: tuple[int, ...]
    odd: tuple[str, ...] = ()
    unnamed: bool = False
    told: int | None = None

    @property
    def held(self) -> str:
        """The boundaries in words."""
        names = ", ".join(boundary_name(k) for k in sorted(self.boundaries)) or "none"
        return names + (", and the last one, whose number is not known" if self.unnamed else "")


def collect(outputs: Outputs, count: int, request: Request, where: str) -> States:
    """The states of a pass of ``count`` rows. outputs: module name -> its output tensors in order. where: the pass, in an
    error.

    Raises DrafttraceError where the pass proves another number of layers than is told.
    """
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
    n = _layers(outputs, shown, final, request, where)
    if final is not None and n is not None:
        found[n] = final
    fits = {k: tensor for k, tensor in sorted(found.items()) if tensor.shape and tensor.shape[0] == count}
    odd = [f"B{k} {list(tensor.shape)}" for k, tensor in sorted(found.items()) if k not in fits]
    if last is not None and (not last.shape or last.shape[0] != count):
        odd.append(f"norm {list(last.shape)}")
        last = None
    unnamed = final is not None and n is None
    return States(fits, last, n, tuple(sorted(shown)), tuple(odd), unnamed, request.layers)


def is_needed(module: str, top: int) -> bool:
    """Whether :func:`collect` looks at a module's outputs. top: the highest layer of the pass."""
    ending = ENDING.search(module)
    if ending is not None:
        return int(ending[1]) == top
    return any(pattern.search(module) for pattern in (LAYER, EMBED, NORM))


def _layers(outputs: Outputs, shown: set[int], final: Tensor | None, request: Request, where: str) -> int | None:
    """n: of a pass that proves to hold every layer, else what is told, where the pass shows no later layer.

    Raises DrafttraceError where the two contradict each other.
    """
    told = request.layers
    whole = bool(shown) and shown == set(range(len(shown)))
    if whole and final is not None and _reaches_the_norm(outputs, len(shown) - 1, final):
        if told is not None and told != len(shown) and not request.tokens_only:
            raise DrafttraceError(
                f"{where} shows a target of {len(shown)} layers (what the last of them hands on is what the final norm "
                f"takes in), and the target is said to have {told} (--target, or the other side); give the "
                "target that was served."
            )
        return len(shown)
    return told if told is not None and told > max(shown, default=-1) else None


def _reaches_the_norm(outputs: Outputs, top: int, final: Tensor) -> bool:
    """Whether the numbers prove that layer ``top`` is the one before the final norm: its stream after attention and what
    its MLP adds are the norm's stream.

    What proves nothing: a pass that does not hold both, one rank's part of a sum, and layers that scale what they add.
    """
    streams: list[Tensor] = []
    added: list[Tensor] = []
    for name, tensors in outputs.items():
        ending = ENDING.search(name)
        if ending is None or int(ending[1]) != top or not tensors:
            continue
        if ending[2] != "post_attention_layernorm":
            added.append(tensors[0])
        elif len(tensors) == 2:
            streams.append(tensors[1])
    return len(streams) == 1 and any(_is_sum(final, streams[0], step) for step in added)


def _is_sum(final: Tensor, stream: Tensor, step: Tensor) -> bool:
    """Whether ``final`` is the other two together within rounding, in most of the rows that can tell: padding and NaN tell
    nothing.

    Element by element: of a whole row, a few large elements would hide what a layer adds to the others.
    """
    parts = [final, stream, step]
    kinds = [part.float_kind for part in parts]
    if len({part.shape for part in parts}) > 1 or final.ndim != 2 or any(kind is None for kind in kinds):
        return False
    rows = min(_PROBED, final.shape[0])
    after, before, more = (part.cut(0, 0, rows).floats().astype(np.float64) for part in parts)
    with np.errstate(all="ignore"):
        off = np.abs(after - before - more)
        size = np.maximum(np.maximum(np.abs(after), np.abs(before)), np.abs(more))
        further = (off > max(_ROUNDING[str(kind)] for kind in kinds) * size).mean(-1)
        moved = np.linalg.norm(after - before, axis=-1)
    told = further[np.isfinite(off).all(-1) & (moved > 0)]
    return len(told) > 0 and bool(np.median(told) <= _FURTHER)


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
        return (), [f"no slots: {_why_unknown(states)}, or {name_them}; the boundaries are {states.held}"]
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


def _why_unknown(states: States) -> str:
    """Why n is not known, what would be if nothing is missing, and how to say it."""
    if states.told is not None:
        return (
            f"the target was said to have {states.told} layers, and the pass shows layer {max(states.shown)}, so it is of "
            "another one; give the target that was served"
        )
    why = f"the number of layers of the target is not known (the pass shows {_ranges(states.shown)})"
    if states.unnamed:
        why += ", nor which boundary the stream before the final norm is"
        if states.shown == tuple(range(len(states.shown))) and states.shown:
            why += f" ({boundary_name(len(states.shown))} if these are all layers, which the pass does not prove)"
    return f"{why}; give --target DIR"


def _ranges(layers: Sequence[int]) -> str:
    """``the layers 0 to 3, 7``."""
    runs: list[list[int]] = []
    for k in layers:
        if runs and k == runs[-1][1] + 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    named = [str(a) if a == b else f"{a}{' to ' if b > a + 1 else ', '}{b}" for a, b in runs]
    return f"the layers {', '.join(named)}" if named else "no layers"
