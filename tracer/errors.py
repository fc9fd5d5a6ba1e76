"""Errors that a user meets: one sentence with what happened, the value, and the remedy."""

from __future__ import annotations

from drafttrace.tracer.grammar import in_number


class DrafttraceError(Exception):
    """Base of every error that the command line turns into one sentence and exit code 2.

    The message is a whole sentence: what happened, the value, and what to do about it.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(in_number(sentence))


class UnreadableFile(DrafttraceError):
    """A file cannot be read as what it claims to be: truncated, damaged, or not safe to open."""


class UnknownFormat(DrafttraceError):
    """A file or folder is none of the formats that drafttrace knows, or is more than one of them."""


class NothingToCompare(DrafttraceError):
    """Two captures share no rows: other tokens, other widths, or no rows at all."""


class ServerProblem(DrafttraceError):
    """The server is not there, has no plugin, or refused the request."""


class OutputExists(DrafttraceError):
    """The output path is taken and ``--force`` was not given, or it cannot be written."""
