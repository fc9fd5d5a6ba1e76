"""What the manifest of a NeMo Automodel cache says of its tensors, held against the tensors.

Only headers are read: shapes and number formats, and the ids of one sample. What nobody can check so (which layers, which
target, which data) is believed, and named as the manifest's word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drafttrace.tracer.capture import Ints
from drafttrace.tracer.dumps.safetensors_file import read_safetensors
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnreadableFile

EMBEDDINGS = {"AM-EAGLE3": ("target_embeddings.safetensors", "weight"),
              "AM-DSPARK": ("target_weights.safetensors", "embed_tokens.weight")}  # fmt: skip
_VERSIONS = {"AM-EAGLE3": 2, "AM-DSPARK": 1}
_KINDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_UNCHECKED = ("target_model", "input_data", "train_data_path", "split", "train_split", "shuffle_seed",
              "mask_reasoning_content", "mask_generation_prompt", "chat_template_sha256")  # fmt: skip
_STATES = {"AM-EAGLE3": "aux_hidden_states", "AM-DSPARK": "target_hidden_states"}
_IDS = {"AM-EAGLE3": "aux_layer_ids", "AM-DSPARK": "target_layer_ids"}
_PER_TOKEN = ("attention_mask", "loss_mask", "position_mask", "target_probs", "target_probs_values", "target_probs_indices",
              "target_last_hidden_states")  # fmt: skip


def contradictions(
    layout: str, folder: Path, manifest: Mapping[str, Any], own: Mapping[str, Tensor], tokens: Ints
) -> tuple[str, ...]:
    """In a sentence each, without its stop, what the manifest says of the cache and its tensors refute.

    own: the fields of one sample, without their first axis. tokens: its ids as stored.
    """
    return tuple(_found(layout, folder, manifest, own, tokens))


def believed(layout: str, manifest: Mapping[str, Any]) -> str:
    """What of the manifest nothing in the cache can confirm."""
    named = [_IDS[layout], *(name for name in _UNCHECKED if manifest.get(name) is not None)]
    return f"believed of manifest.json, for nothing in the cache can confirm it: {', '.join(named)}"


def _found(
    layout: str, folder: Path, manifest: Mapping[str, Any], own: Mapping[str, Tensor], tokens: Ints
) -> Iterator[str]:
    version, states = manifest.get("format_version"), own[_STATES[layout]]
    if version != _VERSIONS[layout]:
        yield (
            f"manifest.json says format_version {str(version)[:20]}, and {layout} is known as version {_VERSIONS[layout]}: "
            "its fields may mean something else"
        )
    ids = manifest.get(_IDS[layout])
    count = len(ids) if isinstance(ids, list) and ids else 0
    width = states.shape[-1] // count if count else states.shape[-1]
    name = _STATES[layout]
    yield from _unlike(manifest, "seq_length", len(tokens), f"input_ids has {len(tokens):,} tokens")
    for field in ("aux_hidden_dim", "target_hidden_dim"):
        yield from _unlike(manifest, field, states.shape[-1], f"{name} is {states.shape[-1]} wide")
    if (last := own.get("target_last_hidden_states")) is not None:
        yield from _unlike(manifest, "target_last_hidden_dim", last.shape[-1], f"it is {last.shape[-1]} wide")
        width = last.shape[-1]
    yield from _unlike(manifest, "hidden_size", width, f"one state is {width} wide")
    said = manifest.get("dtype")
    if isinstance(said, str) and _KINDS.get(said, said) != states.kind:
        yield f"manifest.json says dtype {said[:20]}, and {name} is {states.kind}"
    for field in _PER_TOKEN:
        if (tensor := own.get(field)) is not None and tensor.ndim and tensor.shape[0] != len(tokens):
            yield f"{field} has {tensor.shape[0]:,} rows, and input_ids has {len(tokens):,} tokens"
    vocabulary = manifest.get("target_vocab_size")
    top = int(tokens.max())
    if type(vocabulary) is int and top >= vocabulary:
        yield f"manifest.json says target_vocab_size {vocabulary}, and input_ids holds {top}"
    yield from _draft_vocabulary(manifest, own, vocabulary)
    yield from _companion(layout, folder, width, vocabulary)


def _unlike(manifest: Mapping[str, Any], field: str, found: int, told: str) -> Iterator[str]:
    said = manifest.get(field)
    if said is not None and said != found:
        yield f"manifest.json says {field} {str(said)[:20]}, and {told}"


def _draft_vocabulary(manifest: Mapping[str, Any], own: Mapping[str, Tensor], vocabulary: Any) -> Iterator[str]:
    """Of the draft's vocabulary: its size, its ids, and how the distributions over it are stored."""
    size, chosen, most = (
        manifest.get("draft_vocab_size"),
        manifest.get("selected_token_ids"),
        manifest.get("target_probs_topk"),
    )
    if isinstance(chosen, list) and all(type(k) is int for k in chosen):
        yield from _unlike(manifest, "draft_vocab_size", len(chosen), f"selected_token_ids names {len(chosen)}")
        if len(set(chosen)) < len(chosen):
            yield f"selected_token_ids of manifest.json names {len(chosen) - len(set(chosen))} tokens twice"
        if chosen and (min(chosen) < 0 or (type(vocabulary) is int and max(chosen) >= vocabulary)):
            odd = min(chosen) if min(chosen) < 0 else max(chosen)
            yield f"selected_token_ids of manifest.json names {odd}, which is no token of the target"
        size = len(chosen)
    if (probs := own.get("target_probs")) is not None and type(size) is int and probs.shape[-1] != size:
        yield f"manifest.json names {size} draft tokens, and target_probs is {probs.shape[-1]} wide"
    values = own.get("target_probs_values")
    if values is not None and type(most) is int and values.shape[-1] != most:
        yield f"manifest.json says target_probs_topk {most}, and target_probs_values is {values.shape[-1]} wide"
    if "target_probs_topk" not in manifest:
        return
    whole = type(most) is not int or most <= 0 or (type(size) is int and most >= size)
    if (whole and values is not None) or (not whole and probs is not None):
        yield (
            f"manifest.json says target_probs_topk {most}, and the shards hold "
            f"{'target_probs_values' if values is not None else 'target_probs'}"
        )


def _companion(layout: str, folder: Path, width: int, vocabulary: Any) -> Iterator[str]:
    """Of the target's embedding, which lies beside the shards."""
    weight = embedding_of(layout, folder)
    if weight is None or weight.ndim != 2:
        return
    where = EMBEDDINGS[layout][0]
    if weight.shape[1] != width:
        yield f"{where} is {weight.shape[1]} wide, and one state is {width}"
    if type(vocabulary) is int and weight.shape[0] < vocabulary:
        yield f"manifest.json says target_vocab_size {vocabulary}, and {where} has {weight.shape[0]:,} rows"


def embedding_of(layout: str, folder: Path) -> Tensor | None:
    """The target's embedding ``[V, H]`` that lies beside the shards; None where it cannot be had."""
    name, key = EMBEDDINGS[layout]
    try:
        return read_safetensors(folder / name).tensors.get(key) if (folder / name).is_file() else None
    except UnreadableFile:
        return None
