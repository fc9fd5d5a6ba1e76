"""Copies of a draft with a fault in its config or in its weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

IDS = "eagle_aux_hidden_state_layer_ids"
Config = dict[str, Any]
Weights = dict[str, torch.Tensor]


def copied(
    draft: Path,
    folder: Path,
    config: Callable[[Config], None] | None = None,
    weights: Callable[[Weights], None] | None = None,
) -> Path:
    """A copy of the draft with its config and its weights changed in place."""
    shutil.copytree(draft, folder)
    if config is not None:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        config(values)
        path.write_text(json.dumps(values, indent=2) + "\n")
    if weights is not None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        weights(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})
    return folder


# Configs


def ids(*values: int) -> Callable[[Config], None]:
    """Other layer ids, where SGLang reads them."""

    def change(config: Config) -> None:
        config["eagle_config"][IDS] = list(values)

    return change


def no_ids(config: Config) -> None:
    del config["eagle_config"][IDS]


def at_top_level(config: Config) -> None:
    """As speculators writes them; SGLang does not look there."""
    config[IDS] = config["eagle_config"].pop(IDS)


def fc_norm_asked(config: Config) -> None:
    config["fc_norm"] = True


def other_theta(config: Config) -> None:
    config["rope_theta"] = 500000.0


def windowed(config: Config) -> None:
    """A draft that says it was trained with a window; SGLang's class does not read that."""
    config["sliding_window"] = 16
    config["layer_types"] = ["sliding_attention"] * config["num_hidden_layers"]


def small_vocabulary(config: Config) -> None:
    config["draft_vocab_size"] = SMALL


# Weights

SMALL = 96
"""Draft ids that are left of 512 in a vocabulary that is too small."""


def without(name: str) -> Callable[[Weights], None]:
    """A tensor that the export forgot."""

    def change(tensors: Weights) -> None:
        del tensors[name]

    return change


def target_head(target: Path) -> Callable[[Weights], None]:
    """The target's head in the draft's place: the rows of the draft's vocabulary."""

    def change(tensors: Weights) -> None:
        theirs = load_file(target / "model.safetensors")["lm_head.weight"]
        chosen = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
        tensors["lm_head.weight"] = theirs[chosen].clone()

    return change


def absolute_map(tensors: Weights) -> None:
    """Target ids where the offsets to them belong."""
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def map_out_of_range(tensors: Weights) -> None:
    """Every eighth entry points beyond the target's vocabulary."""
    tensors["d2t"][::8] += 2000


def with_fc_norm(tensors: Weights) -> None:
    """Norms before fc, as a trainer with ``fc_norm`` exports them: one weight per slot."""
    width = tensors["fc.weight"].shape[1] // 3
    generator = torch.Generator().manual_seed(2)
    for slot in range(3):
        weight = 1 + 0.2 * torch.randn(width, generator=generator)
        tensors[f"fc_norm.{slot}.weight"] = weight.to(tensors["fc.weight"].dtype)


def few_words(tensors: Weights) -> None:
    """A vocabulary chosen on other text: its SMALL ids are those that the draft's own list has last."""
    chosen = (torch.arange(len(tensors["d2t"])) + tensors["d2t"])[-SMALL:]
    tensors["lm_head.weight"] = tensors["lm_head.weight"][-SMALL:].clone()
    tensors["d2t"] = chosen - torch.arange(SMALL)
    tensors["t2d"] = torch.zeros_like(tensors["t2d"])
    tensors["t2d"][chosen] = True


def with_a_stray(tensors: Weights) -> None:
    """A tensor that no draft class knows, as a trainer's leftover."""
    stray = torch.randn(16, 16, generator=torch.Generator().manual_seed(4))
    tensors["midlayer.gate.weight"] = stray.to(tensors["fc.weight"].dtype)


def narrow_fc(tensors: Weights) -> None:
    """fc for two slots, where the config names three."""
    tensors["fc.weight"] = tensors["fc.weight"][:, : tensors["fc.weight"].shape[1] * 2 // 3].clone()
