"""The canary on a real server: quiet while nothing changes, loud when the server does, and readable by Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from sglang_cpu import cpu_args

import drafttrace

pytestmark = pytest.mark.live

COMMAND = [sys.executable, "-m", "drafttrace.tracer.cli", "watch"]
SHORT = ("--max-new-tokens", "12")


def watch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300)


@pytest.fixture
def url(start_server: Callable[..., Any], pairs: Mapping[str, Any]) -> str:
    """A healthy server of tiny-llama; tests with the same arguments share it."""
    pair = pairs["tiny-llama"]
    return str(start_server(cpu_args(pair.target, pair.draft, steps=5, num_draft_tokens=6)).url)


def runs_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_server_that_stays_itself_is_quiet(url: str, pairs: Mapping[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "canary.jsonl"
    folder = tmp_path / "canary"
    done = watch(
        "--url", url, "--every", "1s", "--count", "2", "--from-dump", pairs["tiny-llama"].dump, *SHORT,
        "--dir", folder, "--json", log,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    runs = runs_of(log)
    assert [(run["number"], run["kind"]) for run in runs] == [(1, "cold"), (1, "warm"), (2, "cold"), (2, "warm")]
    for run in runs:
        assert run["verdict"] in {"match", "noise"} and not run["drift"] and run["problem"] is None
        assert len(run["aux_drift"]) == 3 and max(run["aux_drift"]) < 0.05 and run["rows"] > 5
        assert run["accept_length"] >= 1 and run["trace"] is None
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and "just recorded" in lines[0]
    assert all(
        re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  run [12] (cold|warm): ok, aux drift", x) for x in lines[1:]
    )
    assert [path.name for path in folder.iterdir()] == ["first.h5"]  # what did not drift is not kept
    again = watch(folder / "first.h5", "--url", url, "--count", "1", "--dir", folder, "--no-warm")
    assert again.returncode == 0 and len(again.stdout.splitlines()) == 2


def test_the_own_prompt_is_answered_past_the_end_of_the_text(url: str, tmp_path: Path) -> None:
    """A model with little to say ended at once: no round of its draft, and a canary that watched no accept length."""
    log = tmp_path / "canary.jsonl"
    done = watch("--url", url, "--count", "1", *SHORT, "--dir", tmp_path / "c", "--json", log)
    assert done.returncode == 0 and "has no accept length" not in done.stderr, (done.stdout, done.stderr)
    first = drafttrace.open(tmp_path / "c/first.h5")
    assert first.about["request"]["sampling"]["ignore_eos"] and len(first.tokens) - (first.prompt_length or 0) == 12
    cold, warm = runs_of(log)
    assert cold["accept_length"] == cold["first_accept_length"] and cold["accept_length"] >= 1
    # The prompt is longer than the sweep of the first trace: the warm run has no row of it.
    assert warm["problem"] is None and not warm["drift"] and warm["rows"] >= 10


def test_a_server_that_changed_is_told(
    url: str, start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    """The same address serves another wiring than when the first trace was recorded: nothing in the request differs."""
    first = tmp_path / "first.h5"
    assert watch(first, "--url", url, "--count", "1", "--prompt", "Where is the mill?", *SHORT).returncode == 0
    pair = pairs["tiny-llama"]
    arguments = cpu_args(pair.target, pair.draft, steps=5, num_draft_tokens=6)
    other = start_server(arguments, serve=("--wiring", "B3,B9,B14"))
    folder = tmp_path / "canary"
    done = watch(first, "--url", other.url, "--count", "1", "--dir", folder, "--json", tmp_path / "c.jsonl")
    assert done.returncode == 1, (done.stdout, done.stderr)
    cold, warm = runs_of(tmp_path / "c.jsonl")
    assert "boundary-offset" in cold["drift"] and warm["drift"]
    assert "DRIFT boundary-offset" in done.stdout
    assert Path(cold["trace"]).is_file()  # kept for a diff and a bug report
    assert len(list(folder.iterdir())) == 2


def test_a_target_whose_states_moved_a_little_is_told(
    url: str, start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    """A target with one changed layer: `watch` said ok, exit 0, of an aux drift of 0.08 while the server repeats at 0."""
    first, pair = tmp_path / "first.h5", pairs["tiny-llama"]
    place = ("--prompt", "Where is the mill?", "--dir", tmp_path / "canary")
    assert watch(first, "--url", url, "--count", "1", *place, *SHORT).returncode == 0
    target = shutil.copytree(pair.target, tmp_path / "target")
    (weights,) = target.glob("*.safetensors")
    tensors = load_file(weights)
    tensors["model.layers.5.self_attn.o_proj.weight"] *= 1.5
    save_file(tensors, weights, metadata={"format": "pt"})
    other = start_server(cpu_args(target, pair.draft, steps=5, num_draft_tokens=6))
    log = tmp_path / "c.jsonl"
    done = watch(first, "--url", other.url, "--count", "1", "--dir", tmp_path / "canary", "--json", log)
    assert done.returncode == 1, (done.stdout, done.stderr)
    for run in runs_of(log):
        assert run["drift"] and max(run["repeats"]) == 0 and 0.035 < max(run["aux_drift"]) < 0.25, run
    assert "DRIFT decay" in done.stdout and "(own repeats 0, limit 0.0" in done.stdout


def test_a_server_that_is_gone_is_a_line_and_no_end(url: str, tmp_path: Path) -> None:
    first = tmp_path / "first.h5"
    assert watch(first, "--url", url, "--count", "1", "--prompt", "Where is the mill?", *SHORT).returncode == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
    done = watch(first, "--url", dead, "--every", "1s", "--count", "2", "--dir", tmp_path / "c")
    assert done.returncode == 2 and done.stdout.count("No answer from") == 4 and "Traceback" not in done.stderr


def test_prometheus_and_ctrl_c(url: str, pairs: Mapping[str, Any], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--url", url, "--every", "1h", "--from-dump", str(pairs["tiny-llama"].dump), *SHORT,
         "--dir", str(tmp_path / "canary"), "--metrics", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A run of the tests in the background has Ctrl-C ignored, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]  # first trace, metrics, cold, warm
    address = re.search(r"metrics at (http://\S+)", "".join(lines))
    assert address is not None, lines
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address[1].replace("localhost", "127.0.0.1"), timeout=30) as answer:
        text = answer.read().decode()
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for kind in ("cold", "warm"):
        assert f'drafttrace_canary_up{{kind="{kind}"}} 1' in text
        assert f'drafttrace_canary_drifted{{kind="{kind}"}} 0' in text
        assert f'drafttrace_canary_runs_total{{kind="{kind}"}} 1' in text
        assert re.search(rf'drafttrace_canary_aux_drift{{kind="{kind}",slot="2"}} [\d.e-]+\n', text)
    assert text.count("# TYPE drafttrace_canary_aux_drift gauge") == 1
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in said


def test_the_examples_of_the_help_that_need_a_server(url: str, pairs: Mapping[str, Any], tmp_path: Path) -> None:
    """Those of record and watch, with this server's address and few tokens."""
    import shlex

    from drafttrace.tracer.cli import app

    shutil.copyfile(pairs["tiny-llama"].dump, tmp_path / "hs_0.safetensors")
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "Where is the mill?"}]')
    epilogs = [str(info.epilog) for info in app.registered_commands]
    lines = [line[2:] for text in epilogs for line in text.splitlines() if line.startswith("$ ")]
    live = [shlex.split(line)[1:] for line in lines if line.split()[1] in {"record", "watch"}]
    live = [words for words in live if "--metrics" not in words]
    assert len(live) == 6
    for words in live:
        words = [word.replace("data_0.pt", "hs_0.safetensors") for word in words]
        for option in ("--url", "--every", "--max-new-tokens"):
            if option in words:
                place = words.index(option)
                del words[place : place + 2]
        words += ["--url", url]
        if words[0] == "record":
            words += ["--max-new-tokens", "4", "--force"]
        elif "--count" not in words:
            words += ["--count", "1"]
        command = [sys.executable, "-m", "drafttrace.tracer.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
