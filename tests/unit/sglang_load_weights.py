"""SGLang's own ``load_weights`` of a draft class, out of the installed file and run on a stand-in: nothing is imported."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from drafttrace.compare.audit.installed import _models_folder

FILES = {"LlamaForCausalLMEagle3": "llama_eagle3.py", "Eagle3DeepseekV2ForCausalLM": "kimi_k25_eagle3.py"}


def filled(name: str, parameters: Iterable[str], stored: Iterable[str]) -> dict[str, str]:
    """Which parameter each stored name fills (``d2t`` where it becomes the map), by the class of that name.

    parameters: the class's own names (``model.layers.0.self_attn.qkv_proj.weight``).
    """
    folder = _models_folder()
    assert folder is not None
    run = _method(folder / FILES[name])
    took: dict[str, str] = {}
    for one in stored:
        got: list[str] = []
        held = [(parameter, _Parameter(parameter, got)) for parameter in parameters]
        me = SimpleNamespace(
            hot_token_id=None, named_parameters=lambda held=held: held, post_load_weights=lambda: None
        )
        run(me, _with_its_half(one))
        if me.hot_token_id is not None:
            took[one] = "d2t"
        elif got:
            took[one] = got[-1]
    return took


def _with_its_half(name: str) -> list[tuple[str, torch.Tensor]]:
    """A name alone, or with the other half of what is fused only where both are there."""
    halves = ("q_a_proj.weight", "kv_a_proj_with_mqa.weight")
    other = next((name.removesuffix(a) + b for a, b in (halves, halves[::-1]) if name.endswith(a)), None)
    if other is None or name.endswith(f"fused_{halves[0]}"):
        return [(name, torch.zeros(2))]
    return [(other, torch.zeros(2)), (name, torch.zeros(2))]


class _Parameter:
    def __init__(self, name: str, got: list[str]) -> None:
        self.weight_loader = lambda parameter, tensor, *shard: got.append(name)


def _method(path: Path) -> Any:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "load_weights":
            module = ast.Module(
                body=[ast.ImportFrom("__future__", [ast.alias("annotations")], 0), node], type_ignores=[]
            )
            scope: dict[str, Any] = {"torch": torch, "re": re, "logger": logging.getLogger("sglang")}
            scope["default_weight_loader"] = None
            exec(compile(ast.fix_missing_locations(module), str(path), "exec"), scope)
            return scope["load_weights"]
    raise LookupError(path)
