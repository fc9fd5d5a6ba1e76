"""What a training dump and a live server say about the wiring, beside what the configs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.audit.wiring_checks import wiring_remedy
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.checkpoint import Checkpoint
from drafttrace.tracer.part_names import EMBED, stored_name

_ROWS = 64
_SAME = 0.02


def dump_wiring(
    dump: Capture, target: Checkpoint | None, scale: float
) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
    """The boundary of every slot of a dump, and how each is known: by value for the embedding, else as declared.

    A slot is B0 where its rows equal the target's embedding rows of the tokens. A slot that its file declares as B0
    and that is not the embedding becomes None.
    """
    found: list[int | None] = []
    how: list[str] = []
    for k, slot in enumerate(dump.slots):
        equal = _is_embedding(dump, k, target, scale)
        if equal:
            found.append(0)
            how.append("its rows are the target's embedding rows")
        elif equal is False and slot.boundary == 0:
            found.append(None)
            how.append("declared B0, but its rows are not the target's embedding rows")
        else:
            found.append(slot.boundary)
            how.append(slot.source)
    return tuple(found), tuple(how)


def _is_embedding(dump: Capture, k: int, target: Checkpoint | None, scale: float) -> bool | None:
    """Whether a slot holds embedding rows; None where it cannot be said."""
    name = stored_name(target, EMBED) if target is not None else None
    known = np.flatnonzero(dump.table.token_id >= 0)
    if target is None or name is None or len(known) == 0:
        return None
    shape = target.info(name).shape
    rows = known[np.unique(np.linspace(0, len(known) - 1, _ROWS).astype(np.int64))]
    ids = dump.table.token_id[rows]
    if len(shape) != 2 or shape[1] != dump.slots[k].rows.width or int(ids.max()) >= shape[0]:
        return None
    held = dump.slots[k].rows.take(rows)
    table = target.floats(name, ids) * np.float32(scale)
    return bool(np.linalg.norm(held - table) <= _SAME * np.linalg.norm(table))


def dump_findings(
    subject: Subject, dump: Capture, by_value: Sequence[int | None], how: Sequence[str]
) -> Iterator[Finding]:
    """Where a dump contradicts itself, and where its shape contradicts the draft's."""
    for k, slot in enumerate(dump.slots):
        if slot.boundary is not None and slot.boundary != by_value[k]:
            yield note(
                "wrong-boundary",
                0.9,
                f"Slot {k} of the dump is declared {wiring_name([slot.boundary])} ({slot.source}), but by value it is "
                f"{wiring_name([by_value[k]])}: {how[k]}.",
                "Trust the values: the dump was made with other ids than it says.",
                {"declared": slot.boundary, "by_value": by_value[k]},
                (k,),
            )
    width = dump.hidden_size
    if width is not None and width != subject.draft.slot_width:
        yield fault(
            "slot-count",
            0.95,
            f"The dump's slots are {width} wide, the draft expects {subject.draft.slot_width}.",
            "Give the dump that this draft was trained on.",
            {"dump": width, "draft": subject.draft.slot_width},
        )
    elif subject.fc_slots is not None and dump.slots and len(dump.slots) != subject.fc_slots:
        yield fault(
            "slot-count",
            0.8,
            f"The dump has {len(dump.slots)} slots, the draft's fc reads {subject.fc_slots}.",
            "Training fed fc with other slots than the dump lists: find out with drafttrace replay --search.",
            {"dump": len(dump.slots), "fc": subject.fc_slots},
        )


def server_findings(subject: Subject, health: Mapping[str, Any]) -> Iterator[Finding]:
    """Where the live server does something else than the configs on disk say."""
    block = health.get("wiring")
    live = _integers(block.get("boundaries")) if isinstance(block, dict) else None
    wanted = subject.trained if subject.trained is not None else subject.served.wiring
    if live is not None and wanted is not None and live != wanted:
        source = block.get("source") if isinstance(block, dict) else None
        against = f"training used {wiring_name(wanted)} ({subject.trained_by})"
        if subject.trained is None:
            against = f"these configs would give {wiring_name(wanted)}"
        yield fault(
            "wrong-boundary",
            0.95,
            f"The live server hands over {wiring_name(live)} ({source}); {against}.",
            f"Restart the server with this config: {wiring_remedy(subject, wanted)}",
            {"live": list(live), "expected": list(wanted), "source": source},
        )
    reverted = block.get("reverted_pr") if isinstance(block, dict) else None
    if reverted is not None:
        yield fault(
            "unexplained",
            0.9,
            f"The live server runs with SGLANG_DEBUG_REVERT_PR={reverted}, which puts the bug back that this pull request "
            "of SGLang fixed.",
            "Unset SGLANG_DEBUG_REVERT_PR where the server is started, and restart it.",
            {"reverted_pr": reverted},
        )
    version = health.get("sglang_version")
    if isinstance(version, str) and subject.reader is not None and version != subject.reader.version:
        yield note(
            "boundary-offset",
            0.3,
            f"The live server runs SGLang {version}, this audit read the ids as {subject.reader.version} does.",
            f"Run the check with --sglang-version {version}.",
            {"live": version, "audited": subject.reader.version},
        )


def live_algorithm(health: Mapping[str, Any] | None) -> str | None:
    """The speculative algorithm that a live server reports."""
    block = health.get("wiring") if health is not None else None
    value = block.get("algorithm") if isinstance(block, dict) else None
    return value if isinstance(value, str) else None


def _integers(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and value and all(type(k) is int for k in value):
        return tuple(value)
    return None
