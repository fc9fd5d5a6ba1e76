"""The draft's tensors: all there, all used, of the right shape, alive, and its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.audit.attention_sizes import alternatives
from drafttrace.compare.audit.class_tensors import built_shapes
from drafttrace.compare.audit.layer_checks import layer_findings, layer_of, layers_that_differ
from drafttrace.compare.audit.loading_checks import lacks_pruned_size
from drafttrace.compare.audit.mla_checks import (
    ATTENTION,
    class_findings,
    mla_findings,
    other_attention,
    refused,
)
from drafttrace.compare.audit.name_checks import name_findings
from drafttrace.compare.audit.plain_parts import plain_modules, plain_part_findings
from drafttrace.compare.audit.quantized import is_quantized, quantization_findings, stands_for
from drafttrace.compare.audit.shape_remedies import D2T, Shapes, shapes_of
from drafttrace.compare.audit.shape_remedies import HEAD as HEAD_WEIGHT
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.audit.unused_checks import unused_findings
from drafttrace.compare.draft_weights import VOCABULARY_MAPS, matrix_shape, split_fused
from drafttrace.compare.result import Finding
from drafttrace.tracer.checkpoint import Checkpoint
from drafttrace.tracer.part_names import EMBED, HEAD, stored_name
from drafttrace.tracer.rows import Floats

SAMPLE = 1 << 18
"""Elements of a large tensor that are looked at when hashing is off."""
NOT_FINITE, ALL_ZERO, ALL_ONE = "not finite", "all zero", "all one"


@dataclass(frozen=True)
class TensorReport:
    """One stored tensor: its canonical name, format, shape, state and the file that holds it.

    sha256: only where hashing is on. broken: values looked at that are not finite; first_broken: where the first one is.
    """

    name: str
    stored_as: str
    dtype: str
    shape: tuple[int, ...]
    state: str
    sha256: str | None
    file: str
    broken: int = 0
    first_broken: tuple[int, ...] | None = None


def tensor_reports(subject: Subject, hash_weights: bool) -> tuple[TensorReport, ...]:
    """Every tensor of the draft, looked at whole with hashing on, at a sample of its elements otherwise."""
    reports = []
    for name, stored in subject.draft_weights.names.items():
        info = subject.draft_weights.checkpoint.info(stored)
        raw = subject.draft_weights.checkpoint.array(stored)
        digest = hashlib.sha256(np.ascontiguousarray(raw).tobytes()).hexdigest() if hash_weights else None
        state, broken, first = "integers", 0, None
        if info.float_dtype is not None:
            values, step = _sampled(subject.draft_weights.checkpoint, stored, whole=hash_weights)
            state = _state(values)
            if state == NOT_FINITE:
                bad = np.argwhere(~np.isfinite(values))
                broken, first = (
                    len(bad),
                    tuple(int(k) * (step if axis == 0 else 1) for axis, k in enumerate(bad[0])),
                )
        reports.append(
            TensorReport(name, stored, info.dtype, info.shape, state, digest, info.file.name, broken, first)
        )
    return tuple(reports)


def weight_findings(subject: Subject, reports: tuple[TensorReport, ...]) -> Iterator[Finding]:
    """Every fault and hint about the draft's tensors, vocabulary maps left out."""
    yield from class_findings(subject)
    yield from mla_findings(subject)
    yield from layer_findings(subject)
    yield from name_findings(subject)
    yield from quantization_findings(subject)
    yield from plain_part_findings(subject)
    yield from _missing_and_wrong(subject)
    yield from _head_and_embedding(subject)
    yield from unused_findings(subject)
    yield from _dead(reports)
    yield from _copies(subject, reports)


def _sampled(checkpoint: Checkpoint, stored: str, whole: bool) -> tuple[Floats, int]:
    """The elements of a tensor, or every k-th row of a large one, as float32; and k."""
    shape = checkpoint.info(stored).shape
    if whole or int(np.prod(shape)) <= SAMPLE or not shape:
        return checkpoint.floats(stored), 1
    rows = max(1, SAMPLE // max(1, int(np.prod(shape[1:]))))
    step = max(1, shape[0] // rows)
    return checkpoint.floats(stored, slice(None, None, step)), step


def _state(values: Floats) -> str:
    if not np.isfinite(values).all():
        return NOT_FINITE
    if values.size and not values.any():
        return ALL_ZERO
    if values.size and (values == 1.0).all():
        return ALL_ONE
    return "alive"


def _missing_and_wrong(subject: Subject) -> Iterator[Finding]:
    have = {part for name in subject.draft_weights.names for part in split_fused(name)}
    slots = subject.fc_slots or len(subject.served.wiring or ()) or 3
    other = other_attention(subject) is not None  # its tensors are named together, and so are those of whole layers
    differ, quantized = layers_that_differ(subject), is_quantized(subject.draft)
    plain = [f"{module}.weight" for module in plain_modules(subject)]  # their parts are told for themselves
    for name, shape in built_shapes(subject.draft, slots).items():
        if (other and ATTENTION in name) or layer_of(name) in differ:
            continue
        if (quantized or name in plain) and stands_for(name, have):
            continue
        if name not in have and not refused(subject):  # a server that does not start reads none
            yield fault(
                "weights-missing",
                0.95,
                f"The checkpoint has no '{name}' {list(shape)}, which the draft's forward reads; the server runs with "
                "whatever the memory held, or with ones.",
                ('"bias": false, if training had none in fc; else e' if name == "fc.bias" else "E")
                + f"xport the draft again with '{name}' {list(shape)}: copy it from the training run's checkpoint into "
                f"{_files(subject)}.",
                {"tensor": name, "shape": list(shape)},
            )
    yield from shape_findings(subject)
    for first, second in subject.draft_weights.clashes:
        yield fault(
            "weights-replaced",
            0.7,
            f"'{first}' and '{second}' name the same parameter; the one that is read last wins.",
            f"Remove the stale one, '{first}' or '{second}'.",
            {"tensors": [first, second]},
        )


def shape_findings(subject: Subject) -> Iterator[Finding]:
    """Every tensor of another shape than the class builds, head and map left out."""
    shapes, other = shapes_of(subject), other_attention(subject) is not None
    lost = (
        refused(subject) and subject.draft.mla is None
    )  # the latent sizes are read off these tensors, all at once
    differing = [name for name in shapes.wrong() if not ((other or lost) and ATTENTION in name)]
    if is_quantized(subject.draft):  # several values are packed into one integer
        plain = [f"{module}.weight" for module in plain_modules(subject)]
        differing = [
            name for name in differing if name in plain or shapes.weights.info(name).float_dtype is not None
        ]
    yield from _wrong_shapes(shapes, [name for name in differing if name not in (HEAD_WEIGHT, D2T)])


def _wrong_shapes(shapes: Shapes, names: Sequence[str]) -> Iterator[Finding]:
    """Each tensor of another shape; those that the same numbers of the config put right are one fault."""
    groups: dict[tuple[object, ...], list[str]] = {}
    attention = [name for name in names if ATTENTION in name] if shapes.together() else []
    if attention:
        yield from _wrong_attention(shapes, attention)
    for name in names:
        if name in attention:
            continue
        groups.setdefault(tuple(shapes.blamed(name).items()) or (name,), []).append(name)
    for members in groups.values():
        first = members[0]
        if len(members) == 1:
            yield _wrong_shape(shapes, first, 0.9)
            continue
        stored = [shapes.weights.info(name) for name in members]
        found, asked = shapes.wrong()[first]
        yield fault(
            "weights-missing",
            0.9,
            f"{len(members)} tensors have other shapes than the config asks for, such as '{stored[0].name}' {list(found)} "
            f"instead of {list(asked)}.",
            f"{shapes.lines(shapes.blamed(first))}, if the config of the run that wrote {stored[0].file.name} says so; "
            "else export the draft again.",
            {"tensors": [info.name for info in stored], "found": list(found), "expected": list(asked)},
        )


def _wrong_attention(shapes: Shapes, names: Sequence[str]) -> Iterator[Finding]:
    """Attention tensors that several sizes together put right, and the one that then still differs."""
    sets = shapes.together()
    left = (shapes.left(sets[0]) or {}) if len(sets) == 1 else {}
    right = [name for name in names if name not in left]
    stored = [shapes.weights.info(name) for name in right]
    found, asked = shapes.wrong()[right[0]]
    config = f"the config of the run that wrote {stored[0].file.name}"
    remedy = f"{alternatives(sets)}, all of them together, if {config} says so"
    if len(sets) > 1:
        remedy = f"Several sets of sizes fit the stored shapes, and only {config} tells which: {alternatives(sets)}"
    several = f"{len(right)} tensors of the attention have other shapes than the config asks for, such as "
    yield fault(
        "weights-missing",
        0.9,
        f"{several}'{stored[0].name}' {list(found)} instead of {list(asked)}."
        if len(right) > 1
        else f"'{stored[0].name}' has the shape {list(found)}, the config asks for {list(asked)}.",
        f"{remedy}; else export the draft again.",
        {"tensors": [info.name for info in stored], "found": list(found), "expected": list(asked), "sets": sets},
    )
    for name, (has, wanted) in left.items():
        info = shapes.weights.info(name)
        yield fault(
            "weights-missing",
            0.9,
            f"'{info.name}' has the shape {list(has)}, and the other tensors of the attention belong to {list(wanted)}.",
            f"Export '{info.name}' again as {list(wanted)}.",
            {"tensor": name, "file": info.file.name, "found": list(has), "expected": list(wanted)},
        )


def _wrong_shape(shapes: Shapes, name: str, sure: float) -> Finding:
    found, asked = shapes.wrong()[name]
    info = shapes.weights.info(name)
    return fault(
        "weights-missing",
        sure,
        f"'{info.name}' has the shape {list(found)}, the config asks for {list(asked)}.",
        shapes.remedy(name),
        {"tensor": name, "file": info.file.name, "found": list(found), "expected": list(asked)},
    )


def _head_and_embedding(subject: Subject) -> Iterator[Finding]:
    draft, head = subject.draft, matrix_shape(subject.draft_weights, HEAD_WEIGHT)
    shapes = shapes_of(subject)
    if head is None and HEAD_WEIGHT in subject.draft_weights:
        yield _wrong_shape(shapes, HEAD_WEIGHT, 0.95)
        return
    headless = headless_finding(subject)
    if headless is not None:
        yield headless
    elif head is not None and draft.draft_vocab_size is None and not draft.tied and not lacks_pruned_size(draft):
        yield fault(
            "weights-replaced",
            0.7,
            "The checkpoint has its own lm_head, but without draft_vocab_size SGLang replaces it with the target's.",
            f'"draft_vocab_size": {head[0]}'
            + (
                ""
                if head[1] == draft.hidden_size
                else f", and export lm_head.weight again as {[head[0], draft.hidden_size]}: it is {head[1]} wide."
            ),
            {"tensor": HEAD_WEIGHT, "rows": head[0]},
        )
    elif head is not None and lacks_pruned_size(draft) and head[1] == draft.hidden_size:
        pass  # the server stops at the config, whose number these rows are
    elif head is not None and not draft.tied and HEAD_WEIGHT in shapes.wrong():
        yield _wrong_shape(shapes, HEAD_WEIGHT, 0.95)
    yield from _own_embedding(subject)


def headless_finding(subject: Subject) -> Finding | None:
    """That the class builds a head which nothing fills; None where it shares one, or the checkpoint has one."""
    draft = subject.draft
    if HEAD_WEIGHT in subject.draft_weights or draft.draft_vocab_size is None or draft.tied:
        return None
    if stands_for(HEAD_WEIGHT, subject.draft_weights.names):
        return None  # quantized: read, or told with what else is quantized in vain
    # the target's head has a row for each of its tokens: draft ids are then target ids, which a map would turn again
    shared = D2T not in subject.draft_weights and draft.hidden_size == subject.target.hidden_size
    return fault(
        "weights-missing",
        0.95,
        f"The checkpoint has no lm_head and draft_vocab_size is {draft.draft_vocab_size}, so SGLang serves a head of "
        "random weights.",
        "Export lm_head.weight with the draft"
        + (', or write "draft_vocab_size": null so that the target\'s head is shared' * shared)
        + (f", a row for each token of {D2T}" * (D2T in subject.draft_weights))
        + ".",
        {"tensor": HEAD_WEIGHT, "draft_vocab_size": draft.draft_vocab_size},
    )


def _own_embedding(subject: Subject) -> Iterator[Finding]:
    """SGLang replaces the draft's embedding by the target's unless the widths differ."""
    draft, own = subject.draft, matrix_shape(subject.draft_weights, "embed_tokens.weight")
    shared = draft.hidden_size == draft.slot_width
    if own is None and not shared:
        yield fault(
            "weights-missing",
            0.95,
            f"The draft is {draft.hidden_size} wide and its target_hidden_size is {draft.slot_width}, so SGLang does not "
            "share the target's embedding, and the checkpoint has none of its own.",
            "Export embed_tokens.weight with the draft.",
            {"tensor": "embed_tokens.weight"},
        )
    if own is None or not shared or subject.target_weights is None:
        return
    theirs = stored_name(subject.target_weights, EMBED)
    if theirs is None or subject.target_weights.info(theirs).shape[1:] != own[1:]:
        return
    ids = np.unique(
        np.linspace(0, min(own[0], subject.target_weights.info(theirs).shape[0]) - 1, 64).astype(np.int64)
    )
    mine = subject.draft_weights.checkpoint.floats(subject.draft_weights.names["embed_tokens.weight"], ids)
    difference = float(
        np.linalg.norm(mine - subject.target_weights.floats(theirs, ids)) / (np.linalg.norm(mine) + 1e-30)
    )
    if difference > 0.02:
        yield fault(
            "weights-replaced",
            0.8,
            f"The draft's own embed_tokens differs from the target's (relative L2 {difference:.2f} over {len(ids)} rows), "
            "and SGLang replaces it with the target's.",
            "Train with the target's embedding frozen, or serve with an engine that keeps the draft's own.",
            {"tensor": "embed_tokens.weight", "rel_l2": difference},
        )


def _files(subject: Subject) -> str:
    """Where the draft's tensors are, for a sentence: its file, or how many there are."""
    checkpoint = subject.draft_weights.checkpoint
    files = checkpoint.files
    return files[0].name if len(files) == 1 else f"one of the {len(files)} files of {checkpoint.root}"


def _dead(reports: tuple[TensorReport, ...]) -> Iterator[Finding]:
    for report in reports:
        evidence = {"tensor": report.stored_as, "file": report.file}
        if report.state == NOT_FINITE:
            yield fault(
                "nan-inf",
                0.95,
                f"'{report.stored_as}' {list(report.shape)} in {report.file} holds NaN or infinity in {report.broken} of "
                f"the values looked at, the first at {list(report.first_broken or ())}.",
                f"Replace {report.file} by the same file of an earlier training step in which '{report.stored_as}' is "
                "finite (drafttrace check --hash on that step's folder reads every value); later steps are spoiled, too.",
                {**evidence, "values": report.broken, "first": list(report.first_broken or ())},
            )
        elif report.state == ALL_ZERO and report.name not in VOCABULARY_MAPS and not report.name.endswith(".bias"):
            yield fault(
                "weights-missing",
                0.9,
                f"'{report.stored_as}' {list(report.shape)} in {report.file} is zero everywhere.",
                f"Export '{report.stored_as}' again from the training run's own checkpoint: the one in {report.file} was "
                "never filled (a sharded parameter saved by one rank looks so).",
                {**evidence, "zero": True},
            )
    ones = [one for one in reports if one.state == ALL_ONE and len(one.shape) == 1 and "norm" in one.name]
    if ones:
        names = [report.stored_as for report in ones]
        yield note(
            "weights-missing",
            0.4,
            f"{len(ones)} norm weights are exactly one everywhere, such as '{names[0]}' in {ones[0].file}: never trained, "
            "or never saved.",
            f"Compare '{names[0]}' with the training run's own checkpoint; export it again if that has other values.",
            {"tensors": names[:20], "file": ones[0].file},
        )


def _copies(subject: Subject, reports: tuple[TensorReport, ...]) -> Iterator[Finding]:
    """A draft tensor that is the target's: the head that training meant to replace."""
    target, draft = subject.target_weights, subject.draft_weights
    theirs = stored_name(target, HEAD) if target is not None else None
    if target is None or theirs is None or "lm_head.weight" not in draft:
        return
    if (
        matrix_shape(draft, "lm_head.weight") is None
        or draft.info("lm_head.weight").shape != target.info(theirs).shape
    ):
        return
    rows = np.unique(np.linspace(0, target.info(theirs).shape[0] - 1, 64).astype(np.int64))
    mine = draft.checkpoint.floats(draft.names["lm_head.weight"], rows)
    if np.array_equal(mine, target.floats(theirs, rows)):
        yield note(
            "weights-replaced",
            0.4,
            "The draft's lm_head is the target's, row for row: fine if training froze it, a lost head if not.",
            f"If training changed the head, export lm_head.weight again into {draft.info('lm_head.weight').file.name}.",
            {"tensor": "lm_head.weight", "rows_compared": len(rows)},
        )
