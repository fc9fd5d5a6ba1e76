"""Model names of the Hugging Face hub, and the folders that its local cache holds for them.

Read without that library, which is nothing drafttrace depends on::

    models--org--name/refs/main           the commit that the branch stood at when it was fetched
    models--org--name/snapshots/COMMIT/   the files, as links into blobs/
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from drafttrace.tracer.errors import UnreadableFile

MAIN = "main"
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


def is_hub_name(text: str) -> bool:
    """Whether ``text`` is written as ``name`` or ``org/name``. A folder may be, too: look for that first."""
    return _NAME.fullmatch(text) is not None and ".." not in text and len(text) <= 96


def cache_folder() -> Path:
    """Where the hub's own library keeps what it fetched, by the same variables."""
    home = os.environ.get("HF_HOME")
    if not home:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface")
    place = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(place)))


def cached_snapshots(name: str, *, revision: str | None = None, more: Sequence[Path] = ()) -> tuple[Path, ...]:
    """The folders that hold ``revision`` (default: main) of a model, those of the caches ``more`` before the usual one's.

    Where a cache names no main and holds one snapshot only, that is it.

    Empty where ``name`` is no hub name, nothing of it was fetched, or the server would ask another hub. A snapshot may be
    a part of a model: only the files that somebody asked for.
    """
    wanted = revision or MAIN
    if not is_hub_name(name) or not _REVISION.fullmatch(wanted) or ".." in wanted or _another_hub():
        return ()
    found = (_snapshot(cache / _folder_name(name), wanted) for cache in (*more, cache_folder()))
    return tuple(folder for folder in found if folder is not None)


def cached_model(name: str, revision: str | None = None) -> Path | None:
    """The cached snapshot of a model with its config: one without was fetched for something else."""
    held = cached_snapshots(name, revision=revision)
    return next((folder for folder in held if (folder / "config.json").is_file()), None)


def model_folder(given: Path, role: str) -> Path:
    """The folder that ``given`` is, or that the cache holds where it is a name of the hub, ``org/name``.

    Raises UnreadableFile for such a name that is no folder and not in the cache; any other path is left to the reader.
    """
    name = str(given)
    if "/" not in name or not is_hub_name(name) or given.exists():
        return given
    held = cached_model(name)
    if held is not None:
        return held
    why, what = _what_is_cached(name)
    raise UnreadableFile(f"The {role} '{name}' is no folder here, and {why}; give its folder with --{role}{what}.")


def _what_is_cached(name: str) -> tuple[str, str]:
    """Why the cache gives no folder for a hub's name, and what can be done besides giving one."""
    cache = cache_folder()
    repository = cache / _folder_name(name)
    held = _snapshots_in(repository)
    if _another_hub():
        return f"the server would ask another hub than that of {cache} (SGLANG_USE_MODELSCOPE)", ""
    if not held:
        return f"the hub cache {cache} holds no snapshot of it", ", or fetch it first"
    chosen = _snapshot(repository, MAIN)
    if chosen is not None:
        return f"its snapshot {chosen} has no config.json", ", or fetch it whole"
    listed = ", ".join(str(folder) for folder in held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
    main = repository / "refs" / MAIN
    if main.exists():
        return f"{main} names no snapshot that is there (there are {listed})", ", or fetch it again"
    return f"no revision of it is named, for there is no {main} (its snapshots are {listed})", ", one of these"


def _folder_name(name: str) -> str:
    return "models--" + name.replace("/", "--")


def _snapshots_in(repository: Path) -> list[Path]:
    try:
        return sorted(folder for folder in (repository / "snapshots").iterdir() if folder.is_dir())
    except OSError:
        return []


def _snapshot(repository: Path, revision: str) -> Path | None:
    """The folder of a revision. Where nothing says what main is, the only snapshot is it: fetched by its commit."""
    reference = repository / "refs" / revision
    try:
        commit = reference.read_text("ascii").strip()
    except (OSError, ValueError):
        held = _snapshots_in(repository)
        if revision == MAIN and not reference.exists() and len(held) == 1:
            return held[0]
        commit = revision  # a commit is no reference of its own
    if not re.fullmatch(r"\w[\w.-]*", commit, re.ASCII):
        return None
    folder = repository / "snapshots" / commit
    return folder if folder.is_dir() else None


def _another_hub() -> bool:
    return os.environ.get("SGLANG_USE_MODELSCOPE", "").lower() in {"1", "true"}
