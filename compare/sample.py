"""The few rows on which location and hypotheses are worked out, read once from both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.kernels.native import Block
from drafttrace.compare.kernels.pairs import row_sums
from drafttrace.compare.measure import Bools, massive_channels, massive_rows
from drafttrace.tracer.capture import Capture, Ints, Slot
from drafttrace.tracer.rows import DType, Floats, Rows

MAX_ROWS = 128
MAX_VALUES = 2**18
_KEPT_BYTES = 48 << 20  # a sweep of 61 layers as bf16, twice read and more, is 32 MB
_NO_ROW = {DType.BF16: 0x7FC0, DType.FP8_E4M3: 0x7F, DType.FP8_E5M2: 0x7F}  # NaN where numpy has no such float
MIN_ROWS = 3


@dataclass(frozen=True)
class Stream:
    """One state of one side. kind: slot, embed, last or sweep. boundary: what the file declares."""

    side: str
    kind: str
    name: str
    rows: Rows
    boundary: int | None
    slot: int = -1
    present: Bools | None = None

    def has(self, index: Ints) -> Bools:
        """Which of the rows ``index`` the stream holds."""
        inside: Bools = (index >= 0) & (index < len(self.rows))
        if self.present is not None:
            inside = inside & self.present[np.clip(index, 0, len(self.present) - 1)]
        return inside


def slot_streams(side: str, capture: Capture) -> tuple[Stream, ...]:
    """The slots of a capture, in fc order."""
    masks = capture.present
    return tuple(
        Stream(side, "slot", s.name, s.rows, s.boundary, i, masks.get(s.name)) for i, s in enumerate(capture.slots)
    )


def other_streams(side: str, capture: Capture) -> tuple[Stream, ...]:
    """Embedding and last state of a capture, those that it has."""
    found = []
    if capture.embed is not None:
        found.append(_embed(side, capture.embed, capture))
    if capture.last is not None:
        last = capture.last
        found.append(Stream(side, "last", last.name, last.rows, last.boundary, -1, capture.present.get("last")))
    return tuple(found)


def sweep_streams(side: str, capture: Capture) -> tuple[Stream, ...]:
    """The boundaries that a capture holds, the embedding as B0 among them where the sweep lacks it."""
    streams = [
        Stream(side, "sweep", f"boundary/{k}", rows, k, -3, capture.present.get(f"boundary/{k}"))
        for k, rows in sorted(capture.boundaries.items())
    ]
    if streams and 0 not in capture.boundaries and capture.embed is not None:
        streams.insert(0, _embed(side, capture.embed, capture))
    return tuple(streams)


def _embed(side: str, embed: Slot, capture: Capture) -> Stream:
    return Stream(side, "embed", embed.name, embed.rows, 0, -2, capture.present.get("embed"))


@dataclass(frozen=True)
class Sample:
    """Pairs of rows to read: ``left`` and ``reference`` hold one row index per pair."""

    left: Ints
    reference: Ints
    positions: Ints
    _kept: dict[tuple[int, str, int], tuple[Stream, Block]] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.left)

    def read(self, stream: Stream, shift: int = 0) -> Floats:
        """The sample's rows of one stream, ``[m, H]`` float32 and not to be written to; reference rows moved by
        ``shift``.

        A row that the stream does not have is NaN.
        """
        found = self.stored(stream, shift).floats()
        found.flags.writeable = False
        return found

    def stored(self, stream: Stream, shift: int = 0) -> Block:
        """The same rows as they are stored: what was read last is kept so, up to 48 MB."""
        key = (id(stream.rows), stream.side, shift)
        if key not in self._kept:
            found = self._read(stream, shift)
            found.raw.flags.writeable = False
            held = found.raw.nbytes + sum(block.raw.nbytes for _stream, block in self._kept.values())
            while self._kept and held > _KEPT_BYTES:
                held -= self._kept.pop(next(iter(self._kept)))[1].raw.nbytes
            self._kept[key] = stream, found  # the stream, too, so that its id stays its own
        return self._kept[key][1]

    def part(self, chosen: Ints) -> Sample:
        """Some of the pairs, with what was read of them."""
        kept = {}
        for key, (stream, block) in self._kept.items():
            some = block.part(chosen)
            some.raw.flags.writeable = False
            kept[key] = stream, some
        return Sample(self.left[chosen], self.reference[chosen], self.positions[chosen], kept)

    def _read(self, stream: Stream, shift: int) -> Block:
        index = self.left if stream.side == "left" else self.reference + shift
        inside, rows = stream.has(index), stream.rows
        if inside.all():
            raw, scale = rows.take_raw(index)
            return Block(raw, rows.dtype, scale)
        raw = np.full((len(index), rows.width), _NO_ROW.get(rows.dtype, np.nan), rows.dtype.storage)
        raw[inside], factors = rows.take_raw(index[inside])
        scale = None if factors is None else np.ones(len(index), np.float32)
        if scale is not None:
            scale[inside] = factors
        return Block(raw, rows.dtype, scale)


def choose(
    alignment: Alignment, left: tuple[Stream, ...], reference: tuple[Stream, ...], most: int = MAX_ROWS
) -> Sample:
    """Up to ``most`` pairs, spread evenly, that every given stream has, without massive or broken rows.

    Position 0 is left out where enough other rows exist: it is a massive row in real models.
    """
    ours, theirs = alignment.left_rows, alignment.reference_rows
    width = max((s.rows.width for s in (*left, *reference)), default=1)
    most = min(most, max(32, MAX_VALUES // width))
    keep = np.ones(len(alignment), np.bool_)
    for stream in (*left, *reference):
        there = stream.has(ours if stream.side == "left" else theirs)
        if stream.kind == "sweep" or there.sum() >= MIN_ROWS:  # a slot without rows must not hide the others
            keep &= there
    rows = np.flatnonzero(keep & (alignment.positions > 0))
    if len(rows) < MIN_ROWS:
        rows = np.flatnonzero(keep)
    rows = spread(rows, 2 * most)
    sample = Sample(ours[rows], theirs[rows], alignment.positions[rows])
    good = np.ones(len(rows), np.bool_)
    for stream in (*left, *reference):
        if stream.kind == "slot":
            rows_read = sample.read(stream)
            norms = np.sqrt(row_sums(rows_read, rows_read).xx)
            ordinary = np.isfinite(norms) & ~massive_rows(norms)
            if ordinary.sum() >= MIN_ROWS and (good & ordinary).sum() >= min(MIN_ROWS, good.sum()):
                good &= ordinary
    return sample.part(spread(np.flatnonzero(good), most))


def spread(rows: Ints, most: int) -> Ints:
    """Up to ``most`` of the rows, evenly."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def trimmed_channels(sample: Sample, streams: tuple[Stream, ...]) -> Mapping[str, Ints]:
    """Per stream (key ``side:name``) the massive channels found on the sample."""
    return {f"{s.side}:{s.name}": massive_channels(sample.read(s)) for s in streams}
