"""Every trap of the serving side and every configuration incident, as a small pair of folders with the right answer."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_folders import (
    DEEPSEEK_TARGET,
    GPT_OSS_TARGET,
    HIDDEN,
    KIMI_TARGET,
    LLAMA_TARGET,
    PRUNED,
    VOCAB,
    angelslim,
    draft_tensors,
    dump_of,
    kept_tokens,
    mla,
    mla_tensors,
    modelopt,
    specforge,
    speculators,
    target_tensors,
    write_draft,
    write_target,
)
from rich.console import Console
from safetensors.torch import save_file

from drafttrace.compare.audit import render
from drafttrace.compare.audit.check import check
from drafttrace.compare.audit.fix import fix
from drafttrace.compare.audit.installed import installed_version
from drafttrace.compare.audit.result import CheckResult
from drafttrace.compare.audit.sglang_rules import ALGORITHMS
from drafttrace.compare.result import FAULT, NOTE
from drafttrace.tracer.capture import LastState, Norm
from drafttrace.tracer.errors import DrafttraceError, OutputExists, UnknownFormat, UnreadableFile
from drafttrace.tracer.rows import ArrayRows, DType

INCIDENT = (0, 3, 31)
NESTED_LINE = '"eagle_config": {"eagle_aux_hidden_state_layer_ids": '


@dataclass(frozen=True)
class Case:
    """One incident. faults / notes: the ids that must be found, and no other fault may be. remedy: part of one."""

    name: str
    draft: dict[str, Any]
    target: dict[str, Any] = field(default_factory=lambda: dict(LLAMA_TARGET))
    version: str | None = "0.5.23"
    trained: tuple[int, ...] | None = None
    served: tuple[int, ...] | None = None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    remedy: str = ""
    tensors: Callable[[], dict[str, torch.Tensor]] = draft_tensors
    algorithm: str | None = None


def without(*names: str) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {k: v for k, v in draft_tensors().items() if k not in names}


def changed(**tensors: torch.Tensor) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {**draft_tensors(), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}


def poisoned() -> dict[str, torch.Tensor]:
    tensors = draft_tensors()
    tensors["midlayer.mlp.up_proj.weight"][3, 4] = float("nan")
    return tensors


CANONICAL = [1, 15, 28]
CASES = [
    # healthy ones: nothing may be called a fault
    Case("healthy SpecForge", specforge(CANONICAL), served=(2, 16, 29), trained=(2, 16, 29)),
    Case("healthy Model-Optimizer", modelopt(CANONICAL), served=(2, 16, 29), trained=(2, 16, 29)),
    Case(
        "speculators with default ids, in a layout that SGLang does not read",
        speculators([2, 16, 29]),
        served=(2, 16, 29),
        faults=("fc-not-called",),
        notes=("default-wiring",),
        remedy="at the top level of config.json",
    ),
    Case("healthy AngelSlim, ids nowhere", angelslim(), served=(2, 16, 29), notes=("default-wiring",)),
    Case(
        "weights named layers.0",
        specforge(CANONICAL),
        served=(2, 16, 29),
        tensors=lambda: draft_tensors(prefix="layers.0."),
    ),
    Case(
        "weights named model.",
        specforge(CANONICAL),
        served=(2, 16, 29),
        tensors=lambda: {
            (k if k in {"d2t", "t2d", "lm_head.weight"} else f"model.{k}"): v for k, v in draft_tensors().items()
        },
    ),
    Case(
        "the head named model., which is no parameter of the class",
        specforge(CANONICAL),
        served=(2, 16, 29),
        faults=("weights-missing",),
        remedy="Export the draft again with 'lm_head.weight' in the place of 'model.lm_head.weight'",
        tensors=lambda: {(k if k in {"d2t", "t2d"} else f"model.{k}"): v for k, v in draft_tensors().items()},
    ),
    # where ids stand
    Case(
        "ids at the top level",
        {**specforge(), "eagle_aux_hidden_state_layer_ids": [5, 20, 25]},
        served=(2, 16, 29),
        faults=("default-wiring",),
        remedy=NESTED_LINE + "[5, 20, 25]}",
    ),
    Case(
        "speculators ids that are not the default",
        speculators([3, 17, 30]),
        served=(2, 16, 29),
        faults=("default-wiring", "boundary-offset", "fc-not-called"),
        remedy=NESTED_LINE + "[2, 16, 29]}",
    ),
    Case(
        "eagle_config is no object",
        specforge(eagle_config=[1, 2]),
        served=(2, 16, 29),
        faults=("fc-not-called",),
        remedy="Write an object: " + NESTED_LINE + "[1, 15, 28]}",
    ),
    Case(
        "ids are text",
        specforge(eagle_config={"eagle_aux_hidden_state_layer_ids": "1,15,28"}),
        faults=("fc-not-called",),
    ),
    Case(
        "no ids, trained elsewhere",
        specforge(),
        trained=INCIDENT,
        served=(2, 16, 29),
        faults=("default-wiring", "wrong-boundary"),
        remedy=NESTED_LINE + "[-1, 2, 30]}",
    ),
    # one list, two meanings
    Case(
        "the original incident, served one slot on",
        specforge([3, 31, 59]),
        dict(DEEPSEEK_TARGET),
        trained=INCIDENT,
        served=(3, 31, 59),
        faults=("slot-shift",),
        remedy=NESTED_LINE + "[0, 3, 31]}",
    ),
    Case(
        "the same on the multimodal class",
        specforge([3, 31, 59]),
        dict(KIMI_TARGET),
        trained=INCIDENT,
        served=(3, 31, 59),
        faults=("slot-shift",),
        remedy=NESTED_LINE + "[0, 3, 31]}",
    ),
    Case(
        "DeepSeek ids, old release",
        specforge([2, 30, 58]),
        dict(DEEPSEEK_TARGET),
        "0.5.12.post1",
        trained=(2, 30, 58),
        served=(3, 31, 59),
        faults=("boundary-offset",),
        remedy="[1, 29, 57]",
    ),
    Case(
        "DeepSeek ids meant as layer outputs, new release",
        specforge([2, 30, 58]),
        dict(DEEPSEEK_TARGET),
        trained=(3, 31, 59),
        served=(2, 30, 58),
        faults=("boundary-offset",),
        remedy="[3, 31, 59]",
    ),
    Case(
        "DeepSeek ids, nothing says what was meant",
        specforge([2, 30, 58]),
        dict(DEEPSEEK_TARGET),
        served=(2, 30, 58),
        notes=("boundary-offset",),
    ),
    Case("DeepSeek ids that begin with one", specforge([1, 29, 57]), dict(DEEPSEEK_TARGET), served=(2, 30, 58)),
    Case("after the remedy", specforge([0, 3, 31]), dict(DEEPSEEK_TARGET), trained=INCIDENT, served=INCIDENT),
    Case(
        "the embedding, on a release that cannot capture it",
        specforge([3, 31]),
        dict(DEEPSEEK_TARGET),
        "0.5.13",
        trained=INCIDENT,
        served=(3, 31),
        faults=("slot-count", "slot-shift"),
        remedy="cannot capture B0",
    ),
    Case(
        "the embedding asked for by id, on a Llama release that cannot capture it",
        specforge([-1, 2, 8]),
        version="0.5.20",
        trained=(0, 3, 9),
        faults=("fc-not-called",),
        remedy="upgrade SGLang to 0.5.22 or newer, or take the list with B0 out of config.json",
    ),
    Case(
        "the same where nothing says what training used",
        specforge([-1, 2, 8]),
        version="0.5.20",
        faults=("fc-not-called",),
        remedy="drafttrace serve --wiring B0,B3,B9",
    ),
    Case(
        "the embedding asked for by id, on a DeepSeek release that cannot capture it",
        specforge([0, 3, 31]),
        dict(DEEPSEEK_TARGET),
        "0.5.13",
        trained=INCIDENT,
        faults=("fc-not-called",),
        remedy="upgrade SGLang to 0.5.14 or newer",
    ),
    Case(
        "the embedding asked for by id, on a release that can",
        specforge([-1, 2, 8]),
        version="0.5.22",
        trained=(0, 3, 9),
        served=(0, 3, 9),
    ),
    Case(
        "the embedding asked for by id, on a class of which it is not known",
        specforge([-1, 2, 8]),
        {**LLAMA_TARGET, "architectures": ["Qwen3ForCausalLM"]},
        trained=(0, 3, 9),
        served=(0, 3, 9),
        notes=("fc-not-called",),
    ),
    Case(
        "Llama ids that were meant as boundaries",
        specforge([2, 16, 29]),
        trained=(2, 16, 29),
        served=(3, 17, 30),
        faults=("boundary-offset",),
        remedy=NESTED_LINE + "[1, 15, 28]}",
    ),
    Case(
        "gpt-oss ids with the final boundary",
        modelopt([24, 30, 36]),
        dict(GPT_OSS_TARGET),
        trained=(24, 30, 36),
        served=(24, 30, 36),
    ),
    Case(
        "gpt-oss ids with the final boundary, old release",
        modelopt([24, 30, 36]),
        dict(GPT_OSS_TARGET),
        "0.5.16",
        served=(25, 31),
        faults=("slot-count",),
    ),
    Case(
        "ids out of order",
        specforge([28, 1, 15]),
        served=(2, 16, 29),
        faults=("slot-permutation",),
        remedy="ascending",
    ),
    Case("an id twice", specforge([1, 1, 28]), served=(2, 29), faults=("slot-count",)),
    Case("an id beyond the target", specforge([1, 15, 40]), served=(2, 16), faults=("slot-count",)),
    Case(
        "a target that cannot capture",
        specforge(CANONICAL),
        {**LLAMA_TARGET, "architectures": ["OPTForCausalLM"]},
        faults=("fc-not-called",),
    ),
    # widths, and fc that never runs
    Case(
        "four slots in fc, three served",
        specforge(CANONICAL),
        served=(2, 16, 29),
        faults=("slot-count",),
        tensors=lambda: draft_tensors(slots=4),
    ),
    Case(
        "a draft for another target width",
        specforge(CANONICAL, target_hidden_size=32),
        faults=("slot-count", "weights-missing"),
        tensors=lambda: draft_tensors(slot_width=32),
    ),
    Case(
        "one slot: fc is skipped",
        specforge([15]),
        served=(16,),
        faults=("fc-not-called",),
        tensors=lambda: draft_tensors(slots=1),
    ),
    Case(
        "use_aux_hidden_state false",
        specforge(CANONICAL, eagle_config={"use_aux_hidden_state": False}),
        faults=("fc-not-called",),
        remedy='"use_aux_hidden_state": true',
    ),
    Case(
        "the algorithm EAGLE", specforge(CANONICAL), faults=("fc-not-called",), algorithm="EAGLE", remedy="EAGLE3"
    ),
    Case(
        "a class that is no draft's",
        specforge(CANONICAL, architectures=["Eagle3Speculator"]),
        faults=("fc-not-called",),
        remedy='"architectures": ["LlamaForCausalLMEagle3"]',
    ),
    Case("num_aux_hidden_states wrong", specforge(CANONICAL, num_aux_hidden_states=4), faults=("slot-count",)),
    # norms that the server ignores
    Case(
        "norm_before_residual",
        speculators([2, 16, 29], norm_before_residual=True),
        faults=("norm-missing", "fc-not-called"),
        notes=("default-wiring",),
    ),
    Case(
        "norm_before_fc on an old release",
        specforge(CANONICAL, norm_before_fc=True),
        version="0.5.16",
        faults=("norm-missing",),
        tensors=changed(input_norm__weight=torch.rand(3 * HIDDEN)),
    ),
    Case(
        "norm_before_fc on a new release",
        specforge(CANONICAL, norm_before_fc=True),
        tensors=changed(input_norm__weight=torch.rand(3 * HIDDEN)),
    ),
    Case(
        "fc_norm weights without the flag",
        specforge(CANONICAL),
        faults=("norm-missing",),
        remedy='"fc_norm": true',
        tensors=lambda: {**draft_tensors(), **{f"fc_norm.{k}.weight": torch.rand(HIDDEN) for k in range(3)}},
    ),
    Case("fc_norm flag without weights", specforge(CANONICAL, fc_norm=True), faults=("weights-missing",)),
    Case("SpecForge's norm_output", specforge(CANONICAL, norm_output=True), notes=("norm-extra",)),
    Case(
        "Model-Optimizer's first layer",
        modelopt(CANONICAL, use_input_layernorm_in_first_layer=True),
        notes=("norm-extra",),
    ),
    Case(
        "Gemma's embedding scale",
        specforge(CANONICAL),
        {**LLAMA_TARGET, "model_type": "gemma3_text"},
        notes=("scale",),
    ),
    # rope and window
    Case(
        "two rope bases",
        specforge(CANONICAL, rope_parameters={"rope_theta": 500000.0, "rope_type": "default"}),
        faults=("rope-mismatch",),
    ),
    Case(
        "yarn without a factor", specforge(CANONICAL, rope_scaling={"rope_type": "yarn"}), faults=("rope-mismatch",)
    ),
    Case(
        "longrope without its lists",
        specforge(CANONICAL, rope_scaling={"rope_type": "longrope", "factor": 8.0}),
        faults=("rope-mismatch",),
    ),
    Case(
        "llama3 without its bounds",
        specforge(CANONICAL, rope_scaling={"rope_type": "llama3", "factor": 8.0}),
        faults=("rope-mismatch",),
    ),
    Case(
        "longrope needs no factor",
        specforge(
            CANONICAL,
            rope_scaling={"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]},
        ),
    ),
    Case("another base than the target's", specforge(CANONICAL, rope_theta=500000.0), notes=("rope-mismatch",)),
    Case(
        "a short draft",
        specforge(CANONICAL, max_position_embeddings=256),
        faults=("fc-not-called",),
        remedy="--context-length 256",
    ),
    Case(
        "a sliding window",
        specforge(CANONICAL, sliding_window=64, layer_types=["sliding_attention"]),
        faults=("window-mismatch",),
        remedy="--speculative-draft-window-size 63",
    ),
    # vocabulary
    Case("another vocabulary", specforge(CANONICAL, vocab_size=80), faults=("vocab-map-range",)),
    Case("no d2t", specforge(CANONICAL), faults=("vocab-map-missing",), tensors=without("d2t")),
    Case("absolute d2t", specforge(CANONICAL), faults=("vocab-map-offset",), tensors=changed(d2t=kept_tokens())),
    Case(
        "d2t beyond the vocabulary",
        specforge(CANONICAL),
        faults=("vocab-map-range",),
        tensors=lambda: {**without("t2d")(), "d2t": torch.arange(PRUNED) * 3},
    ),
    Case(
        "d2t with repeated targets",
        specforge(CANONICAL),
        faults=("vocab-map-range",),
        tensors=lambda: {**without("t2d")(), "d2t": -torch.arange(PRUNED) // 2},
    ),
    Case(
        "t2d of another run",
        specforge(CANONICAL),
        faults=("vocab-map-range",),
        tensors=changed(t2d=torch.arange(VOCAB) >= PRUNED),
    ),
    Case(
        "d2t of floats", specforge(CANONICAL), faults=("vocab-map-range",), tensors=changed(d2t=torch.zeros(PRUNED))
    ),
    Case(
        "d2t of zeros",
        specforge(CANONICAL),
        faults=("vocab-map-missing", "vocab-map-range"),
        tensors=changed(d2t=torch.zeros(PRUNED, dtype=torch.long)),
    ),
    Case(
        "d2t of another size",
        specforge(CANONICAL, draft_vocab_size=40),
        faults=("vocab-map-range", "weights-missing"),
    ),
    # weights
    Case(
        "no lm_head, pruned vocabulary",
        specforge(CANONICAL),
        faults=("weights-missing",),
        tensors=without("lm_head.weight"),
    ),
    Case(
        "lm_head that the target's replaces",
        specforge(CANONICAL, draft_vocab_size=None),
        faults=("weights-replaced",),
    ),
    Case(
        "no draft_vocab_size",
        {k: v for k, v in specforge(CANONICAL).items() if k != "draft_vocab_size"},
        faults=("fc-not-called",),
        remedy='"draft_vocab_size": 48',
    ),
    Case(
        "tied embeddings drop the head",
        specforge(CANONICAL, tie_word_embeddings=True),
        faults=("weights-replaced",),
        remedy='"tie_word_embeddings": false',
    ),
    Case(
        "a missing norm",
        specforge(CANONICAL),
        faults=("weights-missing",),
        tensors=without("midlayer.hidden_norm.weight"),
    ),
    Case(
        "a tensor of another shape",
        specforge(CANONICAL),
        faults=("weights-missing",),
        tensors=changed(norm__weight=torch.rand(8)),
    ),
    Case(
        "a tensor of zeros",
        specforge(CANONICAL),
        faults=("weights-missing",),
        tensors=changed(fc__weight=torch.zeros(HIDDEN, 3 * HIDDEN)),
    ),
    Case("NaN", specforge(CANONICAL), faults=("nan-inf",), tensors=poisoned),
    Case(
        "norms of ones",
        specforge(CANONICAL),
        notes=("weights-missing",),
        tensors=changed(norm__weight=torch.ones(HIDDEN)),
    ),
    Case(
        "a tensor that nothing reads",
        specforge(CANONICAL),
        notes=("weights-unused",),
        tensors=changed(midlayer__extra__weight=torch.rand(3)),
    ),
    Case(
        "an embedding of its own that the target's replaces",
        specforge(CANONICAL),
        faults=("weights-replaced",),
        tensors=changed(embed_tokens__weight=torch.rand(VOCAB, HIDDEN)),
    ),
    Case(
        "the target's embedding, kept",
        specforge(CANONICAL),
        tensors=changed(embed_tokens__weight=target_tensors()["model.embed_tokens.weight"]),
    ),
    Case(
        "a full head that is the target's",
        specforge(CANONICAL, draft_vocab_size=VOCAB),
        notes=("weights-replaced",),
        tensors=lambda: {**without("d2t", "t2d")(), "lm_head.weight": target_tensors()["lm_head.weight"]},
    ),
    Case(
        "a second layer without hidden_norm", specforge(CANONICAL, num_hidden_layers=2), faults=("weights-missing",)
    ),
    Case("another dtype", specforge(CANONICAL, torch_dtype="float16"), notes=("quantization-noise",)),
    Case(
        "weights in the other 16-bit format than the config says",
        specforge(CANONICAL),
        notes=("dtype-reinterpretation",),
        tensors=lambda: {k: v.half() if v.is_floating_point() else v for k, v in draft_tensors().items()},
    ),
    # the width of the CUDA-graph buffer, which SGLang reads from the config by yet another rule
    Case(
        "the graph buffer counts ids that the target drops",
        specforge([1, 1, 28]),
        served=(2, 29),
        faults=("slot-count",),
        notes=("stale-rows",),
        remedy="--disable-cuda-graph",
    ),
    Case(
        "the graph buffer counts ids at the top level, the target does not",
        speculators([2, 10, 16, 29]),
        served=(2, 16, 29),
        faults=("default-wiring", "fc-not-called", "slot-count", "slot-shift", "wrong-boundary"),
        notes=("stale-rows",),
        tensors=lambda: draft_tensors(slots=4),
    ),
    Case(
        "the graph buffer is narrower than what the target hands over",
        specforge(CANONICAL, num_aux_hidden_states=2),
        served=(2, 16, 29),
        faults=("slot-count",),
        notes=("stale-rows",),
        remedy="--disable-cuda-graph",
    ),
    Case(
        "the graph buffer is wider than what the target hands over",
        specforge(CANONICAL, num_aux_hidden_states=4),
        served=(2, 16, 29),
        faults=("slot-count",),
        notes=("stale-rows",),
        remedy="--disable-cuda-graph",
    ),
    # the rest of the public layouts and flags
    Case(
        "the old names of the norms per slot",
        specforge(CANONICAL, use_aux_norm=True),
        tensors=lambda: {
            **draft_tensors(),
            **{f"aux_norm_{place}.weight": torch.rand(HIDDEN) for place in ("low", "mid", "high")},
        },
    ),
    Case(
        "norms per slot on a release whose MLA class has none",
        mla(CANONICAL, fc_norm=True),
        dict(DEEPSEEK_TARGET),
        "0.5.12",
        faults=("norm-missing",),
        tensors=lambda: {**mla_tensors(), **{f"fc_norm.{k}.weight": torch.rand(HIDDEN) for k in range(3)}},
    ),
    Case("a healthy MLA draft", mla([1, 29, 57]), dict(DEEPSEEK_TARGET), served=(2, 30, 58), tensors=mla_tensors),
    Case(
        "an MLA draft under the Llama class",
        mla([1, 29, 57], architectures=["DeepseekV3ForCausalLM"]),
        dict(DEEPSEEK_TARGET),
        faults=("fc-not-called",),
        remedy='"architectures": ["Eagle3DeepseekV2ForCausalLM"]',
        tensors=mla_tensors,
    ),
    Case("muP's embedding scale", specforge(CANONICAL), {**LLAMA_TARGET, "scale_emb": 12}, notes=("scale",)),
    Case(
        "a draft vocabulary larger than the vocabulary",
        specforge(CANONICAL, draft_vocab_size=200),
        faults=("vocab-map-range", "weights-missing"),
    ),
    Case(
        "another end of text than the target's",
        specforge(CANONICAL, eos_token_id=7),
        {**LLAMA_TARGET, "eos_token_id": [1, 2]},
        notes=("template-divergence",),
    ),
    Case(
        "two names for one parameter",
        specforge(CANONICAL),
        faults=("weights-replaced",),
        tensors=lambda: {**draft_tensors(), "layers.0.hidden_norm.weight": torch.rand(HIDDEN)},
    ),
]


def run(case: Case, folder: Path) -> CheckResult:
    target = write_target(folder / "target", case.target)
    draft = write_draft(folder / "draft", case.draft, case.tensors())
    return check(target, draft, sglang_version=case.version, trained=case.trained, algorithm=case.algorithm)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_incident(case: Case, tmp_path: Path) -> None:
    result = run(case, tmp_path)
    found = sorted({f.id for f in result.findings if f.severity == FAULT})
    assert found == sorted(set(case.faults)), [f.summary for f in result.findings]
    assert set(case.notes) <= {f.id for f in result.findings if f.severity == NOTE}
    assert result.exit_code == (1 if case.faults else 0)
    if case.served is not None:
        assert result.readings[-1].boundaries == case.served
    if case.remedy:
        assert any(case.remedy in f.remedy for f in result.findings), [f.remedy for f in result.findings]
    for finding in result.findings:
        assert finding.summary.endswith(".") and "\n" not in finding.summary
    text = json.dumps(result.to_json(), allow_nan=False)
    assert json.loads(text)["schema"] == "drafttrace.check/1"


@pytest.mark.parametrize("version", ["0.5.12", "0.5.17", "0.5.23"])
@pytest.mark.parametrize(
    "target", [LLAMA_TARGET, DEEPSEEK_TARGET, GPT_OSS_TARGET], ids=lambda t: t["architectures"][0]
)
def test_the_fixed_config_serves_what_training_used(version: str, target: dict[str, Any], tmp_path: Path) -> None:
    wanted = (4, 10, 20)
    folder = write_target(tmp_path / "target", target)
    draft = write_draft(tmp_path / "draft", specforge([7, 8, 9]))
    before = check(folder, draft, sglang_version=version, trained=wanted)
    assert before.exit_code == 1
    fix(draft, tmp_path / "fixed", before.fix)
    again = write_draft(tmp_path / "again", json.loads((tmp_path / "fixed/config.json").read_text()))
    after = check(folder, again, sglang_version=version, trained=wanted)
    assert after.exit_code == 0 and after.readings[-1].boundaries == wanted


def test_fix_writes_a_copy_and_never_in_place(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", speculators([5, 9, 20], tie_word_embeddings=True))
    result = check(target, draft, sglang_version="0.5.23")
    before = (draft / "config.json").read_bytes()
    path = fix(draft, tmp_path / "new", result.fix)
    made = json.loads(path.read_text())
    assert made["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [4, 8, 19]}
    assert made["tie_word_embeddings"] is False
    with pytest.raises(OutputExists, match="--force"):
        fix(draft, tmp_path / "new", result.fix)
    fix(draft, tmp_path / "new", result.fix, force=True)
    with pytest.raises(DrafttraceError, match="never changed in place"):
        fix(draft, draft, result.fix, force=True)
    assert (draft / "config.json").read_bytes() == before
    with pytest.raises(DrafttraceError, match="Nothing in"):
        fix(draft, tmp_path / "x", {})


def test_a_dump_decides_by_value_before_it_is_believed(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL))
    tokens = np.arange(40, dtype=np.int64)
    embedding = target_tensors()["model.embed_tokens.weight"].float().numpy()[tokens]
    noise = np.random.default_rng(0).normal(size=(2, 40, HIDDEN))
    dump = dump_of([embedding, noise[0], noise[1]], tokens, [2, 16, 29])
    result = check(target, draft, sglang_version="0.5.23", dump=dump)
    assert result.wanted == (0, 16, 29)
    assert {f.id for f in result.findings if f.severity == FAULT} == {"wrong-boundary"}
    assert any("by value it is [B0]" in f.summary for f in result.findings)
    assert any("[-1, 15, 28]" in f.remedy for f in result.findings)
    lying = dump_of([noise[0], noise[1], noise[1]], tokens, [0, 16, 29])
    assert check(target, draft, sglang_version="0.5.23", dump=lying).wanted is None
    agreeing = dump_of([noise[0], noise[1], noise[1]], tokens, [2, 16, 29])
    assert check(target, draft, sglang_version="0.5.23", dump=agreeing).exit_code == 0
    four = dump_of([embedding, *noise, noise[0]], tokens, [0, 3, 16, 29])
    found = check(target, draft, sglang_version="0.5.23", dump=four)
    assert "slot-count" in {f.id for f in found.findings}


def test_a_dump_tells_a_boundary_offset_on_a_llama_class(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", specforge([2, 16, 29]))
    noise = list(np.random.default_rng(0).normal(size=(3, 40, HIDDEN)))
    dump = dump_of(noise, np.arange(40, dtype=np.int64), [2, 16, 29])
    (found,) = check(target, draft, sglang_version="0.5.23", dump=dump).faults
    assert found.id == "boundary-offset" and found.slots == (0, 1, 2) and "[1, 15, 28]" in found.remedy


def test_a_last_state_that_is_not_the_last_is_told_from_the_dump_alone(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL))
    noise = list(np.random.default_rng(0).normal(size=(4, 40, HIDDEN)))
    plain = dump_of(noise[:3], np.arange(40, dtype=np.int64), [2, 16, 29])

    def audited(rows: np.ndarray, boundary: int | None) -> CheckResult:
        held = ArrayRows(np.ascontiguousarray(rows, np.float32), DType.FP32)
        last = LastState("last", held, Norm.PRE, "test", boundary)
        return check(target, draft, sglang_version="0.5.23", dump=dataclasses.replace(plain, last=last))

    (by_value,) = audited(noise[2], None).faults
    assert by_value.id == "last-not-last" and "slot 2" in by_value.summary and "dump [B32]" in by_value.remedy
    declared = audited(noise[3], 31)
    assert declared.exit_code == 0 and [f.id for f in declared.findings] == ["last-not-last"]
    for boundary in (None, 32):
        assert not audited(noise[3], boundary).findings


def test_samples_of_a_dump_decide_where_they_agree(tmp_path: Path) -> None:
    """A folder of several samples was asked for a number, though they all say the same."""
    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL))
    tokens = np.arange(40, dtype=np.int64)
    embedding = target_tensors()["model.embed_tokens.weight"].float().numpy()[tokens]
    noise = np.random.default_rng(0).normal(size=(3, 40, HIDDEN))
    found = [dump_of([embedding, noise[0], noise[1]], tokens, [2, 16, 29]) for _ in range(3)]
    names = [dataclasses.replace(one, path=f"dump/data_{k}.pt", sample=k) for k, one in enumerate(found)]
    result = check(target, draft, sglang_version="0.5.23", dump=names)
    assert result.wanted == (0, 16, 29)
    assert result.wanted_by == "samples data_0.pt, data_1.pt, data_2.pt of the dump"
    assert len([f for f in result.findings if "by value it is [B0]" in f.summary]) == 1  # said once, not per sample
    assert any("--dump PATH#i" in line for line in result.notes)
    other = dataclasses.replace(dump_of([*noise], tokens, [2, 16, 29]), path="dump/data_9.pt", sample=9)
    apart = check(target, draft, sglang_version="0.5.23", dump=[names[0], other])
    assert apart.wanted is None and any("[B0, B16, B29] and [B2, B16, B29]" in line for line in apart.notes)


def test_a_trace_is_no_training_dump(tmp_path: Path) -> None:
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    tokens = np.arange(9, dtype=np.int64)
    trace = dataclasses.replace(
        dump_of([np.zeros((9, HIDDEN))] * 3, tokens, [2, 16, 29]), format="drafttrace.trace/1"
    )
    with pytest.raises(DrafttraceError, match="trace of a server"):
        check(target, draft, dump=trace)


def test_the_reports_say_the_cause_and_the_remedy(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "the original incident, served one slot on")
    result = run(case, tmp_path)
    text = render.markdown(result)
    console = Console(width=200, record=True, file=io.StringIO())
    render.terminal(result, console)
    for report in (text, console.export_text()):
        assert "slot-shift" in report and "[0, 3, 31]" in report and "[B3, B31, B59]" in report
        assert "vLLM" in report and "PROBLEM FOUND" in report


def test_hostile_names_stay_text_in_the_reports(tmp_path: Path) -> None:
    name = "midlayer.<script>|`@x[bold red]"
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL), {**draft_tensors(), name: torch.zeros(3)})
    result = check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    text = render.markdown(result)
    assert "<script>" not in text and "@x" not in text
    console = Console(width=200, record=True, file=io.StringIO())
    render.terminal(result, console)
    assert "[bold red]" in console.export_text()


def test_the_live_server_is_compared_with_the_configs(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", DEEPSEEK_TARGET)
    draft = write_draft(tmp_path / "draft", specforge([2, 30, 58]))
    health = {
        "sglang_version": "0.5.23",
        "wiring": {"boundaries": [3, 31, 59], "source": "config", "algorithm": "EAGLE3"},
    }
    result = check(target, draft, url_health=health)
    assert result.live == (3, 31, 59) and "wrong-boundary" in {f.id for f in result.findings if f.severity == FAULT}
    fine = {**health, "wiring": {**health["wiring"], "boundaries": [2, 30, 58]}}
    assert check(target, draft, url_health=fine).exit_code == 0
    plain = {**fine, "wiring": {**fine["wiring"], "algorithm": "EAGLE"}}
    assert {f.id for f in check(target, draft, url_health=plain).findings if f.severity == FAULT} == {
        "fc-not-called"
    }
    assert check(target, draft, url_health={"wiring": None, "sglang_version": "0.5.12"}).sglang_version == "0.5.12"


def override_of(wiring: list[int]) -> dict[str, Any]:
    block = {"boundaries": wiring, "source": "override", "algorithm": "EAGLE3"}
    return {"sglang_version": "0.5.23", "wiring": block}


def test_a_proven_override_is_not_advised_away(tmp_path: Path) -> None:
    """`check --url` said to restart with the config, which is what the override had cured."""
    target = write_target(tmp_path / "target", DEEPSEEK_TARGET)
    draft = write_draft(tmp_path / "draft", specforge([2, 30, 58]))
    health = override_of([0, 3, 31])
    (found,) = check(target, draft, sglang_version="0.5.23", url_health=health).faults
    assert "[B0, B3, B31], as its --wiring says (source: override)" in found.summary
    assert "the config says another wiring, [B2, B30, B58]" in found.summary
    assert NESTED_LINE + "[0, 3, 31]}" in found.remedy and "[2, 30, 58]" not in found.remedy
    assert "Restart the server with this config" not in found.remedy and found.confidence < 0.95
    # where no ids give it, the advice is to keep the override
    (kept,) = check(target, draft, sglang_version="0.5.23", url_health=override_of([31, 3, 0])).faults
    assert "keep --wiring" in kept.remedy
    # training is known and the override is another one
    wrong = check(target, draft, sglang_version="0.5.23", url_health=override_of([1, 3, 31]), trained=INCIDENT)
    assert any("Restart the server with --wiring B0,B3,B31" in f.remedy for f in wrong.faults)
    right = check(target, draft, sglang_version="0.5.23", url_health=health, trained=INCIDENT)
    assert not any("live server" in f.summary for f in right.findings)


def test_a_server_of_another_model_is_told_so(tmp_path: Path) -> None:
    """Another model's folders gave advice about layer ids."""
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    live = {
        "path": "/models/kimi",
        "model_class": "DeepseekV3ForCausalLM",
        "n": 61,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
    }
    health = {**override_of([0, 3, 31]), "target": live, "draft": {"path": "/models/kimi-draft"}}
    with pytest.raises(DrafttraceError) as caught:
        check(target, draft, sglang_version="0.5.23", url_health=health)
    for words in (
        "another model: /models/kimi (DeepseekV3ForCausalLM, 61 layers, 16 wide",
        "LlamaForCausalLM of 32",
    ):
        assert words in str(caught.value)
    assert "--target /models/kimi --draft /models/kimi-draft" in str(caught.value)
    same = {**live, "n": 32}
    fine = check(target, draft, sglang_version="0.5.23", url_health={**override_of([2, 16, 29]), "target": same})
    assert fine.exit_code == 0 and any("with the class DeepseekV3ForCausalLM" in line for line in fine.notes)


def test_wirings_that_cannot_be_are_refused_as_serve_refuses_them(tmp_path: Path) -> None:
    """`check --trained B0,B99` was taken for a wiring."""
    target = write_target(tmp_path / "target", DEEPSEEK_TARGET)
    draft = write_draft(tmp_path / "draft", specforge([2, 30, 58]))
    for wiring, words in (
        ((0, 99), r"--trained \[B0, B99\] names B99, but the target has 61 layers"),
        ((0, 0, 3), "names B0 twice"),
        ((0, 3), "gives 2 slots of 16 columns, but the draft's fc takes 48"),
    ):
        with pytest.raises(DrafttraceError, match=words):
            check(target, draft, sglang_version="0.5.23", trained=wiring)
    noise = list(np.random.default_rng(0).normal(size=(3, 40, HIDDEN)))
    dump = dump_of(noise, np.arange(40, dtype=np.int64), [2, 30, 99])
    with pytest.raises(DrafttraceError, match="no B99; give the target"):
        check(target, draft, sglang_version="0.5.23", dump=dump)


def test_an_algorithm_that_is_none_is_refused(tmp_path: Path) -> None:
    """`--algorithm foo` was taken for an algorithm under which fc never runs."""
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    with pytest.raises(
        DrafttraceError, match="'foo' is no speculative algorithm of SGLang; name one of EAGLE3, EAGLE"
    ):
        check(target, draft, sglang_version="0.5.23", algorithm="foo")
    assert check(target, draft, sglang_version="0.5.23", algorithm="eagle3").exit_code == 0
    assert check(target, draft, sglang_version="0.5.23", algorithm="nextn").exit_code == 1


@pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed here")
def test_the_listed_algorithms_are_those_of_the_installed_release() -> None:
    """Read from its source: importing it takes ten seconds."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations
    text = (Path(spec.submodule_search_locations[0]) / "srt/speculative/spec_info.py").read_text()
    body = text.split("class SpeculativeAlgorithm", 1)[1].split("@classmethod", 1)[0]
    assert set(re.findall(r"^    ([A-Z0-9_]+) = auto\(\)", body, re.M)) | {"NEXTN"} == set(ALGORITHMS)


def test_swapped_folders_are_one_sentence(tmp_path: Path) -> None:
    """They were hundreds of faults about the target's tensors."""
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    full = write_target(tmp_path / "full", {**specforge(), "architectures": ["LlamaForCausalLM"]})
    for given, words in (
        ((draft, target), "swap --target and --draft"),
        ((draft, full), "swap --target and --draft"),
        ((draft, draft), "give the target's folder"),
        ((target, target), "give the draft's folder"),
        ((target, full), "give the draft's folder"),
    ):
        with pytest.raises(DrafttraceError, match=words):
            check(*given, sglang_version="0.5.23")


@pytest.mark.parametrize("whose", ["target", "draft"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_device_in_a_models_folder_is_one_sentence(
    whose: str, name: str, kind: str, tmp_path: Path
) -> None:
    """A pipe was waited for, or said to be absent."""
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    path = (target if whose == "target" else draft) / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UnreadableFile, match="is a device or pipe and no file"):
        check(target, draft, sglang_version="0.5.23")


def test_a_server_that_puts_an_old_bug_back_is_told_so(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL))
    block = {"boundaries": [2, 16, 29], "source": "config", "algorithm": "EAGLE3", "reverted_pr": "27829"}
    (found,) = check(target, draft, url_health={"sglang_version": "0.5.23", "wiring": block}).faults
    assert "SGLANG_DEBUG_REVERT_PR=27829" in found.summary and "Unset" in found.remedy


def sharded(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """The draft in two files: fc and the head in the first, everything else in the second."""
    draft = write_draft(folder, specforge(CANONICAL))
    (draft / "model.safetensors").unlink()
    where = {name: f"model-{1 if name in {'fc.weight', 'lm_head.weight'} else 2}.safetensors" for name in tensors}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, draft / file)
    (draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return draft


def test_remedies_for_weights_name_tensor_and_file(tmp_path: Path) -> None:
    """They were the same sentence for every tensor, "take an earlier checkpoint"."""
    target = write_target(tmp_path / "target")
    tensors = poisoned()
    tensors["fc.weight"] = torch.zeros_like(tensors["fc.weight"])
    tensors["norm.weight"] = torch.rand(8)
    del tensors["midlayer.hidden_norm.weight"]
    found = check(target, sharded(tmp_path / "draft", tensors), sglang_version="0.5.23").faults
    by_tensor = {str(f.evidence.get("tensor")): f for f in found}
    nan = by_tensor["midlayer.mlp.up_proj.weight"]
    assert nan.id == "nan-inf" and "model-2.safetensors" in nan.summary and "[3, 4]" in nan.summary
    assert "1 of the values" in nan.summary and nan.evidence["first"] == [3, 4]
    for name, file in (
        ("midlayer.mlp.up_proj.weight", "model-2.safetensors"),
        ("fc.weight", "model-1.safetensors"),
        ("norm.weight", "model-2.safetensors"),
        ("layers.0.hidden_norm.weight", "one of the 2 files"),
    ):
        assert name in by_tensor[name].remedy and file in by_tensor[name].remedy, by_tensor[name].remedy


def test_a_broken_row_of_a_large_tensor_is_told_by_its_own_number(tmp_path: Path) -> None:
    """Large tensors are sampled row by row; a place in the sample is no place in the tensor."""
    target = write_target(tmp_path / "target")
    large = torch.zeros(1 << 13, 128)
    large[4000] = float("inf")
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL), {**draft_tensors(), "extra.weight": large})
    (found,) = check(target, draft, sglang_version="0.5.23").faults
    assert found.id == "nan-inf" and found.evidence["first"] == [4000, 0]


def test_a_tokenizer_that_differs_is_named(tmp_path: Path) -> None:
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    table = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "<eos>", "id": 2}]}
    (target / "tokenizer.json").write_text(json.dumps(table))
    (draft / "tokenizer.json").write_text(json.dumps(table))
    assert check(target, draft, sglang_version="0.5.23").exit_code == 0
    (draft / "tokenizer.json").write_text(json.dumps({**table, "added_tokens": [{"content": "<eos>", "id": 5}]}))
    (found,) = check(target, draft, sglang_version="0.5.23").faults
    assert found.id == "template-divergence" and "<eos>" in found.summary


@pytest.mark.parametrize("whose", ["target", "draft"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "no valid JSON"),
        ("[1]", "expected an object"),
        ("{}", "names no tokens"),
        ('{"model": 3, "added_tokens": 5}', "names no tokens"),
        (None, "is a folder"),
    ],
)
def test_a_nonsense_tokenizer_is_noted(whose: str, text: str | None, words: str, tmp_path: Path) -> None:
    """It was ignored without a word."""
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    good = json.dumps({"model": {"vocab": {"a": 0, "b": 1}}})
    for folder in (target, draft):
        path = folder / "tokenizer.json"
        if folder.name != whose:
            path.write_text(good)
        elif text is None:
            path.mkdir()
        else:
            path.write_text(text)
    result = check(target, draft, sglang_version="0.5.23")
    (found,) = result.findings
    assert result.exit_code == 0 and found.severity == NOTE and found.id == "template-divergence"
    assert words in found.summary and str(tmp_path / whose) in found.remedy


def test_a_server_that_would_stop_is_not_said_to_do_as_training_did(tmp_path: Path) -> None:
    """ "The server hands fc [B0, B3, B9], as training did", exit code 0: it stops with a TypeError."""
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge([-1, 2, 8]))
    result = check(target, draft, sglang_version="0.5.20", trained=(0, 3, 9))
    assert result.exit_code == 1 and "as training did" not in result.summary and "TypeError" in result.summary
    assert "stops with a TypeError" in result.readings[-1].note
    fine = check(target, draft, sglang_version="0.5.22", trained=(0, 3, 9))
    assert fine.exit_code == 0 and "as training did" in fine.summary and "TypeError" not in fine.readings[-1].note


def test_hashing_reads_everything_and_sampling_finds_whole_faults(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    tensors = draft_tensors()
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL), tensors)
    hashed = {r.name: r.sha256 for r in check(target, draft, sglang_version="0.5.23", hash_weights=True).tensors}
    assert all(value is not None and len(value) == 64 for value in hashed.values())
    tensors["norm.weight"][0] += 1
    other = write_draft(tmp_path / "other", specforge(CANONICAL), tensors)
    again = {r.name: r.sha256 for r in check(target, other, sglang_version="0.5.23", hash_weights=True).tensors}
    assert {name for name in hashed if hashed[name] != again[name]} == {"norm.weight"}


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda t, d: (d / "config.json").write_text("{"), "no valid JSON"),
        (lambda t, d: (d / "config.json").write_text("[]"), "expected an object"),
        (lambda t, d: (d / "config.json").unlink(), "no config.json"),
        (lambda t, d: (t / "config.json").write_text("{}"), "num_hidden_layers|hidden_size"),
        (
            lambda t, d: (d / "config.json").write_text(json.dumps({**specforge(), "hidden_size": "16"})),
            "whole number",
        ),
        (
            lambda t, d: (d / "config.json").write_text(json.dumps({**specforge(), "hidden_size": None})),
            "no 'hidden_size'",
        ),
        (lambda t, d: (d / "model.safetensors").unlink(), "holds no"),
        (lambda t, d: (d / "model.safetensors").write_bytes(b"\xff" * 64), "limit"),
        (lambda t, d: (t / "model.safetensors").write_bytes(b"\x10" + b"\0" * 30), "JSON"),
        (
            lambda t, d: (t / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b"}}'),
            "lacks 1 of 1",
        ),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, break_it: Callable[[Path, Path], object], words: str) -> None:
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    break_it(target, draft)
    with pytest.raises(UnreadableFile, match=words) as caught:
        check(target, draft, sglang_version="0.5.23")
    assert "\n" not in str(caught.value)


def test_a_version_that_is_none(tmp_path: Path) -> None:
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft", specforge(CANONICAL))
    with pytest.raises(DrafttraceError, match="no SGLang version"):
        check(target, draft, sglang_version="main")


def test_a_target_without_weights_is_audited(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", weights=False)
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL))
    result = check(target, draft, sglang_version="0.5.23")
    assert result.exit_code == 0 and any("no weights" in line for line in result.notes)


def test_target_weights_without_an_embedding_are_said_to_be_uncompared(tmp_path: Path) -> None:
    """A checkpoint of no tensors, or of other names, passed for one that agrees."""
    target = write_target(tmp_path / "target", weights=False)
    save_file({}, target / "model.safetensors")
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL))
    result = check(target, draft, sglang_version="0.5.23")
    assert any("(0 tensors) have no embedding" in line for line in result.notes)


def test_two_hundred_shards_take_less_than_two_seconds(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", DEEPSEEK_TARGET, weights=False)
    weight_map: dict[str, str] = {}
    for shard in range(200):
        name = f"model-{shard:05d}.safetensors"
        experts = {f"model.layers.{shard % 61}.mlp.experts.{k}.s{shard}.weight": torch.zeros(2) for k in range(60)}
        tensors = {**experts, **(target_tensors() if shard == 199 else {})}
        save_file(tensors, target / name)
        weight_map |= dict.fromkeys(tensors, name)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    draft = write_draft(tmp_path / "draft", specforge([2, 30, 58]))
    began = time.process_time()
    check(target, draft)
    assert time.process_time() - began < 2.0


@pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed here")
def test_the_installed_class_speaks_before_the_table(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", KIMI_TARGET)
    draft = write_draft(tmp_path / "draft", specforge([2, 30, 58]))
    reading = check(target, draft).readings[-1]
    assert "installed class's own setter (kimi_k25.py and deepseek_v2.py)" in reading.note
    table = check(target, draft, sglang_version="0.5.12").readings[-1]
    assert "built-in table" in table.note and table.boundaries == (3, 31, 59)


GARBLED_ROPES: list[tuple[Any, str]] = [
    ("yarn", "rope_scaling 'yarn', which is no object"),
    ("x", "rope_scaling 'x', which is no object"),
    ([8.0], "rope_scaling [8.0], which is no object"),
    (True, "rope_scaling True, which is no object"),
    ({"factor": 8.0}, "rope_scaling {'factor': 8.0} without a rope_type"),
    ({"rope_type": 5, "factor": 8.0}, "the rope_type 5, which is no text"),
    ({"type": "yarn", "factor": "8"}, "'factor': '8', which is no number"),
    ({"type": "linear", "factor": 0}, "'factor': 0, which is not above zero"),
    (
        {"type": "longrope", "short_factor": 2, "long_factor": [2.0]},
        "'short_factor': 2, which is no list of numbers",
    ),
    ({"full_attention": {"factor": 2.0}}, "rope_scaling.full_attention {'factor': 2.0} without a rope_type"),
]


@pytest.mark.parametrize("field_name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("value", "words"), GARBLED_ROPES, ids=lambda v: str(v)[:30])
def test_a_garbled_rope_scaling_is_said_and_never_replayed(
    value: Any, words: str, field_name: str, tmp_path: Path
) -> None:
    """It was read as no scaling at all, without a word."""
    from drafttrace.compare.draft_config import read_draft_config
    from drafttrace.compare.replay.rope import rotation_of

    target = write_target(tmp_path / "target")
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL, **{field_name: value}))
    words = words.replace("rope_scaling", field_name)
    result = check(target, draft, sglang_version="0.5.23")
    assert result.exit_code == 1
    assert any(f.id == "rope-mismatch" and words in f.summary for f in result.findings), result.findings
    with pytest.raises(UnknownFormat) as refused:
        rotation_of(read_draft_config(draft), 64)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": None},
        {"rope_scaling": {}},
        {"rope_parameters": {"rope_theta": 10000.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ],
    ids=str,
)
def test_a_rope_without_scaling_is_not_garbled(fields: dict[str, Any], tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL, **fields))
    assert check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23").exit_code == 0


WINDOW_ALONE = '"sliding_window": 16'


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({"sliding_window": 16}, True),
        ({"sliding_window": 16, "layer_types": "sliding_attention"}, True),
        ({"sliding_window": 16, "use_sliding_window": False}, False),
        ({"sliding_window": 16, "layer_types": ["full_attention"]}, False),
        ({"sliding_window": 16, "layer_types": ["sliding_attention"]}, False),
        ({"sliding_window": None}, False),
        ({"sliding_window": 16, "model_type": "mistral"}, False),
    ],
    ids=str,
)
def test_a_sliding_window_that_nothing_switches_on_is_noted(
    fields: dict[str, Any], noted: bool, tmp_path: Path
) -> None:
    """check and replay dropped it without a word."""
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL, **fields))
    result = check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    said = [f for f in result.findings if f.id == "window-mismatch" and WINDOW_ALONE in f.summary]
    assert len(said) == noted
    assert all(f.severity == NOTE and "--speculative-draft-window-size 15" in f.remedy for f in said)


def test_the_dtype_notes_do_not_contradict_each_other(tmp_path: Path) -> None:
    """One said that the weights are stored as bfloat16, the next that the draft is stored as float16."""
    target = write_target(tmp_path / "target")
    tensors = {k: v.bfloat16() if v.is_floating_point() else v for k, v in draft_tensors().items()}
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL, torch_dtype="float16"), tensors)
    result = check(target, draft, sglang_version="0.5.23")
    texts = {f.id: f.summary for f in result.findings}
    assert "is stored as bfloat16" in texts["dtype-reinterpretation"]
    assert "config says float16" in texts["quantization-noise"]
    assert not any("stored as float16" in text for text in texts.values())


SHAPES: list[tuple[str, dict[str, Any], dict[str, torch.Tensor], str, str | None]] = [
    (
        "head's width",
        {},
        {"lm_head.weight": torch.rand(PRUNED, 12)},
        "as [48, 16]: it has width 12 instead of 16",
        None,
    ),
    ("head's rows", {"draft_vocab_size": 40}, {}, '"draft_vocab_size": 48', None),
    (
        "head's rows alone",
        {},
        {"lm_head.weight": torch.rand(40, HIDDEN)},
        "as [48, 16]: it has rows 40 instead",
        None,
    ),
    ("head's both", {}, {"lm_head.weight": torch.rand(40, 12)}, "rows 40 instead of 48 and width 12 instead", None),
    ("head's rank", {}, {"lm_head.weight": torch.rand(PRUNED)}, "as [48, 16]: it has to be of 2 dimensions", None),
    ("all widths", {"hidden_size": 12, "target_hidden_size": HIDDEN, "head_dim": 4}, {}, '"hidden_size": 16', None),
    ("mlp's width", {"intermediate_size": 32}, {}, '"intermediate_size": 24', None),
    (
        "one mlp matrix",
        {},
        {"midlayer.mlp.up_proj.weight": torch.rand(20, HIDDEN)},
        "as [24, 16]: it has rows 20 instead of 24, the rest fits",
        None,
    ),
    ("query heads", {"num_attention_heads": 2, "head_dim": 4}, {}, '"num_attention_heads": 4', None),
    ("key heads", {"num_key_value_heads": 4}, {}, '"num_key_value_heads": 2', None),
    ("key heads that stand nowhere", {"num_key_value_heads": None}, {}, '"num_key_value_heads": 2', None),
    ("a head's width that stands nowhere", {"num_attention_heads": 2}, {}, '"num_attention_heads": 4', None),
    ("a norm", {}, {"norm.weight": torch.rand(8)}, "as [16]: it has length 8 instead of 16", None),
    ("embedding", {}, {"embed_tokens.weight": torch.rand(VOCAB, 12)}, "as [96, 16]: it has width 12", None),
    ("embedding's rows", {}, {"embed_tokens.weight": torch.rand(90, HIDDEN)}, '"vocab_size": 90', None),
    (
        "fused",
        {},
        {"midlayer.mlp.gate_up_proj.weight": torch.rand(40, HIDDEN)},
        "as [48, 16]: it has rows 40 instead of 48",
        "midlayer.mlp.gate_proj.weight midlayer.mlp.up_proj.weight",
    ),
]


@pytest.mark.parametrize(
    ("config", "tensors", "remedy", "drop"), [c[1:] for c in SHAPES], ids=[c[0] for c in SHAPES]
)
def test_the_remedy_of_a_wrong_shape_is_about_the_dimension_that_differs(
    config: dict[str, Any], tensors: dict[str, torch.Tensor], remedy: str, drop: str | None, tmp_path: Path
) -> None:
    """A head of the right rows and a wrong width was to be cured by the draft_vocab_size that the config had already."""
    held = {k: v for k, v in {**draft_tensors(), **tensors}.items() if k not in (drop or "").split()}
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL, **config), held)
    result = check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    shapes = [f for f in result.findings if "the config asks for" in f.summary]
    assert shapes and any(remedy in f.remedy for f in shapes), [(f.summary, f.remedy) for f in shapes]
    for finding in shapes:  # nothing is advised that the config says already
        for key, value in re.findall(r'"(\w+)": (\d+)', finding.remedy):
            assert specforge(CANONICAL, **config).get(key) != int(value), finding.remedy
    if "lm_head.weight" in tensors:
        assert "draft_vocab_size" not in result.fix


@pytest.mark.parametrize(
    ("rows", "entries", "remedy"),
    [
        (PRUNED, 40, "Export d2t again with 48 entries"),
        (40, 40, '"draft_vocab_size": 40'),
        (44, 40, "lm_head has 44 rows"),
    ],
)
def test_the_heads_rows_tell_whether_d2t_or_the_config_is_wrong(
    rows: int, entries: int, remedy: str, tmp_path: Path
) -> None:
    tensors = {**draft_tensors(), "lm_head.weight": torch.rand(rows, HIDDEN), "d2t": torch.arange(entries)}
    draft = write_draft(tmp_path / "draft", specforge(CANONICAL), tensors, drop=("t2d",))
    result = check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    (said,) = [f for f in result.findings if "entries, draft_vocab_size is" in f.summary]
    assert remedy in said.remedy
    assert result.fix.get("draft_vocab_size") == (40 if rows == entries else None)


@pytest.mark.parametrize("before", ["model.midlayer.", "model.layers.0."])
def test_names_that_the_mla_class_passes_over_are_a_fault(before: str, tmp_path: Path) -> None:
    """The class puts 'model.' before every name, so 'model.model.…' is skipped: the check called such a draft sound."""
    held = mla_tensors()
    good = check(
        write_target(tmp_path / "target"),
        write_draft(tmp_path / "good", mla(CANONICAL), held),
        sglang_version="0.5.23",
    )
    assert not any("passes over" in f.summary for f in good.findings)
    named = {
        name if name in ("d2t", "t2d", "lm_head.weight") else f"model.{name}".replace("model.midlayer.", before): t
        for name, t in held.items()
    }
    draft = write_draft(tmp_path / "draft", mla(CANONICAL), named)
    result = check(tmp_path / "target", draft, sglang_version="0.5.23")
    (found,) = [f for f in result.faults if "passes over" in f.summary]
    assert found.id == "weights-missing" and "model.fc.weight" in found.evidence["tensors"]


@pytest.mark.parametrize(
    ("change", "words", "remedy"),
    [
        ({"q_lora_rank": None}, "requires one: the server refuses", '"q_lora_rank": 8'),
        ({"num_hidden_layers": 2}, "takes one layer only: the server refuses", '"num_hidden_layers": 1'),
    ],
)
def test_what_the_mla_class_refuses_is_said_to_be_refused(
    change: dict[str, Any], words: str, remedy: str, tmp_path: Path
) -> None:
    """The check said that such a server runs with whatever the memory held, or nothing."""
    draft = write_draft(tmp_path / "draft", mla(CANONICAL, **change), mla_tensors())
    result = check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    (found,) = [f for f in result.faults if words in f.summary]
    assert remedy in found.remedy
    assert not any("whatever the memory held" in f.summary for f in result.findings)


def test_a_list_in_another_order_is_no_fault_where_training_used_what_is_served(tmp_path: Path) -> None:
    """[30, 58, 1] serves [B1, B30, B58] by the rule of the first id; said to be trained so, it was a permutation still."""
    target = write_target(tmp_path / "target", KIMI_TARGET)
    draft = write_draft(tmp_path / "draft", specforge([30, 58, 1]))

    def permuted(trained: list[int] | None) -> bool:
        result = check(target, draft, sglang_version="0.5.23", trained=trained)
        return any(f.id == "slot-permutation" for f in result.faults)

    assert not permuted([1, 30, 58])
    assert permuted(None) and permuted([30, 58, 1])


def test_ids_at_the_top_level_are_not_read_one_way_without_doubt(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", KIMI_TARGET)
    draft = write_draft(tmp_path / "draft", specforge(None, eagle_aux_hidden_state_layer_ids=[0, 3, 31]))
    (found,) = [f for f in check(target, draft, sglang_version="0.5.23").faults if f.id == "default-wiring"]
    assert "does not say" in found.remedy and "[B1, B4, B32]" in found.remedy and "[B0, B3, B31]" in found.remedy


@pytest.mark.parametrize("ids", [[1.0, 3.0, 5.0], [True, 3, 5]])
def test_ids_that_are_no_integers_are_served_all_the_same(ids: list[Any], tmp_path: Path) -> None:
    """The check said that the server takes its default; its classes add one and look the number up."""
    draft = write_draft(tmp_path / "draft", specforge(ids))
    result = check(write_target(tmp_path / "target"), draft, sglang_version="0.5.23")
    assert result.readings[-1].boundaries == (2, 4, 6)
    (found,) = [f for f in result.findings if "Write integers" in f.remedy]
    assert "[B2, B4, B6]" in found.summary and "[1, 3, 5]" in found.remedy
