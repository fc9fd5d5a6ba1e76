"""A corrected copy of a draft's config: only what the audit is sure of, never in place."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.config_checks import EAGLE3_CLASSES
from drafttrace.compare.audit.loading_checks import loading_changes
from drafttrace.compare.audit.mistyped_keys import mistyped_ids
from drafttrace.compare.audit.mla_checks import other_attention
from drafttrace.compare.audit.odd_id_checks import stops_at_the_object, writable_ids
from drafttrace.compare.audit.quantized import KEY as QUANTIZATION
from drafttrace.compare.audit.quantized import unquantized
from drafttrace.compare.audit.refusal_checks import refusal_changes
from drafttrace.compare.audit.said_in_vain import flag_changes
from drafttrace.compare.audit.shape_remedies import shapes_of
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.unused_checks import bias_changes
from drafttrace.compare.audit.vocab_sizes import vocabulary_changes
from drafttrace.compare.config_switches import near_name
from drafttrace.compare.draft_config import MLA_CLASS, NESTED, PLAIN_CLASS, SPECULATORS
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.tracer.checkpoint import read_json
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnreadableFile

RECORD = "drafttrace.fix/1"
USE_AUX = "eagle_config.use_aux_hidden_state"


def planned_changes(subject: Subject) -> dict[str, Any]:
    """Dotted config keys and the values that put them right; empty where nothing in the config can help.

    Only what follows from weights and a known training wiring: a guess is never written.
    """
    changes = flag_changes(subject.draft, subject.draft_weights)
    changes |= refusal_changes(subject) | loading_changes(subject) | vocabulary_changes(subject)
    draft = subject.draft
    changes |= _ids_to_write(subject)
    if draft.architecture not in EAGLE3_CLASSES:
        changes["architectures"] = [MLA_CLASS if draft.mla is not None else PLAIN_CLASS]
    other = other_attention(subject)
    if other is not None and (other.right == PLAIN_CLASS or draft.mla is not None):
        changes["architectures"] = [other.right]
    changes |= bias_changes(subject)
    if unquantized(subject):
        changes[QUANTIZATION] = None
    if not draft.use_aux and (subject.fc_slots or 0) > 1:
        changes[USE_AUX] = True
    head = matrix_shape(subject.draft_weights, "lm_head.weight")
    if head is not None and draft.tied:
        changes["tie_word_embeddings"] = False
    whole = (
        head is not None and head[1] == draft.hidden_size and subject.draft_weights.shape("d2t") in (None, head[:1])
    )
    most = changes.get("vocab_size", draft.vocab_size)
    if head is not None and whole and draft.draft_vocab_size != head[0] and head[0] <= most:
        changes["draft_vocab_size"] = head[0]
    shapes = shapes_of(subject)
    changes |= shapes.lost() | shapes.width()
    slots = subject.fc_slots
    if slots is not None and draft.num_aux is not None and draft.num_aux != slots:
        changes["num_aux_hidden_states"] = slots
    return changes


def _ids_to_write(subject: Subject) -> dict[str, Any]:
    """The layer ids: those of training where that is known, those that were surely meant, or today's default by name."""
    draft, reader, n = subject.draft, subject.reader, subject.target.layers
    wanted = None if subject.disputed else subject.trained
    if reader is None:
        return {}
    if subject.trained is None and draft.project == SPECULATORS and draft.layer_ids is not None:
        wanted = subject.readings[0].wiring
    meant, mistyped = writable_ids(subject), mistyped_ids(draft)
    if wanted is not None and (
        stops_at_the_object(draft) or tuple(wanted) != subject.served.wiring or subject.served.ids_from == "default"
    ):
        meant = reader.ids_for(wanted, n)
        return {} if meant is None else {NESTED: list(meant)}
    if draft.ids_problem is not None:
        odd = draft.ids_problem.startswith(NESTED) and meant is not None
        return {NESTED: list(meant)} if odd and meant is not None else {}
    if subject.trained is None and mistyped is not None and near_name(mistyped.where) == NESTED:
        whole = len(reader.served(mistyped.ids, n)) == len(mistyped.ids)
        return {NESTED: list(mistyped.ids)} if whole else {}
    default = subject.served.wiring if subject.served.ids_from == "default" else None
    trainers = subject.readings[0].wiring
    unsaid = subject.trained is None and draft.layer_ids is None and mistyped is None
    if unsaid and default is not None and default == trainers and subject.fc_slots == len(default):
        meant = reader.ids_for(default, n)
        return {} if meant is None else {NESTED: list(meant)}
    return {}


def remarks_on(subject: Subject, changes: Mapping[str, Any]) -> list[str]:
    """What a reader should know of the changes: ids for the embedding that may not work."""
    ids, reader = changes.get(NESTED), subject.reader
    if (
        ids is None
        or reader is None
        or reader.embed is not None
        or 0 not in reader.read(ids, subject.target.layers)
    ):
        return []
    return [
        f"The ids {ids} that --fix writes ask for B0, and whether {reader.architecture} in SGLang {reader.version} can "
        "capture it is not known: start the server once and look, or use drafttrace serve --wiring."
    ]


def corrected(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a config with dotted keys set. An ``eagle_config`` that is no object becomes one."""
    made: dict[str, Any] = copy.deepcopy(dict(config))
    for key, value in changes.items():
        place = made
        *parents, leaf = key.split(".")
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        place[leaf] = value
    return made


def place_of(out: Path) -> Path:
    """The file that ``--fix OUT`` writes: OUT itself where it is named ``.json``, else the folder's ``config.json``."""
    return out if out.suffix == ".json" else out / "config.json"


def refuse_place(draft_dir: Path, target_dir: Path | None, out: Path, *, force: bool = False) -> None:
    """Raise unless ``out`` is new, an empty folder, or (with ``force``) an untouched copy that :func:`fix` wrote.

    A config that is not ours cannot be made again. The draft's and the target's folder are refused by path, by link and
    by hard link. Raises DrafttraceError for these two and OutputExists for everything else.
    """
    path = place_of(out)
    for name, folder in (("draft", draft_dir), ("target", target_dir)):
        if folder is not None and (_same(path.parent, folder) or _same(path, folder / "config.json")):
            raise DrafttraceError(
                f"{path} is in the {name}'s own folder or its own config, which is never changed in place; give another "
                "path."
            )
    if not path.parent.is_dir() and (path.parent.exists() or path.parent.is_symlink()):
        raise OutputExists(f"{path.parent} is no folder; give another path.")
    ours = _is_ours(path)
    beside = path.parent.is_dir() and path != out and any(path.parent.iterdir())
    if not ours and (path.exists() or path.is_symlink() or beside):
        what = out if path != out else path
        raise OutputExists(
            f"{what} is there already and no copy that --fix made, or was changed since, so it is never replaced; give a "
            "new path."
        )
    if path.exists() and not force:
        raise OutputExists(f"{path} exists already; give another path or --force.")


def fix(
    draft_dir: Path, out: Path, changes: Mapping[str, Any], *, target_dir: Path | None = None, force: bool = False
) -> Path:
    """Write the corrected config to ``out`` (a ``.json`` file, or a folder that gets ``config.json``).

    A record beside it (``config.drafttrace-fix.json``) says what was changed and tells the copy from anybody else's
    config. changes: ``CheckResult.fix``. Raises DrafttraceError where there is nothing to correct, and as
    :func:`refuse_place` does.
    """
    if not changes:
        raise DrafttraceError(
            f"Nothing in {draft_dir}/config.json can be corrected with certainty; give --dump or --trained so that the "
            "trained wiring is known."
        )
    refuse_place(draft_dir, target_dir, out, force=force)
    path = place_of(out)
    text = json.dumps(corrected(read_json(draft_dir / "config.json"), changes), indent=2) + "\n"
    record = {"schema": RECORD, "draft": str(draft_dir), "changes": dict(changes), "sha256": _digest(text.encode())}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(_record_of(path), json.dumps(record, indent=2) + "\n")
        _put(path, text)
    except OSError as error:
        raise OutputExists(f"{path} cannot be written ({error.strerror or error}); give another path.") from error
    return path


def _put(path: Path, text: str) -> None:
    """A whole file or none. A link or hard link of that name is replaced and never written through."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.drafttrace-fix.json")


def _is_ours(path: Path) -> bool:
    """Whether a record says that the config at ``path`` was written by :func:`fix`, as it stands there now."""
    record = _record_of(path)
    if path.is_symlink() or not path.is_file() or not record.is_file():
        return False
    try:
        said = read_json(record)
        return said.get("schema") == RECORD and said.get("sha256") == _digest(path.read_bytes())
    except (UnreadableFile, OSError):
        return False


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and os.path.samefile(one, other)
