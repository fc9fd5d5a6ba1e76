"""The commands that write a trace or dump, as functions: ``reference``, ``redact``, ``convert``.

Everything here is also an attribute of :mod:`drafttrace`. Nothing that is there is replaced without ``force``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from drafttrace.arguments import refuse_other
from drafttrace.public import public
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.wirings import Wiring, wiring_of

PathLike = str | os.PathLike[str]
Layout = Literal["trace", "safetensors", "specforge", "speculators-v1", "speculators"]


@public
def reference(
    source: PathLike | Capture | Sequence[int],
    out: PathLike,
    *,
    target: PathLike | None = None,
    wiring: Wiring | None = None,
    boundaries: Literal["all", "canonical"] | Wiring = "all",
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto",
    device_map: str | None = None,
    force: bool = False,
) -> tuple[Path, ...]:
    """Run the target with transformers over the source's tokens and store its boundaries, as training would have; a loss
    mask of the source stays with them.

    source: a trace, a dump (all of its samples, or ``PATH#i``), an open capture, or token ids. target: its folder
    (default: the one that the trace was served with). wiring: the boundaries that training fed ``fc``, in order, as
    numbers k of B(k) or as "B0,B3,B31" (default: the canonical ones). boundaries: which to store. Returns the files:
    ``out``, or for a dump of several samples one for each in the folder ``out``.

    Raises UnreadableFile for a target that cannot be loaded, OutputExists for a taken ``out``, DrafttraceError for ids
    outside the target's vocabulary and where no target is known.
    """
    from drafttrace.tracer.open import split_spec
    from drafttrace.tracer.reference import LossMask, make_reference, mask_of, tokens_of
    from drafttrace.tracer.reference_model import DTYPES
    from drafttrace.tracer.reference_samples import read_source
    from drafttrace.tracer.served_paths import folder_of

    refuse_other(dtype, "dtype", {"auto", *DTYPES})
    samples: Sequence[Ints]
    masks: Sequence[LossMask | None] | None = None
    numbers: Sequence[int] | None = None
    trace, keep = None, []
    if isinstance(source, (str, os.PathLike)):
        read = read_source(os.fspath(source))
        samples, masks, numbers, trace = read.tokens, read.masks, read.numbers, read.trace
        keep = [split_spec(os.fspath(source))[0]]
    elif isinstance(source, Capture):
        samples, masks, trace = [tokens_of(source)], [mask_of(source)], source
    else:
        samples = [np.array(_ids(source), np.int64)]
    folder = folder_of(None if target is None else Path(target), [] if trace is None else [trace], "target")
    paths = make_reference(
        folder,
        samples,
        Path(out),
        masks=masks,
        boundaries=_which(boundaries),
        slots=None if wiring is None else wiring_of(wiring, "wiring"),
        dtype=dtype,
        device_map=device_map,
        numbers=numbers,
        keep=keep,
        force=force,
    )
    return tuple(paths)


@public
def redact(
    trace: PathLike,
    out: PathLike,
    *,
    salt_file: PathLike | None = None,
    drop_embeddings: bool = False,
    force: bool = False,
) -> Path:
    """Copy a trace without its text: token ids, prompts and answers become salted hashes; hidden states stay.

    salt_file: a secret file; two traces redacted with the same one can still be compared (default: a random salt that is
    kept nowhere). drop_embeddings: leave out the embedding's rows, from which the model's owner reads the tokens.

    Raises OutputExists for a taken ``out``, UnreadableFile for a damaged trace.
    """
    from drafttrace.tracer.commands.redact import salt_of
    from drafttrace.tracer.trace.redact import redact as write_copy

    salt = salt_of(None if salt_file is None else Path(salt_file))
    write_copy(trace, out, salt=salt, drop_embeddings=drop_embeddings, overwrite=force)
    return Path(out)


@public
def convert(
    source: PathLike,
    out: PathLike,
    to: Layout,
    *,
    lose: str | Sequence[str] = (),
    mask_ones: bool = False,
    target: PathLike | None = None,
    force: bool = False,
) -> tuple[Path, ...]:
    """Write a trace or dump in another layout; what that cannot hold is refused, not dropped. Returns what was written.

    source: ``PATH`` (every sample) or ``PATH#i``. lose: what may be given up, by the names that ``--lose`` takes.
    mask_ones: make a loss mask of ones where the source has none. target: its folder, whose final norm is applied where
    the layout wants it.

    Raises DrafttraceError naming what the layout cannot hold, OutputExists where ``out`` is taken.
    """
    from drafttrace.tracer.convert import convert as write

    written = write(
        os.fspath(source),
        Path(out),
        to,
        lose=[lose] if isinstance(lose, str) else lose,
        mask="ones" if mask_ones else None,
        target=None if target is None else Path(target),
        force=force,
    )
    return tuple(written.paths)


def _which(boundaries: str | Wiring) -> Literal["all", "canonical"] | tuple[int, ...]:
    if boundaries == "all":
        return "all"
    if boundaries == "canonical":
        return "canonical"
    return wiring_of(boundaries, "boundaries")


def _ids(source: Sequence[int]) -> list[int]:
    try:
        return [int(token) for token in source]
    except (TypeError, ValueError):
        raise DrafttraceError(
            f"The source {source!r:.60} holds no token ids; give a path, a capture or a list of numbers."
        ) from None
