"""Who wrote SGLang's ``Pass*.pt``: a folder for each process, named by its ranks, below one for target and draft.

A server that speculates with EAGLE writes ``FOLDER/target/TP...`` and ``FOLDER/draft/TP...``; every tensor-parallel rank
writes the same residual stream, every pipeline stage the layers that it has.

Source: SGLang ``srt/model_executor/model_runner_components/load_model_utils.py``,
``srt/debug_utils/tensor_dump_forward_hook.py``.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from drafttrace.tracer.dumps.registry import refuse_runs
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile

_PROCESS = re.compile(r"TP(\d+)_PP(\d+)_Rank(\d+)_pid\d+")
_PASS = re.compile(r"Pass\d+\.pt")
_MOST_NAMED = 4
_DRAFT, _TARGET = "draft", "target"
# What a draft has and no target: EAGLE-1 and EAGLE-3 join two states before the first layer, MTP layers do, too.
_OF_DRAFT = re.compile(
    r"^fc$|(?:^|\.)(?:model\.fc|eh_proj|pre_fc_norm_(?:embedding|hidden)|layers\.0\.hidden_norm)$|(?:^|\.)midlayer(?:\.|$)"
)


def is_of_draft(module: str) -> bool:
    """Whether a module of that name is of a draft, and of no target."""
    return _OF_DRAFT.search(module) is not None


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
    module = next((name for name in modules if is_of_draft(name)), None)
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


def _places(base: Path) -> dict[tuple[int, int], list[Path]]:
    """The folders of :func:`_processes` by tensor-parallel rank and stage of the pipeline."""
    found: dict[tuple[int, int], list[Path]] = {}
    for folder in itertools.chain.from_iterable(_processes(base).values()):
        named = _PROCESS.fullmatch(folder.name)
        if named is not None:
            found.setdefault((int(named[1]), int(named[2])), []).append(folder)
    return found


def other_stages(path: Path) -> list[Path]:
    """The same pass as the other stages of the pipeline wrote it, of the same tensor-parallel rank.

    Raises DrafttraceError where a stage was started twice, UnreadableFile where one that another rank has is not there
    of this rank, or lacks the pass.
    """
    named = _PROCESS.fullmatch(path.parent.name)
    if named is None:
        return []
    places = _places(path.parent.parent)
    own, stages = int(named[1]), sorted({stage for _tp, stage in places} - {int(named[2])})
    found: list[Path] = []
    for stage in stages:
        folders = places.get((own, stage), [])
        refuse_runs(path.parent.parent, folders)
        if folders and (folders[0] / path.name).is_file():
            found.append(folders[0] / path.name)
            continue
        if folders:
            lacks = f"there is no '{folders[0] / path.name}' of another"
        else:
            other = next(places[place][0] for place in sorted(places) if place[1] == stage)
            lacks = (
                f"there is no folder TP{own}_PP{stage}_... of another, which '{other.name}' is of TP{_tp_of(other)}"
            )
        raise UnreadableFile(
            f"'{path}' is of one stage of a pipeline, and {lacks}; copy the folders of all stages"
            f"{_whole_rank(path, places)}."
        )
    return found


def _tp_of(folder: Path) -> int:
    named = _PROCESS.fullmatch(folder.name)
    return -1 if named is None else int(named[1])


def _whole_rank(path: Path, places: Mapping[tuple[int, int], Sequence[Path]]) -> str:
    """``, or give PATH``: the same pass of a rank that has it of every stage; empty where there is none."""
    stages = {stage for _tp, stage in places}
    for tp in sorted({tp for tp, _stage in places}):
        files = [places.get((tp, stage), [path])[0] / path.name for stage in sorted(stages)]
        if all(file.is_file() for file in files):
            return f", or give '{files[0]}', whose rank has them all"
    return ""


def missing_beside(path: Path) -> list[str]:
    """What the other processes of the run should have beside the pass ``path`` and do not, and what they have of passes
    that this one lacks. The pass is read all the same: each tensor-parallel rank has the whole stream."""
    places = _places(path.parent.parent)
    if not places:  # a folder that may not be listed
        return []
    ranks, stages = {tp for tp, _stage in places}, {stage for _tp, stage in places}
    gone = [f"no folder of stage PP{stage} of the pipeline" for stage in range(max(stages)) if stage not in stages]
    gone += [f"no folder of rank TP{tp}" for tp in range(min(ranks), max(ranks)) if tp not in ranks]
    for tp, stage in itertools.product(sorted(ranks), sorted(stages)):
        folders = places.get((tp, stage), [])
        if not folders:
            gone.append(f"no folder TP{tp}_PP{stage}_...")
        elif not any((folder / path.name).is_file() for folder in folders):
            gone.append(f"no '{path.name}' in '{folders[0].name}'")
    notes = [f"of the processes of this run there is {_few(gone)}"] if gone else []
    for folders in places.values():
        more = _passes_more(folders[0], path.parent)
        if more:
            names = _few([f"'{name}'" for name in more])
            notes.append(f"this process has no {names}, which '{folders[0].name}' has: no sample is made of that")
            break
    return notes


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _passes_more(one: Path, two: Path) -> tuple[str, ...]:
    """The names of the passes in the folder of one process and not in that of the other; none where one is not readable."""
    try:
        return _compared(one, one.stat().st_mtime_ns, two, two.stat().st_mtime_ns)
    except OSError:
        return ()


@functools.lru_cache(maxsize=256)  # asked for each of thousands of passes
def _compared(one: Path, _changed: int, two: Path, _changed_too: int) -> tuple[str, ...]:
    return tuple(sorted(filter(_PASS.fullmatch, set(os.listdir(one)) - set(os.listdir(two)))))
