"""Checks every symbol that the recorder rests on against releases of SGLang, without installing them.

    python tests/releases/check_sglang_releases.py [VERSION ...]

Downloads each wheel with pip (no dependencies), reads its source with ``ast`` and prints one line per symbol that is
missing. Exit code 1 where a symbol that the recorder cannot do without is missing. Not part of ``make test``: it needs
a package index.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from drafttrace.hooks.sglang_engine.versions import HTTP_HOOKS, SCHEDULER_HOOKS, HookSpec, unsupported

RELEASES = ("0.5.12", "0.5.15.post1", "0.5.18", "0.5.20", "0.5.23")

# Attributes that the hooks read: class -> names that must be fields, methods or assigned in a method.
READ = {
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch": (
        "rids", "input_ids", "positions", "spec_info", "forward_mode", "extend_seq_lens_cpu", "extend_prefix_lens_cpu",
    ),
    "sglang.srt.model_executor.forward_batch_info.ForwardMode": (
        "is_target_verify", "is_draft_extend_v2", "is_decode", "is_idle",
    ),
    "sglang.srt.managers.utils.GenerationBatchResult": ("accept_lens", "logits_output"),
    "sglang.srt.managers.schedule_batch.Req": (
        "rid", "origin_input_ids", "output_ids", "sampling_params", "finished_reason", "finished", "input_embeds",
    ),
    "sglang.srt.plugins.hook_registry.HookRegistry": ("register", "apply_hooks"),
}  # fmt: skip

# First parameters that the hooks rely on.
PARAMETERS = {
    "forward": ("self", "forward_batch"),
    "run_batch": ("self", "batch"),
    "process_batch_result": ("self", "batch", "result"),
    "verify": ("self", "batch"),
    "load_model": ("self",),
    "draft_graph": ("self", "forward_batch"),
    "draft_extend_graph": ("self", "forward_batch"),
}


@dataclass(frozen=True)
class Finding:
    """One symbol that a release does not have as the recorder expects it."""

    symbol: str
    problem: str
    needed: bool


class Release:
    """The source of one wheel."""

    def __init__(self, wheel: Path) -> None:
        self._files = zipfile.ZipFile(wheel)
        self._names = set(self._files.namelist())

    def find(self, dotted: str) -> ast.AST | None:
        """The class or function that a dotted path names."""
        parts = dotted.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            path = "/".join(parts[:cut]) + ".py"
            if path in self._names:
                node: ast.AST | None = ast.parse(self._files.read(path))
                for name in parts[cut:]:
                    node = _child(node, name)
                return node
        return None


def _child(node: ast.AST | None, name: str) -> ast.AST | None:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for item in getattr(node, "body", []):
        if isinstance(item, kinds) and item.name == name:
            return item
    return None


def _attributes(node: ast.ClassDef) -> set[str]:
    """Fields, methods and what ``__init__`` and others assign to ``self``."""
    found = set()
    for item in ast.walk(node):
        if isinstance(item, ast.AnnAssign | ast.Assign):
            targets = [item.target] if isinstance(item, ast.AnnAssign) else item.targets
            for target in targets:
                found.add(getattr(target, "id", None) or getattr(target, "attr", ""))
        elif isinstance(item, ast.FunctionDef):
            found.add(item.name)
    return found


def check(release: Release) -> list[Finding]:
    """Everything that this release lacks."""
    findings = [found for spec in (*SCHEDULER_HOOKS, *HTTP_HOOKS) if (found := _check_hook(release, spec))]
    for dotted, names in READ.items():
        node = release.find(dotted)
        if not isinstance(node, ast.ClassDef):
            findings.append(Finding(dotted, "there is no such class", True))
            continue
        missing = [name for name in names if name not in _attributes(node)]
        findings += [Finding(f"{dotted}.{name}", "there is no such attribute", True) for name in missing]
    return findings


def _check_hook(release: Release, spec: HookSpec) -> Finding | None:
    node = release.find(spec.target)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return Finding(spec.target, "there is no such function", spec.needed)
    wanted = PARAMETERS.get(spec.name, ())
    have = tuple(argument.arg for argument in node.args.args)
    if have[: len(wanted)] != wanted:
        problem = f"its parameters begin with ({', '.join(have[: len(wanted)])}), not ({', '.join(wanted)})"
        # What is passed on by position alone does not depend on a parameter's name.
        return Finding(spec.target, problem, spec.needed and len(have) < len(wanted))
    return None


def download(version: str, folder: Path) -> Path:
    """The wheel of one release, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "-d", str(folder), f"sglang=={version}"], check=True)
    return next(folder.glob(f"sglang-{version}-*.whl"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=RELEASES)
    parser.add_argument("--wheels", type=Path, help="a folder that holds the wheels already")
    options = parser.parse_args()
    bad = False
    for version in options.versions:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.wheels or Path(temporary)
            have = list(folder.glob(f"sglang-{version}-*.whl"))
            findings = check(Release(have[0] if have else download(version, folder)))
        fatal = [finding for finding in findings if finding.needed]
        bad = bad or bool(fatal)
        print(f"SGLang {version}: {'the recorder cannot work' if fatal else 'every needed symbol is there'}")
        if (reason := unsupported(version)) is not None:
            print(f"  {reason}")
        for finding in findings:
            print(f"  {'MISSING' if finding.needed else 'without'} {finding.symbol}: {finding.problem}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
