"""The folders of the machine that recorded a trace, taken out of it before it is committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py

from drafttrace.tracer.trace import texts


def without_home_paths(trace: Path, folders: dict[str, str]) -> None:
    """Replace the beginnings of paths in every JSON block of ``trace``: ``folders`` maps what is there to what comes."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: cleaned(item) for name, item in value.items()}
        if isinstance(value, list):
            return [cleaned(item) for item in value]
        if isinstance(value, str):
            for before, after in folders.items():
                value = value.replace(before, after)
        return value

    with h5py.File(trace, "r+") as file:
        for name, dataset in file["about"].items():
            if name == "layout" or not dataset.shape:
                continue
            text = texts.get_text(dataset[()])
            if any(before in text for before in folders):
                texts.replace_block(file, name, cleaned(json.loads(text.rstrip("\0"))))
