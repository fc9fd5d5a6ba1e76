"""Options of the real pair's commands: what is wrong with one is said in one sentence, before any work."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from drafttrace.tracer.boundary import parse_wiring
from drafttrace.tracer.errors import DrafttraceError


class Parser(argparse.ArgumentParser):
    """argparse without the usage lines in front of its one sentence; exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message[:1].upper()}{message[1:].rstrip('.')}; see --help.\n")


def parser(doc: str | None) -> Parser:
    """A parser whose --help shows the module's docstring as it stands."""
    return Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def whole(least: int, most: int) -> Callable[[str], int]:
    """An option's type: a whole number from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {least} to {most}")
        return number

    return parse


def above_zero(text: str) -> float:
    """An option's type: a finite number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
    return number


def part(text: str) -> tuple[int, int]:
    """An option's type: ``I/N`` with 0 <= I < N."""
    first, slash, second = text.partition("/")
    if slash and first.isdecimal() and second.isdecimal() and int(first) < int(second) <= 1000:
        return int(first), int(second)
    raise argparse.ArgumentTypeError(f"'{text}' is no part I/N with I below N, like 0/2")


def boundaries(text: str) -> tuple[int, ...]:
    """An option's type: ``B0,B16,B28``."""
    try:
        return tuple(parse_wiring(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def unwritable(path: Path) -> str | None:
    """Why a file cannot be written there, None where it can. Nothing is made, and nothing overwritten."""
    if path.is_dir():
        return "that is a folder"
    if not path.absolute().parent.is_dir():
        return f"there is no folder {path.absolute().parent}"
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        return "it cannot be written"
    return None


def check_file(path: Path, option: str) -> None:
    """Raise DrafttraceError where a result could not be written in the end."""
    why = unwritable(path)
    if why is not None:
        raise DrafttraceError(f"{option} {path}: {why}; give a file in a folder that can be written.")


def check_new_folder(path: Path, option: str) -> None:
    """Raise DrafttraceError unless the folder is new or empty: files of others stay, and old ones mix with no new ones."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if os.path.lexists(path):
        raise DrafttraceError(
            f"{option} {path} exists and is no empty folder; give a new one, nothing is overwritten."
        )
    above = next(one for one in path.absolute().parents if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise DrafttraceError(f"{option} {path}: nothing can be written into {above}; give another place.")
