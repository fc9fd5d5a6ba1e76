"""The wheel, as a stranger gets it: `make dist`'s own, installed into a clean environment, run outside the checkout.

torch and the other big dependencies come from this environment through a ``.pth`` file, so that it takes seconds.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
# What a package index would hand out, no checkout: these folders belong to the repository alone.
FOREIGN = ("tests", "pairs", "bench", "demo", "docs", "doctools", "sgl_kernel", "sglang_cpu", "traces")

pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` leaves: both artefacts of what git tracks (and of new files that it does not ignore)."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and not name.startswith(("pairs/", "tests/")) and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    # by this environment's Python: -o leaves the target that builds one alone
    command = ["make", "--old-file=.venv/.ready", "dist", f"PY={sys.executable}"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=600)
    # Without an index there is no auditwheel, and the wheel keeps the tag of this machine.
    assert done.returncode == 0 or "satisfies the requirement auditwheel" in done.stderr, done.stdout + done.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The wheel, built from nothing but the sdist."""
    (made,) = dist.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]  # auditwheel adds the folders


def clean_environment(folder: Path, wheel: Path, borrowed: Path | None) -> Path:
    """The programs of a new environment that holds the wheel; other packages come from the folder ``borrowed``."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    if borrowed is not None:
        (site / "borrowed.pth").write_text(f"{borrowed}\n")
    return programs


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = Path(metadata.distribution("h5py").locate_file(""))
    return clean_environment(tmp_path_factory.mktemp("clean") / "env", wheel, site)


def run(programs: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The installed command in an empty folder, with nothing of this checkout on any path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [programs / "drafttrace", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"},
    )


# --- what is inside ------------------------------------------------------------------------------------------------


def test_the_wheel_holds_every_module_and_nothing_else(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert tops <= {"drafttrace", *(top for top in tops if top.startswith("drafttrace-"))}
    inside = {name.removeprefix("drafttrace/") for name in names if name.startswith("drafttrace/")}
    assert not {name.split("/")[0] for name in inside} & set(FOREIGN)
    for folder in ("tracer", "hooks", "compare"):
        wanted = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
        assert wanted <= inside, sorted(wanted - inside)
    assert {path.name for path in (ROOT / "drafttrace").glob("*.py")} <= inside
    assert {
        "py.typed",
        "compare/result.schema.json",
        "tracer/canary.schema.json",
        "compare/assets/report.js",
        "compare/assets/report.css",
    } <= inside


def test_the_wheel_holds_the_demo_and_stays_small(names: list[str], wheel: Path) -> None:
    held = {name for name in names if "/demo_traces/" in name}
    assert held == {
        f"drafttrace/demo_traces/{name}"
        for name in ("as-trained.h5", "fixed.h5", "dump/data_0.pt", "dump/data_config.json")
    }
    assert wheel.stat().st_size < 5_000_000


def test_an_index_would_take_the_wheel(dist: Path, wheel: Path) -> None:
    """What `make dist` leaves, repaired by auditwheel, was tested by nothing: another wheel was built here."""
    if "-linux_" in wheel.name:
        pytest.skip("auditwheel cannot be fetched here")
    assert re.search(r"-cp311-abi3-.*manylinux\w+\.whl$", wheel.name), wheel.name
    assert sorted(path.suffix for path in dist.iterdir()) == [".gz", ".whl"]


def test_the_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        head = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        entries = archive.read(f"{info}/entry_points.txt").decode()
    assert "drafttrace = drafttrace.tracer.cli:main" in entries
    assert "[sglang.srt.plugins]" in entries and "drafttrace = drafttrace.hooks.plugin:register" in entries
    needed = [Requirement(text) for text in head.get_all("Requires-Dist") or []]
    plain = {one.name for one in needed if one.marker is None}
    assert plain == {"torch", "numpy", "h5py", "safetensors", "typer"}
    assert {"plot", "pandas", "polars"} <= set(head.get_all("Provides-Extra") or [])
    # A ceiling would fight with what SGLang pins.
    assert all(specifier.operator == ">=" for one in needed for specifier in one.specifier)


# --- it runs -------------------------------------------------------------------------------------------------------


def test_it_runs_outside_the_checkout(programs: Path, tmp_path: Path) -> None:
    done = run(programs, "--version", cwd=tmp_path)
    assert done.returncode == 0 and re.fullmatch(r"drafttrace \d\S+\n", done.stdout), done.stderr
    where = subprocess.run(
        [programs / "python", "-c", "import drafttrace.compare as c; print(c.__file__)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert str(programs.parent) in where.stdout, where


def test_the_demo_runs_from_the_wheel(programs: Path, tmp_path: Path) -> None:
    done = run(programs, "demo", "--json", "story.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "slot-shift" in done.stdout and "[0, 3, 31]" in done.stdout
    assert json.loads((tmp_path / "story.json").read_text())["after"]["verdict"] == "match"
    page = run(programs, "view", "drafttrace-demo/result.json", "--no-browser", "-o", "page.html", cwd=tmp_path)
    assert page.returncode == 0 and (tmp_path / "page.html").stat().st_size > 10_000


def test_every_module_of_the_wheel_can_be_imported(programs: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, drafttrace\n"
        "found = pkgutil.walk_packages(drafttrace.__path__, 'drafttrace.')\n"
        # the row kernel is a plain library that ctypes loads, named so that one build serves every Python
        "names = [m.name for m in found if not m.name.endswith('kernels._rows')]\n"
        "[importlib.import_module(name) for name in names]\n"
        "print(len(names))"
    )
    done = subprocess.run([programs / "python", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 120


def test_bad_input_is_one_sentence_from_the_wheel_too(programs: Path, tmp_path: Path) -> None:
    done = run(programs, "inspect", "none.h5", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("drafttrace: ") and "Traceback" not in done.stderr


# --- beside others -------------------------------------------------------------------------------------------------


def test_installing_it_beside_sglang_changes_nothing_else(wheel: Path, tmp_path: Path) -> None:
    """What pip would do in this environment, which holds SGLang: install drafttrace, and nothing more."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--ignore-installed", "--no-deps", "--report", report, wheel], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (item,) = json.loads(report.read_text())["install"]
    for text in item["metadata"]["requires_dist"]:
        one = Requirement(text)
        if one.marker is None:
            assert one.specifier.contains(metadata.version(one.name), prereleases=True), text
    # the resolver's own view, with dependencies: nothing but drafttrace itself may be touched
    done = subprocess.run(
        [*command, "--report", report, f"drafttrace @ {wheel.as_uri()}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    touched = {entry["metadata"]["name"] for entry in json.loads(report.read_text())["install"]}
    assert touched <= {"drafttrace"}, touched


def test_what_sglang_pins_suits_drafttrace() -> None:
    """Where SGLang and drafttrace ask for the same package, SGLang's pin satisfies both."""
    theirs = {
        one.name.lower(): one
        for one in map(Requirement, metadata.requires("sglang") or [])
        if one.marker is None or one.marker.evaluate({"extra": ""})
    }
    ours = [one for one in map(Requirement, metadata.requires("drafttrace") or []) if one.marker is None]
    shared = [one for one in ours if one.name.lower() in theirs]
    assert {one.name for one in shared} >= {"torch", "numpy"}
    for one in shared:
        for pin in theirs[one.name.lower()].specifier:
            if pin.operator == "==":
                assert one.specifier.contains(pin.version.removesuffix(".*"), prereleases=True), (one, pin)


# --- other dependencies --------------------------------------------------------------------------------------------

LOWEST = {"numpy": "1.26.0", "h5py": "3.10.0", "safetensors": "0.4.3", "typer": "0.16.0"}
EXTRAS = {"matplotlib": "3.8.0", "pandas": "2.1.0", "polars": "1.0.0"}


def install(programs: Path, *arguments: str) -> None:
    """pip in another environment; the test is skipped where the packages cannot be fetched."""
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check"]
    command = [*pip, "install", "--quiet", "--only-binary", ":all:", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module", params=["lowest", "newest"])
def alone(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment without torch, with the oldest dependencies that the metadata allow, or with the newest there are."""
    if request.param == "lowest" and sys.version_info >= (3, 12):
        pytest.skip("the oldest numpy has no wheel for this Python")
    folder = tmp_path_factory.mktemp(request.param) / "env"
    programs = clean_environment(folder, wheel, None)
    lowest = request.param == "lowest"
    install(programs, *(f"{name}=={version}" if lowest else name for name, version in LOWEST.items()))
    yield programs
    shutil.rmtree(folder)


def test_the_oldest_dependencies_are_the_ones_that_the_metadata_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        text for name, texts in project["optional-dependencies"].items() if name != "cluster" for text in texts
    ]
    for one in map(Requirement, [*project["dependencies"], *extras]):
        (specifier,) = one.specifier
        assert one.name == "torch" or (LOWEST | EXTRAS)[one.name].startswith(specifier.version)


def test_it_runs_on_the_oldest_and_newest_dependencies_without_torch(alone: Path, tmp_path: Path) -> None:
    done = run(alone, "demo", "--json", "story.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "story.json").read_text())["before"]["findings"][0] == "slot-shift"
    for arguments in (
        ("--help",),
        ("diff", "--help"),
        ("--version", "--verbose"),
        ("inspect", "drafttrace-demo/fixed.h5"),
        ("redact", "drafttrace-demo/fixed.h5", "shared.h5"),
    ):
        done = run(alone, *arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr[-2000:])
    assert "$ drafttrace diff trace.h5 data_0.pt" in re.sub(
        r"\s+", " ", run(alone, "diff", "--help", cwd=tmp_path).stdout
    )


EXPORT = """
import drafttrace

dump = "drafttrace-demo/dump/data_0.pt"
result = drafttrace.diff("drafttrace-demo/as-trained.h5", dump)
drafttrace.plots.by_position(result, "rel_l2").savefig("positions.png")
table = drafttrace.measure("drafttrace-demo/as-trained.h5", dump)
frames = table.to_pandas(), table.to_polars()
assert [len(frame) for frame in frames] == [len(table)] * 2 and len(table) > 100
assert list(frames[0].columns) == list(frames[1].columns)
assert abs(frames[0]["cosine"].mean() - frames[1]["cosine"].mean()) < 1e-12
"""


def test_the_extras_run_on_their_oldest_and_newest_releases_too(alone: Path, tmp_path: Path) -> None:
    """Plots, and tables for pandas and polars: the oldest releases were tried by hand once."""
    lowest = "lowest" in str(alone)
    install(alone, *(f"{name}=={version}" if lowest else name for name, version in (LOWEST | EXTRAS).items()))
    assert run(alone, "demo", cwd=tmp_path).returncode == 0
    done = subprocess.run([alone / "python", "-c", EXPORT], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "positions.png").read_bytes().startswith(b"\x89PNG")
    done = run(alone, "view", "drafttrace-demo/result.json", "--no-browser", "-o", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_needs_torch_says_so_without_it(alone: Path, tmp_path: Path) -> None:
    pair = ROOT / "pairs/tiny-kimi"
    folders = ("--draft", pair / "draft", "--target", pair / "target")
    done = run(alone, "replay", pair / "dump/data_0.pt", *folders, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-2000:]
    assert re.fullmatch(r"drafttrace: [^\n]*torch[^\n]*pip install torch[^\n]*\.\n", done.stderr), done.stderr


def build_of_torch(programs: Path, cwd: Path) -> str:
    """The CUDA version that this environment's torch was built for, or ``None``."""
    command = [programs / "python", "-c", "import torch; print(torch.version.cuda)"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()


def replayed(programs: Path, cwd: Path) -> None:
    pair = ROOT / "pairs/tiny-kimi"
    folders = ("--draft", pair / "draft", "--target", pair / "target")
    arguments = (pair / "dump/data_0.pt", *folders, "--no-switches", "--steps", "2", "--json", "-")
    done = run(programs, "replay", *arguments, cwd=cwd)
    assert done.returncode == 1, done.stderr[-2000:]  # the draft's config names another wiring
    assert json.loads(done.stdout)["wirings"][0]["wiring"] == "[B0, B3, B31]"


def test_it_runs_on_the_build_of_torch_that_the_registry_hands_out(programs: Path, tmp_path: Path) -> None:
    """CUDA's, on a machine with a GPU or without one."""
    if build_of_torch(programs, tmp_path) == "None":
        pytest.skip("the environment of the tests has a build of torch for processors")
    replayed(programs, tmp_path)
    dump, target = ROOT / "pairs/tiny-kimi/dump/data_0.pt", ROOT / "pairs/tiny-kimi/target"
    made = ("reference", "--from", dump, "--target", target, "--wiring", "B0,B3,B31", "-o", "r.safetensors")
    done = run(programs, *made, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert run(programs, "diff", "r.safetensors", dump, cwd=tmp_path).returncode == 0


def test_it_runs_on_a_build_of_torch_for_processors(wheel: Path, tmp_path: Path) -> None:
    """One of the machine's own, beside everything else of this environment but torch."""
    site = Path(metadata.distribution("h5py").locate_file(""))
    alone = clean_environment(tmp_path / "env", wheel, site)
    install(alone, "--no-index", "--no-deps", "--ignore-installed", "torch")
    if build_of_torch(alone, tmp_path) != "None":
        pytest.skip("this machine keeps no build of torch for processors")
    replayed(alone, tmp_path)
    shutil.rmtree(tmp_path / "env")


# --- typed ---------------------------------------------------------------------------------------------------------

TYPED = """
from pathlib import Path
from typing import assert_type

import drafttrace

capture = drafttrace.open("trace.h5", layer_ids=[2, 30, 58])
assert_type(capture, drafttrace.Capture)
result = drafttrace.diff(capture, Path("data_0.pt"), thresholds={"match": 0.02})
assert_type(result, drafttrace.Result)
assert_type(result.findings, tuple[drafttrace.Finding, ...])
assert_type(result.findings[0].remedy, str)
assert_type(drafttrace.measure("trace.h5", "data_0.pt"), drafttrace.RowTable)
assert_type(drafttrace.redact("trace.h5", "shared.h5"), Path)
assert_type(drafttrace.check("target", "draft").exit_code, int)
drafttrace.plots.by_position(result, "rel_l2")
"""
WRONG = {
    "drafttrace.diff(1)": "arg-type",
    'drafttrace.plots.by_position(result, "nonsense")': "arg-type",
    "result.verdit": "attr-defined",
}


def test_a_strangers_type_checker_knows_it(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TYPED + "\n".join(WRONG) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", programs / "python", "mine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": ""},
    )
    found = re.findall(r"^mine\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    first = TYPED.count("\n") + 1
    assert found == [(str(first + i), code) for i, code in enumerate(WRONG.values())], done.stdout + done.stderr
