"""Who wrote SGLang's ``Pass*.pt``: a folder for each process, named by its ranks, below one for target and draft.

A server that speculates with EAGLE writes ``FOLDER/target/TP...`` and ``FOLDER/draft/TP...``; every tensor-parallel rank
writes the same residual stream, every pipeline stage the layers that it has.

Source: SGLang ``srt/model_executor/model_runner_components/load_model_utils.py``,
``srt/debug_utils/tensor_dump_forward_hook.py``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from drafttrace.tracer.dumps.registry import refuse_runs
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile

_PROCESS = re.compile(r"TP(\d+)_PP(\d+)_Rank(\d+)_pid\d+")
_DRAFT, _TARGET = "draft", "target"
# What a draft has and no target: EAGLE-1 and EAGLE-3 join two states before the first layer, MTP layers do, too.
_OF_DRAFT = re.compile(r"(?:^|\.)(?:model\.fc|model\.eh_proj|(?:layers\.0|midlayer)\.hidden_norm)$")


def rank_of(path: Path) -> int | None:
    """The rank of the process that wrote a pass; None where its folder does not say."""
    named = _PROCESS.fullmatch(path.parent.name)
    return None if named is None else int(named[3])


def _processes(base: Path) -> dict[int, list[Path]]:
    """The folders of the processes that dumped their passes below ``base``, by rank; none where it cannot be read."""
    found: dict[int, list[Path]] = {}
    try:
        folders = sorted(base.iterdir())
    except OSError:
        return found
    for folder in folders:
        named = _PROCESS.fullmatch(folder.name)
        if named is not None and folder.is_dir():
            found.setdefault(int(named[3]), []).append(folder)
    return found


def ranks_beside(path: Path) -> int:
    """How many ranks dumped passes beside the one that wrote ``path``; 0 where that cannot be seen."""
    return len(_processes(path.parent.parent))


def is_summed(path: Path) -> bool:
    """Whether no other tensor-parallel rank dumped passes beside ``path``, with its part of every sum."""
    named = _PROCESS.fullmatch(path.parent.name)
    beside = [folder.name for folders in _processes(path.parent.parent).values() for folder in folders]
    others = [other for name in beside if (other := _PROCESS.fullmatch(name)) is not None]
    return named is None or all(other[1] == named[1] for other in others)


def of_one_run(folder: Path, files: Sequence[Path]) -> Sequence[Path]:
    """The passes of the target, and of them those of the first rank of each base folder.

    Raises DrafttraceError where a rank was started twice, for these are two runs, and where all are of a draft.
    """
    bases = {file.parent.parent for file in files if rank_of(file) is not None}
    drafts = {base for base in bases if _is_draft(base)}
    kept = [file for file in files if file.parent.parent not in drafts]
    if not kept:
        refuse_draft(files[0], ())
    first: dict[Path, Path] = {}
    for base in bases - drafts:
        ranks = _processes(base)
        given = {folder for folder in (file.parent for file in kept) if folder.parent == base}
        if ranks and (len(given) > 1 or base == folder):
            runs = ranks[min(ranks)]
            refuse_runs(base, runs)
            first[base] = runs[0]
    return [file for file in kept if first.get(file.parent.parent, file.parent) == file.parent]


def _is_draft(base: Path) -> bool:
    """Whether the processes below ``base`` are an EAGLE server's draft, by its name and the target's beside it."""
    return base.name == _DRAFT and bool(_processes(base.parent / _TARGET))


def refuse_draft(path: Path, modules: Collection[str]) -> None:
    """Raise DrafttraceError for a pass of a draft, which holds no states of a target. modules: whose outputs it has."""
    base = path.parent.parent
    by_place = rank_of(path) is not None and _is_draft(base)
    module = next((name for name in modules if _OF_DRAFT.search(name)), None)
    if not by_place and module is None:
        return
    why = f"it stands in '{_DRAFT}' beside '{_TARGET}'" if by_place else f"it has an output of {module}"
    give = base.parent / _TARGET
    remedy = f"'{give}'" if by_place or _processes(give) else "the passes of the target"
    raise DrafttraceError(
        f"'{path}' is a forward pass of the draft ({why}), and holds no states of the target; give {remedy}."
    )


def about_draft(path: Path) -> list[str]:
    """What to say of a pass of a target whose draft dumped its passes, too."""
    base = path.parent.parent
    if rank_of(path) is None or base.name != _TARGET or not _processes(base.parent / _DRAFT):
        return []
    return [
        f"the passes of the draft, in '{base.parent / _DRAFT}', are left out: they hold no states of the target"
    ]


def other_stages(path: Path) -> list[Path]:
    """The same pass as the other stages of the pipeline wrote it, of the same tensor-parallel rank.

    Raises DrafttraceError where a stage was started twice, UnreadableFile where it lacks the pass.
    """
    named = _PROCESS.fullmatch(path.parent.name)
    if named is None:
        return []
    stages: dict[int, list[Path]] = {}
    for folders in _processes(path.parent.parent).values():
        for folder in folders:
            other = _PROCESS.fullmatch(folder.name)
            if other is not None and other[1] == named[1] and other[2] != named[2]:
                stages.setdefault(int(other[2]), []).append(folder)
    found: list[Path] = []
    for _stage, folders in sorted(stages.items()):
        refuse_runs(path.parent.parent, folders)
        file = folders[0] / path.name
        if not file.is_file():
            raise UnreadableFile(
                f"'{path}' is of one stage of a pipeline, and there is no '{file}' of another; copy the folders of all "
                "stages, or move that one away."
            )
        found.append(file)
    return found
