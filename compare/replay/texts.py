"""The texts of a replay: tokens, weights of rows, and every state that a capture holds, by boundary or by slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from drafttrace.compare.target_parts import TargetParts
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Accepted, Capture, Ints, Norm, Phase
from drafttrace.tracer.errors import NothingToCompare
from drafttrace.tracer.rows import Floats, Rows

Key = int | str
"""A boundary number where it is known, else ``slot0``, ``slot1``, ... of the file."""
Bools = npt.NDArray[np.bool_]

_TARGET_PHASES = (Phase.PREFILL, Phase.VERIFY, Phase.DECODE)
_FEWEST = 8


def key_name(key: Key) -> str:
    """``B3`` for 3, ``slot0`` for itself."""
    return boundary_name(key) if isinstance(key, int) else key


def keys_name(keys: Sequence[Key]) -> str:
    """``[B0, B3, B31]``."""
    return "[" + ", ".join(key_name(key) for key in keys) + "]"


@dataclass(frozen=True)
class Text:
    """One sequence with states for its rows 0..R-1; row t is the target's state at token ``first + t``.

    tokens ``[T]`` begin at ``first``. weight ``[T]``: the loss mask, or the reply's tokens in a trace; step s of row t
    counts where ``weight[t + mask_offset + s]``. best ``[R]``: the target's own argmax at each row, where the capture
    has the last state. states: rows of a :class:`Rows`, and which of them make up this text. file_wiring: the keys of
    the file's own slots. left_out: positions whose rows a gap keeps from being part of this text. cached: whether the
    prefix cache supplied the tokens before ``first``.
    """

    name: str
    tokens: Ints
    first: int
    rows: int
    weight: Bools
    mask_offset: int
    best: Ints | None
    final: Floats | None
    sources: Mapping[Key, tuple[Rows, Ints]]
    file_wiring: tuple[Key, ...]
    notes: tuple[str, ...] = ()
    left_out: int = 0
    cached: bool = False
    _cache: dict[Key, Floats] = field(default_factory=dict, repr=False)

    def state(self, key: Key, rows: int | None = None) -> Floats:
        """The states of a key ``[R, H]`` (or its first ``rows``) as float32."""
        if key not in self._cache:
            held, index = self.sources[key]
            self._cache[key] = held.take(index)
        return self._cache[key] if rows is None else self._cache[key][:rows]

    def rows_lacking(self, windows: Sequence[int | None], layers: int) -> int:
        """How many of the first rows depend on tokens before ``first``, of which no state is known.

        windows: tokens that a row of each layer sees, itself included; where a layer has none, its rows see all.
        """
        if not self.first:
            return 0
        reach = [window for window in windows[:layers] if window is not None]
        return min(self.rows, sum(window - 1 for window in reach)) if len(reach) == layers else self.rows

    def release(self) -> None:
        """Forget the states that were read."""
        self._cache.clear()


def cut_to_sweep(capture: Capture, parts: TargetParts | None, layers: int | None = None) -> Text | None:
    """The text of the rows that a layer sweep covers, so that every boundary can be compared on the same rows.

    None where the capture has no sweep, it covers everything, or it covers fewer than eight rows. All rows count: a
    sweep often covers the prompt only.
    """
    covered = min((len(rows) for rows in capture.boundaries.values()), default=0)
    if not _FEWEST <= covered < len(capture.table):
        return None
    try:
        text = text_of(capture, parts, layers, covered)
    except NothingToCompare:
        return None
    if text.weight[text.mask_offset :][: text.rows].sum() < _FEWEST:
        text = dataclasses.replace(text, weight=np.ones(len(text.tokens), bool))
    note = f"the layer sweep covers the first {text.rows} positions, so wirings are compared on those"
    return dataclasses.replace(text, notes=(*text.notes, note))


def text_of(
    capture: Capture, parts: TargetParts | None, layers: int | None = None, below: int | None = None
) -> Text:
    """The text of a capture. parts: the target's, for its own argmax where the capture has a last state.

    layers: n of the target, to refuse a "last" state that is declared as another boundary. below: use only rows of the
    table before this one.

    Raises NothingToCompare where fewer than eight rows in one piece have states.
    """
    capture.need_real_tokens("replay the draft")
    index, first, left_out = _rows_by_position(capture, below)
    tokens, notes = capture.tokens[first:], []
    length = capture.valid_length or len(capture.tokens)
    tokens = tokens[: max(0, length - first)]
    rows = min(len(index), len(tokens))
    if rows < _FEWEST:
        raise NothingToCompare(
            f"{capture.path} has {rows} rows of hidden states in one piece (first position {first}), too few to replay; "
            "record a longer request, or one that the prefix cache does not cut."
        )
    if first:
        notes.append(f"the rows begin at position {first}: the draft replays without the {first} tokens before")
    if left_out:
        notes.append(
            f"positions {first} to {first + rows - 1} are the longest run of rows without a gap; {left_out} rows elsewhere "
            "are left out"
        )
    index = index[:rows]
    sources, wiring = _sources(capture, index)
    best, final, said = _best(capture, index, parts, layers)
    notes += said
    return Text(
        name=capture.path if capture.sample is None else f"{capture.path}#{capture.sample}",
        tokens=tokens,
        first=first,
        rows=rows,
        weight=_weight(capture, first, len(tokens)),
        mask_offset=capture.mask_offset if capture.mask is not None else 1,
        best=best,
        final=final,
        sources=sources,
        file_wiring=wiring,
        notes=tuple(notes),
        left_out=left_out,
        cached=first > 0 and _cached(capture) >= first,
    )


def _cached(capture: Capture) -> int:
    """Tokens of a traced request that the prefix cache supplied."""
    request = capture.about.get("request")
    count = request.get("cached_prefix") if isinstance(request, Mapping) else None
    return count if isinstance(count, int) else 0


def _rows_by_position(capture: Capture, below: int | None) -> tuple[Ints, int, int]:
    """Row numbers for consecutive positions: the newest accepted row of each; the first of these positions; and how many
    other positions have rows."""
    table = capture.table
    usable = np.isin(table.phase, _TARGET_PHASES) & (table.accepted != Accepted.REJECTED)
    usable &= table.position < max(len(capture.tokens), 1)
    for slot in capture.slots:  # a row that was not recorded is held as zeros, and a replay would attend to those
        usable &= capture.present.get(slot.name, True)
    rows = np.flatnonzero(usable[:below])
    newest: dict[int, int] = {}
    for row in rows[np.argsort(table.frame[rows], kind="stable")]:
        newest[int(table.position[row])] = int(row)
    if not newest:
        return np.empty(0, np.int64), 0, 0
    runs: list[list[int]] = []
    for position in sorted(newest):
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    longest = max(runs, key=len)
    return np.array([newest[p] for p in longest], np.int64), longest[0], len(newest) - len(longest)


def _sources(capture: Capture, index: Ints) -> tuple[dict[Key, tuple[Rows, Ints]], tuple[Key, ...]]:
    found: dict[Key, tuple[Rows, Ints]] = {}
    wiring: list[Key] = []
    for k, slot in enumerate(capture.slots):
        key: Key = slot.boundary if slot.boundary is not None and slot.boundary not in wiring else f"slot{k}"
        wiring.append(key)
        found[key] = (slot.rows, index)
    if capture.embed is not None and _recorded(capture, "embed", index):
        found.setdefault(0, (capture.embed.rows, index))
    for boundary, rows in capture.boundaries.items():
        if len(rows) > int(index.max()):
            found.setdefault(boundary, (rows, index))
    last = capture.last
    if (
        last is not None
        and last.norm is Norm.PRE
        and last.boundary is not None
        and len(last.rows) > int(index.max())
        and _recorded(capture, "last", index)
    ):
        found.setdefault(last.boundary, (last.rows, index))
    return found, tuple(wiring)


def _recorded(capture: Capture, name: str, index: Ints) -> bool:
    """Whether all of these rows of a state were recorded."""
    present = capture.present.get(name)
    return present is None or bool(present[index].all())


def _weight(capture: Capture, first: int, length: int) -> Bools:
    if capture.mask is not None:
        mask = np.zeros(length, bool)
        given = np.asarray(capture.mask)[first : first + length] != 0
        mask[: len(given)] = given
        return mask
    if capture.prompt_length is not None:
        return np.arange(first, first + length) >= capture.prompt_length
    return np.ones(length, bool)


def _best(
    capture: Capture, index: Ints, parts: TargetParts | None, layers: int | None
) -> tuple[Ints | None, Floats | None, list[str]]:
    """The target's argmax per row, and the states it comes from.

    Refused where the "last" state does not predict the text at all.
    """
    last = capture.last
    if last is None or parts is None or len(last.rows) <= int(index.max()):
        return None, None, []
    if not _recorded(capture, "last", index):
        return (
            None,
            None,
            ["the last state was not recorded in all rows, so the target's own choices are not known"],
        )
    if last.boundary is not None and (layers or _layers(capture)) not in (None, last.boundary):
        return (
            None,
            None,
            [f"the last state is {boundary_name(last.boundary)}, so the target's own choices are not known"],
        )
    states = last.rows.take(index)
    width = parts.checkpoint.info(parts.head).shape[1]
    if states.shape[1] != width:
        return (
            None,
            None,
            [f"the last state is {states.shape[1]} wide and the head reads {width}: its choices are not known"],
        )
    next_tokens = _next_tokens(capture, index)
    normed = []
    if last.norm is not Norm.PRE:
        normed.append(states)
    if last.norm is not Norm.POST:
        normed.append(parts.final_norm(states))
    readings = [parts.argmax(one) for one in normed]
    known = next_tokens >= 0
    shares = [float((choice[known] == next_tokens[known]).mean()) if known.any() else 0.0 for choice in readings]
    best = int(np.argmax(shares))
    if shares[best] < _LEAST_AGREEMENT:
        return (
            None,
            None,
            [
                f"the head on the last state names the next token in {shares[best]:.1%} of the rows, so that state is not "
                "the target's last one and its choices are not used"
            ],
        )
    return readings[best], normed[best], []


_LEAST_AGREEMENT = 0.1


def _next_tokens(capture: Capture, index: Ints) -> Ints:
    place = capture.table.position[index] + 1
    inside = place < len(capture.tokens)
    found = np.full(len(index), -1, np.int64)
    found[inside] = capture.tokens[place[inside]]
    return found


def _layers(capture: Capture) -> int | None:
    wiring = capture.about.get("wiring")
    n = wiring.get("n") if isinstance(wiring, dict) else None
    return n if isinstance(n, int) else None
