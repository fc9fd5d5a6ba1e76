"""What belongs to a comparison besides its two sides: ranks, other requests, the chat's marks, the models' norms and the
draft's vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttrace.tracer.checkpoint import read_json
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.served_paths import served_path

if TYPE_CHECKING:
    from drafttrace.compare.acceptance import Expected
    from drafttrace.compare.rope_facts import RopeTrial
    from drafttrace.tracer.capture import Capture
    from drafttrace.tracer.chat_marks import ChatMarks
    from drafttrace.tracer.trace.reader import RankHashes

_LARGEST_DRAFT = 8 << 30  # bytes that a diff reads for a replay that nobody asked for
_RANK = re.compile(r"(.+)_rank\d+")


@dataclass(frozen=True)
class Beside:
    """Arguments of :func:`drafttrace.compare.diff.diff`, by its names for them."""

    ranks: tuple[RankHashes, ...] = ()
    rank_traces: tuple[Capture, ...] = ()
    others: tuple[Capture, ...] = ()
    marks: ChatMarks | None = None
    expected: Expected | None = None
    norms: Callable[[], Mapping[str, Any]] = dict
    rope: Callable[[], RopeTrial | None] = lambda: None
    vocabulary: Callable[[], frozenset[int] | None] = lambda: None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def gather(
    left: Capture,
    reference: Capture | None,
    *,
    tokenizer: Path | None = None,
    rank_traces: Sequence[Path] = (),
    others: Sequence[Path] = (),
    expected: str | None = None,
) -> Beside:
    """Read everything. The ranks' hashes stand in the left trace; traces of its other ranks are looked for beside it.

    rank_traces: further ones of the same request. others: traces of other requests, or folders of them. expected: an
    accept length, step accuracies, or the JSON of a replay. tokenizer: where the chat's marks are looked for. Raises
    DrafttraceError for what cannot be read or belongs to another request.
    """
    is_trace = left.format.startswith("drafttrace.trace")
    found = _rank_traces(left, rank_traces) if is_trace or rank_traces else ()
    return Beside(
        ranks=_hashes(left) if is_trace else (),
        rank_traces=found,
        others=_other_traces(others, {left.path, *(one.path for one in found)}),
        marks=_marks(tokenizer, left, reference),
        expected=_expected(expected, left),
        norms=partial(_norms, left),
        rope=partial(_rope, left),
        vocabulary=partial(_vocabulary, left),
    )


def _norms(left: Capture) -> Mapping[str, Any]:
    """Read only where a comparison asks for them."""
    from drafttrace.tracer.norm_weights import served_norms

    return served_norms(left)


def _vocabulary(left: Capture) -> frozenset[int] | None:
    """The target ids that the served draft can say, by the map in its folder; None where that is not here or has none.

    A redacted trace has pseudonyms for ids, which are of no vocabulary. What is wrong with a map is said by ``check``.
    """
    path = served_path(left, "draft")
    if path is None or left.redacted or not Path(path).is_dir():
        return None
    from drafttrace.tracer.checkpoint import open_checkpoint

    try:
        weights = open_checkpoint(Path(path))
        if "d2t" not in weights or len(weights.info("d2t").shape) != 1:
            return None
        offsets = weights.array("d2t")
        return frozenset((offsets.astype("int64") + range(len(offsets))).tolist())
    except DrafttraceError:
        return None


def _rope(left: Capture) -> RopeTrial | None:
    """The draft replayed with the target's rope base, where its config gives another one and both folders are here.

    Nobody asked for it: what cannot be replayed, or would take long to read, is left alone.
    """
    from drafttrace.compare.rope_facts import rope_base

    folders = [Path(path) for role in ("target", "draft") if (path := served_path(left, role)) is not None]
    if (
        left.draft is None
        or left.redacted
        or len(folders) < 2
        or not all((folder / "config.json").is_file() for folder in folders)
    ):
        return None
    try:
        bases = [rope_base(read_json(folder / "config.json")) for folder in folders]
        if (
            None in bases
            or bases[0] == bases[1]
            or _size(folders[1]) > _LARGEST_DRAFT
            or find_spec("torch") is None
        ):
            return None
        from drafttrace.compare.replay.rope_trial import try_target_base

        return try_target_base(left, *folders)
    except DrafttraceError:
        return None


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.suffix in {".safetensors", ".bin"})


def _hashes(left: Capture) -> tuple[RankHashes, ...]:
    from drafttrace.tracer.trace.reader import read_ranks

    return read_ranks(left.path) if Path(left.path).is_file() else ()


def _rank_traces(left: Capture, given: Sequence[Path]) -> tuple[Capture, ...]:
    """The given ones, else those that stand beside the trace as ``NAME_rank1.h5``, as the server writes them."""
    from drafttrace.tracer.open import open_capture

    path = Path(left.path)
    paths = list(given)
    if not paths and not _RANK.fullmatch(path.stem):
        paths = sorted(
            p for p in path.parent.glob(f"{_escaped(path.stem)}_rank*{path.suffix}") if _RANK.fullmatch(p.stem)
        )
    found = tuple(open_capture(str(p)) for p in paths)
    for one in found:
        if len(one.table) != len(left.table) or len(one.slots) != len(left.slots):
            raise DrafttraceError(
                f"The trace '{one.path}' has {len(one.table)} rows and '{left.path}' has {len(left.table)}: they are no "
                "two ranks of one request; give traces of the same recording."
            )
        mine, its = _request(left), _request(one)
        if mine != its and None not in (mine, its):
            raise DrafttraceError(
                f"The trace '{one.path}' is of the request '{its}' and '{left.path}' of '{mine}': they are no two ranks of "
                "one request; give traces of the same recording, or move the other one away."
            )
    return found


def _request(capture: Capture) -> str | None:
    """The server's name of the recorded request; None where the trace does not keep it."""
    request = capture.about.get("request")
    rid = request.get("rid") if isinstance(request, Mapping) else None
    return rid if isinstance(rid, str) else None


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def _other_traces(paths: Iterable[Path], own: set[str]) -> tuple[Capture, ...]:
    from drafttrace.tracer.open import open_capture

    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.glob("*.h5") if not _RANK.fullmatch(p.stem))
            if not inside:
                raise DrafttraceError(
                    f"The folder '{path}' holds no traces (*.h5); give one with traces of other requests."
                )
            files += inside
        else:
            files.append(path)
    mine = {Path(name).resolve() for name in own}
    return tuple(open_capture(str(p)) for p in dict.fromkeys(files) if p.resolve() not in mine)


def _marks(tokenizer: Path | None, left: Capture, reference: Capture | None) -> ChatMarks | None:
    if tokenizer is None or (left.mask is None and (reference is None or reference.mask is None)):
        return None
    from drafttrace.tracer.chat_marks import chat_marks

    return chat_marks(tokenizer)


def _expected(text: str | None, left: Capture) -> Expected | None:
    from drafttrace.compare.acceptance import draft_steps, expected_of_replay, parse_expected, reachable

    if text is None:
        return None
    path = Path(text)
    if path.suffix != ".json":
        return parse_expected(text, draft_steps(left))
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DrafttraceError(
            f"The replay '{text}' cannot be read as JSON; give what 'drafttrace replay --json' wrote."
        ) from None
    return reachable(expected_of_replay(value, text), draft_steps(left))
