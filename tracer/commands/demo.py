"""``drafttrace demo``: the incident that drafttrace was written for, on its recorded traces."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttrace.tracer import output
from drafttrace.tracer.commands.common import START, Json, Quiet, Verbose, examples
from drafttrace.tracer.errors import DrafttraceError, OutputExists

if TYPE_CHECKING:
    from rich.console import Console

    from drafttrace.compare.result import Result

FILES = ("as-trained.h5", "fixed.h5", "dump/data_0.pt", "dump/data_config.json")
DUMP = "dump/data_0.pt"


@dataclass(frozen=True)
class Story:
    """The two comparisons, before and after the printed remedy, and the folder with everything in it."""

    folder: Path
    before: Result
    after: Result

    @property
    def as_it_should(self) -> bool:
        """Whether the fault was named and gone after the remedy."""
        named = bool(self.before.findings) and "[0, 3, 31]" in self.before.findings[0].remedy
        return named and self.before.verdict == "mismatch" and self.after.verdict == "match"

    def to_json(self) -> dict[str, Any]:
        """The machine form: both results in a few words, and where the files are."""
        return {
            "schema": "drafttrace.demo/1",
            "folder": str(self.folder),
            "before": _brief(self.before),
            "after": _brief(self.after),
        }


def _brief(result: Result) -> dict[str, Any]:
    return {
        "verdict": result.verdict,
        "findings": [finding.id for finding in result.findings],
        "remedy": result.findings[0].remedy if result.findings else "",
        "accept_length": result.acceptance.observed,
    }


def recorded() -> Traversable:
    """The folder of the recorded traces: inside the installed package, or where a source tree has it."""
    inside = files("drafttrace") / "demo_traces"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "traces/tiny-kimi"


def lay_out(folder: Path) -> None:
    """Copy the recorded traces and the dump into ``folder``. Raises OutputExists where it holds other things."""
    source = recorded()
    missing = [name for name in FILES if not source.joinpath(name).is_file()]
    if missing:
        raise DrafttraceError(
            f"The recorded traces are not installed ({missing[0]} is missing); install drafttrace again."
        )
    if folder.exists() and (not folder.is_dir() or not _ours(folder)):
        raise OutputExists(
            f"The output '{folder}' exists and is not an earlier demo's; give another one with --out."
        )
    try:
        for name in FILES:
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with source.joinpath(name).open("rb") as stream, place.open("wb") as copy:
                shutil.copyfileobj(stream, copy)
    except OSError as error:
        raise OutputExists(
            f"The folder '{folder}' cannot be written ({error.strerror}); give another --out."
        ) from None


def _ours(folder: Path) -> bool:
    return not any(folder.iterdir()) or (folder / FILES[0]).is_file()


def tell(folder: Path) -> Story:
    """Both comparisons; the report of the first one lies in the folder, too."""
    from drafttrace.tracer.commands.diff import compare_paths, write_reports

    lay_out(folder)
    before = compare_paths(str(folder / "as-trained.h5"), str(folder / DUMP))
    write_reports(before, markdown=folder / "report.md", html=folder / "report.html")
    output.write_text(folder / "result.json", output.dump_json(before.to_json()))
    return Story(folder, before, compare_paths(str(folder / "fixed.h5"), str(folder / DUMP)))


def _show(story: Story) -> None:
    from drafttrace.compare import report_terminal

    console = output.console()
    trace, dump = story.folder / "as-trained.h5", story.folder / DUMP
    _heading(console, "1. An EAGLE-3 draft, served as its trainer left it")
    _say(
        console,
        "Its trainer stored [B0, B3, B31, B59] of a 61-layer target, fed fc with the first three, and wrote the layer "
        "ids [2, 30, 58] into the draft's config. B3 is the residual stream that enters layer 3; B0 is the embedding. "
        f"Recorded with {_where(story.before.environment)}:",
    )
    _command(console, "serve", "--", "--model-path", "TARGET", "--speculative-draft-model-path", "DRAFT", "...")
    _command(console, "record", "--from-dump", str(dump), "-o", str(trace))
    _accepted(console, story.before)
    _heading(console, "2. Why?")
    _command(console, "diff", str(trace), str(dump), "--md", str(story.folder / "report.md"))
    console.print()
    report_terminal.render(story.before, console)
    _heading(console, "3. After the printed line was applied and the server started again")
    _command(console, "diff", str(story.folder / "fixed.h5"), str(dump))
    console.print()
    report_terminal.render(story.after, console)
    _heading(console, "Yours to try")
    _accepted(console, story.after)
    _say(console, f"The traces, the dump, report.md, report.html and result.json are in {story.folder}/.")
    _command(console, "view", str(story.folder / "report.html"))
    _command(console, "inspect", str(trace))


def _where(environment: Mapping[str, Any]) -> str:
    version = environment.get("sglang")
    return f"SGLang {version}" if version else "SGLang"


def _accepted(console: Console, result: Result) -> None:
    length, rounds = result.acceptance.observed, result.acceptance.rounds
    if length is not None:
        _say(console, f"Accept length of this request: {length:.2f} tokens per round ({rounds} rounds).")


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(f"== {text}", style="bold", markup=False)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False)


def _command(console: Console, *words: str) -> None:
    console.print(f"$ drafttrace {shlex.join(words)}", style="cyan", markup=False, soft_wrap=True)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the traces and the reports.")] = Path(
        "drafttrace-demo"
    ),
    json_out: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show the whole story on recorded traces: a miswired draft, its cause, and the same draft put right.

    The traces are real: a tiny 61-layer target and its trained draft, served by SGLang. No server is started.

    Exit code: 0 the cause was named, 1 it was not.
    """
    story = tell(out)
    output.emit(json_out, story.to_json, lambda: _show(story), quiet=quiet)
    raise typer.Exit(0 if story.as_it_should else 1)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        rich_help_panel=START,
        epilog=examples(
            ("drafttrace demo", "tell it, and leave the files in drafttrace-demo/"),
            ("drafttrace demo --out /tmp/story --json story.json", "elsewhere, and as JSON"),
        ),
    )(demo)
