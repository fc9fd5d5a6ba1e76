"""NeMo Automodel: the only dumps that describe themselves. A folder with ``manifest.json`` and stacked shards.

EAGLE-3 caches store input_ids, loss_mask and target_probs ALREADY SHIFTED LEFT by one (row t holds token t+1, the
first token is lost), the aux states unshifted, and no last state. DSpark caches are unshifted.

Source: NVIDIA-NeMo/Automodel ``nemo_automodel/components/datasets/llm/eagle3_cache.py``, ``dspark_cache.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.boundary import LAST_STATE
from drafttrace.tracer.capture import Capture, Ints, Norm, Slot
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.automodel_manifest import believed, contradictions
from drafttrace.tracer.dumps.mask_notes import mask_notes
from drafttrace.tracer.dumps.registry import MOST_SAMPLES, FolderLayout, Request, SampleRef, register
from drafttrace.tracer.dumps.safetensors_file import SafetensorsFile, read_safetensors
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.dumps.unread_fields import unread
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import Rows


def _manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / "manifest.json"
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        raise UnreadableFile(f"The file '{path}' is not valid JSON; repair it or write the cache again.") from None
    return manifest if isinstance(manifest, dict) and "format_version" in manifest else None


def _detect_eagle3(folder: Path) -> str | None:
    manifest = _manifest(folder)
    if manifest is None or "aux_layer_ids" not in manifest:
        return None
    return f"manifest.json with format_version {str(manifest['format_version'])[:20]} and aux_layer_ids"


def _detect_dspark(folder: Path) -> str | None:
    manifest = _manifest(folder)
    if manifest is None or "target_layer_ids" not in manifest:
        return None
    return f"manifest.json with format_version {str(manifest['format_version'])[:20]} and target_layer_ids"


@dataclass(frozen=True)
class _Ref(SampleRef):
    """A sample of a cache whose shards hold ``held`` of them."""

    held: int = 0


def _samples(folder: Path) -> Sequence[SampleRef]:
    refs: list[SampleRef] = []
    for shard in sorted(folder.glob("shard-*.safetensors")):
        ids = _shard_field(read_safetensors(shard), "input_ids")
        if ids.ndim != 2:
            raise UnreadableFile(
                f"The field 'input_ids' of '{shard}' has the shape {list(ids.shape)}, not [n, S]; write the cache again."
            )
        first = len(refs)
        if first + ids.shape[0] > MOST_SAMPLES or ids.shape[1] == 0:
            raise UnreadableFile(
                f"The field 'input_ids' of '{shard}' claims {ids.shape[0]:,} samples of {ids.shape[1]:,} tokens, and a "
                f"cache may have {MOST_SAMPLES:,}; give a part of it, or write it again."
            )
        refs.extend(SampleRef(first + k, shard, k) for k in range(ids.shape[0]))
    return [_Ref(ref.number, ref.file, ref.inner, held=len(refs)) for ref in refs]


def _count_notes(manifest: dict[str, Any], ref: SampleRef) -> tuple[str, ...]:
    """What the manifest says of the cache as a whole, against its shards."""
    said, notes = manifest.get("num_samples"), []
    if isinstance(ref, _Ref) and type(said) is int and said != ref.held:
        notes.append(
            f"manifest.json says num_samples {said}, and the shards hold {ref.held}: shards are missing, or the manifest "
            "is of another run"
        )
    if not manifest.get("complete", True):
        notes.append("the manifest says that the cache is not complete")
    return tuple(notes)


def _shard_field(shard: SafetensorsFile, name: str) -> Tensor:
    if name not in shard.tensors:
        raise UnreadableFile(f"The field '{name}' of '{shard.path}' is missing; write the cache again.")
    return shard.tensors[name]


def _one(shard: SafetensorsFile, name: str, inner: int) -> Tensor:
    tensor = _shard_field(shard, name)
    if tensor.ndim < 2 or inner >= tensor.shape[0]:
        raise UnreadableFile(
            f"The field '{name}' of '{shard.path}' has no entry {inner} (shape {list(tensor.shape)}); "
            "write the cache again."
        )
    return tensor.pick(0, inner)


def _optional(shard: SafetensorsFile, name: str, inner: int) -> Ints | None:
    if name not in shard.tensors:
        return None
    return build.mask_of(_one(shard, name, inner), shard.path, name)


def _ids(manifest: dict[str, Any], name: str, count: int, path: Path) -> list[int | None]:
    ids = manifest.get(name)
    if not isinstance(ids, list) or not all(type(k) is int and k >= -1 for k in ids) or len(ids) != count:
        raise UnreadableFile(f"The '{name}' of '{path}' does not name {count} layers; write the cache again.")
    return [k + 1 for k in ids]


def _count(manifest: dict[str, Any], name: str, path: Path) -> int:
    ids = manifest.get(name)
    if not isinstance(ids, list) or not ids:
        raise UnreadableFile(f"The '{name}' of '{path}' is no list of layers; write the cache again.")
    return len(ids)


def _read_eagle3(folder: Path, ref: SampleRef, request: Request) -> Capture:
    manifest = _manifest(folder) or {}
    where = folder / "manifest.json"
    shard = read_safetensors(ref.file)
    path = ref.file
    shifted = build.token_ids(_one(shard, "input_ids", ref.inner), "input_ids", path)
    aux = _one(shard, "aux_hidden_states", ref.inner)
    count = _count(manifest, "aux_layer_ids", where)
    if aux.shape[-1] % count:
        raise UnreadableFile(
            f"The aux_layer_ids of '{where}' name {count} layers, and the states are {aux.shape[-1]} wide, no multiple of "
            "that; write the cache again."
        )
    width = aux.shape[-1] // count
    parts = build.side_by_side(aux, "aux_hidden_states", path, request, width)
    boundaries = _ids(manifest, "aux_layer_ids", len(parts), where)
    mask = _optional(shard, "loss_mask", ref.inner)
    attention = _optional(shard, "attention_mask", ref.inner)
    valid = build.valid_length(shifted, mask, attention)
    own = _own(shard, ref.inner)
    agreement = {} if request.tokens_only else _next_token_agreement(shard, ref.inner, manifest, valid)
    made = build.capture(
        path,
        "AM-EAGLE3",
        _detect_eagle3(folder) or build.FORCED,
        np.concatenate([np.full(1, -1, np.int64), shifted[:-1]]),
        build.slots_of(parts, "aux_hidden_states", boundaries, "manifest.json aux_layer_ids, O(id) = B(id + 1)"),
        mask=None if mask is None else np.concatenate([np.zeros(1, np.int64), mask[:-1]]),
        mask_offset=1,
        valid_length=valid,
        about=_about("AM-EAGLE3", folder, manifest, request, own, shifted) | {"next_token_agreement": agreement},
        notes=("ids, mask and target_probs are stored shifted left by one: the first token is lost, and no last "
               f"state is stored ({_shift_source(agreement)})", believed("AM-EAGLE3", manifest),
               *_count_notes(manifest, ref)),
    )  # fmt: skip
    return _with_unread(made, own)


def _shift_source(agreement: dict[str, float]) -> str:
    """Where it stands that ids are shifted, for no field of the manifest says so."""
    said = "so does Automodel's writer, and the manifest has no word of it"
    return said if agreement else f"{said}; no distributions over known tokens are stored that could confirm it"


def _own(shard: SafetensorsFile, inner: int) -> dict[str, Tensor]:
    """The fields of one sample, without their first axis."""
    return {name: t.pick(0, inner) if t.ndim > 1 and inner < t.shape[0] else t for name, t in shard.tensors.items()}


def _about(
    layout: str, folder: Path, manifest: dict[str, Any], request: Request, own: dict[str, Tensor], tokens: Ints
) -> dict[str, Any]:
    """An index of tokens, which reads thousands of samples, asks for no contradictions."""
    wrong = () if request.tokens_only else contradictions(layout, folder, manifest, own, tokens)
    return {"manifest": manifest, "folder": str(folder), "contradicted": wrong}


def _with_unread(made: Capture, own: dict[str, Tensor]) -> Capture:
    """With the names of what the shard holds of the sample besides, such as target_probs, and what is left out of masks."""
    return replace(made, unread=unread(own, made), notes=(*made.notes, *mask_notes(own, made)))


def _next_token_agreement(
    shard: SafetensorsFile, inner: int, manifest: dict[str, Any], valid: int
) -> dict[str, float]:
    """How often the most likely token of target_probs row t is the stored id t + d, for d in -1..2.

    Stored as they should be, both already shifted, the unique best d is 1. At most 256 rows are looked at.
    """
    chosen = manifest.get("selected_token_ids")
    name = "target_probs" if "target_probs" in shard.tensors else "target_probs_values"
    if name not in shard.tensors or not isinstance(chosen, list) or not all(type(k) is int for k in chosen):
        return {}
    probs = _one(shard, name, inner)
    if probs.ndim != 2 or 0 in probs.shape:
        return {}
    rows = np.unique(np.linspace(0, max(0, min(valid, probs.shape[0]) - 1), 256).astype(np.int64))
    top = build.rows(probs, name, shard.path).take(rows).argmax(-1)
    if name == "target_probs_values":
        indices = _one(shard, "target_probs_indices", inner)
        if indices.shape != probs.shape:
            return {}
        picked = [indices.cut(0, row, row + 1).ints()[0, column] for row, column in zip(rows, top, strict=True)]
        top = np.array(picked, np.int64)
    if len(top) == 0 or int(top.max()) >= len(chosen) or int(top.min()) < 0:
        return {}
    best = np.array(chosen, np.int64)[top]
    ids = _one(shard, "input_ids", inner).ints()
    found = {}
    for d in (-1, 0, 1, 2):
        inside = (rows + d >= 0) & (rows + d < valid - 1)
        if inside.any():
            found[str(d)] = float((ids[rows[inside] + d] == best[inside]).mean())
    return found


def _read_dspark(folder: Path, ref: SampleRef, request: Request) -> Capture:
    manifest = _manifest(folder) or {}
    where = folder / "manifest.json"
    shard = read_safetensors(ref.file)
    path = ref.file
    tokens = build.token_ids(_one(shard, "input_ids", ref.inner), "input_ids", path)
    state = build.rows(_one(shard, "target_last_hidden_states", ref.inner), "target_last_hidden_states", path)
    aux = _one(shard, "target_hidden_states", ref.inner)
    parts = build.side_by_side(aux, "target_hidden_states", path, request, state.width)
    boundaries = _ids(manifest, "target_layer_ids", len(parts), where)
    said = manifest.get("num_hidden_layers")
    layers = said if type(said) is int and said > 0 else None
    mask = _optional(shard, "loss_mask", ref.inner)
    last = build.last_state(
        "target_last_hidden_states",
        state,
        Norm.UNKNOWN,
        "the manifest does not say whether the state stands before or after the final norm",
        layers,
    )
    own = _own(shard, ref.inner)
    slots = build.slots_of(parts, "target_hidden_states", boundaries, _DSPARK_IDS)
    if not request.tokens_only:
        slots = tuple([_normed_slot(slot, layers or request.layers, state) for slot in slots])
    made = build.capture(
        path,
        "AM-DSPARK",
        _detect_dspark(folder) or build.FORCED,
        tokens,
        slots,
        last=last,
        mask=mask,
        about=_about("AM-DSPARK", folder, manifest, request, own, tokens) | {"target_layers": layers},
        notes=(believed("AM-DSPARK", manifest), *_count_notes(manifest, ref)),
    )
    return _with_unread(made, own)


_DSPARK_IDS = "manifest.json target_layer_ids, O(id) = B(id + 1), -1 = embedding"
_LOOKED_AT = 64


def _normed_slot(slot: Slot, layers: int | None, last: Rows) -> Slot:
    """Of the last layer Automodel stores what its final norm made, which is no boundary: the last state once more.

    Its default layers end with that one. A model may name modules of its own to take states from, so the values decide.
    Source: ``nemo_automodel/components/speculative/dspark/target.py``, ``_feature``.
    """
    if layers is None or slot.boundary != layers:
        return slot
    at = np.unique(np.linspace(0, len(last) - 1, min(len(last), _LOOKED_AT)).astype(np.int64))
    if len(slot.rows) != len(last) or not np.array_equal(slot.rows.take(at), last.take(at), equal_nan=True):
        return slot
    said = f"manifest.json target_layer_ids, O({layers - 1}), which is the last layer"
    return replace(
        slot, boundary=None, source=f"{said}: {LAST_STATE}, with the values of target_last_hidden_states"
    )


register(
    FolderLayout(
        "AM-EAGLE3", "NeMo Automodel", "NeMo Automodel EAGLE-3 cache", _detect_eagle3, _samples, _read_eagle3
    )
)
register(
    FolderLayout(
        "AM-DSPARK", "NeMo Automodel", "NeMo Automodel DSpark cache", _detect_dspark, _samples, _read_dspark
    )
)
