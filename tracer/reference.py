"""Makes the training-time capture that nobody kept: runs the target with transformers and stores its boundaries.

The result has the layout of the vLLM connector (``hidden_states [L, K, H]``, ``token_ids [L]``), with metadata that
states every boundary, so nothing has to be assumed about it later.

``B(k)`` is taken where layer k receives its input, ``B(n)`` where the final norm does: ``hidden_states[-1]`` of
transformers would already be normed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from drafttrace.tracer.assumed_wiring import ASSUMED, GIVEN, WIRING, usual_slots
from drafttrace.tracer.boundary import boundary_name, wiring_name
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.convert_place import refuse_in_place
from drafttrace.tracer.dumps.tensor import STORAGE
from drafttrace.tracer.dumps.write_safetensors import SafetensorsWriter
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnreadableFile
from drafttrace.tracer.output import refuse_device
from drafttrace.tracer.reference_files import (
    CONTENT,
    FORMAT,
    NO_HASH,
    Run,
    is_done,
    made_with,
    refuse_inputs,
    refuse_mixed_folder,
    stated,
    target_hash,
)
from drafttrace.tracer.reference_model import DTYPES, Model, forward, load, width_of
from drafttrace.tracer.target_weights import TargetShape, read_shape

Progress = Callable[[int, int], None]
Which = Literal["all", "canonical"] | Sequence[int]


@dataclass(frozen=True)
class LossMask:
    """The loss mask of one sample: values ``[L]`` on its unshifted tokens; row t is weighted by ``values[t + offset]``."""

    values: Ints
    offset: int


@dataclass(frozen=True)
class Plan:
    """What will be written. stored: boundaries in file order, always with B(n) at the end. slots: the wiring."""

    stored: tuple[int, ...]
    slots: tuple[int, ...]
    layers: int


def plan_boundaries(layers: int, boundaries: Which, slots: Sequence[int] | None = None) -> Plan:
    """Which boundaries to store for n = ``layers``.

    boundaries: "all", "canonical", or a list of what to store; B(n) and the slots are always added. slots: the wiring
    to declare; default the canonical one.
    Raises DrafttraceError for a boundary outside 0..n, and for a wiring that names one twice.
    """
    usual = usual_slots(layers)
    if boundaries == "all":
        listed = tuple(range(layers + 1))
    elif boundaries == "canonical":
        listed = usual
    else:
        listed = tuple(int(k) for k in boundaries)
    wiring = tuple(slots) if slots is not None else usual
    for k in (*listed, *wiring):
        if not 0 <= k <= layers:
            raise DrafttraceError(
                f"There is no {boundary_name(k)}: a target of {layers} layers has B0 to {boundary_name(layers)}; "
                "name one of these."
            )
    twice = [k for place, k in enumerate(wiring) if k in wiring[:place]]
    if twice:
        raise DrafttraceError(
            f"The wiring {wiring_name(wiring)} names {boundary_name(twice[0])} twice; name one boundary per slot, each "
            "once."
        )
    stored = tuple(dict.fromkeys((*(k for k in (*listed, *wiring) if k != layers), layers)))
    return Plan(stored, wiring, layers)


def tokens_of(capture: Capture) -> Ints:
    """The tokens to run: those of a capture, without padding.

    Raises DrafttraceError where a token is unknown: the target's states of every later token would be wrong.
    """
    capture.need_real_tokens("run the target")
    tokens = capture.tokens[: capture.valid_length or len(capture.tokens)]
    unknown = np.flatnonzero(tokens < 0)
    if len(tokens) == 0 or len(unknown):
        where = f"token {int(unknown[0])}" if len(unknown) else "every token"
        raise DrafttraceError(
            f"'{capture.path}' does not keep {where}, so the target cannot be run on it; give the prompt instead."
        )
    return tokens


def mask_of(capture: Capture) -> LossMask | None:
    """The loss mask of the tokens that :func:`tokens_of` gives; those beyond its end have none, so 0."""
    if capture.mask is None:
        return None
    count = capture.valid_length or len(capture.tokens)
    values = np.zeros(min(count, len(capture.tokens)), np.int64)
    values[: len(capture.mask)] = capture.mask[: len(values)]
    return LossMask(values, capture.mask_offset)


def make_reference(
    target: Path,
    samples: Sequence[Ints],
    out: Path,
    *,
    masks: Sequence[LossMask | None] | None = None,
    boundaries: Which = "all",
    slots: Sequence[int] | None = None,
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto",
    device_map: str | None = None,
    batch_size: int = 1,
    numbers: Sequence[int] | None = None,
    keep: Sequence[Path] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Run the target on token sequences and write one file each.

    target: folder of the model (its own code is never run). samples: unshifted ids ``[L]`` each. masks: the loss mask of
    each, which the file keeps (default: none). out: a file for one sample; a folder for several, which gets
    ``hs_{i}.safetensors``. Whole files of an interrupted run with the same weights, tokens, masks, boundaries, wiring,
    number format and versions are kept and skipped, unless ``force`` is given, which makes every file again. numbers:
    the i of every sample (default: 0, 1, ...). keep: what the samples were read from, which no output may replace.
    device_map: as transformers takes it ("auto", "cuda", ...). batch_size: samples that run together, padded at the
    right, which a causal model does not see. progress: called with (samples done, samples in all).

    Returns the paths. Raises OutputExists without ``force``, UnreadableFile for a target that cannot be loaded,
    DrafttraceError for ids outside its vocabulary.
    """
    shape = read_shape(target)
    plan = plan_boundaries(shape.layers, boundaries, slots)
    names = list(range(len(samples))) if numbers is None else list(numbers)
    _check_samples(samples, names, shape)
    weights = list(masks) if masks is not None else [None] * len(samples)
    metadata = _metadata(target, plan, dtype, device_map) | {WIRING: GIVEN if slots is not None else ASSUMED}
    for source in keep:
        refuse_in_place(source, out)
    paths = _paths(out, names)
    refuse_inputs(paths, target, keep)
    if out.is_dir():
        refuse_mixed_folder(out, paths, metadata)
    runs = [
        Run(ids, None if mask is None else mask.values, metadata | _weighted(mask))
        for ids, mask in zip(samples, weights, strict=True)
    ]
    todo = [k for k, path in enumerate(paths) if not is_done(path, runs[k], force)]
    finished = len(samples) - len(todo)
    if progress is not None:
        progress(finished, len(samples))
    if not todo:
        return paths
    model = load(target, dtype, device_map)
    for batch in _batches(todo, samples, batch_size):
        _run_batch(model, plan, [_Sample(samples[k], weights[k], paths[k]) for k in batch], metadata)
        finished += len(batch)
        if progress is not None:
            progress(finished, len(samples))
    return paths


def _check_samples(samples: Sequence[Ints], numbers: Sequence[int], shape: TargetShape) -> None:
    if not samples:
        raise DrafttraceError("There are no tokens to run the target on; give a prompt, a trace or a dump.")
    for number, tokens in zip(numbers, samples, strict=True):
        where = f" of sample {number}" if len(samples) > 1 else ""
        if len(tokens) == 0:
            raise DrafttraceError(
                f"{'Sample ' + str(number) if where else 'A sample'} has no tokens; give a prompt, a trace or a dump with "
                "tokens."
            )
        if int(tokens.min()) < 0 or int(tokens.max()) >= shape.vocab_size:
            wrong = int(tokens.min()) if int(tokens.min()) < 0 else int(tokens.max())
            raise DrafttraceError(
                f"Token {wrong}{where} is outside the target's vocabulary of {shape.vocab_size}; give the target "
                "that the tokens belong to."
            )


def _metadata(target: Path, plan: Plan, dtype: str, device_map: str | None) -> dict[str, str]:
    """What tells one run from another, the tokens aside."""
    from drafttrace import __version__

    return {
        "format": FORMAT,
        "boundaries": stated(plan.stored),
        "slots": stated(plan.slots),
        "layers": str(plan.layers),
        "last": str(plan.layers),
        "target": target.resolve().name,
        "target_hash": target_hash(target),
        "asked_dtype": dtype,
        "asked_device_map": device_map or "",
        "made_with": made_with(),
        "written_by": f"drafttrace {__version__} reference",
    }


def _paths(out: Path, numbers: Sequence[int]) -> list[Path]:
    refuse_device(out)
    if len(numbers) == 1 and not out.is_dir():
        if not out.parent.is_dir():
            raise OutputExists(f"The folder '{out.parent}' of the output does not exist; make it first.")
        return [out]
    if out.exists() and not out.is_dir():
        raise OutputExists(f"The output '{out}' is a file; give a folder for {len(numbers)} samples.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExists(f"The folder '{out}' cannot be made ({error.strerror}); choose another.") from None
    return [out / f"hs_{number}.safetensors" for number in numbers]


def _batches(todo: Sequence[int], samples: Sequence[Ints], size: int) -> Iterator[list[int]]:
    """Samples of like length together."""
    order = sorted(todo, key=lambda k: len(samples[k])) if size > 1 else list(todo)
    for start in range(0, len(order), max(1, size)):
        yield order[start : start + max(1, size)]


# --- running it --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sample:
    tokens: Ints
    mask: LossMask | None
    path: Path


def _weighted(mask: LossMask | None) -> dict[str, str]:
    """What the metadata says of a loss mask."""
    return {} if mask is None else {"mask_offset": str(mask.offset)}


def _run_batch(model: Model, plan: Plan, samples: Sequence[_Sample], metadata: Mapping[str, str]) -> None:
    import torch

    longest = max(len(sample.tokens) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    attention = torch.zeros(len(samples), longest, dtype=torch.int64)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.tokens)] = torch.from_numpy(sample.tokens)
        attention[row, : len(sample.tokens)] = 1
    full = {**metadata, "dtype": model.kind, CONTENT: NO_HASH}
    with contextlib.ExitStack() as stack:
        writers = [
            SafetensorsWriter(sample.path, _specs(model, plan, sample), full | _weighted(sample.mask))
            for sample in samples
        ]
        outputs = [stack.enter_context(writer) for writer in writers]
        for output, sample in zip(outputs, samples, strict=True):
            output["token_ids"][:] = sample.tokens
            if sample.mask is not None:
                output["loss_mask"][:] = sample.mask.values
        seen = _hook(model, plan, outputs, writers, stack)
        with torch.inference_mode():
            mask = attention.to(model.device) if len(samples) > 1 else None
            forward(model, ids.to(model.device), mask)
        missing = [k for k in plan.stored if k not in seen]
        if missing:
            raise UnreadableFile(
                f"The target never handed over {boundary_name(missing[0])}, so it is of an unknown build; dump its states "
                "with the trainer."
            )
        for writer in writers:
            writer.fill_in(CONTENT, writer.content_hash())


def _specs(model: Model, plan: Plan, sample: _Sample) -> dict[str, tuple[str, tuple[int, ...]]]:
    length = len(sample.tokens)
    named = ("token_ids",) if sample.mask is None else ("token_ids", "loss_mask")
    states = {"hidden_states": (model.kind, (length, len(plan.stored), width_of(model)))}
    return states | dict.fromkeys(named, ("int64", (length,)))


def _hook(
    model: Model,
    plan: Plan,
    outputs: Sequence[Mapping[str, Any]],
    writers: Sequence[SafetensorsWriter],
    stack: contextlib.ExitStack,
) -> set[int]:
    """Attach a tap for every stored boundary; each writes its rows straight into the files. Returns what fired."""
    seen: set[int] = set()

    def store(k: int, states: Any) -> None:
        import torch

        plain = states.detach().to(getattr(torch, DTYPES[model.kind])).cpu()
        array = (plain.view(torch.int16) if model.kind == "bf16" else plain).numpy().view(STORAGE[model.kind])
        column = plan.stored.index(k)
        for row, (output, writer) in enumerate(zip(outputs, writers, strict=True)):
            target = output["hidden_states"]
            target[:, column] = array[row, : target.shape[0]]
            writer.wrote(target[:, column].nbytes)
        seen.add(k)

    def before(k: int) -> Callable[..., None]:
        def hook(_module: Any, positional: Any, named: Any) -> None:
            store(k, positional[0] if positional else named["hidden_states"])

        return hook

    def after(_module: Any, _inputs: Any, output: Any) -> None:
        store(plan.layers, output[0] if isinstance(output, tuple) else output)

    for k in plan.stored:
        if k < plan.layers:
            handle = model.layers[k].register_forward_pre_hook(before(k), with_kwargs=True)
        elif model.norm is not None:
            handle = model.norm.register_forward_pre_hook(before(k), with_kwargs=True)
        else:
            handle = model.layers[-1].register_forward_hook(after)
        stack.callback(handle.remove)
    return seen
