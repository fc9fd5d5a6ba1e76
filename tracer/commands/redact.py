"""``drafttrace redact``: a copy of a trace that can be shown to others."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import READ, Json, Quiet, Verbose, examples
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.printable import printable

_FEWEST = 8  # bytes: a shorter salt is found by trying
_MOST = 1 << 20


def salt_of(path: Path | None) -> bytes | None:
    """32 bytes made of a file's content, the same for equal files; None without a file: a random salt."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
    except OSError as error:
        raise DrafttraceError(
            f"The salt '{path}' cannot be read ({error.strerror}); give a file, or leave --salt-file out for a random one."
        ) from None
    if not _FEWEST <= len(content) <= _MOST:
        size = "more than 1 MiB" if len(content) > _MOST else f"{len(content)} bytes"
        raise DrafttraceError(
            f"The salt '{path}' has {size}; give one of {_FEWEST} bytes to 1 MiB that nobody can guess, as from "
            "'head -c 32 /dev/urandom'."
        )
    return hashlib.blake2b(content, digest_size=32).digest()


def redact(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="The trace (HDF5). It stays as it is.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The copy to write.")],
    drop_embeddings: Annotated[
        bool,
        typer.Option(
            "--drop-embeddings",
            help="Leave out the embedding's rows, from which the model's owner reads the tokens.",
        ),
    ] = False,
    salt_file: Annotated[
        Path | None,
        typer.Option("--salt-file", help="A secret file: traces redacted with the same one can still be compared."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Copy a trace without its text: token ids, prompts and answers become salted hashes; hidden states stay.

    Every check inside the copy still works, and so does a comparison of two copies with the same salt. Hidden states can
    give away a good deal of the text: share a trace of a prompt that you could print.
    """
    from drafttrace.tracer.trace.redact import redact as write_copy

    output.refuse_stdout(out, "A trace")
    output.refuse_twice(json_out, out)
    with output.status("copying", quiet=quiet, after=1.0):
        fingerprint = write_copy(
            trace, out, salt=salt_of(salt_file), drop_embeddings=drop_embeddings, overwrite=force
        )
    size = out.stat().st_size
    result = {"trace": str(trace), "output": str(out), "bytes": size, "salt_fingerprint": fingerprint}
    shown = f"{printable(str(out))}  {size / (1 << 20):.1f} MiB, without token ids and text"
    output.emit(json_out, lambda: result, lambda: typer.echo(shown), quiet=quiet)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=READ,
        epilog=examples(
            ("drafttrace redact trace.h5 shareable.h5", "a copy without text"),
            ("drafttrace redact trace.h5 shareable.h5 --drop-embeddings", "and without the embedding's rows"),
        ),
    )(redact)
