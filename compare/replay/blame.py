"""Which part of the draft makes what a live server has and its replay has not: a layer, the final norm, head or map.

A trace holds the state that the last layer hands on, and the best few logits of every row with their ids; a head and a
norm before it are not told apart by what they put out alone. So the replay tries: its own state through other final
norms, and its layers with a part that puts out nothing. What then is the server's was that; where nothing is, every part
that may be it is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from drafttrace.compare.replay.loading import Replayer
from drafttrace.compare.replay.model import StepOut
from drafttrace.compare.replay.switches import Switches
from drafttrace.tracer.capture import DraftRows, Ints
from drafttrace.tracer.rows import Floats

NORM, HEAD, MAP = "the final norm", "lm_head", "the vocabulary map"
_SHARE = 0.9
_LEAST = 8
_FAR = 2.0**-4
"""Relative L2 up to which a state is another one: a layer's roundings in bf16, twice over."""
_EQUATIONS, _ENOUGH = 1.5, 4.0
"""Logits per channel without which no gain is fitted, and how many are used."""
_RIDGE = 1e-4


@dataclass(frozen=True)
class Blame:
    """parts: those that the fault may lie in, one where it could be told. shown: what tells it, as half a sentence."""

    parts: tuple[str, ...]
    shown: str = ""


def layer_names(layers: int) -> tuple[str, ...]:
    """``layers.0``, ``layers.1``, ... as checkpoints name a draft's layers (``midlayer`` is ``layers.0``)."""
    return tuple(f"layers.{k}" for k in range(layers))


def blame_proposals(
    replayer: Replayer, done: StepOut, rows: Ints, draft: DraftRows, live: Ints, switches: Switches
) -> Blame:
    """Why the first choices of the draft rows ``live`` are not those of ``rows`` of the replay's step."""
    parts: tuple[str, ...] = (NORM, HEAD)
    if "hidden_out" not in draft.tensors:
        parts = (*layer_names(replayer.config.layers), *parts)
    elif switches.norm_output:
        parts = (HEAD,)
    present = draft.present.get("topk_ids")
    kept = np.flatnonzero(np.ones(len(live), np.bool_) if present is None else present[live])
    if "topk_draft_ids" not in draft.ids:
        return Blame((*parts, MAP))
    said = draft.ids["topk_draft_ids"][live[kept]]  # [R, k], before the vocabulary map
    normed = done.normed[0][torch.from_numpy(rows[kept])]
    mine = replayer.model.logits(normed).argmax(-1).numpy()
    before = _share(said[:, 0], mine)
    if before >= _SHARE:
        return Blame((MAP,), "the draft ids agree, and the target ids that the server made of them do not")
    if HEAD in parts and NORM not in parts:
        return Blame(parts, "the state that the server hands on comes after the final norm, and it agrees")
    if len(kept) < _LEAST or len(parts) > 2:
        return Blame(parts)
    state = done.state[0][torch.from_numpy(rows[kept])]
    plain = F.rms_norm(state, state.shape[-1:], None, replayer.model.config.eps)

    def explains(choice: Ints, where: Ints) -> bool:
        return _share(said[where, 0], choice) >= max(_SHARE, (1 + before) / 2)

    every = np.arange(len(kept))
    for words, gain in _gains(replayer):
        if explains(replayer.model.logits(plain * gain).argmax(-1).numpy(), every):
            return Blame((NORM,), f"{words}, the replay makes the server's choices")
    logits = draft.tensors["topk_logits"].take(live[kept]) if "topk_logits" in draft.tensors else None
    if logits is not None and _fitted(replayer, plain, said, logits, explains):
        return Blame((NORM,), "with other weights in the final norm the replay makes the server's choices")
    return Blame(parts)


def blame_logits(
    replayer: Replayer, done: StepOut, rows: Ints, ids: Ints, theirs: Floats, switches: Switches, state_agrees: bool
) -> Blame:
    """Why the logits ``theirs`` ``[R, k]`` of the draft ids ``ids`` are not those of ``rows`` of the replay's step.

    The first choices are the same, so the map is right. state_agrees: the trace holds the state before the final norm,
    or behind it, and it is the replay's.
    """
    parts: tuple[str, ...] = (NORM, HEAD) if state_agrees else (*layer_names(replayer.config.layers), NORM, HEAD)
    if not state_agrees:
        return Blame(parts)
    if switches.norm_output:
        return Blame((HEAD,), "the state that the server hands on comes after the final norm, and it agrees")
    count = min(ids.shape[1], theirs.shape[1])
    asked, live = torch.from_numpy(np.maximum(ids[:, :count], 0)), torch.from_numpy(theirs[:, :count])
    if int(asked.max()) >= replayer.draft_vocabulary:
        return Blame(parts)
    at = torch.from_numpy(rows)
    own = replayer.model.logits(done.normed[0][at]).gather(1, asked)
    times = float(((live * own).sum(-1) / own.square().sum(-1).clamp(min=1e-30)).median())
    scaled = _far(live, own * times)
    state = done.state[0][at]
    plain = F.rms_norm(state, state.shape[-1:], None, replayer.model.config.eps)
    norms = (("without the final norm", state), *((words, plain * gain) for words, gain in _gains(replayer)))
    tried = ((_far(live, replayer.model.logits(normed).gather(1, asked)), words) for words, normed in norms)
    far, words = min(tried)
    if far <= min(_FAR, scaled):  # a norm whose weights are much alike is nearly a scale, and a head may be scaled
        return Blame((NORM,), f"{words}, the replay makes the server's logits")
    if scaled <= _FAR and abs(times - 1) > _FAR:
        return Blame(parts, f"every logit is {times:.3g} times the replay's, which scaled weights of either give")
    return Blame(parts)


def _gains(replayer: Replayer) -> Iterator[tuple[str, Tensor]]:
    """Final norms that a server may run in place of the draft's own, and what to say of each."""
    own, parts = replayer.model.weights["norm.weight"], replayer.parts
    yield "without the final norm's weight", torch.ones_like(own)
    if parts.norm is not None and parts.checkpoint.info(parts.norm).shape == tuple(own.shape):
        theirs = torch.from_numpy(parts.checkpoint.floats(parts.norm))
        yield "with the target's final norm", theirs + (1.0 if parts.plus_one else 0.0)
    yield "with one more in the final norm's weight", own + 1.0
    yield "with one less in the final norm's weight", own - 1.0


def _fitted(
    replayer: Replayer, plain: Tensor, ids: Ints, logits: Floats, explains: Callable[[Ints, Ints], bool]
) -> bool:
    """Whether a gain per channel that is fitted to half of the rows makes the server's choices in the other half.

    plain ``[R, H]``: states after the norm and before its weight. ids, logits ``[R, k]``: what the server listed.
    """
    fit, test = np.arange(0, len(ids), 2), np.arange(1, len(ids), 2)
    count, width = min(ids.shape[1], logits.shape[1]), plain.shape[1]
    fit = fit[: math.ceil(_ENOUGH * width / count)]
    own, head = replayer.model.weights["norm.weight"], replayer.model.weights["lm_head.weight"]
    asked, wanted = ids[fit, :count], torch.from_numpy(logits[fit, :count].reshape(-1))
    if asked.size < _EQUATIONS * width or len(test) < _LEAST or asked.min() < 0 or asked.max() >= len(head):
        return False
    rows = (head[torch.from_numpy(asked).long()] * plain[fit][:, None]).reshape(-1, width)
    square = (rows.T @ rows).double()
    size = float(square.diagonal().mean())
    if not (math.isfinite(size) and size > 0 and bool(torch.isfinite(wanted).all())):
        return False
    square += torch.eye(width, dtype=torch.float64) * (_RIDGE * size)
    gain = own + torch.linalg.solve(square, (rows.T @ (wanted - rows @ own)).double()).float()
    return explains(replayer.model.logits(plain[test] * gain).argmax(-1).numpy(), test)


def blame_state(
    replayer: Replayer,
    done: StepOut,
    rows: Ints,
    theirs: Floats,
    switches: Switches,
    silenced: Callable[[Sequence[str]], Tensor] | None,
    before: tuple[str, ...] = (),
) -> Blame:
    """Why the states ``theirs`` ``[len(rows), H]`` that a server hands on are not the replay's.

    done: the step as replayed. silenced: the states ``[R, H]`` that this step hands on where the named parts of layers
    put out nothing; None where an earlier step agreed, so that no part is silent. before: parts between the layers and
    what the trace holds before them.
    """
    live, at = torch.from_numpy(theirs), torch.from_numpy(rows)
    state, normed = done.state[0][at], done.normed[0][at]
    plain = F.rms_norm(state, state.shape[-1:], None, replayer.model.config.eps)
    if switches.norm_output:
        if _near(live, state):
            return Blame((NORM,), "the server hands on the state before it, and norm_output is true")
        gain = (live * plain).sum(0) / plain.square().sum(0).clamp(min=1e-30)
        if len(rows) >= _LEAST and _near(live, plain * gain):
            return Blame((NORM,), "with other weights in it the replay has the server's state")
    elif _near(live, normed):
        return Blame((NORM,), "the server hands on the state after it, and norm_output is not true")
    if silenced is None:
        return Blame(())
    for words, names in _silences(replayer.config.layers):
        if _near(live, silenced(names)[at]):
            return Blame((words,), "where it puts out nothing, the replay has the server's state")
    return Blame((*before, *layer_names(replayer.config.layers)))


def _silences(layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    for layer in layer_names(layers):
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        yield layer, (attention, mlp)
        yield attention, (attention,)
        yield mlp, (mlp,)


def _near(live: Tensor, made: Tensor) -> bool:
    """Whether the median row is another one's within roundings."""
    return _far(live, made) <= _FAR


def _far(live: Tensor, made: Tensor) -> float:
    """Relative L2 of the median row; infinite without rows or with ones that are not finite."""
    far = (live - made).norm(dim=-1) / made.norm(dim=-1).clamp(min=1e-30)
    median = float(far.median()) if len(far) else math.inf
    return median if math.isfinite(median) else math.inf


def _share(one: Ints, other: Ints) -> float:
    return float((one == other).mean()) if len(one) else 0.0
