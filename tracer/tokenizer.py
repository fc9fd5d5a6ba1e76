"""Turns token ids into text, where a ``tokenizer.json`` and the `tokenizers` package are at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.printable import printable

Decoder = Callable[[int], str]


def load_decoder(folder: Path) -> Decoder:
    """A function from a token id to its text, safe to print on a terminal.

    folder: a folder with ``tokenizer.json``, or that file. Raises DrafttraceError where the package is missing,
    UnreadableFile where the file is.
    """
    tokenizer = _load(folder)

    def decode(token: int) -> str:
        if token < 0:
            return "?"
        return printable(_text(tokenizer, [token], int(token)))

    return decode


def decode_text(folder: Path, tokens: Sequence[int]) -> str:
    """The text of a run of tokens (special tokens shown), safe to print. Errors as :func:`load_decoder`."""
    tokenizer = _load(folder)
    known = [int(token) for token in tokens if token >= 0]
    return printable(_text(tokenizer, known, None))


def load_encoder(folder: Path) -> Callable[[str], list[int]]:
    """A function from text to token ids, special tokens of the tokenizer's template added.

    Errors as :func:`load_decoder`.
    """
    tokenizer = _load(folder)

    def encode(text: str) -> list[int]:
        return [int(token) for token in tokenizer.encode(text).ids]

    return encode


def _text(tokenizer: Any, tokens: list[int], single: int | None) -> str:
    try:
        text = str(tokenizer.decode(tokens, skip_special_tokens=False))
        if single is not None and text in {"", "\ufffd"}:  # a part of a character, or a token the decoder strips
            text = str(tokenizer.id_to_token(single) or f"<{single}>")
    except (OverflowError, ValueError, TypeError):  # ids of another vocabulary
        return "?" if single is None else f"<{single}>"
    return text


def _load(folder: Path) -> Any:
    path = folder / "tokenizer.json" if folder.is_dir() else folder
    if not path.is_file():
        raise UnreadableFile(f"There is no tokenizer.json at '{folder}'; give the target's folder.")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise DrafttraceError(
            "Tokens cannot be shown as text: the package 'tokenizers' is not installed; pip install tokenizers."
        ) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the package raises bare Exception
        raise UnreadableFile(f"The file '{path}' is no tokenizer.json that can be read; copy it again.") from None
