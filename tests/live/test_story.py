"""From a training dump to a named cause, with the commands that a user types, on real servers of both pairs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sglang_cpu import cpu_args
from site_folder import python_path_with
from typed import compared, drafttrace, faults, recorded

from pairs.accept_length import accept_length_of, held_out_prompts, rewired

STEPS = 5


def args_of(pair: Any, draft: Path | None = None, algorithm: str = "EAGLE3") -> list[str]:
    return cpu_args(pair.target, draft or pair.draft, steps=STEPS, num_draft_tokens=STEPS + 1, algorithm=algorithm)


@pytest.fixture
def served(start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory):
    """``served(pair, ids)``: a server whose draft config names these ids (None: as the trainer left it)."""

    def start(name: str, ids: Sequence[int] | None = None, **more: Any) -> Any:
        pair = pairs[name]
        draft = pair.draft
        if ids is not None:
            home = tmp_path_factory.getbasetemp() / f"{name}-{'_'.join(map(str, ids))}"
            draft = home if home.exists() else rewired(pair.draft, ids, home)
        return start_server(args_of(pair, draft, **more))

    return start


pytestmark = pytest.mark.live


def test_the_incident_as_todays_release_makes_it(served: Any, pairs: Mapping[str, Any], tmp_path: Path) -> None:
    """[2, 30, 58] means B{2, 30, 58} in 0.5.23: the slots are moved, and each is one boundary early."""
    pair = pairs["tiny-kimi"]
    trace = recorded(served("tiny-kimi").url, pair.dump, tmp_path / "t.h5")
    report = tmp_path / "report.md"
    result, code = compared(trace, pair.dump, "--md", report)
    assert code == 1 and result["verdict"] == "mismatch"
    assert faults(result)[:2] == ["slot-shift", "boundary-offset"], faults(result)
    assert "[0, 3, 31]" in result["findings"][0]["remedy"]
    assert result["left"]["wiring"] == ["B2", "B30", "B58"]
    text = report.read_text()
    assert "slot-shift" in text and "[0, 3, 31]" in text and len(text) < 60_000


def test_the_original_incident_is_a_pure_shift(served: Any, pairs: Mapping[str, Any], tmp_path: Path) -> None:
    """As older releases read the same config: B{3, 31, 59} in place of [B0, B3, B31]."""
    pair = pairs["tiny-kimi"]
    trace = recorded(served("tiny-kimi", [3, 31, 59]).url, pair.dump, tmp_path / "t.h5")
    result, code = compared(trace, pair.dump)
    assert code == 1
    assert faults(result)[0] == "slot-shift" and "boundary-offset" not in faults(result)
    assert "[0, 3, 31]" in result["findings"][0]["remedy"]


@pytest.mark.parametrize(("name", "ids"), [("tiny-kimi", [0, 3, 31]), ("tiny-llama", None)])
def test_a_healthy_pair_matches(
    name: str, ids: list[int] | None, served: Any, pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    trace = recorded(served(name, ids).url, pairs[name].dump, tmp_path / "t.h5")
    result, code = compared(trace, pairs[name].dump)
    assert code == 0, result["findings"]
    assert result["verdict"] == "match" and not faults(result)
    assert "none" in [finding["id"] for finding in result["findings"]]
    for slot in result["slots"]:
        assert slot["cosine"]["p50"] >= 0.999
        assert slot["best_match"]["margin"] > 1.5  # the right boundary is the only one that fits


@pytest.mark.parametrize(("name", "ids"), [("tiny-kimi", [0, 3, 31]), ("tiny-llama", None)])
def test_a_correctly_wired_draft_is_a_good_one(name: str, ids: list[int] | None, served: Any) -> None:
    """On prompts that no training saw; a pair below 2.2 could not show what a wrong wiring costs."""
    server = served(name, ids).server
    counts = [accept_length_of(server.generate(prompt, max_new_tokens=48)) for prompt in held_out_prompts(8)]
    length = sum(tokens for tokens, _ in counts) / sum(rounds for _, rounds in counts)
    print(f"{name}: accept length {length:.2f} of {STEPS + 1}")
    assert length >= 2.2


def test_the_default_wiring_is_named(
    start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    """No ids where SGLang reads them (they stand at the top level, as speculators writes them)."""
    pair = pairs["tiny-kimi"]
    draft = rewired(pair.draft, [0, 3, 31], tmp_path / "draft")
    config = json.loads((draft / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = config["eagle_config"].pop("eagle_aux_hidden_state_layer_ids")
    (draft / "config.json").write_text(json.dumps(config))
    server = start_server(args_of(pair, draft), fresh=True)
    result, code = compared(recorded(server.url, pair.dump, tmp_path / "t.h5"), pair.dump)
    assert code == 1
    assert "default-wiring" in faults(result)
    assert result["left"]["wiring"] == ["B2", "B30", "B58"]


def test_eagle_in_place_of_eagle3_never_calls_fc(
    start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    pair = pairs["tiny-llama"]
    server = start_server(args_of(pair, algorithm="EAGLE"), fresh=True)
    trace = tmp_path / "t.h5"
    done = drafttrace(
        "record", "--url", server.url, "--from-dump", pair.dump, "-o", trace, "--max-new-tokens", "16"
    )
    assert done.returncode in (0, 1), done.stderr  # the trace may be incomplete: fc never fired
    done = drafttrace("diff", trace, pair.dump, "--json", "-")
    assert done.returncode == 1, (done.stdout[-500:], done.stderr)
    assert faults(json.loads(done.stdout))[0] == "fc-not-called"


def test_a_server_without_the_plugin_is_told_apart(
    start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    server = start_server(args_of(pairs["tiny-llama"]), serve=None, fresh=True)
    done = drafttrace("record", "--url", server.url, "--prompt", "hello", "-o", tmp_path / "t.h5")
    assert done.returncode == 2 and "without the drafttrace plugin" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_prompt_longer_than_the_context_is_refused(served: Any, tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([5] * 50_000))
    done = drafttrace("record", "--url", served("tiny-llama").url, "--input-ids", ids, "-o", tmp_path / "t.h5")
    assert done.returncode == 2 and "context length" in done.stderr and "50000" in done.stderr
    assert not (tmp_path / "t.h5").exists()


def test_a_text_longer_than_the_context_is_refused_with_a_remedy(served: Any, tmp_path: Path) -> None:
    """Only the server can count a text's tokens; what it said was shown alone, without what to do."""
    text, messages = tmp_path / "text", tmp_path / "messages.json"
    text.write_text("Count from 3 to 9. " * 5_000)
    messages.write_text(json.dumps([{"role": "user", "content": text.read_text()}]))
    url = served("tiny-llama").url
    for given in (("--prompt-file", text), ("--messages", messages)):
        done = drafttrace("record", "--url", url, *given, "-o", tmp_path / "t.h5")
        assert done.returncode == 2 and "context length" in done.stderr, done.stderr
        assert "Lower --max-new-tokens or use a shorter prompt." in done.stderr
        assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "t.h5").exists()


def test_more_new_tokens_than_the_context_holds_are_refused(served: Any, tmp_path: Path) -> None:
    url, out = served("tiny-llama").url, tmp_path / "t.h5"
    done = drafttrace("record", "--url", url, "--prompt", "hello", "--max-new-tokens", "1000000", "-o", out)
    assert done.returncode == 2 and "--max-new-tokens 1000000" in done.stderr and "lower it" in done.stderr
    assert not out.exists()


def test_a_hook_that_sglang_has_no_symbol_for_is_named(
    start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    """A real server on an SGLang whose ``verify`` has another name, as a release could have it."""
    env = {"PYTHONPATH": python_path_with(Path(__file__).parent / "fault_site"), "DRAFTTRACE_TEST_RENAMED": "1"}
    url = start_server(args_of(pairs["tiny-llama"]), env=env, fresh=True).url
    done = drafttrace("record", "--url", url, "--prompt", "hello", "-o", tmp_path / "t.h5")
    assert done.returncode == 2 and "A hook did not apply" in done.stderr, done.stderr
    assert "EAGLEWorkerV2.verify" in done.stderr and "drafttrace doctor" in done.stderr
    assert not list(tmp_path.iterdir())


def test_messages_go_through_the_chat_template(served: Any, tmp_path: Path) -> None:
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Count from 3 to 9."}]))
    out = tmp_path / "t.h5"
    url = served("tiny-llama").url
    done = drafttrace(
        "record", "--url", url, "--messages", messages, "-o", out, "--json", "-", "--max-new-tokens", "8"
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["complete"] and answer["completion_tokens"] == 8 and answer["accept_length"] >= 1
    inspected = drafttrace("inspect", out, "--json", "-")
    assert inspected.returncode == 0, inspected.stderr


def test_a_trace_that_is_there_is_kept(served: Any, pairs: Mapping[str, Any], tmp_path: Path) -> None:
    out, note = tmp_path / "t.h5", tmp_path / "note"
    note.write_bytes(b"precious")
    record = ("record", "--url", served("tiny-llama").url, "--prompt", "hello", "--max-new-tokens", "4", "-o")
    assert drafttrace(*record, out).returncode == 0
    first = out.read_bytes()
    done = drafttrace(*record, out)
    assert done.returncode == 2 and "exists already" in done.stderr and out.read_bytes() == first
    done = drafttrace(*record, out, "--force")
    assert done.returncode == 0, done.stderr
    assert out.read_bytes()[:4] == b"\x89HDF" and out.read_bytes() != first
    done = drafttrace(*record, note, "--force")
    assert done.returncode == 2 and "no trace" in done.stderr and note.read_bytes() == b"precious"


def test_ctrl_c_leaves_nothing_behind(served: Any, tmp_path: Path) -> None:
    """Neither a half file here nor a half trace on the server."""
    server = served("tiny-llama").server

    def traces() -> dict[str, int]:
        return {trace["id"]: trace["rows"] for trace in server.get("/drafttrace/traces")["traces"]}

    before, out = traces(), tmp_path / "t.h5"
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "record", "--url", server.url, "--prompt", "hi"]
    record = subprocess.Popen(
        [*command, "--max-new-tokens", "1900", "-o", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 60
        while not any(rows for trace, rows in traces().items() if trace not in before):
            assert record.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        record.send_signal(signal.SIGINT)
        told = record.communicate(timeout=60)[1]
    finally:
        record.kill()
    assert record.returncode == 130 and "Traceback" not in told, told
    assert traces() == before and not list(tmp_path.iterdir())


def test_another_prompts_dump_is_no_comparison(served: Any, pairs: Mapping[str, Any], tmp_path: Path) -> None:
    """Different token ids: exit 2, and the first token that differs is shown as text."""
    pair = pairs["tiny-llama"]
    out = tmp_path / "t.h5"
    done = drafttrace("record", "--url", served("tiny-llama").url, "--prompt", "Zebra quilts", "-o", out)
    assert done.returncode == 0, done.stderr
    done = drafttrace("diff", out, pair.dump)  # whose samples share no more with it than with each other
    assert done.returncode == 2 and "Traceback" not in done.stderr
    done = drafttrace("diff", out, f"{pair.dump}#0", "--json", "-")
    assert done.returncode == 2
    result = json.loads(done.stdout)
    assert result["verdict"] == "incomparable"
    assert {"template-divergence", "no-overlap"} & {finding["id"] for finding in result["findings"]}
    first = result["alignment"]["first_difference"]
    assert "Zebra" in first["left_text"] and first["left_text"] in result["summary"]
    assert first["reference_text"] in result["summary"]
