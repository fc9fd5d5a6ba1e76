"""Configs that SGLang loads, or looks at last, and cannot build or quantize a model from: its server stops all the same.

Each was seen to stop with SGLang 0.5.23's own scheduler. A server that runs has shown the contrary, so nothing of this is
said beside one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.asking_sglang import DRAFT, TARGET
from drafttrace.compare.audit.config_fields import Misfit
from drafttrace.compare.audit.context_checks import context_findings
from drafttrace.compare.audit.deepseek_checks import DEEPSEEKS, deepseek_misfits
from drafttrace.compare.audit.loading_checks import usual_type
from drafttrace.compare.audit.model_types import quantizations
from drafttrace.compare.audit.said_in_vain import rope_fields, rope_pairs
from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.audit.target_config import TEXT_KEYS
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.odd_ids import short_value
from drafttrace.compare.result import Finding

_BUILT = DEEPSEEKS | {"llama"}
"""Types of targets of whose classes this is known."""
_BY_KIND = frozenset({"gemma3_text", "gemma3n_text", "modernbert", "modernbert-decoder", "t5gemma2_text"})
"""Types whose config class makes one set of rope parameters for each kind of attention."""
_SILU = "silu"


def start_findings(subject: Subject) -> Iterator[Finding]:
    """Every reason why a server stops between the configs and its first token, for both roles."""
    target, draft = subject.target, subject.draft
    part = next((f"{key}." for key in TEXT_KEYS if target.text is target.raw.get(key)), "")
    yield from context_findings(subject)
    found = [(TARGET, misfit) for misfit in _quantization(target.raw)]
    if str(target.text.get("model_type")) in _BUILT:
        inner = [*_rope(target.text), *_activation(target.text)]
        found += [(TARGET, one._replace(key=f"{part}{one.key}")) for one in inner]
    routed = deepseek_misfits(target.text, subject.target_weights)
    found += [(TARGET, one._replace(key=f"{part}{one.key}")) for one in routed]
    found += [(DRAFT, misfit) for misfit in (*_quantization(draft.raw), *_rope(draft.raw), *_kinds(draft))]
    for role, misfit in found:
        refusal = subject.loads.refusals[role] if subject.loads is not None else None
        if refusal is not None and misfit.key in refusal.keys:
            continue  # SGLang's own words on it are there
        yield fault(
            "fc-not-called",
            0.93,
            f"{misfit.key} of the {role}'s config is {misfit.wrong}: SGLang {subject.version} stops before it serves, so "
            "the server does not start.",
            misfit.line,
            {"field": misfit.key, "role": role},
        )


def _quantization(config: Mapping[str, Any]) -> Iterator[Misfit]:
    """SGLang reads ``quant_method`` of an object; without one it looks for Model-Optimizer's ``quant_algo``."""
    key, said = "quantization_config", config.get("quantization_config")
    line = (
        f"Copy {key} (an object with its quant_method) from where the model came from, or drop it if the tensors are not "
        "quantized."
    )
    if said is None:
        return
    if not isinstance(said, Mapping):
        yield Misfit(key, f"{short_value(said)}, where an object with a quant_method belongs", line)
        return
    method, inner = said.get("quant_method"), said.get("quantization")
    if "quant_method" not in said and ("quant_algo" in said or isinstance(inner, Mapping)):
        return
    if not isinstance(method, str):
        named = "without a quant_method" if method is None else f"with the quant_method {short_value(method)}"
        yield Misfit(key, f"an object {named}, and SGLang has no way of reading it", line)
    elif method.lower() not in quantizations():
        yield Misfit(key, f"of the quant_method {short_value(method)}, which SGLang does not know", line)
    elif method.lower() == "fp8" and "activation_scheme" not in said:
        yield Misfit(key, "of the quant_method 'fp8' without an activation_scheme, which SGLang requires", line)


def _rope(config: Mapping[str, Any]) -> Iterator[Misfit]:
    """A base that is no number, a kind that only Phi-3's class translates, and factors that are not one per pair."""
    rope = rope_fields(config)
    base = rope["rope_theta"] if "rope_theta" in rope else config.get("rope_theta", 10000.0)
    if isinstance(base, bool) or not isinstance(base, (int, float)):
        line = 'Write the "rope_theta" of training; a config without the key means 10000.'
        yield Misfit("rope_theta", f"{short_value(base)}, and SGLang computes its powers", line)
    kind = rope.get("rope_type") or rope.get("type")
    if kind == "su" and not str(config.get("model_type")).startswith("phi3"):
        line = 'Write "rope_type": "longrope" in it, which is the newer name of the same.'
        yield Misfit("rope_scaling", "of the type 'su', which SGLang does not know", line)
    if kind not in ("longrope", "su"):
        return
    pairs = rope_pairs(config, rope)
    for key in ("short_factor", "long_factor"):
        factors = rope.get(key)
        if pairs is not None and isinstance(factors, list) and len(factors) != pairs:
            wrong = (
                f"with {len(factors)} numbers in {key}, where the {pairs} pairs of channels that turn need one each"
            )
            yield Misfit("rope_scaling", wrong, "Copy the whole rope_scaling of the training config.")


def _kinds(draft: DraftConfig) -> Iterator[Misfit]:
    """The draft's class takes one set of rope parameters."""
    kind = draft.raw.get("model_type")
    if isinstance(kind, str) and kind in _BY_KIND:
        wrong = f"'{kind}', whose config class makes rope parameters by kind of attention where the draft's class takes one"
        yield Misfit("model_type", wrong, f'"model_type": "{usual_type(draft)}"')


def _activation(config: Mapping[str, Any]) -> Iterator[Misfit]:
    said = config.get("hidden_act", _SILU)
    if said != _SILU:
        line = f'"hidden_act": "{_SILU}", if the target was trained with it.'
        yield Misfit("hidden_act", f"{short_value(said)}, and the target's class takes '{_SILU}' only", line)
