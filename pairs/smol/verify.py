"""Whether a folder holds the converted model: every tensor's bytes, the tokenizer and the config, by their hashes.

What counts is content and not layout: another version of safetensors or transformers may order a file's keys otherwise.
Reading 269 MB takes a second, so a folder that was found right is remembered beside it, by its files' sizes and times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drafttrace.tracer.checkpoint import open_checkpoint, read_json
from drafttrace.tracer.errors import DrafttraceError

SHAPE = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "vocab_size": 49152,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
"""What the config says of the forward; the rest of it differs with the version of transformers that wrote it."""
THETA = 100000.0
TENSORS = 272
WEIGHTS = "model.safetensors"
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
SHA256 = {
    WEIGHTS: "f3305f0aaef8dbdaa05c2b85dcf4be88c878db2811be41caec783f5c148bd090",
    "tokenizer.json": "4a7fc7ed13c7c472d1d6273491d4c39091568254941f98f563d2d92360aef622",
    "chat_template.jinja": "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",
}
"""Of the tensors (:func:`weights_hash`), of the tokenizer's values (:func:`json_hash`), of the template's bytes."""
READ = ("config.json", "tokenizer_config.json", *SHA256)
"""The files that are looked at."""


def weights_hash(folder: Path) -> str:
    """Over all tensors by name: name, format, shape and bytes."""
    weights, digest = open_checkpoint(folder), hashlib.sha256()
    for name in sorted(weights):
        array = weights.array(name)
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def json_hash(path: Path) -> str:
    """Over the values of a JSON file, whatever its layout."""
    plain = json.dumps(read_json(path), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def problem_of(folder: Path) -> str | None:
    """Why a folder is not the converted model, by what it holds; None where it is."""
    try:
        times = _times(folder)
        if times is not None and _remembered(folder) == times:
            return None
        why = _problem(folder)
    except (DrafttraceError, OSError) as error:
        return str(error).rstrip(".")
    if why is None and times is not None:
        _remember(folder, times)
    return why


def _problem(folder: Path) -> str | None:
    config, tokens = read_json(folder / "config.json"), read_json(folder / "tokenizer_config.json")
    why = _other("config.json", config, SHAPE) or _other("tokenizer_config.json", tokens, SPECIAL)
    if why is not None:
        return why
    rope = config.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else config.get("rope_theta")
    if theta != THETA:
        return f"its config.json says rope_theta {theta}, not {THETA}"
    count = len(open_checkpoint(folder))
    if count != TENSORS:
        return f"it has {count} tensors, not {TENSORS}"
    made: dict[str, Callable[[], str]] = {
        WEIGHTS: lambda: weights_hash(folder),
        "tokenizer.json": lambda: json_hash(folder / "tokenizer.json"),
        "chat_template.jinja": lambda: hashlib.sha256((folder / "chat_template.jinja").read_bytes()).hexdigest(),
    }
    for name, wanted in SHA256.items():
        found = made[name]()
        if found != wanted:
            return f"the content of its {name} has the SHA-256 {found[:12]}…, not {wanted[:12]}…"
    return None


def _other(name: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    for key, value in wanted.items():
        if found.get(key) != value:
            return f"its {name} says {key} {found.get(key)}, not {value}"
    return None


def _times(folder: Path) -> dict[str, list[int]] | None:
    """Size and times of every file that is looked at; a write changes the second time, whoever sets the first."""
    found = {}
    for name in READ:
        try:
            of = (folder / name).stat()
        except OSError:
            return None
        found[name] = [of.st_size, of.st_mtime_ns, of.st_ctime_ns]
    return found


def _stamp(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.verified.json")


def _remembered(folder: Path) -> object:
    """What was found right last, if it was found by these hashes."""
    try:
        held = json.loads(_stamp(folder).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return held.get("files") if isinstance(held, dict) and held.get("sha256") == SHA256 else None


def _remember(folder: Path, times: Mapping[str, list[int]]) -> None:
    try:
        _stamp(folder).write_text(json.dumps({"sha256": SHA256, "files": times}, indent=1) + "\n", "utf-8")
    except OSError:
        return  # a cache that cannot be written is read again each time
