"""The arrows between the packages run one way, and cheap commands stay cheap."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL_RECORDS = {
    "drafttrace.tracer.boundary",
    "drafttrace.tracer.capture",
    "drafttrace.tracer.chat_marks",
    "drafttrace.tracer.embedding_match",
    "drafttrace.tracer.embedding_scale",
    "drafttrace.tracer.errors",
    "drafttrace.tracer.grammar",
    "drafttrace.tracer.learned_positions",
    "drafttrace.tracer.printable",
    "drafttrace.tracer.row_hash",
    "drafttrace.tracer.row_places",
    "drafttrace.tracer.rows",
}
ALLOWED = {
    # package -> modules outside of it that it may import, by prefix
    "hooks": SMALL_RECORDS | {"drafttrace.tracer.trace"},
    # plots draw a result and know nothing else
    "compare": SMALL_RECORDS
    | {
        "drafttrace.tracer.checkpoint",
        "drafttrace.tracer.fitted",
        "drafttrace.tracer.hub_cache",
        "drafttrace.tracer.part_names",
        "drafttrace.tracer.report_file",
        "drafttrace.plots",
    },
    "tracer": {"drafttrace.compare", "drafttrace.hooks.doctor", "drafttrace.plots"},
}
FILES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    """Several tests look at every file."""
    return ast.parse(path.read_text())


def imported_modules(path: Path) -> list[str]:
    """Absolute names of everything that a file imports, at the top or inside functions."""
    names: list[str] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def top_level_modules(path: Path) -> list[str]:
    """What importing the file imports: everything but what stands inside functions."""
    tree = tree_of(path)
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_run_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    own = f"drafttrace.{package}"
    for name in imported_modules(path):
        if name.startswith(("sglang.", "sgl_kernel")) or name == "sglang":
            assert package == "hooks" or "audit" in path.parts, (
                f"{path}: only hooks and the audit may import {name}"
            )
        inside = name == own or name.startswith(own + ".") or name == "drafttrace.__version__"
        if name.startswith("drafttrace.") and not inside:
            assert any(name == ok or name.startswith(ok + ".") for ok in ALLOWED[package]), f"{path} imports {name}"
        assert name != "drafttrace.tracer.cli" and not name.startswith("drafttrace.tracer.cli."), (
            f"{path}: nothing imports the command line"
        )


# hooks and the replay run beside torch anyway
CHEAP = [path for path in FILES if not {"hooks", "replay"} & set(path.relative_to(ROOT).parts)]


@pytest.mark.parametrize("path", CHEAP, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_modules_are_imported_lazily(path: Path) -> None:
    """torch, transformers and sglang cost seconds: outside hooks nothing imports them at the top of a module."""
    heavy = {name.split(".")[0] for name in top_level_modules(path)} & {
        "torch",
        "transformers",
        "sglang",
        "datasets",
    }
    assert not heavy, f"{path} imports {sorted(heavy)} at the top"


def loaded_by(*arguments: str) -> set[str]:
    """Top-level modules in a process that ran the command line with these arguments."""
    code = (
        "import sys\n"
        "from drafttrace.tracer.cli import main\n"
        f"sys.argv = ['drafttrace', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('\\nMODULES', *sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    return set(done.stdout.rsplit("MODULES", 1)[1].split())


@pytest.mark.parametrize("arguments", [("--help",), ("record", "--help"), ("diff", "--help"), ("--version",)])
def test_help_imports_neither_torch_nor_sglang(arguments: tuple[str, ...]) -> None:
    modules = loaded_by(*arguments)
    assert "drafttrace" in modules
    assert not modules & {"torch", "sglang", "transformers", "numpy", "h5py", "numba"}


TRACES = ROOT / "traces"
CHEAP_PATHS = [
    ("inspect", TRACES / "tiny-llama/healthy.h5"),
    ("inspect", TRACES / "tiny-llama/dump/hidden_states/hs_0.safetensors"),
    ("inspect", TRACES / "tiny-kimi/dump/data_0.pt"),
    ("diff", TRACES / "tiny-llama/healthy.h5", TRACES / "tiny-llama/dump/hidden_states/hs_0.safetensors"),
    ("diff", TRACES / "tiny-kimi/fixed.h5", TRACES / "tiny-kimi/dump/data_0.pt"),
]
HEAVY = {
    "torch", "transformers", "sglang", "numba", "llvmlite", "scipy", "pandas", "polars", "pyarrow", "datasets",
    "matplotlib", "ray", "safetensors", "requests", "pydantic",
}  # fmt: skip


@pytest.mark.parametrize("arguments", CHEAP_PATHS, ids=lambda a: f"{a[0]} {a[-1].name}")
def test_files_are_read_and_compared_without_heavy_modules(arguments: tuple[str | Path, ...]) -> None:
    """Also a torch file: its pickle is read by drafttrace's own machine."""
    modules = loaded_by(*map(str, arguments))
    assert "h5py" in modules or "numpy" in modules
    assert not modules & HEAVY


def test_a_diff_keeps_blas_to_one_thread() -> None:
    """Asked for after numpy was imported it has no effect, and products of a millisecond take a second on a busy
    machine: the options' readers had imported it."""
    code = (
        "import os, sys\n"
        "from drafttrace.tracer.cli import main\n"
        f"sys.argv = ['drafttrace', 'diff', *{[str(a) for a in CHEAP_PATHS[3][1:]]!r}, '--hidden-size', '64', '-q']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')))\n"
    )
    plain = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain)
    assert done.stdout.split() == ["1", "1"], done.stdout
