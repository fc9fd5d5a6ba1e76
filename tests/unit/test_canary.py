"""The canary's plans: intervals, the repeated prompt, what a run is called, and Prometheus' text."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import drafttrace
from drafttrace.compare.thresholds import Thresholds
from drafttrace.tracer import canary, output, prometheus
from drafttrace.tracer.capture import Slot
from drafttrace.tracer.client import Client, Prompt
from drafttrace.tracer.commands.watching import Canary
from drafttrace.tracer.errors import DrafttraceError

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"
LLAMA = ROOT / "traces/tiny-llama/healthy.h5"
# Prometheus' text format: a name, labels, a number; and the comments before each name.
SAMPLE = re.compile(r'drafttrace_canary_\w+\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\} \S+')
COMMENT = re.compile(r"# (HELP|TYPE) drafttrace_canary_\w+ .+")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10m", 600), ("1h", 3600), ("90", 90), ("1.5h", 5400), ("1d", 86400), (" 2 m ", 120)],
)
def test_intervals(text: str, seconds: float) -> None:
    assert canary.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10x", "-5s", "0", "0s", "1e3", "ten minutes"])
def test_what_is_no_interval(text: str) -> None:
    with pytest.raises(DrafttraceError, match="interval"):
        canary.seconds_of(text)


def test_an_interval_of_nothing_is_not_unreadable() -> None:
    with pytest.raises(DrafttraceError, match="'0s' is not positive"):
        canary.seconds_of("0s")


def test_the_prompt_is_the_first_traces() -> None:
    first = drafttrace.open(KIMI / "fixed.h5")
    ids, sampling = canary.repeated(first)
    assert len(ids) == first.prompt_length and list(ids) == first.tokens[: len(ids)].tolist()
    assert len(ids) + sampling.max_new_tokens == len(first.tokens) and not sampling.ignore_eos


def test_a_first_trace_past_the_end_of_its_text_is_repeated_past_it() -> None:
    """tiny-kimi has nothing to say to the canary's own prompt: no round of its draft, so no accept length was watched."""
    first = drafttrace.open(KIMI / "fixed.h5")
    request = first.about["request"]
    past = replace(first, about={**first.about, "request": {**request, "sampling": {"ignore_eos": True}}})
    assert canary.repeated(past)[1].ignore_eos


def test_a_dump_or_a_redacted_trace_cannot_be_repeated(tmp_path: Path) -> None:
    from drafttrace.tracer.trace.redact import redact

    with pytest.raises(DrafttraceError, match="no complete trace"):
        canary.repeated(drafttrace.open(KIMI / "dump/data_0.pt"))
    redact(KIMI / "fixed.h5", tmp_path / "r.h5")
    first = drafttrace.open(tmp_path / "r.h5")
    with pytest.raises(DrafttraceError, match="redacted"):
        canary.repeated(first)


def against_itself(path: Path) -> drafttrace.Result:
    """What an unchanged server gives: the first trace again. `drafttrace.diff` refuses one file as both sides."""
    from drafttrace.compare.diff import diff

    first = drafttrace.open(path)
    return diff(first, first)


@pytest.fixture(scope="module")
def same() -> drafttrace.Result:
    return against_itself(KIMI / "fixed.h5")


def judged(
    result: drafttrace.Result, kind: str = canary.COLD, first: float | None = None, cold_ok: bool = True
) -> canary.Run:
    return canary.judged(1, "2026-01-01T00:00:00Z", kind, result, first, 0.25, cold_ok)


def test_the_same_states_are_no_drift(same: drafttrace.Result) -> None:
    run = judged(same, first=same.acceptance.observed)
    assert run.compared and not run.drift and max(run.aux_drift) == 0
    assert "ok, aux drift 0 " in run.line() and canary.exit_code([run]) == 0


def test_a_shorter_accept_length_is_decay_or_the_caches(same: drafttrace.Result) -> None:
    observed = same.acceptance.observed
    assert observed is not None
    assert judged(same, first=observed * 1.2).drift == ()
    assert judged(same, first=observed * 1.5).drift == ("decay",)
    assert judged(same, canary.WARM, first=observed * 1.5).drift == ("cold-warm",)
    assert judged(same, canary.WARM, first=observed * 1.5, cold_ok=False).drift == ("decay",)


def test_a_server_that_is_wrong_cold_and_warm_is_no_matter_of_the_cache(same: drafttrace.Result) -> None:
    """The warm run was called `cold-warm` although the cold one before it was `decay`."""
    finding = replace(same.findings[0], id="cold-warm", severity="fault")
    warm = replace(same, findings=(finding,), verdict="mismatch")
    assert judged(warm, canary.WARM).drift == ("cold-warm",)
    assert judged(warm, canary.WARM, cold_ok=False).drift == ("decay",)


def test_a_fault_is_named(same: drafttrace.Result) -> None:
    run = judged(drafttrace.diff(KIMI / "as-trained.h5", KIMI / "fixed.h5"))
    assert run.drift and run.drift[0] in {"slot-shift", "boundary-offset", "wrong-boundary"}
    assert f"DRIFT {run.drift[0]}" in run.line() and canary.exit_code([judged(same), run]) == 1


def test_a_draft_that_was_bad_from_the_start_has_not_drifted() -> None:
    """A trace with an accept length of 1 against itself is `downstream`, and that is no news to the canary."""
    bad = against_itself(KIMI / "as-trained.h5")
    known = frozenset(canary.faults_of(bad))
    assert "downstream" in known and bad.verdict == "mismatch"
    run = canary.judged(1, "2026-01-01T00:00:00Z", canary.COLD, bad, bad.acceptance.observed, 0.25, True, known)
    assert run.compared and not run.drift and ": ok, " in run.line()
    other = drafttrace.diff(KIMI / "fixed.h5", KIMI / "as-trained.h5")
    assert canary.judged(1, "2026-01-01T00:00:00Z", canary.COLD, other, 1.0, 0.25, True, known).drift


def test_a_recording_that_is_not_whole_says_nothing_about_the_server(same: drafttrace.Result) -> None:
    finding = replace(same.findings[0], id="rows-dropped", severity="fault", summary="The recorder dropped 3 rows.")
    run = judged(replace(same, findings=(finding,), verdict="mismatch", summary=finding.summary))
    assert not run.drift and not run.compared and "not whole" in run.line()
    assert canary.exit_code([run]) == 2 and canary.exit_code([]) == 2


def test_what_could_not_be_compared_is_a_problem(same: drafttrace.Result) -> None:
    run = judged(replace(same, verdict="incomparable", slots=(), findings=()))
    assert not run.compared and "could not compare" in run.line() and run.to_json()["problem"]


def test_every_line_is_of_the_schema(same: drafttrace.Result) -> None:
    """Only a how-to page said what canary/1 is, and a slot of nothing but NaN was no JSON."""
    schema = json.loads((Path(canary.__file__).with_name("canary.schema.json")).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    assert schema["$id"] == canary.SCHEMA and set(schema["properties"]) == {"schema", *canary.Run.__annotations__}
    odd = replace(judged(same), aux_drift=(math.nan, 0.1), limits=(math.inf, 0.1), repeats=(math.nan,))
    runs = [
        judged(same),
        judged(same, canary.WARM, first=99.0),
        canary.failed(2, "2026-01-01T00:10:00Z", canary.COLD, "x"),
    ]
    for run in (*runs, odd):
        check.validate(json.loads(json.dumps(run.to_json(), allow_nan=False)))
    for spoil in (
        {"kind": "hot"},
        {"schema": "drafttrace.canary/2"},
        {"rows": -1},
        {"drift": "decay"},
        {"more": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            check.validate({**runs[0].to_json(), **spoil})


def test_prometheus_text(same: drafttrace.Result) -> None:
    metrics = prometheus.Metrics()
    assert metrics.text() == ""
    metrics.add(replace(judged(same, first=4.0), aux_drift=(0.0, 0.25, math.nan), drift=("decay",)))
    metrics.add(canary.failed(2, "2026-01-01T00:10:00Z", canary.COLD, "No answer."))
    metrics.add(judged(same, canary.WARM))
    text = metrics.text()
    assert 'drafttrace_canary_up{kind="cold"} 0' in text and 'drafttrace_canary_up{kind="warm"} 1' in text
    assert 'drafttrace_canary_drifts_total{kind="cold"} 1' in text
    assert 'drafttrace_canary_runs_total{kind="cold"} 2' in text
    for line in text.splitlines():
        assert SAMPLE.fullmatch(line) or COMMENT.fullmatch(line), line
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_an_error_of_our_own_is_a_run_with_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended a canary of months, and its metrics with it."""

    def broken(*_: object) -> None:
        raise ValueError("rows of nothing")

    monkeypatch.setattr(Canary, "_one", broken)
    first = drafttrace.open(KIMI / "fixed.h5")
    ids, sampling = canary.repeated(first)
    client, bounds = Client("http://127.0.0.1:9"), Thresholds()
    one = Canary(
        client, tmp_path, first, None, Prompt(input_ids=ids), sampling, True, 0.25, bounds, None, 1.0, False
    )
    runs = list(one.run(1))
    assert len(runs) == 2 and canary.exit_code(runs) == 2
    assert "drafttrace itself failed (ValueError: rows of nothing, at test_canary.py:" in str(runs[0].problem)


def test_counters_stand_at_zero_before_the_first_run(same: drafttrace.Result) -> None:
    """/metrics was empty for the first --every, so that no rate() saw the first run."""
    metrics = prometheus.Metrics((canary.COLD, canary.WARM))
    for name, kind in (("runs", "cold"), ("runs", "warm"), ("drifts", "cold"), ("drifts", "warm")):
        assert f'drafttrace_canary_{name}_total{{kind="{kind}"}} 0\n' in metrics.text()
    metrics.add(judged(same))
    assert 'runs_total{kind="cold"} 1\n' in metrics.text() and 'runs_total{kind="warm"} 0\n' in metrics.text()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:notaport", "99999999", "256.1.1.1:0"])
def test_an_address_that_cannot_be_listened_on(address: str) -> None:
    with pytest.raises(DrafttraceError, match="address"):
        prometheus.serve(prometheus.Metrics(), address)


def test_a_server_that_stays_wrong_does_not_fill_the_disk(
    same: drafttrace.Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every drifted trace was kept, two for each interval."""
    from drafttrace.compare.thresholds import DEFAULT
    from drafttrace.tracer.client import Client, Prompt, Sampling
    from drafttrace.tracer.commands import watching as watch

    times = iter(f"2026-01-01T00:00:{second:02}Z" for second in range(60))

    def one(self: watch.Canary, number: int, utc: str, kind: str, trace: Path, *more: object) -> canary.Run:
        trace.write_bytes(b"rows")
        return replace(judged(same, kind), number=number, drift=("decay",) if number != 2 else ())

    monkeypatch.setattr(watch.Canary, "_one", one)
    monkeypatch.setattr(watch, "now", lambda: next(times))
    first = drafttrace.open(KIMI / "fixed.h5")
    bird = watch.Canary(
        Client("http://127.0.0.1:9"),
        tmp_path,
        first,
        4.0,
        Prompt(),
        Sampling(),
        True,
        0.25,
        DEFAULT,
        None,
        1.0,
        False,
    )
    runs = [run for number in range(1, 6) for run in replace(bird, most_kept=3).run(number)]
    assert [run.trace is not None for run in runs] == [True, True, False, False, True, *[False] * 5]
    assert len(list(tmp_path.iterdir())) == 3
    assert all(run.trace for run in replace(bird, keep_all=True).run(2)) and len(list(tmp_path.iterdir())) == 5


def test_two_runs_in_the_same_second_replace_no_trace(tmp_path: Path) -> None:
    """A healthy run replaced the trace that the run before it had kept, and then removed it."""
    from drafttrace.tracer.commands.watching import free_place

    places = []
    for _ in range(3):
        places.append(free_place(tmp_path, "2026-11-30T23:57:07Z", "cold"))
        places[-1].touch()
    assert [place.name for place in places] == [
        "2026-11-30T235707Z-cold.h5",
        "2026-11-30T235707Z-2-cold.h5",
        "2026-11-30T235707Z-3-cold.h5",
    ]
    assert free_place(tmp_path, "2026-11-30T23:57:07Z", "warm").name == "2026-11-30T235707Z-warm.h5"


def shaken(level: float) -> drafttrace.Capture:
    """A healthy trace with white noise of a relative L2 of ``level`` on every slot, and without a layer sweep, as the
    canary records it: a sweep that had not moved with the slots would contradict them."""
    from compare_world import bf16

    capture = drafttrace.open(LLAMA)
    rng = np.random.default_rng(1)

    def moved(slot: Slot) -> Slot:
        x = slot.rows.floats(0, len(slot.rows))
        noise = rng.standard_normal(x.shape) * (np.linalg.norm(x, axis=1, keepdims=True) / math.sqrt(x.shape[1]))
        return replace(slot, rows=bf16((x + level * noise).astype(np.float32)))

    return replace(capture, path="later.h5", slots=tuple(map(moved, capture.slots)), boundaries={}, draft=None)


def run_of(left: drafttrace.Capture, repeats: float | None, *settings: str, **more: object) -> canary.Run:
    """A run against the healthy trace, whose server repeats itself up to ``repeats``, judged as watch does."""
    from drafttrace.compare.diff import diff
    from drafttrace.compare.thresholds import Noise, parse_thresholds

    first = drafttrace.open(LLAMA)
    floor = None if repeats is None else Noise("repeats", (repeats,) * 3, (repeats,) * 3)
    result = diff(left, first, thresholds=canary.bounds(parse_thresholds(settings)), noise=floor)
    arguments = {"kind": canary.COLD, "cold_ok": True, "known": frozenset[str](), **more}
    return canary.judged(
        1, "2026-01-01T00:00:00Z", result=result, first_accept=None, most_drop=0.25, repeats=floor, **arguments
    )  # type: ignore[arg-type]


def test_states_that_are_noise_to_a_diff_are_not_ok() -> None:
    """`watch` said ok, exit 0, of a target with another layer 5: aux drift 0.081, and the unchanged server repeats at 0."""
    left = shaken(0.06)
    assert drafttrace.diff(left, LLAMA).verdict == "noise"
    for repeats in (0.0, None):
        run = run_of(left, repeats)
        assert run.drift == ("decay",) and run.compared and canary.exit_code([run]) == 1, run
        assert "DRIFT decay, aux drift 0.0" in run.line()
    assert run_of(left, 0.0, kind=canary.WARM).drift == ("cold-warm",)
    assert run_of(left, 0.0, kind=canary.WARM, cold_ok=False).drift == ("decay",)
    values = prometheus.Metrics()
    values.add(run_of(left, 0.0))
    for sample in (
        'drifted{kind="cold"} 1',
        'aux_limit{kind="cold",slot="0"} 0.035',
        'aux_repeats{kind="cold",slot="0"} 0',
    ):
        assert f"drafttrace_canary_{sample}" in values.text()


def test_a_fault_that_was_there_from_the_start_hides_no_drift() -> None:
    run = run_of(shaken(0.06), 0.0, known=frozenset({"downstream"}))
    assert run.drift == ("decay",)


def test_a_server_that_repeats_itself_noisily_has_not_drifted() -> None:
    run = run_of(shaken(0.04), 0.03)
    assert not run.drift and "(own repeats 0.03, limit 0.06)" in run.line()
    assert run_of(shaken(0.06), 0.02).drift == ("decay",)
    quiet = run_of(shaken(0.01), 0.0)
    assert not quiet.drift and "aux drift 0.01 (own repeats 0, limit 0.035)" in quiet.line()


def test_the_limit_can_be_set() -> None:
    """--threshold match=0.02 changed nothing."""
    assert run_of(shaken(0.03), 0.0).drift == ()
    assert run_of(shaken(0.03), 0.0, "match=0.02").drift == ("decay",)


def test_an_accept_length_that_changed_is_told(same: drafttrace.Result) -> None:
    observed = same.acceptance.observed
    assert observed is not None
    assert "changed" not in judged(same, first=observed).line()
    assert f"(first {observed / 1.2:.2f}: changed by +20%)" in judged(same, first=observed / 1.2).line()


def test_an_accept_length_that_went_missing_is_a_problem(same: drafttrace.Result) -> None:
    """A run without rounds, where the first trace has some, was ok: the accept length was left out of its line."""
    gone = replace(same, acceptance=replace(same.acceptance, observed=None))
    run = judged(gone, first=6.0)
    assert not run.compared and "no accept length in this run (first 6.00)" in run.line()
    assert canary.exit_code([run]) == 2
    assert judged(gone).compared  # the first trace has none, either: said once, at the start


def test_a_first_trace_without_an_accept_length_is_told() -> None:
    first = drafttrace.open(KIMI / "fixed.h5")
    assert canary.about_first(first, 6.0, None) == []
    (told,) = canary.about_first(first, None, None)
    assert "has no accept length" in told


def test_an_option_that_the_first_trace_fixes_is_told() -> None:
    """`--max-new-tokens 99` beside a first trace with 32 was passed over without a word."""
    first = drafttrace.open(KIMI / "fixed.h5")
    assert canary.about_first(first, 6.0, 32) == []
    (told,) = canary.about_first(first, 6.0, 99)
    assert "--max-new-tokens 99 is not used" in told and "has 32" in told


def test_a_first_trace_that_is_taken_says_where_it_comes_from() -> None:
    said = canary.origin_of(drafttrace.open(KIMI / "fixed.h5"))
    assert said.startswith(" (of 2026-") and "from 127.0.0.1:" in said and "of pairs/tiny-kimi/target" in said


def test_watch_can_be_repeated_as_typed() -> None:
    """The prompt option of the first call was refused in the second; only another prompt is."""
    from drafttrace.tracer.client import Prompt
    from drafttrace.tracer.commands.prompts import refuse_another

    ids, _ = canary.repeated(drafttrace.open(KIMI / "fixed.h5"))
    refuse_another(KIMI / "fixed.h5", None)
    refuse_another(KIMI / "fixed.h5", Prompt(input_ids=ids))
    with pytest.raises(DrafttraceError, match="holds another prompt"):
        refuse_another(KIMI / "fixed.h5", Prompt(input_ids=ids[1:]))


def test_the_address_of_the_metrics_is_checked_before_anything_is_asked(tmp_path: Path) -> None:
    """The first trace was recorded, and then the address refused. Nothing answers here: it was not asked."""
    from typer.testing import CliRunner

    from drafttrace.tracer.cli import app

    folder = tmp_path / "canary"
    asked = ["watch", "--url", "http://127.0.0.1:9", "--dir", str(folder), "--count", "1"]
    done = CliRunner().invoke(app, [*asked, "--metrics", "nonsense"])
    assert done.exit_code and "nonsense" in f"{done.output}{done.exception}" and not folder.exists()
    done = CliRunner().invoke(app, asked)
    assert done.exit_code and not folder.exists()  # a watch that failed leaves no empty folder


def test_an_output_that_no_line_can_be_appended_to_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    """`watch --json` into no folder recorded the first trace, ran once and lost what the run said."""
    from typer.testing import CliRunner

    from drafttrace.tracer.cli import app

    folder = tmp_path / "canary"
    for place, told in ((tmp_path / "none/x.jsonl", "does not exist"), (tmp_path, "is a folder")):
        asked = ["watch", "--url", "http://127.0.0.1:9", "--dir", str(folder), "--count", "1", "--json", str(place)]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code and told in f"{done.output}{done.exception}" and not folder.exists(), done
    lines = tmp_path / "x.jsonl"
    lines.write_text("{}\n")
    output.check_appendable(lines)
    output.check_appendable(tmp_path / "new.jsonl")
    assert lines.read_text() == "{}\n" and not (tmp_path / "new.jsonl").exists()
