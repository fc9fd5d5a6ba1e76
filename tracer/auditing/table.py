"""The table of an audit: one SQLite file, written as outcomes come, from which a stopped audit goes on."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, fields
from pathlib import Path
from types import TracebackType

from drafttrace.tracer.auditing.outcome import FINAL, FoundRow, Outcome, SlotRow
from drafttrace.tracer.errors import OutputExists, UnreadableFile

SCHEMA = "drafttrace.audit/1"
PASSED_OVER = "passed_over"
_PATIENCE = 30.0  # seconds that a reader may hold up the audit
_COMMIT_AFTER = 1.0  # seconds of work that a killed audit may lose
_SAMPLE = (
    "reference",
    "left",
    "stamp",
    "status",
    "verdict",
    "summary",
    "rows_compared",
    "coverage",
    "seconds",
    "error",
)
_TYPES = {
    "rows_compared": "INTEGER",
    "coverage": "REAL",
    "seconds": "REAL",
    "confidence": "REAL",
    "rows": "INTEGER",
}


def _columns(kind: type[FoundRow] | type[SlotRow]) -> list[str]:
    return [field.name for field in fields(kind)]


def _type_of(name: str) -> str:
    if name in _TYPES:
        return _TYPES[name]
    if name.endswith(("_p50", "_p99", "_abs")):
        return "REAL"
    return "INTEGER" if name == "slot" or name.endswith("_rows") else "TEXT"


def _create(name: str, columns: list[str], more: str) -> str:
    return f"CREATE TABLE {name} ({', '.join(f'{c} {_type_of(c)}' for c in columns)}, {more})"


class AuditTable:
    """Tables ``about`` (key, value), ``samples`` (one row per sample), ``findings`` and ``slots`` (by reference).

    about: what the audit is of; a table of something else is not continued. Raises OutputExists where the file is
    no audit or one of something else and ``force`` is not given, UnreadableFile where it is damaged.
    """

    def __init__(self, path: Path, about: Mapping[str, object], *, force: bool = False) -> None:
        self.path = path
        text = json.dumps(about, sort_keys=True)
        if force:
            for part in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                part.unlink(missing_ok=True)
        fresh = not path.exists() or path.stat().st_size == 0
        try:
            self._db = sqlite3.connect(path, timeout=_PATIENCE)
            if fresh:
                self._make(text)
            known = dict(self._db.execute("SELECT key, value FROM about"))
        except sqlite3.DatabaseError as error:
            raise OutputExists(
                f"The output '{path}' is no audit that can be continued ({error}); give another name, or --force to "
                "replace it."
            ) from None
        if known.get("schema") != SCHEMA or known.get("of") != text:
            self._db.close()
            raise OutputExists(
                f"The output '{path}' is the audit of something else (it says {known.get('of')}); give another name, or "
                "--force to replace it."
            )
        with suppress(sqlite3.OperationalError):  # somebody looks at it just now
            self._db.execute(
                "PRAGMA journal_mode=WAL"
            )  # whoever looks at the table meanwhile does not stop the audit
        self._last_commit = time.monotonic()

    def _make(self, about: str) -> None:
        self._db.execute("CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT)")
        self._db.execute(_create("samples", list(_SAMPLE), "PRIMARY KEY (reference)"))
        for name, kind in (("findings", FoundRow), ("slots", SlotRow)):
            key = _columns(kind)[0]
            self._db.execute(
                _create(name, ["reference", *(_rename(c) for c in _columns(kind))], f"CHECK ({key} IS NOT NULL)")
            )
            self._db.execute(f"CREATE INDEX {name}_of ON {name} (reference)")
        self._db.executemany("INSERT INTO about VALUES (?, ?)", [("schema", SCHEMA), ("of", about)])
        self._db.commit()

    def __enter__(self) -> AuditTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.commit()
        with suppress(sqlite3.OperationalError):  # somebody looks at it just now
            # One file again: whoever reads a table in WAL mode without the right to write leaves two empty ones beside it.
            self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.close()

    def done(self) -> dict[str, str]:
        """Reference -> stamp of the samples that need not be looked at again."""
        marks = ", ".join("?" * len(FINAL))
        query = f"SELECT reference, stamp FROM samples WHERE status IN ({marks})"
        return dict(self._db.execute(query, sorted(FINAL)))

    def add(self, outcome: Outcome) -> None:
        """Put one outcome in the place of an earlier one of the same sample. On disk within about a second."""
        for name in ("samples", "findings", "slots"):
            self._db.execute(f"DELETE FROM {name} WHERE reference = ?", (outcome.reference,))
        self._insert("samples", [getattr(outcome, name) for name in _SAMPLE])
        for name, rows in (("findings", outcome.findings), ("slots", outcome.slots)):
            for row in rows:
                self._insert(name, [outcome.reference, *astuple(row)])
        if time.monotonic() - self._last_commit > _COMMIT_AFTER:
            self._db.commit()
            self._last_commit = time.monotonic()

    def _insert(self, name: str, values: list[object]) -> None:
        self._db.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)

    def keep_only(self, references: set[str]) -> int:
        """Forget samples that are no longer in the dump; how many there were."""
        gone = [name for (name,) in self._db.execute("SELECT reference FROM samples") if name not in references]
        for name in ("samples", "findings", "slots"):
            self._db.executemany(f"DELETE FROM {name} WHERE reference = ?", [(one,) for one in gone])
        self._db.commit()
        return len(gone)

    def pass_over(self, captures: Sequence[str]) -> None:
        """Keep the names of the captures that are compared with nothing."""
        self._db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (PASSED_OVER, json.dumps(list(captures))))
        self._db.commit()

    def query(self, text: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Rows of a SELECT."""
        return self._db.execute(text, values).fetchall()


def _rename(column: str) -> str:
    """``reference`` is the sample's name in every table; a slot's own is ``reference_state``."""
    return "reference_state" if column == "reference" else "left_state" if column == "left" else column


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """An audit's table, read-only. Raises UnreadableFile for anything else."""
    try:
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    except sqlite3.DatabaseError as error:
        raise UnreadableFile(f"The audit '{path}' cannot be read ({error}); audit again.") from None
    try:
        yield db
    except sqlite3.DatabaseError as error:
        raise UnreadableFile(
            f"The file '{path}' is no audit ({error}); give what drafttrace audit wrote."
        ) from None
    finally:
        db.close()
