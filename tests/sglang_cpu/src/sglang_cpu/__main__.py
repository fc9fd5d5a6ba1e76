"""Run a server command as it is typed, with what SGLang needs on a CPU: environment and arguments.

    python -m sglang_cpu drafttrace serve -- --model-path TARGET --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path DRAFT

Arguments that the command gives itself stay as they are; of the rest those of ``cpu_args`` are added.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_cpu.arguments import cpu_args, cpu_env


def completed(command: Sequence[str]) -> list[str]:
    """The command with every argument of ``cpu_args`` that it does not give. Raises ValueError without --model-path."""
    given = {word.partition("=")[0] for word in command if word.startswith("--")}
    if "--model-path" not in given:
        raise ValueError("the command has no --model-path; give the target's folder with it")
    drafts = "--speculative-draft-model-path" in given
    found = list(command)
    words = iter(cpu_args("", "" if drafts else None))
    pending = next(words, None)
    while pending is not None:
        name, pending = pending, next(words, None)
        value = None
        if pending is not None and not pending.startswith("--"):
            value, pending = pending, next(words, None)
        if name not in given:
            found += [name] if value is None else [name, value]
    return found


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in {"-h", "--help"}:
        print(__doc__)
        raise SystemExit(0 if len(sys.argv) > 1 else 2)
    try:
        command = completed(sys.argv[1:])
    except ValueError as error:
        raise SystemExit(f"sglang_cpu: {error}") from None
    try:
        os.execvpe(command[0], command, {**os.environ, **cpu_env()})
    except OSError as error:
        raise SystemExit(
            f"sglang_cpu: {command[0]} cannot be started ({error.strerror}){_where(command[0])}"
        ) from None


def _where(command: str) -> str:
    """What to do where the command is installed beside this Python and not on the path."""
    beside = Path(sys.executable).parent
    if not (beside / command).is_file():
        return ""
    return f"; it is in {beside}: activate that environment (. {beside / 'activate'}) and give the command again."


if __name__ == "__main__":
    main()
