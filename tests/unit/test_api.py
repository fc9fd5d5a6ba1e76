"""The Python interface, on the recorded traces: the examples of the documentation as tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import drafttrace
from drafttrace import plots
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.replay.result import ReplayResult
from drafttrace.compare.report_terminal import as_text
from drafttrace.row_table import FLAGS, IDENTITY, MEASURES, SERIES

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"
DUMP = KIMI / "dump/data_0.pt"
FOREIGN = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def result() -> drafttrace.Result:
    return drafttrace.diff(KIMI / "as-trained.h5", DUMP)


def test_importing_it_is_cheap() -> None:
    code = (
        "import sys, drafttrace\n"
        "assert set(drafttrace.__all__) <= set(dir(drafttrace))\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "h5py", "typer", "rich", "sglang"} & set(done.stdout.split())


def test_every_public_name_is_there() -> None:
    for name in drafttrace.__all__:
        assert getattr(drafttrace, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        drafttrace.nonsense  # noqa: B018


def test_open_reads_nothing_but_tells_what_it_is() -> None:
    trace = drafttrace.open(KIMI / "as-trained.h5")
    assert isinstance(trace, drafttrace.Capture)
    assert trace.wiring == (2, 30, 58)
    rows = trace.slots[0].rows
    assert rows.floats(0, 4).shape == (4, trace.hidden_size)
    assert repr(trace).startswith("<Capture ") and "[B2, B30, B58]" in repr(trace)
    assert "B30" in trace._repr_html_() and "layer sweep: 62 boundaries, B0 to B61" in trace._repr_html_()


def test_open_takes_what_a_file_does_not_say(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "mine.safetensors"
    states = {f"state_{k}": np.random.default_rng(k).normal(size=(6, 8)).astype(np.float32) for k in range(2)}
    save_file({**states, "ids": np.arange(6)}, path)
    capture = drafttrace.open(path, slots=("state_0", "state_1"), tokens="ids")
    assert len(capture.slots) == 2 and capture.tokens.tolist() == list(range(6))
    np.testing.assert_array_equal(capture.slots[1].rows.floats(), states["state_1"])
    more = drafttrace.open(
        path, slots=["state_0"], tokens="ids", last="state_1", last_norm="pre", mask="ids", boundaries=[2]
    )
    assert more.wiring == (2,) and more.last is not None and more.last.norm == "pre"
    assert more.mask is not None and more.mask.tolist() == list(range(6))
    with pytest.raises(drafttrace.DrafttraceError, match="'slots' and 'tokens'"):
        drafttrace.open(path, slots=("state_0",))
    with pytest.raises(drafttrace.DrafttraceError, match="'rms'"):
        drafttrace.open(path, slots=["state_0"], tokens="ids", last="state_1", last_norm="rms")


def test_diff_names_the_cause(result: drafttrace.Result) -> None:
    assert result.verdict == "mismatch"
    assert [finding.id for finding in result.findings][:2] == ["slot-shift", "boundary-offset"]
    assert "[0, 3, 31]" in result.findings[0].remedy
    fixed = drafttrace.diff(drafttrace.open(KIMI / "fixed.h5"), drafttrace.open(DUMP))
    assert fixed.verdict == "match" and fixed.exit_code == 0


def test_diff_takes_thresholds_and_a_noise_floor() -> None:
    strict = {"match": 1e-9, "noise": 2e-9, "neighbour_noise": 1e-9}
    assert drafttrace.diff(KIMI / "fixed.h5", DUMP, thresholds=strict).verdict == "mismatch"
    with pytest.raises(drafttrace.DrafttraceError, match="nonsense"):
        drafttrace.diff(KIMI / "fixed.h5", DUMP, thresholds={"nonsense": 1})
    floor = drafttrace.noise(KIMI / "fixed.h5", KIMI / "fixed.h5")
    assert len(floor.rel_l2) == 3
    judged = drafttrace.diff(KIMI / "fixed.h5", DUMP, noise=floor)
    assert "fixed.h5" in judged.noise.source
    assert (
        drafttrace.diff(KIMI / "fixed.h5", DUMP, noise=(KIMI / "fixed.h5", KIMI / "fixed.h5")).noise == judged.noise
    )


def test_a_result_shows_itself(result: drafttrace.Result) -> None:
    assert repr(result).startswith("<Result mismatch: slot-shift, boundary-offset")
    assert len(repr(result)) < 300
    text = str(result)
    assert text == as_text(result) and "1. slot-shift" in text and "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    page = result._repr_html_()
    assert "slot-shift" in page and "[0, 3, 31]" in page and "<table>" in page
    assert "<script" not in page and "<style" not in page and "class=" not in page


def test_a_finding_and_a_slot_show_themselves(result: drafttrace.Result) -> None:
    """In a notebook they were a page of a dataclass's fields, the evidence and 2000 rows of every series among them."""
    finding, slot = result.findings[0], result.slots[0]
    assert repr(finding) == f"<Finding slot-shift: fault, confidence {finding.confidence:.2f}, slots 0, 1, 2>"
    assert str(finding).startswith("slot-shift (fault, ") and str(finding).endswith(f"→ {finding.remedy}")
    assert repr(slot).startswith("<SlotResult 0: mismatch, B2 against ") and f"{slot.rows} rows>" in repr(slot)
    for shown in (repr(finding), repr(slot)):
        assert len(shown) < 200 and "\n" not in shown
    told = finding._repr_html_()
    assert "<code>slot-shift</code>" in told and "[0, 3, 31]" in told and "1. " not in told.split("</b>")[0]
    assert all(name in told for name in finding.evidence)
    line = slot._repr_html_()
    assert line.count("<tr>") == 2 and "rel L2" in line and "MISMATCH" in line
    for page in (told, line):
        assert "<script" not in page and "<style" not in page and "class=" not in page and len(page) < 20_000


def test_findings_and_slots_are_tables_as_the_last_line_of_a_cell(
    result: drafttrace.Result, tmp_path: Path
) -> None:
    """They were tuples, whose items a notebook shows by their repr."""
    result.save(tmp_path / "r.json")
    for shown in (result, drafttrace.load(tmp_path / "r.json")):
        findings, slots = shown.findings, shown.slots
        assert isinstance(findings, tuple) and findings == tuple(findings) and slots == tuple(slots)
        page = findings._repr_html_()  # type: ignore[attr-defined]
        assert all(f"<code>{one.id}</code>" in page for one in findings) and page.count("<details>") == len(
            findings
        )
        assert slots._repr_html_().count("<tr>") == 1 + len(slots)  # type: ignore[attr-defined]
        assert type(shown.others)(())._repr_html_() == "<div>no slots</div>"  # type: ignore[attr-defined]
        assert type(findings)(())._repr_html_() == "<div>no findings</div>"  # type: ignore[attr-defined]


def test_notebook_html_escapes_what_strangers_wrote(result: drafttrace.Result) -> None:
    from dataclasses import replace

    left = replace(result.left, path=FOREIGN)
    findings = tuple(replace(finding, summary=FOREIGN, remedy=FOREIGN) for finding in result.findings)
    page = replace(result, left=left, findings=findings, summary=FOREIGN)._repr_html_()
    assert FOREIGN not in page and "&lt;script&gt;" in page
    finding = replace(findings[0], evidence={FOREIGN: FOREIGN})
    assert FOREIGN not in finding._repr_html_() and "&lt;script&gt;" in finding._repr_html_()
    assert FOREIGN not in replace(result.slots[0], left=FOREIGN)._repr_html_()
    trace = drafttrace.open(KIMI / "as-trained.h5")
    assert FOREIGN not in replace(trace, path=FOREIGN, notes=(FOREIGN,))._repr_html_()


def test_a_result_is_saved_and_loaded(result: drafttrace.Result, tmp_path: Path) -> None:
    for name in ("r.json", "r.md", "r.html"):
        result.save(tmp_path / name)
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "mismatch"
    assert (
        "slot-shift" in (tmp_path / "r.md").read_text() and "<!doctype html>" in (tmp_path / "r.html").read_text()
    )
    assert drafttrace.load(tmp_path / "r.json").to_json() == result.to_json()
    lenient = drafttrace.load(tmp_path / "r.json", thresholds={"match": 0.04})
    assert lenient.thresholds.match == 0.04
    with pytest.raises(drafttrace.DrafttraceError, match=r"\.json, \.md, \.html"):
        result.save(tmp_path / "r.docx")
    with pytest.raises(drafttrace.DrafttraceError, match="cannot be written"):
        result.save(tmp_path / "no" / "r.json")
    with pytest.raises(drafttrace.DrafttraceError, match="cannot be read"):
        drafttrace.load(tmp_path / "missing.json")


def test_a_saved_result_replaces_reports_and_nothing_else(result: drafttrace.Result, tmp_path: Path) -> None:
    """It once wrote over whatever stood there: a trace named r.png, a note of the user's."""
    others = {
        "trace.png": (KIMI / "as-trained.h5").read_bytes(),
        "notes.md": b"what I tried\n",
        "r.json": b"[1, 2]\n",
    }
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(drafttrace.DrafttraceError, match="give another name"):
            result.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == data
    for name in ("twice.json", "twice.md", "twice.html", "twice.png"):
        result.save(tmp_path / name)
        first = (tmp_path / name).stat().st_ino
        result.save(tmp_path / name)
        assert (tmp_path / name).stat().st_ino != first  # a new file in its place, not the old one written over
    (tmp_path / "link.json").symlink_to(tmp_path / "twice.json")
    result.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


def test_measure_gives_every_row_that_diff_compared(result: drafttrace.Result) -> None:
    table = drafttrace.measure(KIMI / "as-trained.h5", DUMP)
    assert tuple(table) == (*IDENTITY, *MEASURES, *FLAGS)
    assert len(table) == 3 * result.alignment.rows_compared
    for slot in result.slots:
        mine = table["slot"] == slot.slot
        assert mine.sum() == slot.rows
        assert np.nanmax(table["max_abs"][mine]) == slot.max_abs
        ordinary = table["rel_l2"][mine]
        assert np.isclose(np.nanmin(ordinary), slot.rel_l2.min)
    left, reference = drafttrace.open(KIMI / "as-trained.h5"), drafttrace.open(DUMP)
    position = table["position"][table["slot"] == 1]
    row = int(np.flatnonzero(left.table.position == position[5])[0])
    x = left.slots[1].rows.floats(row, row + 1)[0].astype(np.float64)
    y = reference.slots[1].rows.floats(position[5], position[5] + 1)[0].astype(np.float64)
    assert np.isclose(table["rel_l2"][table["slot"] == 1][5], np.linalg.norm(x - y) / np.linalg.norm(y))


def test_measure_refuses_what_shares_nothing() -> None:
    other = ROOT / "traces/tiny-llama/healthy.h5"
    with pytest.raises(drafttrace.DrafttraceError, match="hidden sizes differ"):
        drafttrace.measure(other, DUMP)


def test_rows_are_what_the_result_keeps_for_its_plots(result: drafttrace.Result) -> None:
    table = drafttrace.rows(result)
    assert tuple(table.keys()) == (*IDENTITY, *SERIES)
    full = drafttrace.measure(KIMI / "as-trained.h5", DUMP)
    assert len(table) == len(full)  # a short request: nothing was thinned
    np.testing.assert_allclose(table["cosine"], full["cosine"], atol=1e-6)  # six digits are kept
    assert dict(table).keys() == set(table)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_row_measures_as_a_data_frame(library: str) -> None:
    pytest.importorskip(library)
    table = drafttrace.measure(KIMI / "as-trained.h5", DUMP)
    frame = getattr(table, f"to_{library}")()
    assert frame.shape == (len(table), len(tuple(table)))
    assert set(frame["phase"].unique()) == {"prefill", "verify"}
    np.testing.assert_array_equal(np.asarray(frame["cosine"]), table["cosine"])


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(drafttrace.DrafttraceError, match="pip install polars"):
        drafttrace.measure(KIMI / "fixed.h5", DUMP).to_polars()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "drafttrace.notebook_figure", raising=False)
    # in quotes: zsh takes the brackets for a pattern of file names
    with pytest.raises(drafttrace.DrafttraceError, match=r"pip install 'drafttrace\[plot\]'"):
        plots.by_position(drafttrace.diff(KIMI / "fixed.h5", DUMP))


def test_plots_draw_the_numbers(result: drafttrace.Result, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for measure in ("cosine", "rel_l2", "norm"):
        figure = plots.by_position(result, measure)
        lines = figure.axes[0].get_lines()
        assert (
            len(lines) == {"norm": 6, "rel_l2": 6, "cosine": 3}[measure]
        )  # every slot has its own limit of rel L2, too
        assert len(lines[0].get_xdata()) == result.slots[0].rows
        figure.savefig(tmp_path / f"{measure}.png")
    drawn = np.nanmedian(plots.by_position(result).axes[0].get_lines()[0].get_ydata())
    assert np.isclose(drawn, result.slots[0].cosine.p50, atol=1e-4) and 0 < drawn < 0.5
    slots, sweep = plots.heatmap(result), plots.heatmap(result, "boundaries", "cosine")
    assert slots.axes[0].images[0].get_array().shape == (5, 4)
    assert sweep.axes[0].images[0].get_array().shape == (6 + 2, 62)
    sweep.savefig(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 5000


def test_tokens_stay_numbers_without_the_package_that_reads_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace names a target that is on this machine, and `tokenizers` is not installed: no reason to fail."""
    from dataclasses import replace

    from drafttrace.tracer import decoding

    trace = drafttrace.open(KIMI / "fixed.h5")
    arguments = {**trace.about["server_args"], "tokenizer_path": str(ROOT / "pairs/tiny-kimi/target")}
    here = replace(trace, about={**trace.about, "server_args": arguments})
    assert decoding.tokenizer_folder(None, here) == ROOT / "pairs/tiny-kimi/target"
    monkeypatch.setattr(decoding, "find_spec", lambda name: None)
    assert decoding.tokenizer_folder(None, here) is None
    assert drafttrace.diff(here, DUMP).verdict == "match"


def test_there_is_nothing_to_plot_without_slots() -> None:
    alone = drafttrace.diff(KIMI / "fixed.h5")
    with pytest.raises(drafttrace.DrafttraceError, match="nothing to plot"):
        plots.by_position(alone)
    with pytest.raises(drafttrace.DrafttraceError, match="no matrix"):
        plots.heatmap(alone, "boundaries")


def test_check_audits_a_draft() -> None:
    pair = ROOT / "pairs/tiny-kimi"
    found = drafttrace.check(pair / "target", pair / "draft", pair / "dump/data_0.pt")
    assert found.exit_code == 1 and found.faults
    good = drafttrace.check(pair / "target", pair / "draft", trained=(2, 30, 58))
    assert good.wanted == (2, 30, 58)


def test_replay_runs_the_draft() -> None:
    pair = ROOT / "pairs/tiny-kimi"
    found = drafttrace.replay(pair / "dump/data_0.pt", pair / "draft", pair / "target", switches=False, steps=2)
    assert found.best is not None and found.best.wiring == "[B0, B3, B31]"


@pytest.fixture(scope="module")
def audited() -> CheckResult:
    pair = ROOT / "pairs/tiny-kimi"
    return drafttrace.check(pair / "target", pair / "draft", trained=(0, 3, 31))


@pytest.fixture(scope="module")
def replayed() -> ReplayResult:
    pair = ROOT / "pairs/tiny-kimi"
    return drafttrace.replay(pair / "dump/data_0.pt", pair / "draft", pair / "target", steps=2, switches=False)


@pytest.mark.parametrize("name", ["audited", "replayed"])
def test_audit_and_replay_show_themselves(name: str, request: pytest.FixtureRequest) -> None:
    """A notebook once showed pages of a dataclass's fields for them."""
    shown = request.getfixturevalue(name)
    kind = type(shown).__name__
    assert repr(shown).startswith(f"<{kind} {shown.verdict}: ") and len(repr(shown)) < 300
    text, page = str(shown), shown._repr_html_()
    assert shown.summary.split(":")[0] in text and "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert page.count("<table>") == page.count("</table>") >= 1 and page.count("<div") == page.count("</div>")
    assert "<script" not in page and "<style" not in page and "class=" not in page
    if name == "audited":
        assert "slot-shift" in repr(shown) and "slot-shift" in page and "[0, 3, 31]" in page
    else:
        assert shown.best is not None and shown.best.wiring in repr(shown) and shown.best.wiring in page


@pytest.mark.parametrize("name", ["audited", "replayed"])
def test_audit_and_replay_escape_what_strangers_wrote(name: str, request: pytest.FixtureRequest) -> None:
    from dataclasses import replace

    from drafttrace.compare.result import Finding

    shown = request.getfixturevalue(name)
    finding = Finding("none", "downstream", "note", 0.5, (), FOREIGN, {}, FOREIGN)
    page = replace(shown, findings=(finding,), notes=(FOREIGN,))._repr_html_()
    assert FOREIGN not in page and page.count("&lt;script&gt;") >= 3


def test_a_row_table_shows_its_ends() -> None:
    table = drafttrace.measure(KIMI / "as-trained.h5", DUMP)
    assert repr(table).startswith(f"<RowTable {len(table)} rows: slot, left, ")
    page = table._repr_html_()
    assert page.count("<tr>") == 1 + 5 + 1 + 5 and f"{len(table)} rows × {len(tuple(table))} columns" in page
    few = type(table)({name: column[:7] for name, column in table.columns.items()})
    assert few._repr_html_().count("<tr>") == 1 + 7
    assert (
        type(table)({name: column[:0] for name, column in table.columns.items()})._repr_html_().count("<tr>") == 1
    )


def test_a_recording_shows_itself_in_one_line() -> None:
    """Its prompt's token ids were all printed."""
    from drafttrace.tracer.client import Generated, Prompt
    from drafttrace.tracer.commands.record import Recorded

    made = Generated(text="...", output_ids=(), meta_info={"spec_accept_length": 2.5})
    prompt = Prompt(input_ids=tuple(range(5000)))
    recorded = Recorded(Path("t.h5"), "id", 3 << 20, True, None, None, prompt, made)
    assert repr(recorded) == "<Recorded t.h5: 3.0 MiB, accept length 2.50>"


def test_plots_can_be_reached_as_an_attribute() -> None:
    code = "import drafttrace; print(drafttrace.plots.by_position.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "drafttrace.plots"


def test_plots_know_what_they_can_plot(result: drafttrace.Result) -> None:
    """An unknown measure was an AttributeError of numpy's."""
    for call in (lambda: plots.by_position(result, "nonsense"), lambda: plots.heatmap(result, "slots", "norm")):
        with pytest.raises(drafttrace.DrafttraceError, match="choose one of cosine, rel_l2"):
            call()
    with pytest.raises(
        drafttrace.DrafttraceError, match="no matrix 'rows' to plot; choose one of slots, boundaries"
    ):
        plots.heatmap(result, "rows")  # type: ignore[arg-type]


def test_a_trace_is_redacted_and_converted(tmp_path: Path) -> None:
    shared = drafttrace.redact(KIMI / "fixed.h5", tmp_path / "shared.h5", drop_embeddings=True)
    assert drafttrace.open(shared).redacted and drafttrace.open(shared).embed is None
    with pytest.raises(drafttrace.DrafttraceError, match="exists already"):
        drafttrace.redact(KIMI / "fixed.h5", shared)
    (made,) = drafttrace.convert(f"{DUMP}", tmp_path / "dump.safetensors", "safetensors")
    assert drafttrace.open(made).wiring == drafttrace.open(DUMP).wiring
    with pytest.raises(drafttrace.DrafttraceError, match="no layout 'parquet'"):
        drafttrace.convert(DUMP, tmp_path / "x", "parquet")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["path", "capture", "ids"])
def test_a_reference_is_made_from_a_notebook(kind: str, tmp_path: Path) -> None:
    trace = drafttrace.open(KIMI / "fixed.h5")
    source = {"path": KIMI / "fixed.h5", "capture": trace, "ids": trace.tokens.tolist()}[kind]
    out = tmp_path / "reference.safetensors"
    target = ROOT / "pairs/tiny-kimi/target"
    assert drafttrace.reference(source, out, target=target, wiring=(0, 3, 31)) == (out,)
    assert drafttrace.diff(trace, out).verdict == "match"


def test_a_reference_wants_tokens_and_a_target(tmp_path: Path) -> None:
    target = ROOT / "pairs/tiny-kimi/target"
    with pytest.raises(drafttrace.DrafttraceError, match="is no whole number; give an int"):
        drafttrace.reference([1, "two"], tmp_path / "r.safetensors", target=target)  # type: ignore[list-item]
    with pytest.raises(drafttrace.DrafttraceError, match="No file names the target"):
        drafttrace.reference([1, 2], tmp_path / "r.safetensors")


def test_record_wants_one_prompt_and_a_server(tmp_path: Path) -> None:
    with pytest.raises(drafttrace.DrafttraceError, match="2 prompts"):
        drafttrace.record(tmp_path / "t.h5", prompt="a", input_ids=[1])
    with pytest.raises(drafttrace.DrafttraceError, match="No answer from"):
        drafttrace.record(tmp_path / "t.h5", url="http://127.0.0.1:9", prompt="a")
