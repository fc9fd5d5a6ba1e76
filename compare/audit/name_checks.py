"""Tensors of a draft that SGLang's draft class passes over for their names: their parameters keep what the memory held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drafttrace.compare.audit.class_tensors import HEAD, draft_class, passed_over
from drafttrace.compare.audit.mla_checks import refused
from drafttrace.compare.audit.subject import Subject, fault
from drafttrace.compare.draft_config import MLA_CLASS
from drafttrace.compare.draft_weights import VOCABULARY_MAPS, canonical_name
from drafttrace.compare.result import Finding


def name_findings(subject: Subject) -> Iterator[Finding]:
    """That the class fills nothing from tensors which every other reader takes."""
    skipped = passed_over(subject.draft_weights, subject.draft)
    if not skipped or (refused(subject) and draft_class(subject.draft) != MLA_CLASS):
        return
    said, remedy = _latent(skipped) if draft_class(subject.draft) == MLA_CLASS else _plain(subject, skipped)
    yield fault("weights-missing", 0.95, said, remedy, {"tensors": list(skipped[:20]), "count": len(skipped)})


def _latent(skipped: Sequence[str]) -> tuple[str, str]:
    return (
        f"{MLA_CLASS} passes over {_counted(skipped)} for {_their(skipped)}, such as '{skipped[0]}', with a warning only: "
        "it puts 'model.' before each name itself, so their parameters keep what the memory held.",
        "Export the draft again with the names that this class reads: 'fc.weight', 'norm.weight' and 'layers.0.…' (or "
        "'midlayer.…'), with nothing before them.",
    )


def _plain(subject: Subject, skipped: Sequence[str]) -> tuple[str, str]:
    first = canonical_name(skipped[0])
    looked = f"'{first}' only" if first == HEAD else f"'{first}' and for 'model.{first}'"
    whole = len(skipped) >= sum(name not in VOCABULARY_MAPS for name in subject.draft_weights.names)
    said = (
        f"passes over all {len(skipped)} tensors of this draft for their names"
        if whole
        else f"passes over {_counted(skipped)} for {_their(skipped)}"
    )
    return (
        f"{draft_class(subject.draft)} {said}, such as '{skipped[0]}', without a word: it looks for {looked}, so what it "
        "does not fill keeps what the memory held.",
        f"Export the draft again with '{first}' in the place of '{skipped[0]}'"
        + (f" and the other {len(skipped) - 1} likewise" if len(skipped) > 1 else "")
        + ": nothing may stand before a name but 'model.', and nothing before lm_head.",
    )


def _counted(names: Sequence[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"


def _their(names: Sequence[str]) -> str:
    return "its name" if len(names) == 1 else "their names"
