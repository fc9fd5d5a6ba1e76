"""Training dumps of hidden states, in the two layouts of the speculators project."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from pairs.tokenizer import Encoded


@dataclass(frozen=True)
class DumpSample:
    """One text and the boundaries that the trainer stored for it, in its order, each [length, hidden] bf16."""

    text: Encoded
    states: list[Tensor]


def write_v1(folder: Path, samples: Sequence[DumpSample], layer_ids: list[int], target_name: str) -> None:
    """speculators' older layout: `data_{i}.pt` with a LIST of states; ids name layer OUTPUTS (-1: the embedding)."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, sample in enumerate(samples):
        torch.save(
            {
                "input_ids": torch.tensor(sample.text.ids),
                "hidden_states": [s.contiguous().clone() for s in sample.states],
                "loss_mask": torch.tensor(sample.text.mask),
            },
            folder / f"data_{i}.pt",
        )
    config = {
        "version": "2.0",
        "model": {"target_model_path": target_name, "max_model_len": 2048},
        "data": {"num_samples": len(samples)},
        "hidden_states": {"layer_ids": layer_ids},
        "format": {
            "file_pattern": "data_{idx}.pt",
            "data_format_version": 1,
            "schema": {
                "input_ids": {"dtype": "torch.int64", "shape": "[seq_len]"},
                "hidden_states": {"dtype": "list[torch.bfloat16]", "num_tensors": len(layer_ids)},
                "loss_mask": {"dtype": "torch.int64", "shape": "[seq_len]"},
            },
        },
    }
    (folder / "data_config.json").write_text(json.dumps(config, indent=2) + "\n")
    lengths = {str(i): len(sample.text.ids) for i, sample in enumerate(samples)}
    (folder / "sample_lengths.json").write_text(json.dumps(lengths, indent=2) + "\n")


def write_arrow(folder: Path, samples: Sequence[DumpSample]) -> None:
    """speculators' present layout: an Arrow folder of tokens beside `hidden_states/hs_{i}.safetensors`.

    The last of a sample's states is B(n); the others are the slots. The Arrow side is left out where
    the `datasets` package is missing.
    """
    states = folder / "hidden_states"
    states.mkdir(parents=True, exist_ok=True)
    for i, sample in enumerate(samples):
        tensors = {
            "hidden_states": torch.stack(sample.states, dim=1).contiguous(),
            "token_ids": torch.tensor(sample.text.ids),
        }
        save_file(tensors, states / f"hs_{i}.safetensors")
    try:
        from datasets import Dataset
    except ImportError:
        return
    rows = {
        "input_ids": [s.text.ids for s in samples],
        "loss_mask": [s.text.mask for s in samples],
        "seq_len": [len(s.text.ids) for s in samples],
    }
    Dataset.from_dict(rows).save_to_disk(str(folder))
