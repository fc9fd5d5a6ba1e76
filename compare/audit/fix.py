"""A corrected copy of a draft's config: only what the audit is sure of, never in place."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.config_checks import EAGLE3_CLASSES
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.draft_config import NESTED, SPECULATORS
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.tracer.checkpoint import read_json
from drafttrace.tracer.errors import DrafttraceError, OutputExists

_FLAGS = (("fc_norm", "fc_norm."), ("norm_before_fc", "input_norm."))


def planned_changes(subject: Subject) -> dict[str, Any]:
    """Dotted config keys and the values that put them right; empty where nothing in the config can help.

    Only what follows from weights and a known training wiring: a guess is never written.
    """
    changes: dict[str, Any] = {}
    draft, wanted = subject.draft, subject.trained
    if wanted is None and draft.project == SPECULATORS and draft.layer_ids is not None:
        wanted = draft.layer_ids.ids
    if wanted is not None and subject.reader is not None and tuple(wanted) != subject.served.wiring:
        ids = subject.reader.ids_for(wanted, subject.target.layers)
        if ids is not None:
            changes[NESTED] = list(ids)
    if draft.architecture not in EAGLE3_CLASSES:
        kind = "Eagle3DeepseekV2ForCausalLM" if draft.mla is not None else "LlamaForCausalLMEagle3"
        changes["architectures"] = [kind]
    names = subject.draft_weights.names
    for flag, prefix in _FLAGS:
        set_already = draft.fc_norm if flag == "fc_norm" else draft.norm_before_fc
        if not set_already and any(name.startswith(prefix) for name in names):
            changes[flag] = True
    head = matrix_shape(subject.draft_weights, "lm_head.weight")
    if head is not None and draft.tied:
        changes["tie_word_embeddings"] = False
    if head is not None and draft.draft_vocab_size != head[0] and head[0] <= draft.vocab_size:
        changes["draft_vocab_size"] = head[0]
    slots = subject.fc_slots
    if slots is not None and draft.num_aux is not None and draft.num_aux != slots:
        changes["num_aux_hidden_states"] = slots
    return changes


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


def fix(draft_dir: Path, out: Path, changes: Mapping[str, Any], *, force: bool = False) -> Path:
    """Write the corrected config to ``out`` (a ``.json`` file, or a folder that gets ``config.json``).

    changes: ``CheckResult.fix``. Raises DrafttraceError where there is nothing to correct or ``out`` is the draft's
    own config, OutputExists where the file is there and ``force`` is not set.
    """
    if not changes:
        raise DrafttraceError(
            f"Nothing in {draft_dir}/config.json can be corrected with certainty; give --dump or --trained so that the "
            "trained wiring is known."
        )
    own = draft_dir / "config.json"
    path = out if out.suffix == ".json" else out / "config.json"
    if path.exists() and os.path.samefile(path, own):
        raise DrafttraceError(
            f"{path} is the draft's own config, which is never changed in place; give another path."
        )
    if path.exists() and not force:
        raise OutputExists(f"{path} exists already; give another path or --force.")
    text = json.dumps(corrected(read_json(own), changes), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise OutputExists(f"{path} cannot be written ({error.strerror or error}); give another path.") from error
    return path
