"""The few tensors of a target that check a dump by value: embedding, final norm, head. The model is never loaded.

Everything is read row by row or block by block from the safetensors shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Ints
from drafttrace.tracer.checkpoint import Checkpoint, open_checkpoint, read_json
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.embedding_scale import multipliers
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.part_names import EMBED, HEAD, NORM, gain_is_one_plus, stored_name
from drafttrace.tracer.rows import Floats

# Numbers of the head that are converted to float32 at a time: 32 MiB, and as much again while they are read.
_HEAD_BLOCK = 8 << 20


@dataclass(frozen=True)
class TargetShape:
    """What a target's config.json says. ``layers`` is n."""

    layers: int
    hidden_size: int
    vocab_size: int
    model_type: str
    config: dict[str, Any]


def read_shape(folder: Path) -> TargetShape:
    """The shape of a target. Raises UnreadableFile where config.json is missing or does not tell it."""
    path = folder / "config.json"
    if not path.is_file():
        raise UnreadableFile(f"There is no config.json in '{folder}'; give the folder of the target model.")
    config = read_json(path)
    inner = next(
        (
            config[key]
            for key in ("text_config", "language_config", "llm_config")
            if isinstance(config.get(key), dict)
        ),
        config,
    )

    def number(*names: str) -> int:
        for name in names:
            if type(inner.get(name)) is int and inner[name] > 0:
                return int(inner[name])
        raise UnreadableFile(f"The file '{path}' does not say {names[0]}; give the folder of the target model.")

    return TargetShape(
        layers=number("num_hidden_layers", "n_layer", "num_layers"),
        hidden_size=number("hidden_size", "n_embd", "d_model"),
        vocab_size=number("vocab_size"),
        model_type=str(inner.get("model_type") or config.get("model_type") or ""),
        config=inner,
    )


def said_of(folder: Path | None, asked: Request, *, lenient: bool = False) -> Request:
    """``asked`` with the width and the number of layers of the target in ``folder``, where one is given.

    Raises UnreadableFile as :func:`read_shape` does; lenient: whoever reads the target next says what is wrong with it.
    """
    if folder is None:
        return asked
    try:
        shape = read_shape(folder)
    except UnreadableFile:
        if not lenient:
            raise
        return asked
    return asked.told(shape.hidden_size, shape.layers, shape.vocab_size)


class TargetWeights:
    """Embedding, final norm and head of a target, read in blocks."""

    def __init__(self, folder: Path) -> None:
        """Raises UnreadableFile where the folder is no checkpoint with an embedding and a final norm, or lacks a shard
        with one of them or the head; other shards may be missing."""
        self.folder = folder
        self.shape = read_shape(folder)
        self._checkpoint: Checkpoint = open_checkpoint(folder, partly=True)
        self.embed_name = self._find(EMBED, "embedding")
        self.norm_name = self._find(NORM, "final norm")
        head = stored_name(self._checkpoint, HEAD)
        self.tied = head is None
        self.head_name = self.embed_name if head is None else head
        for name in (self.embed_name, self.norm_name, self.head_name):
            self._checkpoint.info(name)  # the only shards that are needed

    def _find(self, endings: tuple[str, ...], what: str) -> str:
        name = stored_name(self._checkpoint, endings)
        if name is None:
            raise UnreadableFile(
                f"The checkpoint '{self.folder}' has no {what} ({', '.join(endings[:3])}, ...); give the folder "
                "of the target model."
            )
        return name

    def embedding_scales(self) -> dict[str, float]:
        """Factors that a target may apply to its embedding, by name; ``"1"`` always."""
        shape = self.shape
        return {"1": 1.0, **multipliers(shape.config, shape.model_type, shape.hidden_size)}

    def embedding(self, ids: Ints) -> Floats:
        """Embedding rows ``[len(ids), H]``, unscaled. Ids must lie inside the vocabulary (see :meth:`inside`)."""
        return self._checkpoint.floats(self.embed_name, ids)

    def inside(self, ids: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which ids have an embedding row."""
        rows = self._checkpoint.info(self.embed_name).shape[0]
        return (ids >= 0) & (ids < rows)

    def norm_gain(self) -> Floats:
        """What the final norm multiplies by, per channel ``[H]`` (``1 + w`` for the families that store ``w``)."""
        weight = self._checkpoint.floats(self.norm_name)
        return weight + 1 if gain_is_one_plus(self.shape.model_type) else weight

    def norm_bias(self) -> Floats | None:
        """What a final layer norm adds, per channel ``[H]``; None for an RMS norm."""
        name = self.norm_name.removesuffix("weight") + "bias"
        return self._checkpoint.floats(name) if name in self._checkpoint else None

    def final_norm(self, states: Floats) -> Floats:
        """The final norm of states ``[R, H]``: an RMS norm, or a layer norm where the checkpoint has a bias for it."""
        config = self.shape.config
        epsilon = next(
            (float(config[key]) for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
             if isinstance(config.get(key), int | float)),
            1e-6,
        )  # fmt: skip
        values, bias = states.astype(np.float64), self.norm_bias()
        if bias is not None:
            centred = values - values.mean(-1, keepdims=True)
            spread = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
            result = centred / spread * self.norm_gain() + bias
        else:
            result = values / np.sqrt((values**2).mean(-1, keepdims=True) + epsilon) * self.norm_gain()
        out: Floats = result.astype(np.float32)
        return out

    def score(self, normed: Floats, targets: Ints) -> tuple[Floats, Ints]:
        """Negative log likelihoods ``[R, S]`` of ``targets [R, S]`` (-1 gives NaN), and the top token of each row.

        normed: states after the final norm ``[R, H]``. The head is read in blocks of rows.
        """
        info = self._checkpoint.info(self.head_name)
        rows, vocabulary = len(normed), info.shape[0]
        best = np.full(rows, -np.inf)
        top = np.zeros(rows, np.int64)
        total = np.full(rows, -np.inf)
        picked = np.full(targets.shape, np.nan)
        states = self._before_head(normed)
        size = max(64, _HEAD_BLOCK // max(1, self.shape.hidden_size))
        for start in range(0, vocabulary, size):
            stop = min(vocabulary, start + size)
            block = self._checkpoint.floats(self.head_name, slice(start, stop))
            logits = self._after_head((states @ block.T).astype(np.float64))
            here = logits.argmax(-1)
            value = logits[np.arange(rows), here]
            top = np.where(value > best, here + start, top)
            best = np.maximum(best, value)
            total = np.logaddexp(total, value + np.log(np.exp(logits - value[:, None]).sum(-1)))
            inside = (targets >= start) & (targets < stop)
            row, column = np.nonzero(inside)
            picked[row, column] = logits[row, targets[row, column] - start]
        losses: Floats = (total[:, None] - picked).astype(np.float32)
        return losses, top

    def _before_head(self, normed: Floats) -> Floats:
        base = self.shape.config.get("dim_model_base")
        if isinstance(base, int | float) and base > 0:  # MiniCPM
            return normed / np.float32(self.shape.hidden_size / base)
        return normed

    def _after_head(self, logits: Any) -> Any:
        config = self.shape.config
        scaling = config.get("logits_scaling")
        if isinstance(scaling, int | float) and scaling > 0:  # Granite
            logits = logits / scaling
        multiplier = config.get("logit_scale")
        if isinstance(multiplier, int | float) and multiplier > 0:  # Cohere
            logits = logits * multiplier
        cap = config.get("final_logit_softcapping")
        if isinstance(cap, int | float) and cap > 0:
            logits = np.tanh(logits / cap) * cap
        return logits
