"""Every error of the tracer is a whole sentence, with a full stop."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from drafttrace.tracer import errors

ROOT = Path(__file__).resolve().parents[2]
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type)}


def last_text(node: ast.expr) -> str | None:
    """The end of a message, None where a value or a call makes it."""
    if isinstance(node, ast.JoinedStr):
        return last_text(node.values[-1]) if node.values else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return last_text(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@pytest.mark.parametrize("path", sorted((ROOT / "tracer").rglob("*.py")), ids=lambda path: path.stem)
def test_errors_end_with_a_full_stop(path: Path) -> None:
    """Several "is damaged" errors of traces did not."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
            end = last_text(node.args[0])
            assert end is None or end.rstrip("'\"").endswith((".", "?")), (path.name, node.lineno, end)
