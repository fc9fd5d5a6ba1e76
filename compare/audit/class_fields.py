"""What the config class of a ``model_type`` declares, by its source in the transformers here; nothing is imported.

Since release 5 these classes are strict dataclasses, which refuse a value of another type than a field's. Importing them
takes seconds, reading one file milliseconds. Where no source is found the tables of ``config_fields`` speak.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drafttrace.compare.audit.model_types import package_folder


class Field(NamedTuple):
    """What a class says of a field: its annotation, and the least and the largest number that it takes."""

    annotation: ast.expr
    least: float = -math.inf
    most: float = math.inf

    def takes(self, value: Any) -> bool:
        """Whether the class surely takes a value."""
        number = type(value) in (int, float)
        return fits(self.annotation, value) and (not number or self.least <= value <= self.most)


Fields = Mapping[str, Field]
_ALIKE: Mapping[str, tuple[str, ...]] = {
    "kimi_k2": ("deepseek_v3",),
    "deepseek_v32": ("deepseek_v32", "deepseek_v3"),
    "qwen2_5_vl": ("qwen2_5_vl", "qwen2_5_vl_text"),
}
"""Types that other classes read: SGLang reads a V3.2 as a V3 besides, and a Qwen2.5-VL may be one flat object."""
_PARTS = ("_moe_text", "_text")
_SIMPLE: Mapping[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_OBJECTS = frozenset({"dict", "RopeParameters"})


def takes(model_type: str, key: str, value: Any) -> bool | None:
    """Whether the classes of a type surely take a value; None where none of them has such a field, or no source is here."""
    found = [fields[key].takes(value) for fields in declared(model_type) or () if key in fields]
    return all(found) if found else None


@functools.cache
def declared(model_type: str) -> tuple[Fields, ...] | None:
    """The fields of each class that reads a type, other names of them included; None where a source is not found."""
    found = [_fields(kind) for kind in _ALIKE.get(model_type, (model_type,))]
    return tuple(fields for fields in found if fields is not None) if None not in found else None


def fits(annotation: ast.expr, value: Any) -> bool:
    """Whether a class with this annotation surely takes a value: an integer is no float there, and a switch no integer."""
    if isinstance(annotation, ast.BinOp):
        return fits(annotation.left, value) or fits(annotation.right, value)
    if isinstance(annotation, ast.Constant):
        return annotation.value is None and value is None
    if isinstance(annotation, ast.Name):
        return (annotation.id in _OBJECTS and isinstance(value, dict)) or type(value) is _SIMPLE.get(annotation.id)
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        if annotation.value.id == "dict":
            return isinstance(value, dict)
        if annotation.value.id == "list":
            return isinstance(value, list) and all(fits(annotation.slice, item) for item in value)
        if annotation.value.id == "Literal":
            choices = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            return value in [choice.value for choice in choices if isinstance(choice, ast.Constant)]
    return False


def _fields(kind: str) -> Fields | None:
    folder = package_folder("transformers", "models")
    for path in _sources(folder, kind) if folder is not None else ():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and _constant(node, "model_type") == kind:
                own = {
                    line.target.id: Field(line.annotation, *_bounds(line.value))
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                }
                other = _constant(node, "attribute_map") or {}
                return own | {name: own[meant] for name, meant in other.items() if meant in own}
    return None


def _bounds(default: ast.expr | None) -> tuple[float, float]:
    """The numbers of ``interval(min=0.0, max=1.0)(default=0.02)``."""
    said = default.func.keywords if isinstance(default, ast.Call) and isinstance(default.func, ast.Call) else []
    found = {word.arg: word.value.value for word in said if isinstance(word.value, ast.Constant)}
    numbers = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    return numbers.get("min", -math.inf), numbers.get("max", math.inf)


def _sources(folder: Path, kind: str) -> Iterator[Path]:
    """The files in which a type's class may stand: that of the type, or of the model that it is a part of."""
    names = [kind, *(kind.removesuffix(part) for part in _PARTS if kind.endswith(part))]
    names += [f"{kind.removesuffix('_moe_text')}_moe"] if kind.endswith("_moe_text") else []
    for name in names:
        path = folder / name / f"configuration_{name}.py"
        if path.is_file():
            yield path


def _constant(node: ast.ClassDef, name: str) -> Any:
    """What a class sets an attribute to; None where it is no plain value."""
    for line in node.body:
        targets = (
            line.targets
            if isinstance(line, ast.Assign)
            else [line.target]
            if isinstance(line, ast.AnnAssign)
            else []
        )
        value = getattr(line, "value", None)
        if value is not None and any(isinstance(one, ast.Name) and one.id == name for one in targets):
            try:
                return ast.literal_eval(value)
            except ValueError:
                return None
    return None
