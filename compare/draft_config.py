"""A draft's ``config.json`` in one form, whatever project wrote it: dimensions, switches and layer ids.

Projects spell the same thing differently (dump-formats: SpecForge, SafeAILab, TorchSpec, AngelSlim and
Model-Optimizer put layer ids into ``eagle_config``; speculators at the top level, with the layer's own config in
``transformer_layer_config``). Nothing is filled in silently: where a field stands is recorded with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafttrace.compare.odd_ids import problem_of, short_value
from drafttrace.tracer.checkpoint import read_json
from drafttrace.tracer.errors import UnreadableFile

NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
TOP_LEVEL = "eagle_aux_hidden_state_layer_ids"
ID_FIELDS = (
    NESTED,
    TOP_LEVEL,
    "eagle_config.layer_ids",
    "eagle_config.aux_hidden_state_layer_ids",
    "aux_hidden_state_layer_ids",
    "target_layer_ids",
)
"""Every place in which some project keeps the layer ids; SGLang's EAGLE-3 reads the first one only."""

SPECULATORS, AUTOMODEL, MODELOPT, SPECFORGE = "speculators", "Automodel", "Model-Optimizer", "SpecForge / EAGLE"

PLAIN_CLASS, MLA_CLASS = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
"""SGLang's EAGLE-3 draft classes: with plain, and with multi-latent attention."""

TIED_TYPES = frozenset({"cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "gemma4_text", "qwen3_vl_moe_text"})
"""Types whose config class ties head and embedding where the file does not say."""

_MODELOPT_KEYS = {
    "use_input_layernorm_in_first_layer",
    "use_mtp_layernorm",
    "parallel_draft_step",
    "use_last_layernorm",
}


class MissingSize(UnreadableFile):
    """A draft's config has none of a number without which no draft can be built."""


_MOST = 2**40
"""No size or count of a model is larger; whatever is comes from a damaged file."""
MOST_LAYERS = 10_000
"""No model has more layers; tensors and boundaries are listed layer by layer."""


@dataclass(frozen=True)
class LayerIds:
    """The ids, and the field that they stand in."""

    ids: tuple[int, ...]
    where: str


@dataclass(frozen=True)
class MlaDims:
    """Dimensions of a multi-latent attention (DeepSeek-V2) draft layer."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope: int
    qk_rope: int
    v_head: int


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: base, kind (``default``, ``linear``, ``dynamic``, ``llama3``, ``yarn``, ``longrope``) and
    the fields of ``rope_scaling``; ``conflict`` says where two fields of one config disagree."""

    theta: float
    kind: str
    fields: Mapping[str, Any]
    partial: float
    conflict: str | None


@dataclass(frozen=True)
class DraftConfig:
    """One draft's config, normalised. ``raw`` is the file's object; ``flat`` has the layer's own config on top.

    target_hidden_size is None where the file does not give one (then hidden_size holds). layer_ids is None where no
    field holds a list of integers; ``ids_problem`` says what stood there instead. norm flags: True only if set.
    windows: how many tokens a row of each layer sees, itself included (None: all before it).
    """

    path: Path
    raw: Mapping[str, Any]
    flat: Mapping[str, Any]
    architecture: str | None
    project: str
    hidden_size: int
    target_hidden_size: int | None
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    activation: str
    eps: float
    rope: Rope
    max_positions: int
    vocab_size: int
    draft_vocab_size: int | None
    tied: bool
    dtype: str | None
    layer_ids: LayerIds | None
    ids_problem: str | None
    use_aux: bool
    num_aux: int | None
    fc_bias: bool
    fc_norm: bool
    norm_before_fc: bool
    norm_before_residual: bool
    norm_output: bool | None
    attention_bias: bool
    mlp_bias: bool
    mla: MlaDims | None
    windows: tuple[int | None, ...]
    other_ids: tuple[LayerIds, ...] = field(default_factory=tuple)

    @property
    def window(self) -> int | None:
        """The sliding window of the first layer that has one; None where every layer sees everything."""
        return next((window for window in self.windows if window is not None), None)

    @property
    def nested_ids(self) -> object:
        """What stands in the field that SGLang's EAGLE-3 reads, as it stands there; None where there is nothing."""
        nested = self.raw.get("eagle_config")
        return nested.get(NESTED.rsplit(".", 1)[-1]) if isinstance(nested, dict) else None

    @property
    def slot_width(self) -> int:
        """Width of one slot: the target's hidden size."""
        return self.target_hidden_size or self.hidden_size


def read_draft_config(folder: Path) -> DraftConfig:
    """The config of the draft in ``folder``. Raises UnreadableFile where it is absent, damaged or no draft's."""
    path = folder / "config.json"
    if not path.exists():
        raise UnreadableFile(f"{folder} has no config.json; give the folder of the draft model.")
    return parse_draft_config(read_json(path), path)


def parse_draft_config(raw: Mapping[str, Any], path: Path) -> DraftConfig:
    """See :func:`read_draft_config`. Raises UnreadableFile where a needed number is missing or is none."""
    flat = flat_config(raw)
    eagle = raw.get("eagle_config")
    nested = eagle if isinstance(eagle, dict) else {}
    hidden = _count(flat, "hidden_size", path)
    heads = _count(flat, "num_attention_heads", path)
    if heads > hidden:
        raise UnreadableFile(
            f"{path} has 'num_attention_heads': {heads} for 'hidden_size': {hidden}, more heads than channels; copy the "
            "training run's config."
        )
    found, problem = _layer_ids(raw, nested)
    names = flat.get("architectures")
    return DraftConfig(
        path=path,
        raw=raw,
        flat=flat,
        architecture=str(names[0]) if isinstance(names, list) and names else None,
        project=_project(raw, nested),
        hidden_size=hidden,
        target_hidden_size=_positive(flat, "target_hidden_size", path),
        layers=_layers(flat, path),
        heads=heads,
        kv_heads=_positive(flat, "num_key_value_heads", path) or heads,
        head_dim=_positive(flat, "head_dim", path) or hidden // heads,
        intermediate_size=_count(flat, "intermediate_size", path),
        activation=str(flat.get("hidden_act", "silu")),
        eps=_size(flat, "rms_norm_eps", 1e-6, path),
        rope=_rope(flat, path),
        max_positions=_positive(flat, "max_position_embeddings", path) or 0,
        vocab_size=_count(flat, "vocab_size", path),
        draft_vocab_size=_positive(flat, "draft_vocab_size", path),
        tied=bool(flat.get("tie_word_embeddings", str(flat.get("model_type")) in TIED_TYPES)),
        dtype=_text(flat.get("torch_dtype") or flat.get("dtype")),
        layer_ids=found[0] if found else None,
        ids_problem=problem,
        use_aux=bool(nested.get("use_aux_hidden_state", True)),
        num_aux=_positive(flat, "num_aux_hidden_states", path),
        fc_bias=bool(flat.get("bias", False)),
        fc_norm=bool(flat.get("fc_norm") or flat.get("use_aux_norm")),
        norm_before_fc=bool(nested.get("norm_before_fc", flat.get("norm_before_fc", False))),
        norm_before_residual=bool(nested.get("norm_before_residual", flat.get("norm_before_residual", False))),
        norm_output=None if flat.get("norm_output") is None else bool(flat["norm_output"]),
        attention_bias=bool(flat.get("attention_bias", False)),
        mlp_bias=bool(flat.get("mlp_bias", False)),
        mla=_mla(flat, path),
        windows=_windows(flat, path),
        other_ids=tuple(found[1:]),
    )


def flat_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a draft's config with the layer's own config, where it is apart, brought to the top."""
    layer = raw.get("transformer_layer_config")
    if not isinstance(layer, dict):
        return dict(raw)
    flat = {**layer, **{k: v for k, v in raw.items() if v is not None}}
    flat["architectures"] = raw.get("architectures")  # the layer's class is no draft's class, the top level's is
    return flat


def _project(raw: Mapping[str, Any], nested: Mapping[str, Any]) -> str:
    names = raw.get("architectures")
    listed = names if isinstance(names, list) else []
    if "speculators_model_type" in raw or "speculators_config" in raw or "transformer_layer_config" in raw:
        return SPECULATORS
    if _MODELOPT_KEYS & (set(nested) | set(raw)):
        return MODELOPT
    if any("Automodel" in str(name) for name in listed):
        return AUTOMODEL
    return SPECFORGE


def _layer_ids(raw: Mapping[str, Any], nested: Mapping[str, Any]) -> tuple[list[LayerIds], str | None]:
    """Every list of ids in the file, the one SGLang reads first; and what is wrong where one is none."""
    found: list[LayerIds] = []
    problem: str | None = None
    eagle = raw.get("eagle_config")
    if eagle is not None and not isinstance(eagle, dict):
        problem = (
            f"eagle_config is {short_value(eagle)}, not an object, and the draft class may stop at it (write one)"
        )
    for where in ID_FIELDS:
        place = nested if where.startswith("eagle_config.") else raw
        value = place.get(where.rsplit(".", 1)[-1])
        if value is None:
            continue
        wrong = problem_of(where, value)
        if wrong is None:
            found.append(LayerIds(tuple(value), where))
        else:
            problem = problem or wrong
    return found, problem


def _rope(flat: Mapping[str, Any], path: Path) -> Rope:
    """Both spellings: ``rope_theta`` + ``rope_scaling`` (transformers 4) and ``rope_parameters`` (transformers 5)."""
    scaling, parameters = flat.get("rope_scaling"), flat.get("rope_parameters")
    old = dict(scaling) if isinstance(scaling, dict) else {}
    new = dict(parameters) if isinstance(parameters, dict) else {}
    if any(isinstance(value, dict) for value in new.values()):  # one set per kind of layer
        new = next(value for value in new.values() if isinstance(value, dict))
    merged = {**old, **new}
    kind = str(merged.get("rope_type") or merged.get("type") or "default")
    top, inner = flat.get("rope_theta"), new.get("rope_theta")
    conflict = None
    if top is not None and inner is not None and top != inner:
        conflict = f"rope_theta is {top} but rope_parameters.rope_theta is {inner}"
    old_kind, new_kind = old.get("rope_type") or old.get("type"), new.get("rope_type") or new.get("type")
    if old and new and old_kind != new_kind:
        conflict = f"rope_scaling says {old_kind} but rope_parameters says {new_kind}"
    theta = inner if inner is not None else top
    partial = merged.get("partial_rotary_factor", flat.get("partial_rotary_factor"))
    fields = {k: v for k, v in merged.items() if k not in {"rope_type", "type", "rope_theta"}}
    return Rope(
        theta=_size({"rope_theta": theta}, "rope_theta", 10000.0, path),
        kind=kind,
        fields=fields,
        partial=_number({"partial_rotary_factor": partial}, "partial_rotary_factor", 1.0, path),
        conflict=conflict,
    )


def _mla(flat: Mapping[str, Any], path: Path) -> MlaDims | None:
    """None also where the plain class is named and the sizes are no whole set: it reads none of them, so they are stray."""
    if flat.get("kv_lora_rank") is None:
        return None
    names = flat.get("architectures")
    classes = [name for name in names if name in (PLAIN_CLASS, MLA_CLASS)] if isinstance(names, list) else []
    try:
        return _latent_sizes(flat, path)
    except UnreadableFile:
        if classes[:1] == [PLAIN_CLASS]:
            return None
        raise


def _latent_sizes(flat: Mapping[str, Any], path: Path) -> MlaDims:
    return MlaDims(
        q_lora_rank=_optional(flat, "q_lora_rank", path) or 0,
        kv_lora_rank=_count(flat, "kv_lora_rank", path),
        qk_nope=_count(flat, "qk_nope_head_dim", path),
        qk_rope=_count(flat, "qk_rope_head_dim", path),
        v_head=_count(flat, "v_head_dim", path),
    )


def _windows(flat: Mapping[str, Any], path: Path) -> tuple[int | None, ...]:
    """The sliding window of every layer, where the config really switches one on.

    ``layer_types`` says it layer by layer; without it Qwen's configs keep the first ``max_window_layers`` layers whole.
    """
    layers = _layers(flat, path)
    size = _optional(flat, "sliding_window", path) or None
    kinds, whole = flat.get("layer_types"), 0
    if isinstance(kinds, list):
        return tuple(size if kind == "sliding_attention" else None for kind in [*kinds, *[None] * layers][:layers])
    if "use_sliding_window" in flat:
        used, whole = bool(flat["use_sliding_window"]), _optional(flat, "max_window_layers", path) or 0
    else:
        used = str(flat.get("model_type")) in {"mistral", "gemma2", "gemma3_text"}
    return tuple(size if used and layer >= whole else None for layer in range(layers))


def _layers(flat: Mapping[str, Any], path: Path) -> int:
    """Number of layers. A server whose config has none takes its config class's default, 32 for Llama."""
    value = _positive(flat, "num_hidden_layers", path)
    if value is None:
        raise UnreadableFile(
            f"{path} has no 'num_hidden_layers', for which a server takes the default of a whole model (32 for Llama); "
            'write the number that training used, mostly "num_hidden_layers": 1.'
        )
    if value > MOST_LAYERS:
        raise UnreadableFile(
            f"{path} has 'num_hidden_layers': {value}, more than {MOST_LAYERS}; copy the training run's config."
        )
    return value


def _count(flat: Mapping[str, Any], key: str, path: Path) -> int:
    value = _positive(flat, key, path)
    if value is None:
        raise MissingSize(f"{path} has no '{key}', so it is no draft's config; give the draft's folder.")
    return value


def _positive(flat: Mapping[str, Any], key: str, path: Path) -> int | None:
    """A count that may be missing and is never 0: a 0 comes from a damaged config and does not mean "not given"."""
    value = _optional(flat, key, path)
    if value == 0:
        raise UnreadableFile(f"{path} has '{key}': 0, no positive number; copy the training run's config.")
    return value


def _optional(flat: Mapping[str, Any], key: str, path: Path) -> int | None:
    value = flat.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < _MOST:
        raise UnreadableFile(
            f"{path} has '{key}': {short_value(value)}, no whole number; copy the training run's config."
        )
    return value


def _number(flat: Mapping[str, Any], key: str, default: float, path: Path) -> float:
    value = flat.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _MOST:
        raise UnreadableFile(
            f"{path} has '{key}': {short_value(value)}, no number; copy the training run's config."
        )
    return float(value)


def _size(flat: Mapping[str, Any], key: str, default: float, path: Path) -> float:
    """A number that is never 0 or less: states would be divided by 0, or positions turned by no angle that is one."""
    value = _number(flat, key, default, path)
    if value <= 0:
        raise UnreadableFile(f"{path} has '{key}': {value:g}, no positive number; copy the training run's config.")
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value).removeprefix("torch.")
