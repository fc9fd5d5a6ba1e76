"""What every reader does the same way: turn stored tensors into tokens, slots, a last state and a mask."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.boundary import canonical_wiring, parse_wiring, wiring_name
from drafttrace.tracer.capture import Capture, Ints, LastState, Norm, RowTable, Slot
from drafttrace.tracer.dumps import mask_entries
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.tensor import StoredRows, Tensor, Unreadable, of_numbers
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.rows import Floats, Rows

ASSUMED = "ASSUMED default"
USER_SAID = "layer ids given by the user"
FORCED = "asked for with --format"
# What one sample may claim. Tables of tokens and positions are held in memory, 40 bytes a row; rows are read one at a
# time at least. The longest contexts have some million tokens, the widest rows (logits) some hundred thousand entries.
MOST_ROWS = 1 << 22
MOST_WIDTH = 1 << 22
MOST_SLOTS = 4096
# Rows beyond the tokens are padding, and nobody pads to more than this or the double.
_SPARE_ROWS = 1 << 16


class NeedsHiddenSize(DrafttraceError):
    """The slots lie side by side in one matrix and nothing says how wide one is."""


class UncutRows(StoredRows):
    """Slots side by side that nothing could cut: neither the file nor the user says how wide one is."""


def field(document: Document, name: str, value: Any = None) -> Tensor:
    """The tensor of that name. Raises UnreadableFile where it is missing, None or something else."""
    source = document.value if value is None else value
    found = source.get(name) if isinstance(source, dict) else None
    if isinstance(found, Tensor):
        return found
    if isinstance(found, Unreadable):
        raise UnreadableFile(found.why)
    what = "is missing" if found is None else f"is a {type(found).__name__}, no tensor"
    if isinstance(source, dict) and name in source and found is None:
        what = "is None: the trainer was told not to store it"
    raise UnreadableFile(f"The field '{name}' of '{document.path}' {what}; dump the sample again with it.")


def unbatched(tensor: Tensor, name: str, path: Path, ndim: int) -> Tensor:
    """The tensor without a leading batch axis of one. Raises UnreadableFile for other shapes."""
    found = tensor
    while found.ndim > ndim and found.shape[0] == 1:
        found = found.pick(0, 0)
    if found.ndim != ndim:
        remedy = "dump one sample per file."
        if tensor.ndim - ndim == 1 and tensor.float_kind is not None:
            remedy = f"dump one sample per file, or, if its axes are rows and slots, name it with --slots {name} --tokens."
        raise UnreadableFile(
            f"The field '{name}' of '{path}' has the shape {list(tensor.shape)} where {ndim} axes are expected; {remedy}"
        )
    return found


def rows(tensor: Tensor, name: str, path: Path, scales: Floats | None = None) -> StoredRows:
    """A ``[L, W]`` or ``[1, L, W]`` tensor of floats as rows. Raises UnreadableFile for anything else."""
    flat = unbatched(tensor, name, path, 2)
    kind = flat.float_kind
    if kind is None:
        raise UnreadableFile(
            f"The field '{name}' of '{path}' holds {tensor.kind}, no hidden states; write the dump again."
        )
    if 0 in flat.shape:
        raise UnreadableFile(
            f"The field '{name}' of '{path}' is empty (shape {list(tensor.shape)}); dump it again."
        )
    if flat.shape[0] > MOST_ROWS or flat.shape[1] > MOST_WIDTH:
        raise UnreadableFile(
            f"The field '{name}' of '{path}' claims {flat.shape[0]:,} rows of {flat.shape[1]:,} numbers, and one sample "
            f"may have {MOST_ROWS:,} rows of {MOST_WIDTH:,}; dump one sample per file."
        )
    return StoredRows(flat, kind, scales)


def axis_slots(tensor: Tensor, name: str, path: Path, axis: int, scales: Floats | None = None) -> list[StoredRows]:
    """A ``[L, K, H]`` (axis 1) or ``[K, L, H]`` (axis 0) tensor as K slots of rows."""
    cube = unbatched(tensor, name, path, 3) if tensor.ndim > 3 else tensor
    if cube.ndim != 3:
        raise UnreadableFile(
            f"The field '{name}' of '{path}' has the shape {list(tensor.shape)} where 3 axes are expected; dump one "
            "sample per file."
        )
    _few_slots(cube.shape[axis], name, path)
    parts = [cube.pick(axis, k) for k in range(cube.shape[axis])]
    return [rows(part, f"{name}[{k}]", path, scales) for k, part in enumerate(parts)]


def side_by_side(
    tensor: Tensor, name: str, path: Path, request: Request, hidden_size: int | None
) -> list[StoredRows]:
    """A ``[L, K * H]`` matrix as K slots.

    hidden_size: H as the file itself shows it, else ``request.hidden_size``. Raises NeedsHiddenSize where neither
    is known, UnreadableFile where H does not divide the width.
    """
    whole, flat = rows(tensor, name, path), unbatched(tensor, name, path, 2)
    width = hidden_size or request.hidden_size
    if width is None:
        if request.lenient or request.tokens_only:
            return [UncutRows(flat, whole.dtype)]
        raise NeedsHiddenSize(
            f"The field '{name}' of '{path}' is {whole.width} wide and holds several slots side by side, but the file "
            "does not say how wide one is; give --target DIR or --hidden-size H."
        )
    if whole.width % width:
        remedy = "give the target that the dump was made with."
        if hidden_size is not None:
            remedy = (
                "the last state beside it is that wide, so the two are not of one target: dump the sample again."
            )
        elif not request.inferred:
            remedy = "give the width of one slot with --hidden-size."
        raise UnreadableFile(
            f"The field '{name}' of '{path}' is {whole.width} wide, no multiple of the hidden size {width}; {remedy}"
        )
    _few_slots(whole.width // width, name, path)
    _no_more_than_boundaries(whole.width, width, name, path, request)
    cuts = range(0, whole.width, width)
    return [rows(flat.cut(1, k, k + width), name, path) for k in cuts]


def _few_slots(count: int, name: str, path: Path) -> None:
    if count > MOST_SLOTS:
        raise UnreadableFile(
            f"The field '{name}' of '{path}' holds {count:,} slots, and no draft reads more than {MOST_SLOTS:,}; "
            "check --hidden-size, and the order of the axes."
        )


def _no_more_than_boundaries(whole: int, width: int, name: str, path: Path, request: Request) -> None:
    """A dump of another target may be a multiple of the hidden size, too; but no draft reads a boundary twice."""
    n = request.layers
    if n is None or whole // width <= n + 1:
        return
    raise UnreadableFile(
        f"The field '{name}' of '{path}' is {whole} wide, {whole // width} times the hidden size {width}, and a target "
        f"of {n} layers has {n + 1} boundaries; give the target that it was made with, or the width of one slot with "
        "--hidden-size."
    )


def few_numbers(tensor: Tensor, name: str, path: Path) -> Tensor:
    """The tensor, where it has no more than one number for every row that a sample may have.

    Raises UnreadableFile, before anything is read, for one that would not fit into memory.
    """
    count = math.prod(tensor.shape)
    if count > MOST_ROWS:
        raise UnreadableFile(
            f"The field '{name}' of '{path}' claims {count:,} entries (shape {list(tensor.shape)}), and one sample may "
            f"have {MOST_ROWS:,} tokens; dump one sample per file."
        )
    return tensor


def token_ids(tensor: Tensor, name: str, path: Path) -> Ints:
    """Token ids ``[L]`` from ``[L]`` or ``[1, L]``. Raises UnreadableFile for anything but whole numbers >= -1."""
    flat = few_numbers(unbatched(tensor, name, path, 1), name, path)
    try:
        ids = flat.ints()
    except ValueError:
        raise UnreadableFile(
            f"The field '{name}' of '{path}' holds {tensor.kind} values that are no token ids; "
            "write the dump again."
        ) from None
    if len(ids) == 0:
        raise UnreadableFile(f"The field '{name}' of '{path}' holds no tokens; dump the sample again.")
    if int(ids.min()) < -1 or int(ids.max()) >= 2**31:
        wrong = int(ids.min()) if int(ids.min()) < -1 else int(ids.max())
        raise UnreadableFile(
            f"The field '{name}' of '{path}' holds {wrong}, which is no token id; write the dump again."
        )
    return ids


def listed(value: list[Any]) -> Tensor | None:
    """The tensor that a mask of plain numbers is; None for an empty list, and for one of anything else."""
    found = of_numbers(value)
    return found if found is not None and 0 not in found.shape else None


def mask_of(value: Any, path: Path, name: str = "loss_mask") -> Ints | None:
    """A loss mask ``[L]``; None where there is none. A list of numbers is one, too."""
    if isinstance(value, list):
        value = listed(value)
    if not isinstance(value, Tensor):
        return None
    few_numbers(value, name, path)
    column = 1 in value.shape[1:]
    flat = Tensor.held(value.read().reshape(-1), value.kind) if column else unbatched(value, name, path, 1)
    try:
        return flat.ints()
    except ValueError:
        return mask_entries.counted(mask_entries.finite(flat, name, path))


def valid_length(tokens: Ints, mask: Ints | None, attention: Ints | None = None) -> int:
    """How many tokens are no padding: up to the last 1 of the attention mask; else without the run of id 0 with
    mask 0 at the end, which is how SpecForge's padded batches look. At least 1."""
    if attention is not None and len(attention) and attention.any():
        return int(np.flatnonzero(attention)[-1]) + 1
    if mask is None or len(mask) < len(tokens):
        return len(tokens)
    kept = np.flatnonzero((tokens != 0) | (mask[: len(tokens)] != 0))
    return int(kept[-1]) + 1 if len(kept) else len(tokens)


def slots_of(parts: Sequence[Rows], name: str, ids: Sequence[int | None] | None, source: str) -> tuple[Slot, ...]:
    """Slots named ``name[k]`` with the boundaries ``ids``, all declared by ``source``."""
    known = [None] * len(parts) if ids is None else list(ids)
    return tuple(
        Slot(name=f"{name}[{k}]", rows=part, boundary=known[k] if k < len(known) else None, source=source)
        for k, part in enumerate(parts)
    )


def check_ids(request: Request, counts: Collection[int]) -> None:
    """Raise DrafttraceError where the user gives another number of layer ids than there are slots. Where the hidden
    size is missing, nobody knows how many there are."""
    given = request.layer_ids
    uncut = request.lenient and request.hidden_size is None and max(counts) == 1
    if given is None or len(given) in counts or request.tokens_only or uncut:
        return
    slots = " or ".join(str(count) for count in sorted(counts))
    raise DrafttraceError(
        f"{len(given)} layer ids are given ({', '.join(map(str, given))}) where the dump has {slots} slots; give one "
        "for each with --layer-ids."
    )


@dataclass(frozen=True)
class Convention:
    """How a project numbers layers: ``O`` (output of layer id = B(id + 1)) or ``B`` (stream entering layer id),
    and the rule it uses where nobody says otherwise. canonical: whether that rule makes three slots B{2, n//2, n-3}."""

    letter: str
    rule: str
    canonical: bool = True

    def resolve(self, request: Request, count: int) -> tuple[list[int | None] | None, str]:
        """Boundaries of ``count`` slots and where they come from. Without ids from the user they stay unknown, and
        the source says what the project would have done. Raises DrafttraceError for another number of ids."""
        check_ids(request, {count})
        if request.layer_ids is not None and len(request.layer_ids) == count:
            letter = request.numbering or self.letter
            ids: list[int | None] = [k + (letter == "O") for k in request.layer_ids]
            return ids, f"{USER_SAID}, {letter}(id)"
        n = request.layers
        usual = canonical_wiring(n) if self.canonical and n is not None and count == 3 else None
        return None, f"{assumed(usual, n)}: {self.rule}; the file records no layer ids"


def assumed(wiring: Sequence[int] | None, layers: int | None) -> str:
    """How a source begins that records nothing: with the boundaries of the default, where ``layers`` tells them."""
    if wiring is None or layers is None or not all(0 <= k <= layers for k in wiring):
        return ASSUMED
    return f"{ASSUMED} {wiring_name(wiring)}"


def assumed_wiring(source: str) -> tuple[int, ...] | None:
    """The boundaries of the default that a source names as :func:`assumed` writes them; None where it names none."""
    found = re.search(rf"{ASSUMED} (\[[B\d, ]+\])", source)
    return None if found is None else parse_wiring(found[1])


def recognised(layout: Callable[[Document, Request], str | None], document: Document, request: Request) -> str:
    """Why a document is read as it is."""
    return layout(document, request) or FORCED


# What most trainers do without configuration: B{2, n//2, n-3}, written O{1, n//2-1, n-4} by those that count outputs.
OUTPUTS = Convention("O", "O{1, n//2-1, n-4} = B{2, n//2, n-3}")
ENTRIES = Convention("B", "B{2, n//2, n-3}")


@dataclass(frozen=True)
class States:
    """parts: the slots. notes: what the file does not hold, by name."""

    parts: tuple[StoredRows, ...]
    last: LastState | None
    notes: tuple[str, ...]


def slots_and_last(
    document: Document,
    aux_name: str,
    last_name: str,
    request: Request,
    norm: tuple[Norm, str],
    *,
    entry: Mapping[str, Any] | None = None,
    width: int | None = None,
) -> States:
    """Slots that lie side by side in one field, and the last state in another; either may be missing or None.

    norm: on which side of the final norm the last state stands, and the proof. entry: where the fields are, default the
    top level. width: of one slot, where there is no last state to tell it. Raises as :func:`side_by_side` does.
    """
    source = document.value if entry is None else entry
    held = source if isinstance(source, Mapping) else {}
    notes: list[str] = []

    def absent(name: str, what: str) -> bool:
        if held.get(name) is not None:
            return False
        notes.append(f"no {what}: {name} is {'None' if name in held else 'missing'}")
        return True

    last: LastState | None = None
    if not absent(last_name, "last state"):
        state = rows(field(document, last_name, source), last_name, document.path)
        last, width = last_state(last_name, state, *norm), state.width
    parts: list[StoredRows] = []
    if not absent(aux_name, "slots"):
        parts = side_by_side(field(document, aux_name, source), aux_name, document.path, request, width)
    return States(tuple(parts), last, tuple(notes))


def last_state(name: str, part: Rows, norm: Norm, why: str, boundary: int | None = None) -> LastState:
    """A last state with what proves its norm."""
    return LastState(name=name, rows=part, norm=norm, proven_by=why, boundary=boundary)


def capture(
    document_path: Path,
    layout: str,
    why: str,
    tokens: Ints,
    slots: tuple[Slot, ...],
    **more: Any,
) -> Capture:
    """A capture with one row per stored state row. Raises UnreadableFile where row counts contradict each other."""
    last: LastState | None = more.get("last")
    counts = {len(slot.rows) for slot in slots} | ({len(last.rows)} if last is not None else set())
    if len(counts) > 1:
        listed = ", ".join(str(count) for count in sorted(counts))
        raise UnreadableFile(
            f"The states of '{document_path}' have {listed} rows, which should be one number; write it again."
        )
    if not counts and not more.get("boundaries") and why == FORCED:
        raise UnreadableFile(
            f"The file '{document_path}' holds no state of {layout}; leave --format out, or name another format."
        )
    count = counts.pop() if counts else len(tokens)
    if count > _SPARE_ROWS + 2 * len(tokens):
        raise UnreadableFile(
            f"The states of '{document_path}' have {count:,} rows for {len(tokens):,} tokens, so they are of another "
            "sample or the file is damaged; dump it again."
        )
    widths = {slot.rows.width for slot in slots}
    if len(widths) > 1:
        raise UnreadableFile(
            f"The slots of '{document_path}' are {sorted(widths)} wide, which should be one width; write it again."
        )
    notes = list(more.pop("notes", ()))
    notes += [
        f"{slot.name} is {slot.rows.width} wide and may hold several slots side by side, and the file does not say how "
        "wide one is: give --target DIR or --hidden-size H"
        for slot in slots
        if isinstance(slot.rows, UncutRows)
    ]
    if count != len(tokens):
        notes.append(f"{count} rows for {len(tokens)} tokens")
        if count > len(tokens):
            tokens = np.concatenate([tokens, np.full(count - len(tokens), -1, np.int64)])
    mask: Ints | None = more.get("mask")
    if mask is not None:
        mask = more["mask"] = mask_entries.of_tokens(mask, len(tokens), document_path, notes)
    more.setdefault("valid_length", min(len(tokens), valid_length(tokens, mask)))
    about: Mapping[str, Any] = more.pop("about", {})
    return Capture(
        path=str(document_path),
        format=layout,
        recognised_by=why,
        tokens=tokens,
        table=RowTable.of_tokens(tokens, count),
        slots=slots,
        about=about,
        notes=tuple(notes),
        **more,
    )
