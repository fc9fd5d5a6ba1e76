"""Configs that SGLang does not load, by SGLang itself where it is installed, else by what is known of its classes.

SGLang is asked only about configs with something unusual in them, and only where the installed release is the one that is
audited for. What it says counts: what it loads is no fault, whatever the tables say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drafttrace.compare.audit.asking_sglang import DRAFT, TARGET, Loads, NoAnswer, Refusal, ask
from drafttrace.compare.audit.config_fields import Misfit, meant, misfits
from drafttrace.compare.audit.installed import installed_version
from drafttrace.compare.audit.loading_checks import NULL_DEFAULTS, unread, usual_type
from drafttrace.compare.audit.model_types import SIZED_BY_A_PART, knows, refused_in_a_draft
from drafttrace.compare.audit.plain_configs import unusual_draft, unusual_path, unusual_target
from drafttrace.compare.audit.rope_checks import KNOWN_ROPES
from drafttrace.compare.audit.said_in_vain import garbled_rope, odd_flags
from drafttrace.compare.audit.sglang_rules import LAST_VERSION
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.audit.target_class import class_misfits
from drafttrace.compare.audit.target_config import TEXT_KEYS
from drafttrace.compare.document import join
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.odd_ids import short_value
from drafttrace.compare.result import FAULT, Finding


def ask_where_unusual(subject: Subject) -> tuple[Loads | None, list[str]]:
    """SGLang's own answer, and what to remark about it; None where both configs are plain, and where it cannot be asked.

    What SGLang makes of the layout of speculators, and of what the tables have, is known and said.
    """
    places = {TARGET: subject.target.path.parent, DRAFT: subject.draft.path.parent}
    odd = {TARGET: list(unusual_target(subject.target.raw)), DRAFT: []}
    if not unread(subject.draft):
        odd[DRAFT] += unusual_draft(subject.draft)
    odd[TARGET] = [key for key in odd[TARGET] if key not in {one.key for one in class_misfits(subject.target.raw)}]
    if installed_version() == LAST_VERSION:  # the tables were made by asking that release
        odd[TARGET] = [
            key for key in odd[TARGET] if key not in {known for known, _, _ in _known_target(subject.target.raw)}
        ]
        odd[DRAFT] = [
            key for key in odd[DRAFT] if key not in refused_keys(subject) | _said_by_the_file(subject.draft)
        ]
    if _brings_code(subject.target.raw):
        odd[TARGET] = []
    for role, place in places.items():
        odd[role] += ["the folder's name"] if unusual_path(place) else []
    said = [f"{join(keys, 4)} of the {role}" for role, keys in odd.items() if keys]
    if not said:
        return None, []
    try:
        loads = ask(places[TARGET], places[DRAFT])
    except NoAnswer as error:
        return None, [
            f"SGLang was asked whether it loads {' and '.join(said)}, and gave no answer within {error.seconds:.0f} s, so "
            "what the audit says of that is by its own tables; check again when the machine has more time."
        ]
    if loads is None:
        return None, [
            f"Nobody asked SGLang whether it loads {' and '.join(said)}: none that can be imported is installed here."
        ]
    refused = [role for role, refusal in loads.refusals.items() if refusal is not None]
    answer = f"it refuses the config of the {' and of the '.join(refused)}" if refused else "it loads both configs"
    return loads, [f"SGLang {loads.version} itself was asked, for {' and '.join(said)}: {answer}."]


def refusal_findings(subject: Subject, told: Sequence[Finding]) -> Iterator[Finding]:
    """Every reason why SGLang does not load a config, for both roles. told: what is said of the draft's config already."""
    for role, config in ((TARGET, subject.target.raw), (DRAFT, subject.draft.raw)):
        refusal = subject.loads.refusals[role] if subject.loads is not None else None
        if subject.loads is not None and refusal is None:
            continue
        if role == TARGET and _brings_code(config):
            yield _own_code(subject, role, {"role": role})
            continue
        known = _known_target(config) if role == TARGET else _known_draft(subject.draft)
        for key, wrong, line in known:
            yield _by_table(subject, role, key, wrong, line, refusal)
        if refusal is not None and not known and not (role == DRAFT and _explained(refusal, told)):
            yield _by_sglang(subject, role, config, refusal)
    yield from _other_sizes(subject)


def _said_by_the_file(draft: DraftConfig) -> frozenset[str]:
    """Keys of a draft's config about which other checks have a fault, whatever SGLang makes of the config."""
    told = set()
    if draft.architecture is None:
        told.add("architectures")
    if not isinstance(draft.flat.get("model_type"), str):
        told.add("model_type")
    if draft.rope.kind not in KNOWN_ROPES and draft.rope.conflict is None and garbled_rope(draft) is None:
        told.add("rope_scaling")
    return frozenset(told)


_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)


def _other_sizes(subject: Subject) -> Iterator[Finding]:
    """A draft's config that loads, and not with the sizes that stand in it."""
    raw, kind = subject.draft.raw, subject.draft.raw.get("model_type")
    if unread(subject.draft):
        return
    if subject.loads is None:
        wrong = {}
        if str(kind) not in SIZED_BY_A_PART:
            return
    else:
        made = subject.loads.sizes.get(DRAFT, {})
        wrong = {key: made[key] for key in _SIZES if key in made and raw.get(key) not in (None, made[key])}
        if not wrong:
            return
    instead = ", ".join(f"{key} {value} instead of {raw[key]}" for key, value in wrong.items())
    yield fault(
        "fc-not-called",
        0.95 if wrong else 0.85,
        f"SGLang {subject.version} builds the draft, and the cache for it, with other sizes than its config says"
        f"{f' ({instead})' if instead else ''}: the class of the model_type {short_value(kind)} has its own, or takes them "
        "from a part of the config.",
        f'"model_type": "{usual_type(subject.draft)}", which takes the sizes that stand at the top level.',
        {"model_type": kind, "sizes": wrong},
    )


def refusal_changes(subject: Subject) -> dict[str, Any]:
    """The keys of the draft's config that can only have one value, of those that SGLang does not load."""
    raw = subject.draft.raw
    refused = refused_keys(subject)
    changes = {key: value for key in refused if (value := meant(key, raw.get(key))) is not None}
    if "model_type" in refused or (subject.loads is None and str(raw.get("model_type")) in SIZED_BY_A_PART):
        changes["model_type"] = usual_type(subject.draft)
    return changes


def refused_keys(subject: Subject) -> frozenset[str]:
    """Keys of the draft's config about which :func:`refusal_findings` says something by the tables."""
    if subject.loads is not None and subject.loads.refusals[DRAFT] is None:
        return frozenset()
    return frozenset(key for key, _, _ in _known_draft(subject.draft))


def _known_target(config: Mapping[str, Any]) -> list[Misfit]:
    """What the tables say against a target's config: of the whole file, and of the language model's part of it."""
    found = [*class_misfits(config), *misfits(config)]
    part = next((key for key in TEXT_KEYS if isinstance(config.get(key), Mapping)), None)
    if part is not None:
        found += [one._replace(key=f"{part}.{one.key}") for one in misfits(config[part])]
    return found


def _known_draft(draft: DraftConfig) -> list[Misfit]:
    """What the tables say against a draft's config, without what other checks say of it anyway."""
    elsewhere = {"hidden_act", "architectures", *(key for key in NULL_DEFAULTS if draft.raw.get(key) is None)}
    elsewhere |= {finding.evidence["field"] for finding in odd_flags(draft) if finding.severity == FAULT}
    found = [misfit for misfit in misfits(draft.raw) if misfit.key not in elsewhere]
    kind = draft.raw.get("model_type")
    wrong = refused_in_a_draft(kind)
    return found if wrong is None else [*found, Misfit("model_type", wrong, f'"model_type": "{usual_type(draft)}"')]


def _explained(refusal: Refusal, told: Sequence[Finding]) -> bool:
    """Whether what is said already is the reason that SGLang gives: a fault about one of the keys, or where it names no key
    any fault of a config that a server does not load."""
    faults = [finding for finding in told if finding.severity == FAULT]
    fields = {str(finding.evidence["field"]) for finding in faults if "field" in finding.evidence}
    fields |= {
        key
        for finding in faults
        for key in ("model_type", "hidden_act", "architectures")
        if key in finding.evidence
    }
    if any("architecture" in finding.evidence for finding in faults):
        fields.add("architectures")
    if any(finding.id == "rope-mismatch" for finding in faults):
        fields |= {"rope_scaling", "rope_parameters", "rope_theta"}
    layout = any("unread" in finding.evidence for finding in faults)
    return layout or bool(fields & set(refusal.keys)) or (not refusal.keys and bool(fields))


def _by_table(subject: Subject, role: str, key: str, wrong: str, line: str, refusal: Refusal | None) -> Finding:
    said = {} if refusal is None else {"sglang": refusal.sentence, "error": refusal.error}
    return fault(
        "fc-not-called",
        0.9 if refusal is None else 0.97,
        f"{key} is {wrong}: SGLang {subject.version} does not load the {role}'s config, so the server does not start.",
        f"{line[:1].upper()}{line[1:]}.",
        {"field": key, "role": role, **said},
    )


def _brings_code(config: Mapping[str, Any]) -> bool:
    """Whether a config names a class of its own for a type that nobody here knows: SGLang's answer is known, then."""
    code = config.get("auto_map")
    return isinstance(code, Mapping) and "AutoConfig" in code and knows(str(config.get("model_type"))) is False


def _own_code(subject: Subject, role: str, evidence: Mapping[str, Any]) -> Finding:
    return note(
        "fc-not-called",
        0.6,
        f"The {role}'s config brings its own code (auto_map), which the audit does not run: SGLang refuses it without "
        "--trust-remote-code, and what it makes of the config with it is not known.",
        "Read that code, then start the server with --trust-remote-code; or drop auto_map and write a model_type that "
        f"SGLang {subject.version} knows.",
        evidence,
    )


def _by_sglang(subject: Subject, role: str, config: Mapping[str, Any], refusal: Refusal) -> Finding:
    """A refusal that no table foresees, in SGLang's words."""
    evidence = {"role": role, "error": refusal.error, "sglang": refusal.sentence, "keys": list(refusal.keys)}
    if "auto_map" in config and "trust_remote_code" in refusal.message:
        return _own_code(subject, role, evidence)
    remedy = f"Copy the {role}'s config.json anew from where the model came from, and compare the two."
    if refusal.keys == ("",):
        remedy = (
            "The same config loads from another path: SGLang takes a path with both 'eagle' and 'mistral' in it, and some "
            "names of Mistral's models, for a model in Mistral's own format. Move or link the folder, or start the server "
            "with --model-config-parser hf."
        )
    elif refusal.keys:
        named = " or ".join(f'"{key}"' for key in refusal.keys)
        remedy = f"Write another value for {named}, as the training run's config has it, or drop it: the config loads then."
    return fault(
        "fc-not-called",
        0.97,
        f"SGLang {subject.version} does not load the {role}'s config, so the server does not start: {refusal.error}: "
        f"{refusal.sentence.rstrip('.')}.",
        remedy,
        evidence,
    )
