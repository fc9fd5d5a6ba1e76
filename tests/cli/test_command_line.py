"""The command line as people meet it: help, examples, versions, terminals of every kind, completion, defaults."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from run_command import run

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"
PAIR = ROOT / "pairs/tiny-kimi"
DIFF = ("diff", KIMI / "as-trained.h5", KIMI / "dump/data_0.pt")
COMMANDS = (
    "demo",
    "doctor",
    "serve",
    "record",
    "watch",
    "diff",
    "audit",
    "inspect",
    "check",
    "replay",
    "report",
    "view",
    "redact",
    "reference",
    "convert",
)
TASKS = (
    "Start here",
    "On the server",
    "With a live server",
    "Find the cause",
    "Read and share reports",
    "Training side",
)


def words(text: str) -> str:
    """Text without the frames and line breaks of help panels."""
    return re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─|+]", " ", text))


@cache
def help_of(command: str) -> subprocess.CompletedProcess[str]:
    """Several tests look at it; each start of the command line takes a third of a second."""
    return run(command, "--help")


# --- help and examples -------------------------------------------------------------------------------------------


def test_help_has_a_panel_for_every_task_and_lists_every_command() -> None:
    text = run("--help").stdout
    places = [text.index(task) for task in TASKS]
    assert places == sorted(places)
    for command in COMMANDS:
        assert re.search(rf"^│ {command} ", text, re.MULTILINE), command
    listed = re.findall(r"^│ ([a-z]+) {2,}\S", text, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


def test_help_costs_at_most_0_3_seconds_of_a_processor() -> None:
    """Processor time, the least of a few runs: other work on the machine can only add to it."""

    def cost() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    costs: list[float] = []
    while len(costs) < 9 and min(costs, default=1.0) > 0.3:
        costs.append(cost())
    assert min(costs) <= 0.3, costs


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_examples_that_are_of_this_command(command: str) -> None:
    done = help_of(command)
    assert done.returncode == 0
    shown = words(done.stdout[done.stdout.index("Examples") :])
    assert f"$ drafttrace {command}" in shown
    assert shown.count("$ drafttrace ") == shown.count(f"$ drafttrace {command}") >= 1


def example_commands() -> list[str]:
    """Every example of every command, as it was written."""
    from drafttrace.tracer.cli import app

    texts = [info.epilog for info in app.registered_commands if isinstance(info.epilog, str)]
    assert len(texts) == len(COMMANDS)
    found = [line[2:].replace("\\[", "[") for text in texts for line in text.splitlines() if line.startswith("$ ")]
    assert len(found) > 25
    return found


# What needs a live server is run by tests/live; `reference` and `doctor` need a good deal of time or SGLang.
OFFLINE = [
    line
    for line in example_commands()
    if line.split()[1] not in {"serve", "record", "watch"} and not re.search(r"https?://|--ray", line)
]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with the files that the examples name."""
    for name, source in {
        "trace.h5": KIMI / "as-trained.h5",
        "again_1.h5": KIMI / "fixed.h5",
        "again_2.h5": KIMI / "fixed.h5",
        "data_0.pt": KIMI / "dump/data_0.pt",
        "data_config.json": KIMI / "dump/data_config.json",
        "dump": KIMI / "dump",
        "target": PAIR / "target",
        "draft": PAIR / "draft",
    }.items():
        (tmp_path / name).symlink_to(source)
    (tmp_path / "pairs").symlink_to(ROOT / "pairs")  # recorded traces name their folders from the repository's root
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/trace.h5").symlink_to(KIMI / "as-trained.h5")
    done = run("diff", "trace.h5", "data_0.pt", "--json", "result.json", "--quiet", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("line", OFFLINE)
def test_the_examples_of_the_help_run(line: str, desk: Path) -> None:
    arguments = shlex.split(line)[1:]
    if "/tmp/story" in arguments:
        arguments[arguments.index("/tmp/story")] = str(desk / "story")
    done = run(*arguments, cwd=desk)
    assert done.returncode in (0, 1), (line, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    if "--json -" in line:
        json.loads(done.stdout)


@pytest.mark.parametrize("command", ["serve", "watch"])
def test_paragraphs_of_a_help_are_not_broken_where_the_source_was(command: str) -> None:
    """Narrow terminals broke every line twice: where they end, and where the docstring's line did."""
    module = importlib.import_module(f"drafttrace.tracer.commands.{command}")
    paragraphs = [" ".join(part.split()) for part in str(getattr(module, command).__doc__).split("\n\n")]
    shown = [" ".join(line.split()) for line in run(command, "--help", env={"COLUMNS": "700"}).stdout.splitlines()]
    for paragraph in paragraphs:
        assert re.sub(r"\[/?[a-z]+\]", "", paragraph) in shown


def test_options_stand_in_panels_where_there_are_many() -> None:
    for command in ("record", "watch"):
        text = help_of(command).stdout
        assert text.index("─ Options ") < text.index("─ The server ") < text.index("─ The prompt ")


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_lines_are_not_doubled_in_brackets(command: str) -> None:
    usage = help_of(command).stdout
    assert "[[" not in usage


# --- version -----------------------------------------------------------------------------------------------------


def test_version() -> None:
    done = run("--version")
    assert done.returncode == 0 and re.fullmatch(r"drafttrace \d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize("order", [("--version", "--verbose"), ("--verbose", "--version"), ("-v", "--version")])
def test_version_verbose_is_the_block_for_bug_reports(order: tuple[str, ...]) -> None:
    done = run(*order)
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[:3] == ["python", "platform", "executable"]
    assert {"drafttrace", "sglang", "torch", "transformers", "h5py", "numpy"} <= set(names)


def test_nothing_is_a_usage_error_that_helps() -> None:
    done = run()
    assert done.returncode == 2 and "Find the cause" in done.stdout + done.stderr
    alone = run("--verbose")
    assert alone.returncode == 2 and "Find the cause" in alone.stdout


# --- terminals ---------------------------------------------------------------------------------------------------


def test_piped_output_has_no_escapes() -> None:
    done = run(*DIFF)
    assert done.returncode == 1 and "slot-shift" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def in_terminal(
    columns: int,
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    program: tuple[str, ...] = ("-m", "drafttrace.tracer.cli"),
) -> str:
    """What the command prints on a real pseudo-terminal of that width."""
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if not re.match(r"LC_|LANG|NO_COLOR|COLUMNS|FORCE_COLOR", k)}
    process = subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdout=follower,
        stderr=follower,
        stdin=subprocess.DEVNULL,
        env={**clean, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})},
    )
    os.close(follower)
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other side closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait(timeout=60)
    os.close(leader)
    return b"".join(chunks).decode()


def test_a_terminal_gets_colours_and_no_color_takes_them_away() -> None:
    assert "\x1b[1;31m" in in_terminal(120, *DIFF)
    plain = in_terminal(120, *DIFF, env={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain) and "slot-shift" in plain


@pytest.mark.parametrize(
    ("takes", "after", "seen"), [("0.5", "0", True), ("0.5", "0.1", True), ("0.1", "9", False)]
)
def test_what_takes_long_says_so_on_a_terminal(takes: str, after: str, seen: bool) -> None:
    """`diff` of large files stood still without a word; what is over at once shows no spinner, and neither does a pipe."""
    code = (
        "import sys, time\nfrom drafttrace.tracer import output\n"
        "with output.status('comparing', after=float(sys.argv[2])):\n    time.sleep(float(sys.argv[1]))\nprint('done')"
    )
    text = in_terminal(80, takes, after, program=("-c", code))
    assert ("comparing" in text) is seen and text.rstrip().endswith("done")
    done = subprocess.run([sys.executable, "-c", code, takes, after], capture_output=True, text=True, check=True)
    assert done.stdout == "done\n" and done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("what", ["diff", "inspect", "check", "doctor", "help"])
def test_narrow_terminals_are_not_overrun(columns: int, what: str) -> None:
    arguments: dict[str, tuple[str | Path, ...]] = {
        "diff": DIFF,
        "inspect": ("inspect", KIMI / "as-trained.h5"),
        "check": ("check", "--target", PAIR / "target", "--draft", PAIR / "draft"),
        "doctor": ("doctor",),
        "help": ("diff", "--help"),
    }
    text = in_terminal(columns, *arguments[what], env={"NO_COLOR": "1"})
    # On a busy machine there is a spinner, whose frames stand on one line, one over the other.
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]+", text)]
    assert max(len(line) for line in lines) <= columns
    assert len(lines) > 10


@pytest.mark.parametrize("columns", [40, 80])
def test_doctor_cuts_no_symbol_off(columns: int) -> None:
    """At 80 columns most of the symbols of SGLang ended in an ellipsis, and they are what one searches for."""
    told = json.loads(run("doctor", "--json", "-").stdout)
    shown = run("doctor", env={"COLUMNS": str(columns)}).stdout
    assert "…" not in shown and max(map(len, shown.splitlines())) <= columns
    whole = re.sub(r"\s", "", shown)
    assert told["hooks"] and all(hook["target"] in whole for hook in told["hooks"])


ASCII = [{"LANG": "C"}, {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, {"PYTHONIOENCODING": "ascii"}]


@pytest.mark.slow
@pytest.mark.parametrize("env", ASCII, ids=str)
@pytest.mark.parametrize("what", ["diff", "inspect", "help", "check"])
def test_ascii_terminals_get_ascii(env: dict[str, str], what: str) -> None:
    arguments: dict[str, tuple[str | Path, ...]] = {
        "diff": DIFF,
        "inspect": ("inspect", KIMI / "as-trained.h5"),
        "help": ("--help",),
        "check": ("check", "--target", PAIR / "target", "--draft", PAIR / "draft"),
    }
    done = run(*arguments[what], env=env)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.isascii() and done.stdout.strip()
    if what == "diff":
        assert "-> In the draft's config.json" in done.stdout


def test_utf8_terminals_get_what_was_written() -> None:
    for env in ({"LANG": "C.UTF-8"}, {"LANG": "en_US.UTF-8"}, {}):
        assert "→ In the draft's config.json" in run(*DIFF, env=env).stdout


def test_json_on_standard_output_is_utf8_whatever_the_terminal_knows(tmp_path: Path) -> None:
    odd = tmp_path / "spur–größe→.h5"
    shutil.copyfile(KIMI / "fixed.h5", odd)
    for env in ({"LC_ALL": "C"}, {"LANG": "C.UTF-8"}):
        done = run("diff", odd, KIMI / "dump/data_0.pt", "--json", "-", env=env)
        assert json.loads(done.stdout)["left"]["path"] == str(odd)


def test_an_error_about_an_odd_name_is_still_one_sentence(tmp_path: Path) -> None:
    done = run("inspect", tmp_path / "größe→.h5", env={"LC_ALL": "C"})
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.isascii()
    assert done.stderr.startswith("drafttrace: ")


# --- quiet, verbose ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [DIFF, ("inspect", KIMI / "fixed.h5"), ("check", "--target", PAIR / "target", "--draft", PAIR / "draft")],
    ids=lambda arguments: str(arguments[0]),
)
def test_quiet_prints_nothing_and_keeps_the_exit_code(arguments: tuple[str | Path, ...]) -> None:
    loud, quiet = run(*arguments), run(*arguments, "--quiet")
    assert loud.stdout and quiet.stdout == quiet.stderr == ""
    assert loud.returncode == quiet.returncode


def test_verbose_says_what_was_read_on_stderr() -> None:
    done = run(*DIFF, "--verbose")
    assert done.stdout == run(*DIFF).stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("drafttrace:")]
    assert len(lines) == 2 and "SPEC-V1" in done.stderr and "[B2, B30, B58]" in done.stderr


def test_verbose_shows_where_an_error_arose(tmp_path: Path) -> None:
    done = run("inspect", tmp_path / "none.h5", "-v")
    assert done.returncode == 2 and "Traceback" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("drafttrace: ")


# --- completion --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_there(shell: str) -> None:
    # Where shellingham is installed typer looks at the parent process, which is no shell here, and takes no argument.
    done = run("--show-completion", shell, env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert done.returncode == 0, done.stderr
    assert "_COMPLETE" in done.stdout


def test_completion_completes_commands_and_options() -> None:
    program = Path(sys.executable).with_name("drafttrace")

    def complete(line: str, place: int) -> list[str]:
        done = subprocess.run(
            [program],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "_DRAFTTRACE_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": str(place),
            },
        )
        return done.stdout.split()

    assert complete("drafttrace re", 1) == ["record", "replay", "report", "redact", "reference"]
    assert "--layer-ids" in complete("drafttrace diff --l", 2)


def test_installed_completion_completes_in_bash(tmp_path: Path) -> None:
    """What `--install-completion` writes, loaded by a bash that then completes a line as the Tab key does."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    home = tmp_path / "home"
    home.mkdir()
    program = Path(sys.executable).with_name("drafttrace")
    env = {k: v for k, v in os.environ.items() if not k.endswith("_COMPLETE")}
    env |= {"HOME": str(home), "PATH": f"{program.parent}{os.pathsep}{env['PATH']}"}
    env |= {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([program, "--install-completion", "bash"], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and (home / ".bashrc").is_file(), done.stderr
    script = """
        source ~/.bashrc
        COMP_WORDS=(drafttrace re) COMP_CWORD=1
        "$(complete -p drafttrace | sed 's/.*-F \\([^ ]*\\).*/\\1/')" drafttrace
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout.split() == ["record", "replay", "report", "redact", "reference"], done.stderr


# --- defaults from the trace -------------------------------------------------------------------------------------


@pytest.fixture
def served_here(tmp_path: Path) -> Path:
    """A recorded trace as if it had been served from this checkout."""
    import h5py

    from drafttrace.tracer.trace import texts
    from drafttrace.tracer.trace.reader import read_trace

    trace = tmp_path / "trace.h5"
    shutil.copyfile(KIMI / "fixed.h5", trace)
    arguments = read_trace(trace).about["server_args"]
    here = {
        "model_path": str(PAIR / "target"),
        "tokenizer_path": str(PAIR / "target"),
        "speculative_draft_model_path": str(PAIR / "draft"),
    }
    with h5py.File(trace, "r+") as file:
        texts.replace_block(file, "server_args", arguments | here)
    return trace


def test_the_trace_names_target_and_draft(served_here: Path, tmp_path: Path) -> None:
    checked = run("check", "--trace", served_here, "--dump", KIMI / "dump/data_0.pt", "--json", "-")
    assert checked.returncode == 1, checked.stderr
    assert json.loads(checked.stdout)["draft"] == str(PAIR / "draft")
    replayed = run("replay", served_here, "--no-switches", "--steps", "2", "--json", "-")
    assert replayed.returncode in (0, 1), replayed.stderr
    assert json.loads(replayed.stdout)["target"] == str(PAIR / "target")
    out = tmp_path / "reference.safetensors"
    made = run("reference", "--from", served_here, "--wiring", "B0,B3,B31", "-o", out)
    assert made.returncode == 0, made.stderr
    matched = run("diff", served_here, out, "--json", "-")
    assert matched.returncode == 0 and json.loads(matched.stdout)["verdict"] == "match"


def test_a_trace_from_elsewhere_asks_for_the_folders(tmp_path: Path) -> None:
    for command in (("replay", KIMI / "fixed.h5"), ("check", "--trace", KIMI / "fixed.h5")):
        done = run(*command)
        assert done.returncode == 2 and "is no folder on this machine" in done.stderr, done.stderr
        assert re.search(r"--(draft|target)\.", done.stderr)
    done = run("check")
    assert done.returncode == 2 and "--target" in done.stderr and "Traceback" not in done.stderr


def test_inspect_ends_with_1_where_it_finds_a_problem(tmp_path: Path) -> None:
    """It printed 'refuted' and ended with 0, where every other command says 1 for a problem."""
    dump, target = KIMI / "dump/data_0.pt", PAIR / "target"
    done = run("inspect", dump, "--target", target)
    assert done.returncode == 1 and "refuted" in done.stdout, done.stderr
    told = run("inspect", dump, "--target", target, "--json", "-")
    assert told.returncode == 1 and len(json.loads(told.stdout)["problems"]) == 1
    quiet = run("inspect", dump, "--target", target, "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (1, "", "")
    assert "Exit code: 0 nothing wrong, 1 a check is refuted" in words(run("inspect", "--help").stdout)


@pytest.mark.parametrize("file", ["as-trained.h5", "fixed.h5", "dump/data_0.pt"])
def test_inspect_ends_with_0_where_all_is_well(file: str) -> None:
    """Notes are no problems: the dump has one on its layer ids."""
    done = run("inspect", KIMI / file)
    assert done.returncode == 0, done.stdout
    if file.endswith(".h5"):
        assert run("inspect", KIMI / file, "--target", PAIR / "target", "-q").returncode == 0


def test_inspect_ends_with_1_for_broken_rows(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    states = np.random.default_rng(0).normal(size=(9, 8)).astype(np.float32)
    says = ("--slots", "a", "--tokens", "ids")
    np.savez(path, a=states, ids=np.arange(9))
    assert run("inspect", path, *says).returncode == 0
    states[4] = 0
    np.savez(path, a=states, ids=np.arange(9))
    done = run("inspect", path, *says)
    assert done.returncode == 1 and "1 zero" in done.stdout


# --- demo and view -----------------------------------------------------------------------------------------------


def test_demo_tells_the_story_without_a_server(tmp_path: Path) -> None:
    out = tmp_path / "story"
    done = run("demo", "--out", out, "--json", tmp_path / "story.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("slot-shift") < done.stdout.index("After the printed line")
    story = json.loads((tmp_path / "story.json").read_text())
    assert story["before"]["verdict"] == "mismatch" and story["before"]["findings"][0] == "slot-shift"
    assert story["after"]["verdict"] == "match" and "[0, 3, 31]" in story["before"]["remedy"]
    assert story["after"]["accept_length"] > 2 * story["before"]["accept_length"]
    for name in ("as-trained.h5", "fixed.h5", "dump/data_0.pt", "report.md", "report.html", "result.json"):
        assert (out / name).stat().st_size > 1000
    again = run("demo", "--out", out, "--quiet")
    assert again.returncode == 0 and again.stdout == ""


def test_the_commands_that_the_demo_prints_run(tmp_path: Path) -> None:
    done = run("demo", cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("$ drafttrace ")]
    offline = [line for line in lines if line.split()[2] in {"diff", "view", "inspect"}]
    assert len(lines) == 6 and len(offline) == 4
    for line in offline:
        again = run(*shlex.split(line)[2:], cwd=tmp_path)
        assert again.returncode in (0, 1), (line, again.stderr)


def test_demo_leaves_other_peoples_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    done = run("demo", "--out", tmp_path)
    assert done.returncode == 2 and "--out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


@pytest.fixture
def browser(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """The user's browser, as the variable BROWSER names one: a program that writes down what it was asked to open."""
    seen = tmp_path / "opened"
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\nprintf "%s" "$1" > "{seen}"\n')
    program.chmod(0o755)
    return {"BROWSER": f"{program} %s"}, seen


def test_view_opens_the_report_of_a_comparison(browser: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    env, seen = browser
    page = tmp_path / "page.html"
    done = run("view", KIMI / "as-trained.h5", KIMI / "dump/data_0.pt", "-o", page, env=env)
    assert done.returncode == 0 and done.stdout.strip() == str(page) and done.stderr == ""
    assert seen.read_text() == page.as_uri()
    assert "slot-shift" in page.read_text()


def test_view_opens_a_page_and_a_saved_result(browser: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    env, seen = browser
    run(*DIFF, "--json", tmp_path / "r.json", "--html", tmp_path / "r.html", "--quiet")
    assert run("view", tmp_path / "r.html", env=env).returncode == 0
    assert seen.read_text() == (tmp_path / "r.html").as_uri()
    done = run("view", tmp_path / "r.json", env=env)
    page = Path(done.stdout.strip())
    assert done.returncode == 0 and seen.read_text() == page.as_uri()
    assert page.read_text() == (tmp_path / "r.html").read_text()
    shutil.rmtree(page.parent)


def test_view_prints_where_the_page_is_without_a_browser(tmp_path: Path) -> None:
    env = {"DISPLAY": "", "WAYLAND_DISPLAY": ""}
    done = run("view", KIMI / "fixed.h5", "-o", tmp_path / "p.html", env=env)
    assert done.returncode == 0 and done.stdout.strip() == str(tmp_path / "p.html")
    assert "no browser" in done.stderr
    silent = run("view", tmp_path / "p.html", "--no-browser", env=env)
    assert silent.returncode == 0 and silent.stderr == ""


def test_view_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    (tmp_path / "p.html").write_text("<html>")
    for arguments, word in (
        (("view", tmp_path / "none.html"), "is not there"),
        (("view", tmp_path / "p.html", KIMI / "fixed.h5"), "is a page already"),
        (("view", tmp_path / "none.json"), "none.json"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and word in done.stderr and "Traceback" not in done.stderr, done.stderr


# --- the end of output -------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    line = f"{shlex.quote(sys.executable)} -m drafttrace.tracer.cli --help | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_bug_of_ours_is_no_mismatch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An exception that nobody expected exits with 2: nothing was compared."""
    import typer

    from drafttrace.tracer import cli

    app = typer.Typer()

    @app.command()
    def broken() -> None:
        raise ZeroDivisionError("nobody expected it")

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli.gc, "disable", lambda: None)
    monkeypatch.setattr("sys.argv", ["drafttrace"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "ZeroDivisionError: nobody expected it" in said and "--version --verbose" in said
