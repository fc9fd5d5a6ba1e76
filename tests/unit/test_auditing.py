"""``drafttrace audit``: whole folders, one table, resumed, in processes and on a Ray cluster."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.kimi_pair import Shape, write_dump, write_trace
from drafttrace.tracer.auditing.jobs import Job, plan
from drafttrace.tracer.auditing.outcome import COMPARED, FAILED, UNMATCHED, Outcome
from drafttrace.tracer.auditing.pools import run_local, run_ray
from drafttrace.tracer.auditing.run import Order, run
from drafttrace.tracer.auditing.summary import FindingCount, Problem, Summary, _problems, render, summarise
from drafttrace.tracer.auditing.table import AuditTable
from drafttrace.tracer.auditing.work import Settings
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnknownFormat

ROOT = Path(__file__).resolve().parents[2]
SMALL = Shape(tokens=24, width=96)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(
    folder: Path, count: int, shifted: tuple[int, ...] = (), untraced: tuple[int, ...] = ()
) -> tuple[Path, Path]:
    """(dump, traces) of ``count`` samples. The traces' names say nothing: they are found by their tokens."""
    dump, traces = folder / "dump", folder / "traces"
    dump.mkdir(parents=True)
    traces.mkdir()
    for k in range(count):
        shape = Shape(SMALL.tokens + k, SMALL.width, seed=k, shifted=k in shifted)
        write_dump(dump / f"hs_{k}.safetensors", shape)
        if k not in untraced:
            write_trace(traces / f"{'zyxwvutsrqponm'[k % 14]}{count - k}.h5", shape)
    return dump, traces


def audit(dump: Path, traces: Path, table: Path, **more: Any) -> dict[str, Any]:
    settings = more.pop("settings", Settings())
    run(Order(str(dump), str(traces), table, **{"workers": 2, **more}), settings)
    return summarise(table).to_json()


def rows(table: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(table)) as db:
        return db.execute(query).fetchall()


def test_samples_and_traces_find_each_other_and_causes_are_counted(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 6, shifted=(1, 4), untraced=(5,))
    found = audit(dump, traces, tmp_path / "audit.sqlite")
    assert (found["samples"], found["compared"], found["unmatched"], found["exit_code"]) == (6, 5, 1, 1)
    assert found["verdicts"] == {"match": 3, "mismatch": 2}
    first = found["findings"][0]
    assert (first["id"], first["severity"], first["samples"]) == ("slot-shift", "fault", 2)
    assert first["share"] == pytest.approx(2 / 5)
    assert {Path(e).name for e in first["examples"]} == {"hs_1.safetensors", "hs_4.safetensors"}
    assert found["rows_compared"] == sum(24 + k for k in range(5))
    assert "no capture of the served side" in found["problems"][0]["reason"]
    table = tmp_path / "audit.sqlite"
    for reference, left in rows(table, "SELECT reference, left FROM samples WHERE status = 'compared'"):
        k = int(Path(reference).name.removeprefix("hs_").removesuffix(".safetensors"))
        assert Path(left).name == f"{'zyxwvutsrqponm'[k]}{6 - k}.h5"
    levels = {level["slot"]: level for level in found["slots"]}
    assert set(levels) == {-1, 0, 1, 2} and levels[0]["mismatches"] == 2
    assert levels[0]["worst_rel_l2"] > 0.3 > levels[0]["rel_l2"]


def test_an_audit_says_what_diff_says(tmp_path: Path) -> None:
    from drafttrace.compare.diff import diff
    from drafttrace.tracer.open import open_capture

    dump, traces = make(tmp_path, 2, shifted=(1,))
    audit(dump, traces, tmp_path / "audit.sqlite")
    for reference, left, verdict, summary in rows(
        tmp_path / "audit.sqlite", "SELECT reference, left, verdict, summary FROM samples"
    ):
        ours = open_capture(left)
        result = diff(ours, open_capture(reference, like=ours))
        assert (verdict, summary) == (result.verdict, result.summary)
        ids = rows(tmp_path / "audit.sqlite", f"SELECT id FROM findings WHERE reference = '{reference}'")
        assert sorted(i for (i,) in ids) == sorted(f.id for f in result.findings)


def test_a_finished_audit_is_one_file_also_while_it_is_read(tmp_path: Path) -> None:
    """Its summary is read without the right to write, which left two empty files beside a table in WAL mode."""
    dump, traces = make(tmp_path, 2)
    for _ in range(2):  # the second one goes on with the first
        audit(dump, traces, tmp_path / "out.sqlite")
        assert [path.name for path in tmp_path.glob("out.sqlite*")] == ["out.sqlite"]


def test_an_audit_that_somebody_reads_all_the_while_ends_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafttrace.tracer.auditing.table._PATIENCE", 0.05)
    path = tmp_path / "out.sqlite"
    with AuditTable(path, {"of": "this"}):
        reader = sqlite3.connect(path)
        statement = reader.execute("SELECT key FROM about")
        assert statement.fetchone()  # and it stays open
    assert statement.fetchone()
    with AuditTable(path, {"of": "this"}) as again:
        assert again.query("SELECT count(*) FROM samples") == [(0,)]
    reader.close()


def mark(table: Path) -> set[str]:
    """Put a word into every sample of the table that no audit writes; the samples' names. Those with the word later
    were not looked at again (a row's number does not tell: SQLite gives a freed one to the next row)."""
    with closing(sqlite3.connect(table)) as db, db:
        db.execute("UPDATE samples SET summary = 'kept'")
    return marked(table)


def marked(table: Path) -> set[str]:
    return {Path(name).name for (name,) in rows(table, "SELECT reference FROM samples WHERE summary = 'kept'")}


def test_a_second_run_does_only_what_is_new_or_changed(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 4)
    table = tmp_path / "audit.sqlite"
    audit(dump, traces, table)
    assert not marked(table)
    first = mark(table)
    assert len(first) == 4
    audit(dump, traces, table)
    assert marked(table) == first
    shape = Shape(40, SMALL.width, seed=77)
    write_dump(dump / "hs_4.safetensors", shape)
    write_trace(traces / "new.h5", shape)
    write_dump(dump / "hs_0.safetensors", Shape(SMALL.tokens, SMALL.width, seed=0, wiring=(0, 4, 31, 59)))
    (dump / "hs_3.safetensors").unlink()
    found = audit(dump, traces, table)
    names = {Path(name).name for (name,) in rows(table, "SELECT reference FROM samples")}
    assert names == {"hs_0.safetensors", "hs_1.safetensors", "hs_2.safetensors", "hs_4.safetensors"}
    assert marked(table) == {"hs_1.safetensors", "hs_2.safetensors"}
    assert found["samples"] == 4 and found["verdicts"] == {"match": 3, "mismatch": 1}


def test_a_killed_audit_goes_on_where_it_was(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 14)
    table = tmp_path / "audit.sqlite"
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "audit", dump, "--against", traces, "-o", table]
    child = subprocess.Popen([*command, "--workers", "1", "-q"], start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while child.poll() is None and time.monotonic() < deadline and not _count(table):
            time.sleep(0.01)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    before = mark(table)
    assert before
    done = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdicts"] == {"match": 14}
    assert marked(table) == before


def _count(table: Path) -> int:
    if not table.exists():
        return 0
    try:
        return int(rows(table, "SELECT COUNT(*) FROM samples")[0][0])
    except sqlite3.OperationalError:
        return 0


def test_a_damaged_sample_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 3)
    damaged = dump / "hs_1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    found = audit(dump, traces, tmp_path / "audit.sqlite")
    assert (found["compared"], found["failed"], found["exit_code"]) == (2, 1, 1)
    problem = next(p for p in found["problems"] if p["status"] == FAILED)
    assert problem["examples"] == (str(damaged),) and "Error" not in problem["reason"]


def test_a_damaged_trace_hides_no_other(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 2)
    (traces / "broken.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(200))
    found = audit(dump, traces, tmp_path / "audit.sqlite")
    assert found["verdicts"] == {"match": 2}


def test_dumps_against_dumps(tmp_path: Path) -> None:
    """The served side may be another dump of the same texts; equal tokens in two files go by their number."""
    dump, _traces = make(tmp_path / "a", 3)
    other, _ = make(tmp_path / "b", 3)
    for folder in (dump, other):
        write_dump(folder / "hs_3.safetensors", Shape(SMALL.tokens, SMALL.width, seed=0))  # the tokens of hs_0
    found = audit(dump, other, tmp_path / "audit.sqlite")
    assert found["verdicts"] == {"match": 4}
    pairs = rows(tmp_path / "audit.sqlite", "SELECT reference, left FROM samples")
    assert all(Path(reference).name == Path(left).name for reference, left in pairs)


def test_captures_that_cannot_be_told_apart_are_not_guessed(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 1)
    write_trace(traces / "again.h5", Shape(SMALL.tokens, SMALL.width, seed=0))
    found = audit(dump, traces, tmp_path / "audit.sqlite")
    assert (found["unmatched"], found["exit_code"]) == (1, 2)
    reason = found["problems"][0]["reason"]
    assert "2 captures share equally many tokens" in reason and "a folder that holds one of them" in reason


def test_a_trace_that_another_one_fits_better_is_told_and_not_left_out_in_silence(tmp_path: Path) -> None:
    """Two traces of one prompt, one of them of a miswired server: "1 match", exit 0, and not a word of the other."""
    dump, traces = make(tmp_path, 1)
    write_trace(traces / "miswired.h5", Shape(SMALL.tokens - 4, SMALL.width, seed=0, shifted=True))
    table = tmp_path / "audit.sqlite"
    found = audit(dump, traces, table)
    assert found["verdicts"] == {"match": 1}
    assert [Path(name).name for name in found["passed_over"]] == ["miswired.h5"]
    said = io.StringIO()
    render(summarise(table), Console(width=200, file=said))
    assert "1 trace of the served side was compared with nothing" in said.getvalue()
    (traces / "miswired.h5").unlink()
    assert audit(dump, traces, table)["passed_over"] == ()


def test_a_shared_system_prompt_pairs_nobody(tmp_path: Path) -> None:
    """Sample 6 of tiny-kimi begins with the first eight tokens of sample 0, and was compared with its trace."""
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "t.h5").symlink_to(ROOT / "traces/tiny-kimi/fixed.h5")
    found = audit(ROOT / "pairs/tiny-kimi/dump", traces, tmp_path / "audit.sqlite")
    assert "template-divergence" not in {finding["id"] for finding in found["findings"]}
    reasons = dict(
        rows(tmp_path / "audit.sqlite", "SELECT reference, error FROM samples WHERE status = 'unmatched'")
    )
    (sixth,) = [reason for reference, reason in reasons.items() if reference.endswith("data_6.pt")]
    assert sixth == "every capture that starts with its first tokens shares more of them with another sample"
    assert found["compared"] == 1 and found["verdicts"] == {"match": 1}


def test_what_explains_most_stands_first_among_equals(tmp_path: Path) -> None:
    """The incident's boundary-offset was listed before its slot-shift, by its name."""
    found = audit(ROOT / "pairs/tiny-kimi/dump", ROOT / "traces/tiny-kimi/as-trained.h5", tmp_path / "audit.sqlite")
    assert [f["id"] for f in found["findings"]][:2] == ["slot-shift", "boundary-offset"]


def test_thresholds_and_limit(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 3)
    strict = Settings(thresholds=("match=1e-9", "noise=1e-9"))
    found = audit(dump, traces, tmp_path / "audit.sqlite", settings=strict, limit=2)
    assert found["verdicts"] == {"mismatch": 2}
    with pytest.raises(OutputExists, match="audit of something else"):
        audit(dump, traces, tmp_path / "audit.sqlite")
    assert audit(dump, traces, tmp_path / "audit.sqlite", force=True)["verdicts"] == {"match": 3}


def test_a_file_that_is_no_audit_is_left_alone(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 1)
    table = tmp_path / "notes.txt"
    table.write_text("my notes " * 50)
    with pytest.raises(OutputExists, match="no audit that can be continued"):
        audit(dump, traces, table)
    assert table.read_text().startswith("my notes")


def test_folders_without_samples_are_refused(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 1)
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, against in ((empty, traces), (dump, empty)):
        with pytest.raises(UnknownFormat, match="holds no file"):
            list(plan(str(folder), str(against), None, Request()))


def dies_on_one(job: Job, settings: Settings) -> Outcome:
    """Work whose process is killed, as by the kernel when memory runs out."""
    if "hs_2" in job.reference.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(job.reference.name, None, job.stamp, COMPARED)


def test_a_worker_that_dies_costs_its_own_sample_only(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 8)
    jobs = list(plan(str(dump), str(traces), None, Request()))
    done = {Path(o.reference).name: o for o in run_local(jobs, Settings(), 2, dies_on_one)}
    assert len(done) == 8
    assert done.pop("hs_2.safetensors").status == FAILED
    assert {o.status for o in done.values()} == {COMPARED}


def lazily(jobs: list[Job], taken: list[int]) -> Iterator[Job]:
    for number, job in enumerate(jobs):
        taken.append(number)
        yield job


def test_thousands_of_jobs_do_not_wait_in_memory(tmp_path: Path) -> None:
    dump, traces = make(tmp_path, 1)
    jobs = list(plan(str(dump), str(traces), None, Request())) * 200
    taken: list[int] = []
    outcomes = run_local(lazily(jobs, taken), Settings(), 1)
    next(outcomes)
    assert len(taken) <= 8
    outcomes.close()  # type: ignore[attr-defined]


def test_ray_does_the_same_on_a_cluster_of_two_workers(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'drafttrace[cluster]'")
    from ray.cluster_utils import Cluster

    dump, traces = make(tmp_path, 5, shifted=(2,), untraced=(4,))
    damaged = dump / "hs_0.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        jobs = list(plan(str(dump), str(traces), None, Request()))
        done = {Path(o.reference).name: o for o in run_ray(jobs, Settings(), cluster.address)}
        assert not ray.is_initialized()
        found = audit(dump, traces, tmp_path / "audit.sqlite", ray=cluster.address)
    finally:
        cluster.shutdown()
    assert {name: o.status for name, o in done.items()} == {
        "hs_0.safetensors": FAILED,
        **{f"hs_{k}.safetensors": COMPARED for k in (1, 2, 3)},
        "hs_4.safetensors": UNMATCHED,
    }
    assert done["hs_2.safetensors"].verdict == "mismatch"
    assert found["verdicts"] == {"match": 2, "mismatch": 1}
    here = audit(dump, traces, tmp_path / "here.sqlite")
    assert {k: v for k, v in here.items() if k not in {"table", "seconds"}} == {
        k: v for k, v in found.items() if k not in {"table", "seconds"}
    }


def test_without_ray_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DrafttraceError, match=r"pip install 'drafttrace\[cluster\]'"):
        list(run_ray([], Settings(), None))


def test_names_of_files_are_shown_and_never_obeyed() -> None:
    """A dump named ``[red]x[/red]`` lost its brackets, and one with an escape sequence in it coloured the terminal."""
    name = "[red]x[/red]\x1b[31m.pt"
    found = FindingCount("slot-shift", "fault", 1, 1.0, 0.98, f"In {name}.", f"Set [0, 3, 31] in {name}.", (name,))
    problem = Problem(FAILED, f"{name} is cut off", 1, (name,))
    summary = Summary(name, 2, 1, 0, 0, 1, {"mismatch": 1}, 5, 0.1, (found,), (), (problem,), 1)
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with console.capture() as captured:
        render(summary, console)
    text = captured.get()
    assert text.count("[red]x[/red]\\x1b[31m.pt") == 5 and "\x1b[31m" not in text


def test_the_reason_of_several_samples_names_the_first_file() -> None:
    """ "The file '<file>' cannot be read": of one sample, too."""
    rows = [(FAILED, f"The file '{name}' is cut off.", f"{name}#0") for name in ("a.pt", "b.pt")]
    (found,) = _problems(lambda sql, *words: rows)
    assert (found.reason, found.samples, found.examples) == ("The file 'a.pt' is cut off.", 2, ("a.pt#0", "b.pt#0"))
