"""Drafts that a server does not load, or loads as another one, and that no replay can run either: by the audit's rules."""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.audit.first_eagle import first_eagle
from drafttrace.compare.audit.layer_checks import layer_findings
from drafttrace.compare.audit.quantized import is_part
from drafttrace.compare.audit.slot_width import with_true_widths
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.turned_tensors import with_turned_tensors
from drafttrace.compare.audit.weight_checks import headless_finding, shape_findings
from drafttrace.compare.result import Finding
from drafttrace.tracer.errors import UnknownFormat, UnreadableFile


def refuse_what_no_server_loads(subject: Subject) -> None:
    """Raise UnreadableFile, with the audit's cause and remedy, where config and tensors are no draft together; and
    UnknownFormat for tensors that are quantized, which a replay does not undo."""
    quantized = [name for name in subject.draft_weights.names if is_part(name)]
    if quantized:
        raise UnknownFormat(
            f"{subject.draft.path.parent} holds quantized tensors ('{subject.draft_weights.names[quantized[0]]}' and "
            "others), which the replay does not read; give the draft as it was before it was quantized."
        )
    found = next(_reasons(subject), None)
    if found is not None:
        raise UnreadableFile(f"{subject.draft.path.parent}: {found.summary.rstrip('.')}; {_lower(found.remedy)}")


def _reasons(subject: Subject) -> Iterator[Finding]:
    early = first_eagle(subject)
    if early is not None:
        yield early
    subject, turned = with_turned_tensors(subject)
    yield from turned
    subject, wider, changes = with_true_widths(subject)
    if changes:  # a draft of a wider target is told with the states that are too narrow for it
        yield from wider
    yield from (found for found in layer_findings(subject) if found.id == "weights-missing")
    yield from shape_findings(subject)
    headless = headless_finding(subject)
    if headless is not None:
        yield headless


def _lower(remedy: str) -> str:
    """A remedy behind a semicolon: lines to paste stay as they are."""
    said = remedy if remedy.startswith('"') else remedy[:1].lower() + remedy[1:]
    return said if said.endswith(".") else f"{said}."
