"""The steps of the demo. Each runs the command line as a user would and keeps what it made."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_cpu import CpuServer, cpu_args, cpu_env

from demo.pairs import DemoPair
from drafttrace.tracer.errors import OutputExists

# The installed command, as a user types it, and the same thing for a process to start.
COMMAND = [sys.executable, "-m", "drafttrace.tracer.cli"]
PROMPTS = 20
NEW_TOKENS = 64
AT_ONCE = 8
MARK = "made-by-demo"
CONFIG_LINE = re.compile(r'"eagle_aux_hidden_state_layer_ids":\s*(\[[^\]]*\])')


class StoryFailed(Exception):
    """A step of the demo did not do what it promises; the message says which and what came instead."""


@dataclass(frozen=True)
class Served:
    """One serving of the draft: its accept length over all prompts, and the result of the comparison."""

    accept_length: float
    result: dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """``summary.json``."""

    pair: str
    prompts: int
    new_tokens: int
    accept_length_before: float
    accept_length_after: float
    ratio: float
    findings_before: list[str]
    findings_after: list[str]
    verdict_before: str
    verdict_after: str
    remedy: str


def say(text: str = "") -> None:
    print(text, flush=True)


def run(*arguments: str | Path, expect: int) -> None:
    """One drafttrace command, shown and run. Raises StoryFailed when it exits otherwise than the story needs."""
    words = [str(argument) for argument in arguments]
    say(f"\n$ drafttrace {shlex.join(words)}")
    code = subprocess.run([*COMMAND, *words], check=False).returncode
    if code != expect:
        raise StoryFailed(f"'drafttrace {words[0]}' exited with {code}, expected {expect}")


def server_line(args: Sequence[str], trace_dir: Path, port: int) -> str:
    """The command that starts the demo's server, as it can be typed: with what SGLang needs on a plain CPU."""
    variables = [f"{name}={value}" for name, value in cpu_env().items()]
    words = ["drafttrace", "serve", "--trace-dir", str(trace_dir), "--", *args]
    return shlex.join(["env", *variables, *words, "--host", "127.0.0.1", "--port", str(port)])


def accept_length(server: CpuServer, prompts: list[str]) -> float:
    """Output tokens per verify round over all prompts, from the server's own counters."""

    def counted(prompt: str) -> tuple[int, int]:
        meta = server.generate(prompt, max_new_tokens=NEW_TOKENS)["meta_info"]
        return meta["completion_tokens"], meta["spec_verify_ct"]

    # A tiny model's time is mostly overhead: requests that run in one batch share it.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        counts = list(pool.map(counted, prompts))
    return sum(tokens for tokens, _ in counts) / sum(rounds for _, rounds in counts)


def serve_and_diff(
    pair: DemoPair, target: Path, draft: Path, dump: Path, out: Path, *, name: str, expect: int
) -> Served:
    """Serve a draft with the plugin on, measure its accept length, record the dump's prompt, compare."""
    steps = pair.steps
    args = cpu_args(target, draft, steps=steps, topk=1, num_draft_tokens=steps + 1)
    trace_dir = out / "server-traces"
    launcher = [*COMMAND, "serve", "--trace-dir", str(trace_dir), "--"]
    say("\n  starting SGLang on this machine's CPU")
    trace = out / f"{name}.h5"
    with CpuServer(args, out / f"server-{name}.log", launcher=launcher) as server:
        say(f"$ {server_line(args, trace_dir, server.port)}")
        say(f"  up after {server.start_seconds:.0f} s; log in {server.log_path}")
        length = round(accept_length(server, pair.prompts(PROMPTS)), 3)  # as summary.json keeps it
        say(f"  accept length over {PROMPTS} prompts: {length:.2f}")
        run("record", "--url", server.url, "--from-dump", dump, "-o", trace, "--force", expect=0)
    reports = ["--json", out / f"{name}.json"]
    report = "report.md" if name == "before" else f"report-{name}.md"
    run("diff", trace, dump, "--md", out / report, "--html", out / f"{name}.html", *reports, expect=expect)
    return Served(length, json.loads((out / f"{name}.json").read_text()))


def printed_remedy(result: dict[str, Any]) -> tuple[str, list[int]]:
    """The remedy of the first finding, and the layer ids in the config line that it prints."""
    if not result["findings"]:
        raise StoryFailed("the comparison found nothing, though the draft is wired wrongly")
    remedy = result["findings"][0]["remedy"]
    line = CONFIG_LINE.search(remedy)
    if line is None:
        raise StoryFailed(f"the remedy holds no config line: {remedy}")
    return remedy, json.loads(line.group(1))


def apply_remedy(draft: Path, ids: list[int], copy: Path) -> None:
    """Write a copy of the draft whose config says ``ids``; the original stays as it is."""
    shutil.copytree(draft, copy)
    path = copy / "config.json"
    config = json.loads(path.read_text())
    config.setdefault("eagle_config", {})["eagle_aux_hidden_state_layer_ids"] = ids
    path.write_text(json.dumps(config, indent=2) + "\n")


def tell(pair: DemoPair, out: Path) -> Summary:
    """The whole story; everything it makes lies in ``out``, which is emptied first if an earlier demo made it."""
    if out.exists():
        if not (out / MARK).exists():
            raise OutputExists(f"'{out}' exists and was not made by the demo; give another --out.")
        shutil.rmtree(out)
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise OutputExists(f"The folder '{out}' cannot be made ({error.strerror}); give another --out.") from None
    (out / MARK).write_text("made by `make demo`; the next run empties this folder\n")
    target = pair.target()
    dump = out / "dump" / pair.dump.name
    shutil.copytree(pair.dump.parent, dump.parent)

    say(f"== 1. {pair.name} as its trainer left it")
    before = serve_and_diff(pair, target, pair.draft, dump, out, name="before", expect=1)
    remedy, ids = printed_remedy(before.result)
    fixed = out / "draft-fixed"
    apply_remedy(pair.draft, ids, fixed)
    say(f"\n== 2. the printed remedy, applied to a copy of the draft: eagle_aux_hidden_state_layer_ids = {ids}")
    after = serve_and_diff(pair, target, fixed, dump, out, name="after", expect=0)

    summary = Summary(
        pair=pair.name,
        prompts=PROMPTS,
        new_tokens=NEW_TOKENS,
        accept_length_before=round(before.accept_length, 3),
        accept_length_after=round(after.accept_length, 3),
        ratio=round(after.accept_length / before.accept_length, 3),
        findings_before=[finding["id"] for finding in before.result["findings"]],
        findings_after=[finding["id"] for finding in after.result["findings"]],
        verdict_before=before.result["verdict"],
        verdict_after=after.result["verdict"],
        remedy=remedy,
    )
    (out / "summary.json").write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return summary
