"""Every symbol of SGLang that the recorder rests on, looked up in source text: nothing of SGLang is imported.

``drafttrace doctor`` asks this of the installed SGLang, ``tests/releases`` of wheels.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drafttrace.hooks.sglang_engine.versions import (
    HTTP_HOOKS,
    SCHEDULER_HOOKS,
    HookSpec,
    parse_version,
    unsupported,
)

ReadFile = Callable[[str], bytes | None]

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
class Symbol:
    """One symbol. problem: None where it is as the recorder expects it. needed: the recorder cannot do without."""

    name: str
    problem: str | None
    needed: bool


@dataclass(frozen=True)
class Verdict:
    """What the recorder makes of one SGLang. reason: why it stays off, else None."""

    version: str
    reason: str | None
    symbols: tuple[Symbol, ...]

    @property
    def works(self) -> bool:
        return self.reason is None and not any(s.needed and s.problem for s in self.symbols)


def installed() -> Verdict | None:
    """The SGLang of this environment, read from its files; None where there is none."""
    read = installed_files()
    return None if read is None else judge(installed_version("sglang") or "unknown", read)


def installed_version(name: str) -> str | None:
    """What a distribution's dist-info calls its version; None where it says none (an interrupted installation).

    Raises PackageNotFoundError for what is not installed.
    """
    try:
        found: str | None = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise
    except Exception:  # KeyError or another one, by the release of Python
        return None
    return found or None


def refusal(version: str) -> str | None:
    """Why the recorder stays off for the installed SGLang, in one sentence; None where it works.

    A release is judged by its number. What has none (a source checkout) is judged by the symbols in its files.
    """
    if parse_version(version) is not None:
        return unsupported(version)
    read = installed_files()
    return unsupported(version) if read is None else judge(version, read).reason


def installed_files() -> ReadFile | None:
    """Reads files of the installed SGLang; None where there is none. Nothing of it is imported."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations))).parent

    def read(path: str) -> bytes | None:
        file = root / path
        return file.read_bytes() if file.is_file() else None

    return read


def judge(version: str, read: ReadFile) -> Verdict:
    """``read`` gives the bytes of a file of the release by its path in it, or None."""
    hooks = [check_hook(read, spec) for spec in (*SCHEDULER_HOOKS, *HTTP_HOOKS)]
    symbols = (*hooks, *_attributes_read(read))
    if parse_version(version) is not None:
        return Verdict(version, unsupported(version), symbols)
    missing = next((one for one in symbols if one.needed and one.problem), None)
    reason = (
        f"{unsupported(version)} {missing.name} cannot be used: {missing.problem}." if missing is not None else None
    )
    return Verdict(version, reason, symbols)


def _attributes_read(read: ReadFile) -> list[Symbol]:
    found = []
    for dotted, names in READ.items():
        node = _find(read, dotted)
        if not isinstance(node, ast.ClassDef):
            found.append(Symbol(dotted, "there is no such class", True))
            continue
        have = _attributes(node)
        found += [
            Symbol(f"{dotted}.{name}", None if name in have else "there is no such attribute", True)
            for name in names
        ]
    return found


def check_hook(read: ReadFile, spec: HookSpec) -> Symbol:
    """One symbol that is hooked: there, and with the parameters that the hook relies on."""
    node = _find(read, spec.target)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return Symbol(spec.target, "there is no such function", spec.needed)
    wanted = PARAMETERS.get(spec.name, ())
    have = tuple(argument.arg for argument in node.args.args)
    if have[: len(wanted)] != wanted:
        problem = f"its parameters begin with ({', '.join(have[: len(wanted)])}), not ({', '.join(wanted)})"
        return Symbol(spec.target, problem, spec.needed)
    return Symbol(spec.target, None, spec.needed)


def _find(read: ReadFile, dotted: str) -> ast.AST | None:
    """The class or function that a dotted path names."""
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        text = read("/".join(parts[:cut]) + ".py")
        if text is not None:
            node: ast.AST | None = ast.parse(text)
            for name in parts[cut:]:
                node = _child(node, name)
            return node
    return None


def _child(node: ast.AST | None, name: str) -> ast.AST | None:
    for item in getattr(node, "body", []):
        if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and item.name == name:
            return item
    return None


def _attributes(node: ast.ClassDef) -> set[str]:
    """Fields, methods and what methods assign to ``self``."""
    found = set()
    for item in ast.walk(node):
        if isinstance(item, ast.AnnAssign | ast.Assign):
            for target in [item.target] if isinstance(item, ast.AnnAssign) else item.targets:
                found.add(str(getattr(target, "id", None) or getattr(target, "attr", "")))
        elif isinstance(item, ast.FunctionDef):
            found.add(item.name)
    return found
