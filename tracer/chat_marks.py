"""The token ids that a chat template is built from, as a tokenizer's own files tell them. No code of theirs runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Names of the tokens that end a turn or a text, in the templates of common models.
_END = re.compile(
    r"im_end|end_of_turn|eot_id|eom_id|\beot\b|\beos\b|endoftext|end_of_text|end.of.sentence|<\|end\|>|<\|return\|>|"
    r"<\|call\|>|<\|eot\|>|</s>|\[EOS\]|\[EOT\]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ChatMarks:
    """Ids that stand for no text of their own. ends: those that end a turn or a text. opens: all the others."""

    opens: frozenset[int]
    ends: frozenset[int]


def chat_marks(folder: Path) -> ChatMarks | None:
    """The marks of a folder with tokenizer.json (or of that file); None where it tells none or cannot be read."""
    path = folder / "tokenizer.json" if folder.is_dir() else folder
    added = _json(path).get("added_tokens")
    known: dict[str, int] = {}
    for token in added if isinstance(added, list) else ():
        number = token.get("id") if isinstance(token, Mapping) else None
        if isinstance(number, int) and isinstance(token.get("content"), str):
            known[token["content"]] = number
    if not known:
        return None
    ends = {number for name, number in known.items() if _END.search(name)}
    for name in ("config.json", "generation_config.json"):
        ends |= set(_ids(_json(path.parent / name)))
    ends |= {known[name] for name in _texts(_json(path.parent / "tokenizer_config.json")) if name in known}
    return ChatMarks(frozenset(known.values()) - ends, frozenset(ends))


def _ids(config: Mapping[str, Any]) -> Iterator[int]:
    for block in (config, config.get("text_config")):
        value = block.get("eos_token_id") if isinstance(block, Mapping) else None
        yield from (number for number in (value if isinstance(value, list) else [value]) if isinstance(number, int))


def _texts(config: Mapping[str, Any]) -> Iterator[str]:
    value = config.get("eos_token")
    text = value.get("content") if isinstance(value, Mapping) else value
    if isinstance(text, str):
        yield text


def _json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
