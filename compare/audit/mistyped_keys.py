"""Keys of a draft's config that nobody reads and that are nearly one which somebody does: another spelling or place.

Layer ids under such a name are told as what they are, because a server falls back to its default without them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.subject import Subject, note
from drafttrace.compare.config_switches import ORDINARY, near_name, strange_switches, unlike_plain
from drafttrace.compare.draft_config import ID_FIELDS, NESTED, DraftConfig, LayerIds
from drafttrace.compare.odd_ids import problem_of, short_value
from drafttrace.compare.result import Finding

_NESTED = "eagle_config."
_KINDS = {
    "rope": "rope-mismatch", "rotary": "rope-mismatch", "norm": "norm-missing", "bias": "weights-missing",
    "aux_hidden_state": "slot-count", "target_hidden": "slot-count", "vocab": "vocab-map-range",
    "window": "window-mismatch", "layer_types": "window-mismatch", "position": "rope-mismatch", "tie": "weights-replaced",
}  # fmt: skip
"""Parts of keys, and what is wrong where a server does not find one that training had; first match counts."""
_IDS = frozenset(field.rpartition(".")[2] for field in ID_FIELDS)


def mistyped_keys(draft: DraftConfig) -> Mapping[str, str]:
    """Unknown keys, and for each the one that was meant; both dotted where they stand in ``eagle_config``."""
    unknown = [key for key, _ in strange_switches(draft)]
    found = {key: near for key in unknown if (near := near_name(key)) is not None}
    ids = mistyped_ids(draft)
    return found if ids is None else {**found, ids.where: NESTED}


def mistyped_ids(draft: DraftConfig) -> LayerIds | None:
    """Layer ids under a name that nobody reads, where the config has none under another one."""
    if draft.layer_ids is not None or draft.nested_ids is not None:
        return None
    for key, value in strange_switches(draft):
        near, leaf = near_name(key), key.rpartition(".")[2]
        named = near is not None and near.rpartition(".")[2] in _IDS
        named = named or ("layer" in leaf and ("id" in leaf or "aux" in leaf or "capture" in leaf))
        if named and leaf not in ORDINARY and value and problem_of(key, value) is None:
            return LayerIds(tuple(value), key)
    return None


def mistyped_findings(subject: Subject) -> Iterator[Finding]:
    """Every such key but layer ids, which are told with the wiring that they cost."""
    draft, ids = subject.draft, mistyped_ids(subject.draft)
    values = {**dict(strange_switches(draft)), **unlike_plain(draft)}
    for key, near in mistyped_keys(draft).items():
        if ids is not None and key == ids.where:
            continue
        there = _value_of(draft, near)
        if there == values[key]:
            continue
        line = f'"{near.rpartition(".")[2]}": {json.dumps(values[key], default=str)}'
        moved = f"{line} {_place(near)}"
        said = f" That one, which is read, is {_said(there)}." if there is not None else ""
        yield note(
            next((kind for part, kind in _KINDS.items() if part in near), "weights-missing"),
            0.6,
            f"{key} is {_said(values[key])} in the draft's config, and nobody reads such a key: did you mean {near}?{said}",
            f"Drop {key} if the value of {near} is right, else write {moved}."
            if there is not None
            else f"Write {moved} in the place of {key} if that is meant, else drop {key}.",
            {"field": key, "near": near, "value": short_value(values[key])},
        )


def _place(near: str) -> str:
    return "inside eagle_config" if near.startswith(_NESTED) else "at the top level"


def _value_of(draft: DraftConfig, key: str) -> Any:
    nested = draft.raw.get("eagle_config")
    if key.startswith(_NESTED):
        return nested.get(key.removeprefix(_NESTED)) if isinstance(nested, Mapping) else None
    return draft.flat.get(key)


def _said(value: Any) -> str:
    """As a config writes it."""
    return str(value).lower() if isinstance(value, bool) else short_value(value)
