"""What an unfinished conversion has done: one line per whole sample, so that the next run need not do it again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import OutputExists

# Stands in a finished folder: it was written by a conversion, and may be replaced by one. Readers of dumps skip it.
MARK = ".drafttrace-convert.json"


@dataclass(frozen=True)
class Done:
    """A sample that is whole: its number in OUT, and the digest of what it was made of."""

    number: int
    digest: str


class Journal:
    """``with Journal(folder, facts) as journal``: an open folder of a run, new or taken up again.

    The file is locked: two runs never write into one folder. anew: what a run of other facts left behind is removed.
    Raises OutputExists where another run writes there now, where the folder is of other facts without ``anew``, or where
    it is none of ours.
    """

    NAME = ".drafttrace-unfinished.jsonl"

    def __init__(self, folder: Path, facts: Mapping[str, Any], *, anew: bool = False) -> None:
        self._folder = folder
        self._facts = json.loads(json.dumps(facts))
        self._anew = anew
        self._done: dict[int, Done] = {}
        self._file: IO[str] | None = None

    def __enter__(self) -> Journal:
        path = self._folder / self.NAME
        if self._folder.is_dir() and any(self._folder.iterdir()) and not path.is_file():
            raise OutputExists(
                f"The folder '{self._folder}', in which samples would gather, holds something else; move it away."
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+", encoding="utf-8")
        try:
            self._lock()
            self._take_up()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        if (
            kind is not None and not self._done
        ):  # nothing to go on from, and the next command may ask for something else
            shutil.rmtree(self._folder, ignore_errors=True)
        self._file.close()

    def has(self, place: Path, done: Done) -> bool:
        """Whether the file of a sample is there already, made of the same."""
        return self._done.get(done.number) == done and place.is_file()

    def add(self, place: Path, done: Done) -> None:
        """The sample of ``place`` is whole."""
        assert self._file is not None
        self._file.write(json.dumps([done.number, done.digest]) + "\n")
        self._file.flush()
        self._done[done.number] = done

    def _lock(self) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputExists(
                f"Another conversion writes into '{self._folder}' now; wait for it, or give another name."
            ) from None
        except OSError:  # a file system without locks
            return

    def _take_up(self) -> None:
        assert self._file is not None
        self._file.seek(0)
        lines = self._file.read().splitlines()
        head = _value(lines[0]) if lines else None
        if head == self._facts:
            for line in lines[1:]:
                value = _value(line)
                if isinstance(value, list) and len(value) == 2:  # the last line may be cut off
                    self._done[value[0]] = Done(*value)
            self._file.write("\n")
            return
        if head is not None and len(lines) > 1 and not self._anew:
            raise OutputExists(
                f"The folder '{self._folder}' holds an unfinished conversion of another kind: "
                f"{_difference(head, self._facts)}; finish it with its own command, or begin anew with --force."
            )
        for entry in list(self._folder.iterdir()):
            if entry.name != self.NAME:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        self._file.truncate(0)
        self._file.write(json.dumps(self._facts) + "\n")
        self._file.flush()


def _value(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def said_of_dump(request: Request) -> list[str]:
    """What the user says of a dump, as the options that say it; what the target says is not among it."""
    fields = request.fields
    ids, wiring = request.layer_ids, fields.boundaries
    said = {
        "--hidden-size": None if request.inferred else request.hidden_size,
        "--layer-ids": None if ids is None else ",".join(f"{request.numbering}{k}" for k in ids),
        "--slots": ",".join(fields.slots),
        "--tokens": fields.tokens,
        "--last": fields.last,
        "--last-norm": fields.last_norm if fields.last else None,
        "--mask": fields.mask,
        "--boundaries": None if wiring is None else ",".join(map(boundary_name, wiring)),
    }
    return [f"{name} {value}" for name, value in said.items() if value not in {None, ""}]


def _difference(head: Any, facts: Mapping[str, Any]) -> str:
    """The first thing that the other run was asked differently, in the words of the command line."""
    if not isinstance(head, dict):
        return "it does not say of what"
    name = next(name for name in {**facts, **head} if head.get(name) != facts.get(name))
    if name in {"source", "format"} and head.get(name):
        return f"it reads {'the format ' if name == 'format' else ''}{head[name]}"
    before, now = _options(name, head.get(name)), _options(name, facts.get(name))
    if name not in facts or not (before or now):
        return "another version of drafttrace began it"
    if before == now:
        return f"it was begun with another {before}"
    if not before:
        return f"it was begun without {now}"
    return f"it was begun with {before}" + (f", and this one with {now}" if now else "")


def _options(name: str, value: Any) -> str:
    """A fact as the options that make it; of the target only whether there is one, as its weights have no name."""
    if not value:
        return ""
    if isinstance(value, list):
        return " ".join(f"--lose {each}" if name == "lose" else str(each) for each in value)
    return {"layout": f"--to {value}", "mask_of_ones": "--mask-ones", "target": "--target"}.get(name, "")


def put_mark(folder: Path, facts: Mapping[str, Any], samples: int, left_out: Sequence[int] = ()) -> None:
    """Say in the folder that it is whole, what it was made of, and the numbers of the samples that were left out."""
    value = {"written_by": "drafttrace convert", "samples": samples, "samples_left_out": list(left_out), **facts}
    part = folder / f"{MARK}.part"
    part.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    os.replace(part, folder / MARK)


def is_converted(folder: Path) -> bool:
    """Whether a conversion of several samples wrote the folder."""
    with contextlib.suppress(OSError, ValueError):
        value = json.loads((folder / MARK).read_text("utf-8"))
        return isinstance(value, dict) and value.get("written_by") == "drafttrace convert"
    return False
