"""Does a live server do what the configs say, and does it run these models at all? From its health answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drafttrace.compare.audit.remedies import wiring_remedy
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.audit.target_config import TargetConfig
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import wiring_name
from drafttrace.tracer.errors import DrafttraceError

OVERRIDE = "override"
"""What the plugin calls the source of a wiring that ``serve --wiring`` gave."""


def refuse_other_model(target: TargetConfig, health: Mapping[str, Any]) -> None:
    """Raise DrafttraceError where the server's target has other sizes than the folder's: nothing can be compared."""
    live = _block(health, "target")
    here = {"n": target.layers, "hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
    if all(live.get(key) in {None, value} for key, value in here.items()):
        return
    paths = [f"--{role} {path}" for role in ("target", "draft") if (path := _block(health, role).get("path"))]
    raise DrafttraceError(
        f"The live server runs another model: {live.get('path')} ({live.get('model_class')}, {live.get('n')} layers, "
        f"{live.get('hidden_size')} wide, vocabulary {live.get('vocab_size')}), while {target.path.parent} holds "
        f"{target.architecture} of {target.layers} layers, {target.hidden_size} wide, vocabulary {target.vocab_size}; "
        f"give the folders that it was started with{': ' if paths else ''}{' '.join(paths)}."
    )


def server_notes(subject: Subject, health: Mapping[str, Any]) -> Iterator[str]:
    """Remarks on what the server runs that are no fault by themselves."""
    named = _block(health, "target").get("model_class")
    if isinstance(named, str) and subject.target.architecture and named != subject.target.architecture:
        yield f"The live server runs the target with the class {named}, its config names {subject.target.architecture}."
    path, mine = _block(health, "draft").get("path"), subject.draft.path.parent
    if isinstance(path, str) and Path(path).is_dir() and not Path(path).samefile(mine):
        yield f"The live server runs the draft in {path}, this audit read the one in {mine}."


def server_findings(subject: Subject, health: Mapping[str, Any]) -> Iterator[Finding]:
    """Where the live server does something else than the configs on disk say."""
    block = _block(health, "wiring")
    live = _integers(block.get("boundaries"))
    wanted = subject.trained if subject.trained is not None else subject.served.wiring
    if live is not None and wanted is not None and live != wanted:
        build = _overridden if block.get("source") == OVERRIDE else _other_wiring
        yield build(subject, live, wanted, block.get("source"))
    reverted = block.get("reverted_pr")
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


def _other_wiring(subject: Subject, live: tuple[int, ...], wanted: tuple[int, ...], source: object) -> Finding:
    against = f"training used {wiring_name(wanted)} ({subject.trained_by})"
    if subject.trained is None:
        against = f"these configs would give {wiring_name(wanted)}"
    return fault(
        "wrong-boundary",
        0.95,
        f"The live server hands over {wiring_name(live)} ({source}); {against}.",
        f"Restart the server with this config: {wiring_remedy(subject, wanted)}",
        {"live": list(live), "expected": list(wanted), "source": source},
    )


def _overridden(subject: Subject, live: tuple[int, ...], wanted: tuple[int, ...], source: object) -> Finding:
    """``serve --wiring`` is in force: it may be the very remedy, so nobody is told to undo it for the config's sake."""
    begins = f"The live server hands over {wiring_name(live)}, as its --wiring says (source: override)"
    evidence = {"live": list(live), "expected": list(wanted), "source": source}
    asked = ",".join(f"B{k}" for k in wanted)
    if subject.trained is not None:
        return fault(
            "wrong-boundary",
            0.95,
            f"{begins}; training used {wiring_name(wanted)} ({subject.trained_by}).",
            f"Restart the server with --wiring {asked}, or without --wiring and with {wiring_remedy(subject, wanted)}",
            evidence,
        )
    reader = subject.reader
    line = f"make the config say the same, then --wiring can go: {wiring_remedy(subject, live)}"
    if reader is None or reader.ids_for(live, subject.target.layers) is None:
        line = "keep --wiring: no list of ids in the config gives it here"
    return fault(
        "wrong-boundary",
        0.6,
        f"{begins}; the config says another wiring, {wiring_name(wanted)}, which a start without --wiring would serve.",
        f"If {wiring_name(live)} is what training used, {line}. If it is not, restart the server without --wiring.",
        evidence,
    )


def live_algorithm(health: Mapping[str, Any] | None) -> str | None:
    """The speculative algorithm that a live server reports."""
    value = _block(health or {}, "wiring").get("algorithm")
    return value if isinstance(value, str) else None


def _block(health: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = health.get(name)
    return value if isinstance(value, dict) else {}


def _integers(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and value and all(type(k) is int for k in value):
        return tuple(value)
    return None
