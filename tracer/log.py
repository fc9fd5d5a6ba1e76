"""What drafttrace reads and asks for, told to the logger ``drafttrace``; ``--verbose`` shows it on stderr."""

from __future__ import annotations

import sys

NAME = "drafttrace"


def say(text: str, *values: object) -> None:
    """One line of the log, formatted only when somebody listens."""
    # Imported here: the command line must start at once, and most commands say nothing.
    import logging

    logging.getLogger(NAME).info(text, *values)


def show() -> None:
    """Print the log on stderr, each line with the milliseconds since the start."""
    import logging

    logger = logging.getLogger(NAME)
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("drafttrace: %(relativeCreated)6.0f ms  %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def is_shown() -> bool:
    """Whether :func:`show` was called."""
    logging = sys.modules.get("logging")
    return logging is not None and bool(logging.getLogger(NAME).handlers)
