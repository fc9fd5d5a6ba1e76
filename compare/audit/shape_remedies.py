"""Which shapes a draft's config asks for, which stored ones differ, and what puts a differing dimension right.

A number of the config is blamed only where another value makes this tensor fit and no fitting one unfit: one tensor of
another width beside many of the right one is a bad export, all of them are another run's config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from drafttrace.compare.audit.attention_sizes import Sizes, attention_sizes, nearest
from drafttrace.compare.audit.class_defaults import MLP_SIZE
from drafttrace.compare.audit.class_tensors import as_built, built_shapes, optional_shapes
from drafttrace.compare.audit.mla_checks import ATTENTION
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.draft_config import PLAIN_CLASS, DraftConfig, parse_draft_config
from drafttrace.compare.draft_weights import DraftWeights, slots_of_fc, split_fused
from drafttrace.tracer.errors import UnreadableFile

Shape = tuple[int, ...]
HEAD, EMBEDDING, D2T = "lm_head.weight", "embed_tokens.weight", "d2t"
MLP = ".mlp."
_KEYS = (
    "hidden_size", "target_hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "draft_vocab_size", "vocab_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    MLP_SIZE,
)  # fmt: skip
_DERIVED = ("head_dim", "num_key_value_heads", "target_hidden_size", MLP_SIZE)
"""Numbers that follow from others where the config does not give them, so that a lost one asks for other shapes."""
_MOST_LAYERS = 64
"""Drafts have a few layers; more come from a damaged config, which is not worth a search."""


def shapes_asked(config: DraftConfig, weights: DraftWeights, slots: int) -> dict[str, Shape]:
    """The shape of every tensor in the checkpoint that the config says one for, by canonical name, fused ones whole.

    slots: of ``fc``, where its own shape does not tell.
    """
    plain = built_shapes(config, slots_of_fc(weights, config) or slots) | optional_shapes(config)
    rows = config.draft_vocab_size or config.vocab_size
    plain |= {HEAD: (rows, config.hidden_size), EMBEDDING: (config.vocab_size, config.hidden_size), D2T: (rows,)}
    asked = {}
    for name in weights.names:
        parts = [plain[part] for part in split_fused(name) if part in plain]
        if parts and len(parts) == len(split_fused(name)):
            asked[name] = (sum(part[0] for part in parts), *parts[0][1:])
    return asked


@dataclass
class Shapes:
    """The shapes of one draft. config: as it stands; slots: of ``fc``, where its own shape does not tell; slot_width: the
    target's, which no tensor of the draft can put right."""

    config: DraftConfig
    weights: DraftWeights
    slots: int
    slot_width: int
    _wrong: dict[str, tuple[Shape, Shape]] | None = field(default=None, repr=False)
    _tried: dict[tuple[tuple[str, int], ...], dict[str, Shape] | None] = field(default_factory=dict, repr=False)
    _together: list[Sizes] | None = field(default=None, repr=False)

    def wrong(self) -> dict[str, tuple[Shape, Shape]]:
        """Stored and asked-for shape of every tensor in which they differ."""
        if self._wrong is None:
            self._wrong = self._differing(shapes_asked(self.config, self.weights, self.slots))
        return self._wrong

    def remedy(self, name: str) -> str:
        """What to do about a tensor whose shape differs: the number of the config, or the export, by dimension."""
        stored, asked = self.wrong()[name]
        info = self.weights.info(name)
        export = f"export '{info.name}' again as {list(asked)}"
        if 0 in stored:
            return f"{export[0].upper()}{export[1:]}: the stored one is empty."
        if len(stored) != len(asked):
            return (
                f"{export[0].upper()}{export[1:]}: it has to be of {len(asked)} dimension{'s'[: len(asked) > 1]}."
            )
        places = [axis for axis in range(len(asked)) if stored[axis] != asked[axis]]
        found = self.blamed(name)
        if found:
            return (
                f"{self.lines(found)}, if the config of the run that wrote {info.file.name} says so; else {export}."
            )
        what = " and ".join(f"{_axis(axis, len(asked))} {stored[axis]} instead of {asked[axis]}" for axis in places)
        kept = "" if len(places) == len(asked) else ", the rest fits"
        return (
            f"{export[0].upper()}{export[1:]}: it has {what}{kept}, and no number of the config makes it fit the other "
            f"tensors; if several differ, put the config.json of the run that wrote {info.file.name} beside it."
        )

    @staticmethod
    def lines(blamed: Mapping[str, int]) -> str:
        """What :meth:`blamed` found, as lines to paste."""
        return " or ".join(f'"{key}": {value}' for key, value in blamed.items())

    def blamed(self, name: str) -> dict[str, int]:
        """The numbers of the config that, set otherwise, make ``name`` fit and nothing unfit; the best ones only."""
        stored, asked = self.wrong()[name]
        if self.config.layers > _MOST_LAYERS or len(stored) != len(asked) or 0 in stored:
            return {}
        places = [axis for axis in range(len(asked)) if stored[axis] != asked[axis]]
        before = self.wrong()
        found: dict[str, tuple[int, int, int]] = {}
        for key, value in dict.fromkeys(self._candidates(before[name], places)):
            if key == "target_hidden_size" and value != self.slot_width:
                continue
            after = self._with({key: value})
            if after is None:
                continue
            left = self._differing(after)
            if name in after and name not in left and set(left) < set(before):
                today = self.config.flat.get(key)
                far = abs(value - today) if type(today) is int else 0  # 128 is likelier than 3 where 129 stands
                found[key] = min(found.get(key, (len(left), far, value)), (len(left), far, value))
        best = min((count for count, *_ in found.values()), default=0)
        return {key: value for key, (count, _, value) in found.items() if count == best}

    def _candidates(self, shapes: tuple[Shape, Shape], places: list[int]) -> Iterator[tuple[str, int]]:
        """Numbers of the config and values that could explain the differing dimensions: the found ones over what they
        are multiples of, and today's value plus what is missing."""
        for lines in self._nearest():  # one number of the attention, by all its tensors together
            if len(lines) == 1:
                yield from lines.items()
        config, (stored, asked) = self.config, shapes
        units = {1, 2, 3, self.slots, config.heads, config.kv_heads, config.head_dim, 2 * config.head_dim}
        for axis in places:
            for key in _KEYS:
                today = config.flat.get(key)
                if today is None and key not in _DERIVED:
                    continue
                for unit in sorted(units):
                    if stored[axis] % unit == 0:
                        yield key, stored[axis] // unit
                    if type(today) is int and (stored[axis] - asked[axis]) % unit == 0:
                        yield key, today + (stored[axis] - asked[axis]) // unit

    def together(self) -> list[Sizes]:
        """Sets of lines each of which makes the whole attention fit, where no single number of the config does.

        Sizes that the config does not give at all may leave one tensor that differs: that one is a bad export. Empty where
        nothing of the attention differs, where one number is enough, and where the tensors contradict each other.
        """
        if self._together is None:
            self._together = self._solved()
        return self._together

    def _solved(self) -> list[Sizes]:
        wrong = [name for name in self.wrong() if ATTENTION in name]
        if not wrong or self.config.layers > _MOST_LAYERS:
            return []
        single = [set(self.blamed(name).items()) for name in wrong]
        if set.intersection(*single):
            return []
        sets = [lines for lines in self._nearest() if len(lines) > 1]
        whole = [lines for lines in sets if self.left(lines) == {}]
        if whole:
            return whole
        lost = [lines for lines in sets if all(self.config.flat.get(key) is None for key in lines)]
        return [lines for lines in lost if (left := self.left(lines)) is not None and len(left) == 1 < len(wrong)]

    def lost(self) -> Sizes:
        """Sizes of the attention that its tensors leave no choice about; empty where they do. What the config does give
        changes only where the tensors have one set of sizes by themselves, and the class builds this attention."""
        if not any(ATTENTION in name for name in self.wrong()):
            return {}
        sets = [lines for lines in self._nearest() if self.left(lines) == {}]
        if len(sets) != 1:
            return {}
        if all(self.config.flat.get(key) is None for key in sets[0]):
            return sets[0]
        alone = attention_sizes(self.weights)
        other = self.config.architecture == PLAIN_CLASS and "kv_lora_rank" in alone[0]
        return sets[0] if len(alone) == 1 and not other else {}

    def width(self) -> Sizes:
        """The intermediate size, where every tensor of the MLP differs from the config and all agree on another one."""
        parts = [name for name in self.weights.names if MLP in name and len(self.weights.shape(name) or ()) == 2]
        if len(parts) < 2 or not set(parts) <= self.wrong().keys():
            return {}
        first, *rest = (self.blamed(name) for name in parts)
        return (
            first
            if list(first) in (["intermediate_size"], [MLP_SIZE]) and all(found == first for found in rest)
            else {}
        )

    def _nearest(self) -> list[Sizes]:
        return nearest(attention_sizes(self.weights), self.config.flat, self.config.hidden_size)

    def left(self, lines: Sizes) -> dict[str, tuple[Shape, Shape]] | None:
        """Stored and asked-for shape of what of the attention differs with these lines; None where they make no config."""
        after = self._with(lines)
        if after is None:
            return None
        return {name: pair for name, pair in self._differing(after).items() if ATTENTION in name}

    def _with(self, changes: Mapping[str, int]) -> dict[str, Shape] | None:
        """The shapes asked for with numbers of the config set otherwise; None where that is no config."""
        tried = tuple(sorted(changes.items()))
        if tried not in self._tried:
            asked = None
            if all(value > 0 for value in changes.values()):
                try:
                    changed = as_built(parse_draft_config({**self.config.raw, **changes}, self.config.path))
                    asked = shapes_asked(changed, self.weights, self.slots)
                except (UnreadableFile, ArithmeticError):
                    asked = None
            self._tried[tried] = asked
        return self._tried[tried]

    def _differing(self, asked: Mapping[str, Shape]) -> dict[str, tuple[Shape, Shape]]:
        stored = {name: self.weights.info(name).shape for name in asked}
        return {name: (stored[name], shape) for name, shape in asked.items() if stored[name] != shape}


def shapes_of(subject: Subject) -> Shapes:
    """The shapes of the draft that is audited, as the class that it names reads its config."""
    slots = len(subject.served.wiring or ()) or 3
    return Shapes(as_built(subject.draft), subject.draft_weights, slots, subject.target.hidden_size)


def _axis(axis: int, rank: int) -> str:
    if rank == 1:
        return "length"
    return ("rows", "width")[axis] if rank == 2 else f"dimension {axis}"
