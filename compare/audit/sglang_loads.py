"""A process of its own in which the installed SGLang loads two configs: ``python -m … REQUEST ANSWER``.

SGLang's own ``get_config`` and ``ModelConfig`` are called as its server does before any weight is read, without a GPU,
without a network, and with remote code off: a config that brings code of its own is refused by them, and none of it runs.
REQUEST and ANSWER are JSON files, see :func:`answer`. Nothing else in drafttrace imports this module.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_MOST_TRIALS, _MOST_KEYS = 48, 3
_MOST_TEXT = 2000
_MADE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
_PARTS = ("text_config", "llm_config", "language_config")
_TYPES = {"draft": ("llama", "kimi_k2"), "target": ("llama",)}
"""Types to try in the place of one that may be at fault."""

Load = Callable[[Path], Any]


def main(request: Path, out: Path) -> None:
    """Read a request, write its answer."""
    asked = json.loads(request.read_text("utf-8"))
    out.write_text(json.dumps(answer(Path(asked["target"]), Path(asked["draft"]))), "utf-8")


def answer(target: Path, draft: Path) -> dict[str, Any]:
    """What SGLang makes of the configs of a target and a draft.

    Per role ``sizes`` where it loads, as the model is built with them; else ``error`` (the exception's class), ``message``,
    and ``keys`` (dotted; those without which, or with another value of which, the config loads; "" is its path).
    """
    from sglang.version import __version__

    with tempfile.TemporaryDirectory() as room:
        said = {role: _asked(role, at, Path(room)) for role, at in (("target", target), ("draft", draft))}
    return {"version": __version__, **said}


def _asked(role: str, folder: Path, room: Path) -> dict[str, Any]:
    from sglang.srt.utils.hf_transformers_utils import get_config

    def load(place: Path) -> Any:
        from sglang.srt.configs.model_config import ModelConfig

        draft: dict[str, Any] = {"is_draft_model": True, "speculative_algorithm": "EAGLE3"}
        made = ModelConfig(str(place), trust_remote_code=False, **(draft if role == "draft" else {}))
        _look_at(made.dtype)
        return made

    config = json.loads((folder / "config.json").read_text("utf-8"))
    plain = _unquantized(config)
    try:
        get_config(str(folder), trust_remote_code=False)  # by its own path, of which SGLang reads the name, too
        return {"sizes": _sizes(load(_written(plain, room)))}
    except Exception as error:  # any refusal is the answer
        return {
            "error": type(error).__name__,
            "message": str(error)[:_MOST_TEXT],
            "keys": _to_blame(plain, role, str(error), room, load),
        }


def _sizes(made: Any) -> dict[str, int]:
    """What ``ModelConfig`` itself has, from which the caches are made, and else what the config object has."""
    names = (*_MADE, "intermediate_size", "draft_vocab_size")
    found = {name: getattr(made if name in _MADE else made.hf_config, name, None) for name in names}
    return {name: value for name, value in found.items() if type(value) is int}


def _look_at(dtype: Any) -> None:
    """Raise TypeError where the server will when it builds the model in this number format."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.set_default_dtype(before)


def _unquantized(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without quantization: whether a format can run depends on the machine that serves, and not on the config."""
    made = copy.deepcopy(dict(config))
    for place in (made, *(made[part] for part in _PARTS if isinstance(made.get(part), dict))):
        place.pop("quantization_config", None)
    return made


def _written(config: Mapping[str, Any], room: Path) -> Path:
    """A new folder that holds this config alone."""
    place = Path(tempfile.mkdtemp(dir=room))
    (place / "config.json").write_text(json.dumps(config), "utf-8")
    return place


def _to_blame(config: Mapping[str, Any], role: str, message: str, room: Path, load: Load) -> list[str]:
    """The keys one of which, absent or otherwise, makes the config load; those that the message names first.

    ``""`` alone: as it stands it loads from another path.
    """
    try:
        load(_written(config, room))
    except Exception:  # it is the config
        pass
    else:
        return [""]
    named = set(re.findall(r"[\w.]+", message))
    trials = sorted(_trials(config, role), key=lambda trial: trial[0].rsplit(".", 1)[-1] not in named)
    found: list[str] = []
    for key, changed in trials[:_MOST_TRIALS]:
        if key in found or len(found) == _MOST_KEYS:
            continue
        try:
            load(_written(changed, room))
        except Exception:  # still refused: this key alone is not it
            continue
        found.append(key)
    return found


def _trials(config: Mapping[str, Any], role: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key, and the config without it; the type also with another one in its place."""
    for key in config:
        yield key, {name: value for name, value in config.items() if name != key}
    for kind in _TYPES[role]:
        yield "model_type", {**config, "model_type": kind}
    for part in _PARTS:
        inner = config.get(part)
        if not isinstance(inner, dict):
            continue
        for key in inner:
            yield f"{part}.{key}", {**config, part: {name: v for name, v in inner.items() if name != key}}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
