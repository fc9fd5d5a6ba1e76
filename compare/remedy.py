"""The line that puts the wiring right, for this model class and this SGLang version.

How SGLang turns ids into boundaries depends on the class: the trace says which rule the running server applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from drafttrace.compare.id_rules import IdRule, boundaries_of, emitted, ids_for
from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.printable import printable

FIELD = "eagle_aux_hidden_state_layer_ids"
_RULES = {
    "plus_one": IdRule.PLUS_ONE,
    "plus_one_if_first_is_one": IdRule.PLUS_ONE_IF_FIRST_IS_ONE,
    "raw": IdRule.RAW,
    "raw_if_highest_is_n": IdRule.RAW_IF_HIGHEST_IS_N,
}


def rule_of(name: object) -> IdRule | None:
    """The rule that a trace's wiring block names; None for one that is not known."""
    text = str(name or "").strip()
    return _RULES.get(text.lower()) or next((rule for rule in IdRule if rule.value == text), None)


def config_ids(boundaries: Sequence[int], rule: IdRule, layers: int) -> list[int] | None:
    """The ids that make SGLang capture ``boundaries`` in this order; None where no list of ids does.

    Slots come out in ascending order whatever the order of the ids, so other orders cannot be expressed.
    """
    if list(boundaries) != sorted(set(boundaries)):
        return None
    ids = ids_for(boundaries, rule, layers)
    return None if ids is None else list(ids)


def live_boundaries(wiring: Mapping[str, Any]) -> tuple[int, ...] | None:
    """What the server was told to hand over, in its order: as the wiring block says, else as its ids and its rule give it.

    None where neither is known.
    """
    said = wiring.get("boundaries")
    if _integers(said):
        return tuple(said)
    ids, rule, n = wiring.get("ids"), rule_of(wiring.get("rule")), wiring.get("n")
    if not _integers(ids) or rule is None or not isinstance(n, int):
        return None
    return emitted(boundaries_of(ids, rule, n), n - 1)


def _integers(value: Any) -> TypeGuard[Sequence[int]]:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(k, int) for k in value)


def already_live(wanted: Sequence[int | None], wiring: Mapping[str, Any]) -> bool:
    """Whether the server was told to hand over exactly these: then no config puts right what it captures."""
    live = live_boundaries(wiring)
    return live is not None and live == tuple(wanted)


def wiring_remedy(wanted: Sequence[int | None], wiring: Mapping[str, Any], draft: str | None = None) -> str:
    """What to change so that the server hands over ``wanted``, with the config line where one exists.

    wiring: the trace's ``about["wiring"]`` block, possibly empty. draft: the folder that the server loaded its draft from.
    """
    known = [k for k in wanted if k is not None]
    if not known or len(known) != len(wanted):
        return (
            "Record the layer sweep (drafttrace record --boundaries all) or a reference with all boundaries, so that the "
            "boundaries which the draft was trained on can be named."
        )
    serve = f"drafttrace serve --wiring {','.join(f'B{k}' for k in known)}"
    rule = rule_of(wiring.get("rule"))
    layers = wiring.get("n")
    n = layers if isinstance(layers, int) else max(known) + 1
    where = " ".join(
        str(part)
        for part in (
            wiring.get("model_class"),
            f"in SGLang {wiring['sglang_version']}" if wiring.get("sglang_version") else "",
        )
        if part
    )
    ids = config_ids(known, rule, n) if rule else None
    if already_live(wanted, wiring):
        return _right_already(known, wiring, where, serve, draft)
    if wiring.get("source") == "override":
        return _overridden(wiring, serve, ids)
    if ids is not None:
        return (
            f'In the draft\'s config.json, inside "eagle_config", set "{FIELD}": {ids} '
            f"(for {where or 'this server'} these ids mean {wiring_name(known)}), and restart the server."
        )
    if rule:
        return (
            f"No list of ids makes {where or 'this server'} capture {wiring_name(known)} ({rule.value}); start it with "
            f"`{serve} -- ...`, or retrain the draft on boundaries that the server can capture."
        )
    plus, raw = config_ids(known, IdRule.PLUS_ONE, n), config_ids(known, IdRule.RAW, n)
    if plus is None or raw is None:
        return f"Make the server capture {wiring_name(known)} in this order: `{serve} -- ...`."
    return (
        f'Make the server capture {wiring_name(known)}: `{serve} -- ...`, or "{FIELD}" inside "eagle_config" of the '
        f"draft's config.json: {plus} for model classes that add one to an id, {raw} for those that do not (the trace "
        "does not say which class served)."
    )


def _right_already(
    known: Sequence[int], wiring: Mapping[str, Any], where: str, serve: str, draft: str | None
) -> str:
    """The server was told the right boundaries, and what it captured is another: the config is not to be changed."""
    source, ids, wiring_text = str(wiring.get("source") or ""), wiring.get("ids"), wiring_name(known)
    folder = f"{printable(draft[:200])}/config.json" if draft else "the draft's config.json"
    if source == "override":
        given = f"--wiring {','.join(f'B{k}' for k in known)} of the server is right for this training dump"
    elif _is_default(source) or not _integers(ids):
        given = f"The wiring that the server says it uses, {wiring_text}, is right for this training dump"
    else:
        given = (
            f'{folder} is right for this training dump: "{FIELD}": {list(ids)} inside "eagle_config" (for '
            f"{where or 'this server'} these ids mean {wiring_text})"
        )
    more = "" if source == "override" else f" `{serve} -- ...` shows whether the server can hand over these at all."
    return (
        f"{given}, so leave it as it is: what was captured is not what the server says. Look for what makes the two "
        "differ: another SGLang version than the trace names, or a model class that counts layers in another way "
        "(drafttrace check --target DIR --draft DIR reads both); a patched model class, or a hook that hands over another "
        "layer's output; "
        f"another draft folder or target than the ones meant here.{more}"
    )


def _is_default(source: str) -> bool:
    return source.lower().startswith("default") or source.lower().endswith("default")


def _overridden(wiring: Mapping[str, Any], serve: str, ids: Sequence[int] | None) -> str:
    """The server was told its wiring when it was started: while that stands, no config is read."""
    given = ",".join(f"B{k}" for k in wiring.get("boundaries") or ())
    said = f"The server was started with --wiring {given}, which overrules the draft's config: use `{serve} -- ...`"
    if ids is None:
        return f"{said}."
    return f'{said}, or without --wiring and with "{FIELD}": {list(ids)} inside "eagle_config" of the draft\'s config.json.'
