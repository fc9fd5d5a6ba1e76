"""The tokenizers beside target and draft: do they give the same ids, and can they be read at all?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.result import Finding
from drafttrace.tracer.checkpoint import read_json
from drafttrace.tracer.errors import UnreadableFile

NAME = "tokenizer.json"


def tokenizer_findings(subject: Subject) -> Iterator[Finding]:
    """A tokenizer that cannot be read, and a draft folder that brings another one than the target's."""
    tables: list[dict[str, object]] = []
    paths = [path.parent / NAME for path in (subject.target.path, subject.draft.path)]
    there = [path for path in paths if path.exists()]
    same = len(there) == 2 and all(path.is_file() for path in there) and _digest(there[0]) == _digest(there[1])
    for path in there[:1] if same else there:
        try:
            tables.append(_token_table(path))
        except UnreadableFile as error:
            yield _unreadable(path, error, of_target=path == paths[0])
    if len(tables) == 2 and len(there) == 2:
        yield from _compared(*reversed(tables))


def _unreadable(path: Path, error: UnreadableFile, of_target: bool) -> Finding:
    """Only a note: the server has the last word on its own, and reads none beside the draft."""
    effect = "the server may not start with it" if of_target else "the server reads the target's"
    return note(
        "template-divergence",
        0.5 if of_target else 0.3,
        f"{str(error).split(';', 1)[0].rstrip('.')}, so no tokens were compared with it; {effect}.",
        f"Copy {path} anew from where the model came from.",
        {"file": str(path)},
    )


def _compared(mine: dict[str, object], theirs: dict[str, object]) -> Iterator[Finding]:
    differing = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
    if differing:
        yield fault(
            "template-divergence",
            0.7,
            f"The draft's tokenizer.json gives {len(differing)} tokens other ids than the target's, such as "
            f"{differing[0]!r} ({mine.get(differing[0])} and {theirs.get(differing[0])}).",
            "Train and serve with one tokenizer; the server uses the target's.",
            {"tokens": differing[:10], "count": len(differing)},
        )


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:  # reading it as JSON says why
        return str(path).encode()


def _token_table(path: Path) -> dict[str, object]:
    """Token to id, added tokens included, of a ``tokenizer.json``. Raises UnreadableFile where it names no token."""
    content = read_json(path)
    model, added = content.get("model"), content.get("added_tokens")
    table = model.get("vocab") if isinstance(model, dict) else None
    found: dict[str, object] = dict(table) if isinstance(table, dict) else {}
    if isinstance(table, list):  # unigram: [piece, score] in the order of ids
        found = {str(item[0]): i for i, item in enumerate(table) if isinstance(item, list) and item}
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and "content" in token and "id" in token:
            found[str(token["content"])] = token["id"]
    if not found:
        raise UnreadableFile(f"{path} names no tokens (no model.vocab, no added_tokens); copy it anew.")
    return found
