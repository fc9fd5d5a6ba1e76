"""Layer ids as somebody listed them, and the order in which writers store layers: ascending, whatever the list's.

speculators v1 has one ``data_config.json`` for all samples, with the ids O(id) as the user of the writer gave them.
Source: vllm-project/speculators 0.3 and 0.4, ``src/speculators/data_generation/custom_worker.py``, ``config_generator.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import UnreadableFile


def data_config(path: Path) -> tuple[Path | None, dict[str, Any] | None]:
    """The ``data_config.json`` beside a sample or one folder above it."""
    for folder in (path.parent, path.parent.parent):
        candidate = folder / "data_config.json"
        if candidate.is_file():
            try:
                config = json.loads(candidate.read_text("utf-8"))
            except (OSError, ValueError, RecursionError):
                raise UnreadableFile(
                    f"The file '{candidate}' is not valid JSON; repair it or move it away."
                ) from None
            return candidate, config if isinstance(config, dict) else None
    return None, None


def v1_ids(
    config_path: Path | None, config: dict[str, Any] | None, count: int, request: Request
) -> tuple[list[int | None], str, list[str]]:
    """The O ids of ``count`` entries, None where unknown; where they come from; and what is odd about them."""
    unknown: list[int | None] = [None] * count
    build.check_ids(request, {count, count - 1})
    block = (config or {}).get("hidden_states")
    ids = block.get("layer_ids") if isinstance(block, dict) else None
    if request.layer_ids is not None and len(request.layer_ids) in {count, count - 1}:
        outputs = [k - (request.numbering == "B") for k in request.layer_ids]
        given: list[int | None] = [*outputs, None]
        notes = [*_other_ids(outputs, ids), *unordered_note(request, "speculators v1")]
        return given[:count], f"{build.USER_SAID}, {request.numbering or 'O'}(id)", notes
    n = request.layers
    usual = (3, n // 2 + 1, n - 2) if n is not None and count == 4 else None
    default = f"{build.assumed(usual, n)}: O{{2, n//2, n-3}} = B{{3, n//2+1, n-2}}, then O(n-1) = B(n)"
    if ids is None:
        where = "no data_config.json beside it" if config_path is None else f"no layer_ids in {config_path.name}"
        return unknown, f"{default}; {where}", []
    if not isinstance(ids, list) or not all(type(k) is int and k >= -1 for k in ids):
        return (
            unknown,
            f"{default}; the layer_ids of data_config.json are no layer numbers",
            ["data_config.json declares layer_ids that are no layer numbers"],
        )
    stored, order = _as_stored(ids, count)
    if stored is None:
        return unknown, f"{default}; {order}", [order]
    if len(stored) not in {count, count - 1}:
        note = f"data_config.json declares {len(ids)} layer ids, the sample holds {count} entries"
        return unknown, f"{default}; {note}", [note]
    notes = [order] if order else []
    if -1 in ids:
        notes.append(
            "data_config.json uses layer id -1 for the embedding output B0, an extension of speculators v1"
        )
    if len(stored) == count - 1:
        notes.append("data_config.json declares no layer id for the last entry")
    full: list[int | None] = [*stored, None]
    ascending = " in ascending order" if order else ""
    return full[:count], f"data_config.json layer_ids{ascending}, O(id) = B(id + 1)", notes


def _as_stored(ids: list[int], count: int) -> tuple[list[int] | None, str]:
    """The ids of a list as the entries of a sample follow each other, and what is to be said of that.

    The writer keeps the list in data_config.json as its user gave it, and takes the states layer by layer out of one pass
    of the target, a layer once: ascending, without repetitions (``custom_worker.py`` of 0.3 and 0.4). None where a list is
    none of that writer's, so that nobody knows which entry is which.
    """
    listed, ascending = ", ".join(str(k)[:12] for k in ids[:16]), sorted(set(ids))
    if ids == sorted(ids) and (len(ids) in {count, count - 1} or len(ascending) != count):
        return ids, ""
    if len(ascending) == count and -1 not in ids:
        return ascending, (
            f"data_config.json lists layer_ids {listed}, and speculators v1 stores every layer once, in ascending order, "
            f"whatever the list's: read as {', '.join(map(str, ascending))}"
        )
    if len(ids) not in {count, count - 1}:
        return ids, ""
    why = "and the one for the last entry is missing" if len(ids) < count else "as speculators v1 never stores them"
    return None, (
        f"data_config.json lists layer_ids {listed}, out of order, {why}: which entry is which layer is not known; say it "
        "with --layer-ids"
    )


def _other_ids(given: Sequence[int], stored: Any) -> list[str]:
    """A note where the user's ids, which are believed, are not those that data_config.json records."""
    both = min(len(given), len(stored)) if isinstance(stored, list) else 0
    if both == 0 or list(given[:both]) in (stored[:both], _in_order(stored)[:both]):
        return []
    recorded = ", ".join(str(k)[:12] for k in stored[:16])
    return [
        f"--layer-ids says {', '.join(map(str, given))}, and data_config.json records {recorded}: what you say is believed"
    ]


def _in_order(stored: list[Any]) -> list[Any]:
    return sorted(set(stored)) if all(type(k) is int for k in stored) else []


def unordered_note(request: Request, writer: str) -> list[str]:
    """A note where the user's ids, which are believed, go down, and the writer of a layout takes slots layer by layer."""
    ids = request.layer_ids
    if ids is None or request.tokens_only or list(ids) == sorted(ids):
        return []
    return [
        f"--layer-ids says {', '.join(map(str, ids))}, which is believed, and {writer} stores slots in ascending order, "
        "whatever the order of its list"
    ]
