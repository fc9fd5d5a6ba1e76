"""The documentation runs: every code block is a test, generated pages are current, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main
import yaml

from doctools import blocks, changes, pages, readme
from drafttrace.catalogue import causes

ROOT = Path(__file__).resolve().parents[2]
PAGES = blocks.pages()
BLOCKS = [block for page in PAGES for block in blocks.blocks_of(page)]
TEMPLATES = ROOT / ".github/ISSUE_TEMPLATE"
CONSOLE = [b for b in BLOCKS if b.language == "console" and not b.live and not b.not_run]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with the files that the pages name."""
    blocks.desk(tmp_path)
    return tmp_path


def by_page() -> dict[Path, list[blocks.Block]]:
    """Console blocks in the order of each page: a later one may use what an earlier one wrote."""
    found: dict[Path, list[blocks.Block]] = {}
    for block in CONSOLE:
        found.setdefault(block.page, []).append(block)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", by_page(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_do_what_the_page_says(page: Path, desk: Path) -> None:
    for block in by_page()[page]:
        blocks.run_console(block, desk)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if any(b.language == "python" and not b.live and not b.not_run for b in blocks.blocks_of(p))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_python_runs(page: Path, desk: Path) -> None:
    blocks.run_python(page, desk)


def test_every_block_is_run_or_says_why_not() -> None:
    known = blocks.RUN | blocks.CHECKED | blocks.TEXT
    for block in BLOCKS:
        assert block.language in known, f"{block.where}: a block of the language '{block.language}'"
        assert not block.not_run or len(block.directives["not run"]) > 10, f"{block.where}: no reason"
        assert not (block.not_run and block.live), block.where
    skipped = [b.where for b in BLOCKS if b.not_run and "reference/command-line" not in b.where]
    assert len(skipped) <= 8, skipped
    assert len(CONSOLE) >= 25


def test_a_command_that_no_block_runs_is_one() -> None:
    """What needs two ranks, or minutes, is not run: it is read, as the command line would read it."""
    from drafttrace.tracer.cli import app

    group = typer.main.get_command(app)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    read = 0
    for block in BLOCKS:
        for step in block.steps if block.language == "console" and (block.not_run or block.live) else ():
            program, *words = shlex.split(step.command, comments=True)
            if program == "make":
                assert set(words) <= targets, f"{block.where}: {step.command}"
            elif program == "drafttrace" and not words[0].startswith("-"):
                command = group.commands[words[0]]  # type: ignore[attr-defined]
                command.make_context(
                    words[0], words[1:]
                )  # raises for an option, a value or a word that it does not take
                read += 1
    assert read > 50


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in blocks.CHECKED], ids=lambda b: b.where)
def test_data_can_be_read(block: blocks.Block) -> None:
    text = "\n".join(block.body)
    assert json.loads(text) if block.language == "json" else yaml.safe_load(text)


def test_a_page_says_where_its_files_are() -> None:
    """trace.h5, data_0.pt, target and draft were in a folder that the tests made, and nobody who typed the commands had."""
    named = re.compile(r"(?<![\w./-])(?:trace\.h5|fixed\.h5|data_0\.pt|target|draft)(?![\w./-])")
    found = 0
    for page in (ROOT / "docs/tutorial.md", *sorted((ROOT / "docs/how-to").glob("*.md"))):
        if any(named.search(step.command) for block in CONSOLE if block.page == page for step in block.steps):
            found += 1
            assert "`make desk && cd desk`" in page.read_text(), page.name
    assert found >= 6
    assert "\ndesk:" in (ROOT / "Makefile").read_text()


def test_the_desk_can_be_laid_twice(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run([sys.executable, "-m", "doctools", "desk", tmp_path / "desk"], cwd=ROOT, check=True)
    assert {"trace.h5", "fixed.h5", "data_0.pt", "target", "draft"} <= {
        p.name for p in (tmp_path / "desk").iterdir()
    }
    assert all(path.exists() for path in (tmp_path / "desk").iterdir())


def test_the_runner_sees_what_is_wrong(tmp_path: Path) -> None:
    """A block that fails, or prints something else, is found."""
    page = ROOT / "docs/none.md"
    for command, output, exits, wrong in (
        ("false", (), "0", True),
        ("false", (), "1", False),
        ("echo 0.5010", ("0.5000",), "0", False),
        ("echo 0.52", ("0.50",), "0", True),
        ("echo 12 rows", ("13 rows",), "0", True),
        ("printf 'a\\nb\\nc\\n'", ("a", "...", "c"), "0", False),
        ("printf 'a\\nb\\nc\\n'", ("a", "...", "d"), "0", True),
        ("echo 0.5 of many", ("0.5 of ...",), "0", False),
        ("echo 0.7 of many", ("0.5 of ...",), "0", True),
        ("echo took 3.2 s", ("took 0.1 s",), "0", False),
        ("echo more", (), "0", False),
    ):
        block = blocks.Block(page, 1, "console", {"exit": exits}, (f"$ {command}", *output))
        if wrong:
            with pytest.raises(blocks.BlockFailed):
                blocks.run_console(block, tmp_path)
        else:
            blocks.run_console(block, tmp_path)


# --- generated pages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", pages.generated(), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_pages_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == pages.generated()[path], "run `make docs-pages`"


def test_a_new_format_is_in_the_readme_and_in_no_list() -> None:
    """The guide said one file and one test, and `doctools pages` ended in a ValueError: "add its project to _DUMPERS"."""
    from drafttrace.tracer.dumps.registry import Layout, folder_layouts, layouts

    known = [*layouts().values(), *folder_layouts().values()]
    mine = replace(next(layout for layout in known if isinstance(layout, Layout)), id="MY-FORMAT", project="mine")
    grouped = readme.by_project([*known, mine])
    assert grouped["mine"] == ["MY-FORMAT"]
    assert {name for ids in grouped.values() for name in ids} == {layout.id for layout in (*known, mine)}
    assert [who for who in grouped if who != "mine"] == list(readme.by_project(known))


def test_every_finding_is_documented() -> None:
    known = causes()
    assert len(known) >= 50 and len({cause.rank for cause in known.values()}) == len(known)
    for name, cause in known.items():
        for text in (cause.what, cause.signature, cause.remedy):
            assert text[0].isupper() or text.startswith("drafttrace"), (name, text)
            assert text.endswith("."), (name, text)
        assert all(re.fullmatch(r"[A-Za-z-]+#\d+", case) for case in cause.cases)


def test_every_row_field_and_schema_part_is_documented() -> None:
    from drafttrace.tracer.trace import schema

    text = (ROOT / "docs/reference/trace-format.md").read_text()
    assert all(f"`{name}`" in text for name in schema.DRAFT_ROW.names or ())
    parts = json.loads((ROOT / "compare/result.schema.json").read_text())["$defs"]
    result = (ROOT / "docs/reference/result.md").read_text()
    assert all(f"## {name}" in result for name in parts)


# --- links -------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    fenced = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", fenced, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        place, _, anchor = target.partition("#")
        other = (page.parent / place).resolve() if place else page
        assert other.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(other), f"{page.name}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def walk(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        values = entry if isinstance(entry, list) else list(entry.values()) if isinstance(entry, dict) else []
        return [page for value in values for page in walk(value)]

    listed = walk(config["nav"])
    assert sorted(listed) == sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))


# --- what the texts of the tool promise ---------------------------------------------------------------------------


def test_the_examples_of_serve_are_run_by_a_page() -> None:
    """tests/live starts the servers of the pages' lines; a help's example that is none of them would be run by nobody."""
    from drafttrace.tracer.cli import app

    (text,) = (str(info.epilog) for info in app.registered_commands if info.epilog and "trace serve" in info.epilog)
    examples = {line[2:] for line in text.splitlines() if line.startswith("$ ")}
    live = {step.command for block in BLOCKS if block.live and block.language == "console" for step in block.steps}
    assert examples and examples <= live


def test_every_option_that_a_text_names_exists() -> None:
    """Remedies and errors name options of drafttrace; `serve --sweep` was named and never existed."""
    from drafttrace.tracer.cli import app

    group = typer.main.get_command(app)
    known = {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    }
    files = [
        path for folder in ("tracer", "compare", "hooks", "docs") for path in (ROOT / folder).rglob("*.[pm][yd]")
    ]
    found = 0
    for path in [*files, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *TEMPLATES.glob("*.yml")]:
        for command, rest in re.findall(r"drafttrace ([a-z]+)((?: +-{1,2}[a-z][a-z-]*)+)", path.read_text()):
            if command in known:
                for option in rest.split():
                    found += 1
                    assert option in {*known[command], "--help"}, f"{path}: drafttrace {command} {option}"
    assert found > 40


def test_the_picture_is_small_and_there() -> None:
    picture = ROOT / "docs/report.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert 20_000 < picture.stat().st_size <= 200_000


def test_the_picture_shows_what_a_report_says_now() -> None:
    """The summary got numbers, and the README's picture showed the sentence without them. `make docs-picture` renews it."""
    import drafttrace
    from doctools import screenshot
    from drafttrace.compare.report_html import render

    traces = ROOT / "traces/tiny-kimi"
    now = screenshot.words(render(drafttrace.diff(traces / "as-trained.h5", traces / "dump/data_0.pt")))
    assert len(now) > 15 and any("median relative L2 of slot 0" in text for text in now)
    assert screenshot.words_of_picture(ROOT / "docs/report.png") == now


def test_importing_the_catalogue_needs_nothing_heavy() -> None:
    code = "import sys, drafttrace.catalogue; print(*{n.split('.')[0] for n in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "h5py"} & set(done.stdout.split())


# --- release notes and contributors' files -----------------------------------------------------------------------


def test_the_fragments_add_up_to_release_notes() -> None:
    found = changes.fragments()
    text = changes.notes(found)
    assert all(change.text in text for change in found)
    assert text.index("### Added") < text.index("### Fixed")


@pytest.mark.parametrize(
    ("name", "text"), [("thing.md", "A thing."), ("thing.added.md", "no sentence"), ("T.added.md", "X.")]
)
def test_a_fragment_that_cannot_be_used(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(changes.BadFragment):
        changes.fragments(tmp_path)


def test_issue_templates_ask_for_the_report_and_the_versions() -> None:
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in TEMPLATES.glob("*.yml")}
    assert set(forms) == {"bug", "wrong-cause", "format", "config"}
    for name in ("bug", "wrong-cause", "format"):
        parts = [part for part in forms[name]["body"] if part["type"] != "markdown"]
        assert all(part["id"] and part["attributes"]["label"] for part in parts)
    required = {
        part["attributes"]["label"]
        for name in ("bug", "wrong-cause")
        for part in forms[name]["body"]
        if part.get("validations", {}).get("required")
    }
    assert {"report.md", "drafttrace --version --verbose"} <= required


def test_issue_templates_name_commands_and_no_modules() -> None:
    """One sent people to `drafttrace.tracer.trace.redact`, which is no command."""
    from drafttrace.tracer.cli import app

    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    text = "\n".join(path.read_text() for path in TEMPLATES.glob("*.yml"))
    assert not re.search(r"drafttrace\.[a-z]", text)
    assert {"diff", "redact"} <= set(re.findall(r"`drafttrace ([a-z-]+)", text)) <= commands
    assert {"doctor", "inspect"} <= set(re.findall(r"label: drafttrace ([a-z]+)", text)) <= commands


def test_pre_commit_runs_what_lint_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"]: hook for repo in config["repos"] for hook in repo["hooks"]}
    assert {"ruff-check", "ruff-format", "mypy", "docs-pages"} <= set(hooks)
    assert all(
        hook["language"] == "system" for hook in hooks.values()
    )  # the versions of .venv, and nothing fetched
    makefile = (ROOT / "Makefile").read_text()
    assert "lint-types:" in makefile and "lint-types" in hooks["mypy"]["entry"]
