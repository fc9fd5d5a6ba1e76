"""A cause is one module in compare/findings: found by its name, named by a comparison, in every list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drafttrace.compare.findings.base import finder
from drafttrace.compare.vocabulary import KINDS, Entry, class_of, classes, entries, entry, register

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-llama/healthy.h5"
DUMP = ROOT / "traces/tiny-llama/dump/hidden_states/hs_0.safetensors"

DROPPED = """
from collections.abc import Iterator

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.result import Finding
from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="many-slots",
        kind="wiring",
        rank=5,
        what="More slots than anybody needs.",
        signature="Their number.",
        remedy="Train with fewer.",
        cases=("sglang#1",),
    )
)


@finder()
def find(facts: Facts) -> Iterator[Finding]:
    if len(facts.slots) > MOST:
        yield finding("many-slots", f"There are {len(facts.slots)} slots.", slots=range(len(facts.slots)))
"""

USED = """
import json, sys
from drafttrace.compare import findings
findings.__path__.append(sys.argv[1])
from drafttrace.catalogue import causes
from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.vocabulary import classes
from drafttrace.tracer.open import open_capture
left = open_capture(sys.argv[2])
found = diff(left, open_capture(sys.argv[3], like=left))
again = rejudge(found, found.thresholds)
print(json.dumps({
    "verdict": found.verdict, "named": [(f.id, f.kind, f.slots) for f in found.findings],
    "again": [f.id for f in again.findings], "wiring": classes()["wiring"],
    "catalogue": list(causes()), "what": causes()["many-slots"].what,
}))
"""


def told_with(folder: Path, most: int) -> dict[str, object]:
    """What a process says that finds a module of a stranger beside the package's own."""
    (folder / "slot_count_limit.py").write_text(DROPPED.replace("MOST", str(most)))
    command = [sys.executable, "-c", USED, str(folder), str(TRACE), str(DUMP)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_finding_is_added_by_one_file(tmp_path: Path) -> None:
    """A finding was added in five places: the class, the order, the text, the list of functions, the function."""
    told = told_with(tmp_path, most=2)
    assert told["verdict"] == "mismatch"
    assert told["named"] == [["many-slots", "wiring", [0, 1, 2]]]
    assert told["again"] == ["many-slots"]
    assert told["wiring"] == [*classes()["wiring"], "many-slots"]
    assert told["what"] == "More slots than anybody needs."
    assert sorted(told["catalogue"]) == sorted([*entries(), "many-slots"])  # type: ignore[misc]


def test_a_finding_of_a_dropped_module_that_does_not_hold(tmp_path: Path) -> None:
    told = told_with(tmp_path, most=3)
    assert told["verdict"] == "match"
    assert told["named"] == [["none", class_of("none"), [0, 1, 2]]]
    assert told["wiring"] == [*classes()["wiring"], "many-slots"]


def test_what_cannot_be_registered() -> None:
    text = {"what": "W.", "signature": "S.", "remedy": "R."}
    with pytest.raises(ValueError, match="slot-shift is registered twice"):
        entries()
        register(Entry("slot-shift", "wiring", 1, **text))
    with pytest.raises(ValueError, match="'gremlins'; the classes are wiring, norm"):
        register(Entry("gremlins", "gremlins", 1, **text))
    assert "gremlins" not in entries()
    with pytest.raises(KeyError):
        entry("gremlins")


def test_a_module_has_one_finder() -> None:
    entries()
    find = sys.modules["drafttrace.compare.findings.wiring"].find
    with pytest.raises(ValueError, match=r"findings\.wiring has two finders"):
        finder()(find)


@pytest.mark.parametrize(
    "first",
    ["findings.wiring", "findings.level", "audit.causes", "audit.weight_checks", "judge", "diff", "vocabulary"],
)
def test_the_lists_are_the_same_whichever_module_was_imported_first(first: str) -> None:
    code = (
        f"import drafttrace.compare.{first}\nfrom drafttrace.compare.vocabulary import class_of, classes, entries\n"
        "print(class_of('weights-missing'), classes(), *(one.rank for one in entries().values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split("\n")[0] == " ".join(
        ["weights", str(classes()), *(str(one.rank) for one in entries().values())]
    )


def test_every_class_has_causes() -> None:
    assert list(classes()) == list(KINDS)
    assert all(classes().values())
