"""Which shell ``--install-completion`` and ``--show-completion`` are for.

typer looks at the parent process, and passes over a name that follows the option: ``--show-completion zsh`` printed what
bash needs, and ``--install-completion nosuch`` wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from drafttrace.tracer.errors import DrafttraceError

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
OPTIONS = ("--install-completion", "--show-completion")


def settle_shell(arguments: Sequence[str]) -> None:
    """Let typer take the shell that is named, before the command line is built; raise DrafttraceError where it has no
    completion for that, or where none is named and it has none for the shell that runs the program."""
    for place, word in enumerate(arguments):
        option, given, name = word.partition("=")
        if not word.startswith("-"):
            return  # a command, whose words are its own
        if option not in OPTIONS:
            continue
        after = arguments[place + 1 : place + 2]
        if not given and after and not after[0].startswith("-"):
            name = after[0]
        elif not given:
            _refuse_unknown(option)
            return
        if name not in SHELLS:
            raise DrafttraceError(f"'{name}' is no shell that {option} knows; name one of {', '.join(SHELLS)}.")
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"  # typer's only way to make it take a name
        return


def _refuse_unknown(option: str) -> None:
    """Raise DrafttraceError where nobody names a shell and the one around this process has no completion."""
    try:
        import shellingham
    except ImportError:
        return  # typer asks for the name by itself then
    try:
        found = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        found = None
    if found not in SHELLS:
        which = "No shell was found here" if found is None else f"The shell here is '{found}'"
        names = ", ".join(SHELLS)
        raise DrafttraceError(f"{which}, for which there is no completion; name one of {names} behind {option}.")
