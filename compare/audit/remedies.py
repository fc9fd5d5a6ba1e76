"""The line to paste that makes a server hand over a wiring."""

from __future__ import annotations

from collections.abc import Sequence

from drafttrace.compare.audit.sglang_rules import embed_since
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.draft_config import MLA_CLASS, NESTED, PLAIN_CLASS, DraftConfig
from drafttrace.tracer.boundary import wiring_name

TRACE = "the trace"
"""Where the wiring of :class:`Subject` ``served`` comes from when a trace tells what a server did."""


def wiring_remedy(subject: Subject, wanted: Sequence[int]) -> str:
    """The line that makes this server hand over ``wanted``."""
    reader, n = subject.reader, subject.target.layers
    name = wiring_name(wanted)
    serve = f"`drafttrace serve --wiring {','.join(f'B{k}' for k in wanted)} -- ...`"
    if reader is None:
        return f"No SGLang release captures hidden states of {subject.target.architecture}; serve another target class."
    ids = reader.ids_for(wanted, n)
    where = f"{reader.architecture} in SGLang {reader.version}"
    if ids is not None and subject.served.ids_from == TRACE and list(ids) == list(subject.served.ids or ()):
        return (
            f"{subject.draft.path.name} says so already ({where}: its ids {list(ids)} are {name}), and the trace's server "
            "was told otherwise: restart it without --wiring, or with the config that it read replaced by this one."
        )
    if ids is not None:
        return f"{ids_line(subject.draft, ids)} ({where}: {name}){_unproven(subject, wanted, serve)}"
    if tuple(wanted) != tuple(sorted(wanted)):
        return (
            f"SGLang hands slots over in ascending order, so no ids give {name}: reorder the column blocks of "
            f"fc.weight to ascending boundaries, or start the server with {serve}."
        )
    if reader.embed is False and 0 in wanted:
        since = embed_since(reader.architecture)
        upgrade = f"upgrade SGLang to {since} or newer" if since else "upgrade SGLang"
        asks = 0 in reader.read(subject.served.ids, n)
        drop = (
            f"take the list with B0 out of {subject.draft.path.name} (the class fails on it) and " if asks else ""
        )
        return f"{where} cannot capture B0: {upgrade}, or {drop}start the server with {serve}."
    return f"No list of ids makes {where} capture {name}; start the server with {serve}."


def ids_line(draft: DraftConfig, ids: Sequence[int]) -> str:
    """The line for these ids, and where it goes."""
    return (
        f'"eagle_config": {{"eagle_aux_hidden_state_layer_ids": {list(ids)}}} in {draft.path.name}{_others(draft)}'
    )


def _others(draft: DraftConfig) -> str:
    """That the line is one of several keys, where it would replace others that are read."""
    nested = draft.raw.get("eagle_config")
    keys = set(nested) - {NESTED.rsplit(".", 1)[-1], "use_aux_hidden_state"} if isinstance(nested, dict) else ()
    return " beside the other keys of eagle_config" if keys else ""


def _unproven(subject: Subject, wanted: Sequence[int], serve: str) -> str:
    """What is not known of ids for the embedding."""
    if subject.reader is None or subject.reader.embed is not None or 0 not in wanted:
        return ""
    return (
        "; whether this class can capture B0 is not known, and some stop with a TypeError at their first pass: then start "
        f"the server with {serve}"
    )


def flag_remedy(flag: str, draft: DraftConfig) -> str:
    """What to do about a switch that the draft's class in this release does not read."""
    if flag == "norm_before_fc" and (draft.architecture == MLA_CLASS or draft.mla is not None):
        return (
            f"No line of the config helps: SGLang's {MLA_CLASS} has no norm before fc, and the class that has one no "
            "multi-latent attention. Train without norm_before_fc, or serve with an engine that has both."
        )
    if flag == "norm_before_fc":
        return f"Serve with SGLang 0.5.17 or newer and the class {PLAIN_CLASS}, or train without norm_before_fc."
    if flag == "norm_before_residual":
        return "Serve this draft with vLLM, or train it with norm_before_residual false."
    return f"Serve with SGLang 0.5.13 or newer, or train without {flag}."
