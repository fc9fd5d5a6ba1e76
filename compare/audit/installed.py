"""What the SGLang that is installed here makes of layer ids: the model class's own setter, called on a stand-in.

Importing SGLang's models takes ten seconds and wants a GPU's libraries. The setter is a few lines of Python that
only assign a list, so its source is taken out of the installed file and called by itself: the class's own words,
no weights, no GPU, milliseconds. Where that does not work, the answer is None and the built-in table speaks.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SETTER = "set_eagle3_layers_to_capture"
_DEPTH = 8


@dataclass(frozen=True)
class InstalledClass:
    """One target class of the installed SGLang. ``read(ids, n)`` is what its setter stores, as boundaries. looks_up: it
    looks each of them up among its layers, so that one without a layer stops the server."""

    architecture: str
    defined_in: str
    version: str
    read: Callable[[Sequence[int] | None, int], tuple[int, ...]]
    looks_up: bool = False


def installed_version() -> str | None:
    """The version of the SGLang in this environment; None where there is none, or an interrupted installation that does
    not say it. Imports nothing of it."""
    try:
        found: str | None = metadata.version("sglang")
    except (metadata.PackageNotFoundError, KeyError, TypeError):
        return None
    return found or None


def installed_class(architecture: str) -> InstalledClass | None:
    """The installed class of that name, with its setter; None where SGLang, the class or a setter is not there."""
    version = installed_version()
    folder = _models_folder()
    if version is None or folder is None:
        return None
    setter = _setter(architecture, folder, 0)
    if setter is None:
        return None
    source, where = setter
    inner = _language_model(architecture, folder)
    nested = _setter(inner, folder, 0) if inner is not None else None
    where = where if nested is None else f"{where} and {nested[1]}"
    reads = functools.partial(_call, source, architecture, folder)
    installed = InstalledClass(architecture, where, version, reads, _looks_up(architecture, folder))
    try:
        installed.read(None, 32)
    except Exception:  # any surprise in foreign code: the table answers instead
        return None
    return installed


def _models_folder() -> Path | None:
    spec = importlib.util.find_spec("sglang")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    folders = [Path(place) / "srt" / "models" for place in places]
    return next((folder for folder in folders if folder.is_dir()), None)


@functools.cache
def _class(name: str, folder: Path) -> tuple[ast.ClassDef, str] | None:
    """The definition of a class among the model files, and its file's name.

    Two files may define one name (a whole model and its inner stack): the one that registers it wins.
    """
    needle = f"class {name}("
    best: tuple[ast.ClassDef, str] | None = None
    for path in sorted(folder.glob("*.py")):
        text = path.read_text("utf-8-sig")
        if needle not in text:
            continue
        found = _definition(name, text)
        if found is not None and re.search(rf"^EntryClass\b[^\n]*=[^=]*\b{name}\b", text, re.MULTILINE):
            return found, path.name
        best = best or ((found, path.name) if found is not None else None)
    return best


def _definition(name: str, text: str) -> ast.ClassDef | None:
    """One class of a module. Parsing the class alone takes a tenth of parsing a model's file."""
    cut = re.search(
        rf"^class {name}\(.*?(?=^(?:class |def |async def |@|if |[A-Za-z_]\w* *[=:])|\Z)", text, re.M | re.S
    )
    for part in (cut.group(0) if cut is not None else "", text):
        try:
            body = ast.parse(part).body
        except SyntaxError:  # the cut went through a text block: the whole file then
            continue
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
    return None


def _setter(name: str, folder: Path, depth: int) -> tuple[ast.FunctionDef, str] | None:
    """The setter of a class, inherited ones included."""
    found = _class(name, folder)
    if found is None or depth > _DEPTH:
        return None
    definition, where = found
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == SETTER:
            return node, where
    for base in definition.bases:
        inherited = _setter(ast.unparse(base).rsplit(".", 1)[-1], folder, depth + 1)
        if inherited is not None:
            return inherited
    return None


def _language_model(name: str, folder: Path) -> str | None:
    """The class that a multimodal class builds as ``self.language_model``."""
    found = _class(name, folder)
    for node in ast.walk(found[0]) if found is not None else ():
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "self.language_model"
            and isinstance(node.value, ast.Call)
        ):
            return ast.unparse(node.value.func).rsplit(".", 1)[-1]
    return None


def _looks_up(name: str, folder: Path) -> bool:
    """Whether the inner model to which a class hands the boundaries marks ``self.layers[boundary]`` for each."""
    setter, inner = _setter(name, folder, 0), _inner_model(name, folder, 0)
    if setter is None or inner is None or f".{SETTER}(" not in ast.unparse(setter[0]):
        return False
    nested = _setter(inner, folder, 0)
    return nested is not None and ("self.layers[" in ast.unparse(nested[0]) or _looks_up(inner, folder))


def _inner_model(name: str, folder: Path, depth: int) -> str | None:
    """The class of ``self.model`` or ``self.language_model``, by the class or by those that it inherits from."""
    found = _class(name, folder)
    if found is None or depth > _DEPTH:
        return None
    built = []
    for node in ast.walk(found[0]):
        if isinstance(node, ast.FunctionDef):  # the inner class may be an argument with a default
            given = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            pairs = zip(given, node.args.defaults, strict=True)
            built += [ast.unparse(value) for arg, value in pairs if arg.arg == "language_model_cls"]
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.targets[0]) in ("self.model", "self.language_model")
        ):
            built.append(ast.unparse(node.value.func).rsplit(".", 1)[-1])
    known = next((one for one in built if one != name and _class(one, folder) is not None), None)
    if known is not None:
        return known
    bases = (ast.unparse(base).rsplit(".", 1)[-1] for base in found[0].bases)
    return next((inner for base in bases if (inner := _inner_model(base, folder, depth + 1)) is not None), None)


class _Part:
    """A stand-in for a module inside the model: takes the list however the setter hands it over."""

    def __init__(self, layers: int) -> None:
        self.layers = [SimpleNamespace() for _ in range(layers)]
        self.handed: list[int] | None = None

    def set_eagle3_layers_to_capture(self, ids: list[int] | None) -> None:
        self.handed = ids if ids is None else list(ids)
        self.called = True


def _call(
    source: ast.FunctionDef, architecture: str, folder: Path, ids: Sequence[int] | None, n: int
) -> tuple[int, ...]:
    """Run the setter on a stand-in for a target of n layers and read what it left there."""
    function = _compiled(source)
    config = SimpleNamespace(num_hidden_layers=n)
    config.text_config = config
    rank = SimpleNamespace(is_last_rank=True)
    me: Any = SimpleNamespace(config=config, pp_group=rank, model=_Part(n), language_model=_Part(n))
    function(me, None if ids is None else list(ids))
    for part in (me.model, me.language_model):
        stored = getattr(part, "layers_to_capture", None)
        if stored is not None:
            return tuple(int(k) for k in stored)
    if getattr(me.language_model, "called", False):
        inner = _language_model(architecture, folder)
        nested = _setter(inner, folder, 0) if inner is not None else None
        if inner is None or nested is None:
            raise LookupError(f"{architecture} hands its ids to a class that was not found")
        return _call(nested[0], inner, folder, me.language_model.handed, n)
    if me.model.handed is None:
        raise LookupError(f"{architecture} stored no list")
    return tuple(int(k) for k in me.model.handed)


def _compiled(source: ast.FunctionDef) -> Callable[..., None]:
    parallel = SimpleNamespace(pp_group=SimpleNamespace(is_last_rank=True))
    scope: dict[str, Any] = {"get_parallel": lambda: parallel, "get_pp_group": lambda: parallel.pp_group}
    module = ast.Module(body=[ast.ImportFrom("__future__", [ast.alias("annotations")], 0), source], type_ignores=[])
    exec(compile(ast.fix_missing_locations(module), "<sglang setter>", "exec"), scope)  # installed code, not input
    made: Callable[..., None] = scope[SETTER]
    return made
