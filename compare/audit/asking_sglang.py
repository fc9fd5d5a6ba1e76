"""Asking the installed SGLang whether it loads two configs: its answer from a process of its own, or why there is none.

It takes the seconds that SGLang's import takes, so that only configs with something unusual in them are asked about
(``plain_configs``).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.installed import installed_version

TARGET, DRAFT = "target", "draft"
_SECONDS = 120.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Refusal:
    """Why SGLang does not load a config. keys: dotted; without one of them, or with it otherwise, the config loads."""

    error: str
    message: str
    keys: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Its words on one line, cut."""
        words = " ".join(self.message.split())
        return words if len(words) <= 300 else f"{words[:300]} …"


@dataclass(frozen=True)
class Loads:
    """What the installed SGLang makes of the configs, by role. refusals: None where it loads one. sizes: those that it then
    builds the model with."""

    version: str
    refusals: Mapping[str, Refusal | None]
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class NoAnswer(Exception):
    """SGLang was started to be asked and said nothing within ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:.0f} s")
        self.seconds = seconds


def ask(target: Path, draft: Path) -> Loads | None:
    """SGLang's answer about the configs in two model folders; None where none is installed or it cannot be asked.

    Raises NoAnswer where it takes too long.
    """
    if installed_version() is None:
        return None
    texts = [(folder / "config.json").read_text("utf-8") for folder in (target, draft)]
    return _ask(Path.cwd(), target, draft, *texts)


@functools.lru_cache(maxsize=64)
def _ask(here: Path, target: Path, draft: Path, target_text: str, draft_text: str) -> Loads | None:
    """The paths go as they are given: SGLang reads words of a path, too. ``-P``: nothing is imported from ``here``."""
    with tempfile.TemporaryDirectory() as room:
        request, out = Path(room) / "request.json", Path(room) / "answer.json"
        request.write_text(json.dumps({TARGET: str(target), DRAFT: str(draft)}), "utf-8")
        command = [sys.executable, "-P", "-m", "drafttrace.compare.audit.sglang_loads", str(request), str(out)]
        try:
            subprocess.run(
                command,
                cwd=here,
                env={**os.environ, **_OFFLINE},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=True,
            )
            found = json.loads(out.read_text("utf-8"))
        except subprocess.TimeoutExpired:
            raise NoAnswer(_SECONDS) from None
        except (OSError, subprocess.SubprocessError, ValueError):  # it cannot be imported here: the table speaks
            return None
    refusals = {role: _refusal(found[role]) for role in (TARGET, DRAFT)}
    return Loads(str(found["version"]), refusals, {role: found[role].get("sizes", {}) for role in (TARGET, DRAFT)})


def _refusal(said: Mapping[str, Any]) -> Refusal | None:
    return Refusal(said["error"], said["message"], tuple(said["keys"])) if "error" in said else None
