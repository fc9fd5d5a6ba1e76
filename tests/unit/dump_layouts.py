"""One writer per dump layout, in the exact form that the project's own trainer writes.

A sample is made of recognisable numbers: boundary B(k) of token t is ``value(t, k)``, so that a test can tell which
boundary a reader put into which slot.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

LAYERS = 8  # n
H = 16
LENGTH = 13
CANON = (2, 4, 5)  # B{2, n//2, n-3}
VOCAB = 300


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.arange(length, dtype=torch.int64) * 7 % 251 + 3


def state(k: int, length: int = LENGTH, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """B(k): ``[length, H]``; small random numbers around k + 1, so that no two boundaries are alike."""
    made = torch.randn(length, H, generator=torch.Generator().manual_seed(1000 + k)) * 0.1 + k + 1
    return made.to(dtype)


def last_post(length: int = LENGTH, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return state(50, length, dtype)


def aux(wiring: tuple[int, ...] = CANON, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.cat([state(k, dtype=dtype) for k in wiring], -1)


def loss_mask(length: int = LENGTH) -> torch.Tensor:
    return (torch.arange(length) >= 4).long()


@dataclass(frozen=True)
class Case:
    """A layout: how to write it into a folder, and what a reader must say.

    write returns the path to open. slots: boundaries whose values must stand in the slots, in order. last: "post",
    "pre" (the values of B(n)) or None. declared: the boundaries that the file itself declares, or None.
    padding: what tells padding from a sample. "mask": id 0 where the loss mask is 0; "attention": the attention mask;
    "batch": id 0 at position 0. None: no writer pads such a file, and nothing in it could tell.
    """

    id: str
    write: Callable[[Path], Path]
    slots: tuple[int, ...]
    last: str | None
    norm: str | None = None
    declared: tuple[int, ...] | None = None
    mask_offset: int = 0
    has_mask: bool = True
    first_token_known: bool = True
    request: Mapping[str, Any] = field(default_factory=dict)
    detectable: bool = True
    padding: str | None = None


def _save(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)
    return path


def sf_sample(dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    return {
        "input_ids": tokens(),
        "loss_mask": loss_mask(),
        "aux_hidden_state": aux(dtype=dtype)[None],
        "hidden_state": last_post(dtype=dtype)[None],
    }


def write_sf_eagle3(root: Path) -> Path:
    return _save(root / "rows_0-2000/data_0.ckpt", sf_sample())


def write_sf_gz(root: Path) -> Path:
    buffer = io.BytesIO()
    torch.save(sf_sample(), buffer)
    path = root / "rows_0-2000/data_0.ckpt.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(buffer.getvalue()))
    return path


def write_sf_logits(root: Path) -> Path:
    value = sf_sample() | {"hidden_state": torch.randn(1, LENGTH, VOCAB)}
    return _save(root / "rows_0-5000/data_3.ckpt", value)


def write_sf_three(root: Path) -> Path:
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_state": aux()[None]}
    return _save(root / "rows_0-5000/data_4.ckpt", value)


def write_sf_last(root: Path) -> Path:
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_state": last_post()[None]}
    return _save(root / "rows_0-5000/data_5.ckpt", value)


def write_sf_fork(root: Path) -> Path:
    ones = torch.ones(1, LENGTH, dtype=torch.int64)
    value = {"input_ids": tokens()[None], "attention_mask": ones, "loss_mask": loss_mask()[None],
             "hidden_state": last_post()[None]}  # fmt: skip
    (root / "metadata.json").write_text(json.dumps({"num_samples": 1, "hidden_size": H, "mode": "eagle"}))
    return _save(root / "sample_0.pt", value)


def write_sf_dflash(root: Path) -> Path:
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_states": aux((2, 3, 4, 5))[None]}
    return _save(root / "rows_0-2000/data_0.ckpt", value)


def write_sf_dspark(root: Path) -> Path:
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_states": aux((2, 3, 4, 5))[None],
             "target_last_hidden_states": last_post()[None]}  # fmt: skip
    return _save(root / "rows_0-2000/data_0.ckpt", value)


def write_sf_online(root: Path) -> Path:
    ones = torch.ones(1, LENGTH, dtype=torch.int64)
    value = {"input_ids": tokens()[None], "attention_mask": ones, "loss_mask": loss_mask()[None],
             "hidden_state": aux()[None], "target": last_post()[None]}  # fmt: skip
    return _save(root / "sample_0.pt", value)


def write_drafttrace(root: Path) -> Path:
    """As drafttrace reference writes it."""
    stacked = torch.stack([*(state(k) for k in CANON), state(LAYERS)], 1)
    about = {"format": "drafttrace.capture/1", "written_by": "drafttrace", "boundaries": json.dumps([*CANON, LAYERS]),
             "slots": json.dumps(list(CANON)), "layers": str(LAYERS), "mask_offset": "1"}  # fmt: skip
    held = {"hidden_states": stacked, "token_ids": tokens(), "loss_mask": loss_mask()}
    save_file(held, root / "reference.safetensors", about)
    return root / "reference.safetensors"


def write_spec_arrow(root: Path) -> Path:
    import datasets

    rows = [{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1], "seq_len": 3}] * 2
    rows.append({"input_ids": tokens().tolist(), "loss_mask": loss_mask().tolist(), "seq_len": LENGTH})
    datasets.Dataset.from_list(rows).save_to_disk(str(root / "data"))
    folder = root / "data/hidden_states"
    folder.mkdir()
    stacked = torch.stack([*(state(k) for k in CANON), state(LAYERS)], 1)
    save_file({"hidden_states": stacked, "token_ids": tokens()}, folder / "hs_2.safetensors")
    return folder / "hs_2.safetensors"


def fp8_rows(stacked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As hs_connectors quantises: one scale per token over all slots."""
    scales = stacked.float().abs().amax((1, 2), keepdim=True) / 448.0
    return (stacked.float() / scales).to(torch.float8_e4m3fn), scales


def write_spec_fp8(root: Path) -> Path:
    stacked = torch.stack([*(state(k) for k in CANON), state(LAYERS)], 1)
    quantised, scales = fp8_rows(stacked)
    path = root / "hs_0.safetensors"
    save_file({"hidden_states": quantised, "hidden_states_scales": scales, "token_ids": tokens()}, path)
    return path


def write_vllm(root: Path) -> Path:
    stacked = torch.stack([*(state(k) for k in CANON), state(LAYERS)], 1)
    path = root / "cmpl-3f2a.safetensors"
    save_file({"hidden_states": stacked, "token_ids": tokens()}, path)
    return path


def write_spec_v1(root: Path) -> Path:
    config = {"version": "2.0", "hidden_states": {"layer_ids": [2, 4, 5, 7]}, "format": {"data_format_version": 1}}
    (root / "data_config.json").write_text(json.dumps(config))
    value = {
        "input_ids": tokens(),
        "loss_mask": loss_mask(),
        "hidden_states": [state(k) for k in (3, 5, 6, LAYERS)],
    }
    return _save(root / "data_0.pt", value)


def write_spec_v1_embed(root: Path) -> Path:
    """The motivating fault: [embed, B3, B5, B6], so that fc gets the embedding and 'last' is an inner layer."""
    (root / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [-1, 2, 4, 5]}}))
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_states": [state(k) for k in (0, 3, 5, 6)]}
    return _save(root / "data_0.pt", value)


def write_spec_v0(root: Path) -> Path:
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_state": aux(), "target": last_post()}
    return _save(root / "data_0.pt", value)


def write_eagle12(root: Path) -> Path:
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_state": last_post(dtype=torch.float16)}
    return _save(root / "sharegpt_0_67999_mufp16/0/data_0.ckpt", value)


def write_bald_plain(root: Path) -> Path:
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_state": last_post()[None]}
    return _save(root / "0/data_0.ckpt", value)


def write_bald_fused(root: Path) -> Path:
    value = {
        "input_ids": tokens(),
        "loss_mask": loss_mask(),
        "hidden_state": torch.stack([state(k) for k in CANON]),
    }
    return _save(root / "0/data_1.ckpt", value)


def write_bald_target(root: Path) -> Path:
    value = {"input_ids": tokens(), "loss_mask": loss_mask(), "hidden_state": aux()[None],
             "target_hidden_states": last_post()[None]}  # fmt: skip
    return _save(root / "0/data_2.ckpt", value)


def mo_sample(**more: Any) -> dict[str, Any]:
    return {
        "input_ids": tokens(),
        "hidden_states": last_post(),
        "aux_hidden_states": aux(),
        "loss_mask": loss_mask(),
        "conversation_id": "3f9c",
    } | more


def write_mo(root: Path) -> Path:
    return _save(root / "3f9c.pt", mo_sample())


def write_mo_prenorm(root: Path) -> Path:
    return _save(root / "3f9d.pt", mo_sample(hidden_states=state(LAYERS), hidden_states_prenorm=True))


def write_mo_raw(root: Path) -> Path:
    value = [{"id": 0, "input_ids": tokens(), "hidden_state": last_post(), "aux_hidden_states": aux()}]
    return _save(root / "trt_0.pt", value)


def write_ts_debug(root: Path) -> Path:
    def padded(tensor: torch.Tensor) -> torch.Tensor:
        filler = torch.zeros(3, *tensor.shape[1:], dtype=tensor.dtype)
        return torch.stack([torch.cat([tensor, filler]), torch.cat([tensor.flip(0), filler])])

    ones = torch.ones(LENGTH, dtype=torch.int64)
    batch = {"input_ids": padded(tokens()), "attention_mask": padded(ones), "loss_mask": padded(loss_mask()),
             "hidden_states": padded(aux()), "last_hidden_states": padded(last_post()), "target": None}  # fmt: skip
    value = {"step": 1, "batch_idx": 0, "rank": 0, "batch": batch, "plosses": [0.5], "acces": [0.7],
             "gradients": {}, "model_weights": {"fc.weight": torch.zeros(4, 4)},
             "total_loss": torch.tensor(1.0)}  # fmt: skip
    return _save(root / "batch_1_0_rank0.pt", value)


def write_ts_eval(root: Path) -> Path:
    good = {"input_ids": tokens()[None], "hidden_states": aux()[None], "last_hidden_states": last_post()[None],
            "packed_loss_mask": "4,9"}  # fmt: skip
    other = {name: value.flip(1) if isinstance(value, torch.Tensor) else value for name, value in good.items()}
    return _save(root / "eval_cache/0123456789ab/eval_rank_0.pt", [good, other])


def write_ts_test(root: Path) -> Path:
    value = {"hidden_states": aux(), "input_ids": tokens(), "last_hidden_states": state(LAYERS)}
    return _save(root / "vllm_base.pt", value)


def write_ts_orphan(root: Path) -> Path:
    value = {"input_ids": tokens()[None], "loss_mask": loss_mask()[None], "aux_hidden_states": aux()[None],
             "hidden_states": last_post()[None]}  # fmt: skip
    return _save(root / "data_0.ckpt", value)


def write_as_eagle3(root: Path) -> Path:
    value = {"input_ids": tokens()[None], "loss_mask": loss_mask()[None], "hidden_states": aux()[None],
             "target_hiddens": last_post()[None], "position_ids": None}  # fmt: skip
    return _save(root / "rank_0/rows_0-5000/data_0.ckpt", value)


def write_as_dflash(root: Path) -> Path:
    value = {"input_ids": tokens()[None], "hidden_states": aux((2, 3, 4, 5))[None], "loss_mask": loss_mask()[None],
             "attention_mask": torch.ones(1, LENGTH, dtype=torch.int64)}  # fmt: skip
    return _save(root / "sample_00000000_rank0.ckpt", value)


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor[1:], torch.zeros(1, *tensor.shape[1:], dtype=tensor.dtype)])


def _padded(tensor: torch.Tensor, extra: int = 3) -> torch.Tensor:
    return torch.cat([tensor, torch.zeros(extra, *tensor.shape[1:], dtype=tensor.dtype)])


def write_am_eagle3(root: Path) -> Path:
    probs = torch.softmax(torch.randn(LENGTH + 3, 20, generator=torch.Generator().manual_seed(5)), -1)
    ids, mask = _shifted(_padded(tokens())), _shifted(_padded(loss_mask()))
    attention = _padded(torch.ones(LENGTH, dtype=torch.int64))
    shard = {"input_ids": ids[None], "attention_mask": attention[None], "loss_mask": mask[None],
             "aux_hidden_states": _padded(aux())[None], "position_mask": mask[None, :, None].bool(),
             "target_probs": probs[None]}  # fmt: skip
    save_file({name: value.contiguous() for name, value in shard.items()}, root / "shard-000000.safetensors")
    save_file({"weight": torch.randn(VOCAB, H)}, root / "target_embeddings.safetensors")
    manifest = {"format_version": 2, "target_model": "tiny", "draft_vocab_size": 20, "seq_length": LENGTH + 3,
                "dtype": "bfloat16", "num_samples": 1, "shard_size": 1, "target_probs_topk": None,
                "aux_hidden_dim": 3 * H, "aux_layer_ids": [1, 3, 4], "selected_token_ids": list(range(20)),
                "input_data": "x", "split": "train", "shuffle_seed": 0}  # fmt: skip
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root


def write_am_dspark(root: Path) -> Path:
    shard = {"input_ids": _padded(tokens())[None], "loss_mask": _padded(loss_mask())[None],
             "target_hidden_states": _padded(torch.cat([state(0), aux()], -1))[None],
             "target_last_hidden_states": _padded(last_post())[None]}  # fmt: skip
    save_file({name: value.contiguous() for name, value in shard.items()}, root / "shard-000000.safetensors")
    manifest = {"format_version": 1, "target_model": "tiny", "num_hidden_layers": LAYERS, "hidden_size": H,
                "target_layer_ids": [-1, 1, 3, 4], "complete": True, "num_samples": 1, "shard_size": 1}  # fmt: skip
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root


def module_outputs() -> dict[str, list[torch.Tensor]]:
    """What SGLang's modules return in one prefill pass: fused norms hand on (normed, residual).

    What the last layer adds to its stream is the only thing that shows that it is the last one.
    """
    outputs = {"model.embed_tokens": [state(0)], "model.layers.0.input_layernorm": [state(60)]}
    outputs |= {f"model.layers.{k}.input_layernorm": [state(60 + k), state(k)] for k in range(1, LAYERS)}
    after, added = state(LAYERS), state(LAYERS)  # their sum is the stream of the final norm, in every number format
    after[:, ::2], added[:, 1::2] = 0, 0
    outputs[f"model.layers.{LAYERS - 1}.post_attention_layernorm"] = [state(59), after]
    outputs[f"model.layers.{LAYERS - 1}.mlp.down_proj"] = [added]
    return outputs | {"model.norm": [last_post(), state(LAYERS)]}


def write_sg_pass(root: Path) -> Path:
    value: dict[str, Any] = {
        name: parts[0] if len(parts) == 1 else parts for name, parts in module_outputs().items()
    }
    value["model.layers.0.mlp.down_proj"] = state(70)
    value["model.forward_batch_info.input_ids"] = tokens()
    value["model.forward_batch_info.seq_lens"] = torch.tensor([LENGTH])
    value["model.forward_batch_info.positions"] = torch.arange(LENGTH)
    return _save(root / "TP0_PP0_Rank0_pid77/Pass00000.pt", value)


def write_sg_dumper(root: Path) -> Path:
    named: dict[str, torch.Tensor] = {"input_ids": tokens(), "positions": torch.arange(LENGTH)}
    for name, parts in module_outputs().items():
        if len(parts) == 1:
            named[f"non_intrusive__{name}.output"] = parts[0]
        else:
            named |= {f"non_intrusive__{name}.output.{k}": part for k, part in enumerate(parts)}
    for index, (name, value) in enumerate(named.items(), 1):
        tags = {"step": 0, "rank": 0, "dump_index": index, "name": name}
        file = "___".join(f"{key}={item}" for key, item in tags.items()) + ".pt"
        _save(root / "exp" / file, {"value": value, "meta": {**tags, "world_rank": 0}})
    return root / "exp"


def write_sg_json(root: Path) -> Path:
    rows = last_post().float()
    states = [rows[:10].tolist(), rows[10].tolist(), [rows[11].tolist()], rows[12].tolist()]
    answer = {"text": "x", "input_ids": tokens()[:10].tolist(), "output_ids": tokens()[10:].tolist(),
              "meta_info": {"id": "a", "prompt_tokens": 10, "hidden_states": states}}  # fmt: skip
    path = root / "answer.json"
    path.write_text(json.dumps(answer))
    return path


def write_npz(root: Path) -> Path:
    arrays = {f"s{k}": state(k, dtype=torch.float16).numpy() for k in CANON}
    np.savez(root / "any.npz", ids=tokens().numpy(), **arrays)
    return root / "any.npz"


CASES = [
    Case("SF-EAGLE3", write_sf_eagle3, CANON, "post", "post", padding="mask"),
    Case("SF-EAGLE3", write_sf_gz, CANON, "post", "post", padding="mask"),
    Case("SF-D5DE56F7", write_sf_logits, CANON, None, padding="mask"),
    Case("SF-35504D45", write_sf_three, CANON, None, request={"hidden_size": H}, padding="mask"),
    Case("SF-LAST", write_sf_last, (), "post", "post", request={"hidden_size": H}, padding="mask"),
    Case("SF-MTP-FORK", write_sf_fork, (), "post", "post", padding="attention"),
    Case("SF-DFLASH", write_sf_dflash, (2, 3, 4, 5), None, request={"hidden_size": H}, padding="mask"),
    Case("SF-DSPARK", write_sf_dspark, (2, 3, 4, 5), "post", "post", padding="mask"),
    Case("SF-ONLINE", write_sf_online, CANON, "post", "post", padding="attention"),
    Case("DRAFTTRACE", write_drafttrace, CANON, "pre", "pre", declared=CANON, mask_offset=1),
    Case("SPEC-ARROW", write_spec_arrow, CANON, "pre", "pre", mask_offset=1),
    Case("SPEC-FP8", write_spec_fp8, CANON, "pre", "pre", mask_offset=1, has_mask=False),
    Case("VLLM-HS", write_vllm, CANON, "pre", "pre", mask_offset=1, has_mask=False),
    Case("SPEC-V1", write_spec_v1, (3, 5, 6), "pre", "pre", declared=(3, 5, 6), mask_offset=1, padding="mask"),
    Case("SPEC-V0", write_spec_v0, CANON, "post", "post", mask_offset=1, padding="mask"),
    Case("EAGLE12-CKPT", write_eagle12, (), "post", "post"),
    Case("BALD-PLAIN", write_bald_plain, (), "post", "post", request={"hidden_size": H}),
    Case("BALD-FUSED", write_bald_fused, CANON, None),
    Case("BALD-TARGET", write_bald_target, CANON, "post", "post"),
    Case("MO-PT", write_mo, CANON, "post", "unknown", mask_offset=1),
    Case("MO-PT", write_mo_prenorm, CANON, "pre", "pre", mask_offset=1),
    Case("MO-TRT-RAW", write_mo_raw, CANON, "post", "post", has_mask=False),
    Case("TS-DEBUG", write_ts_debug, CANON, "post", "unknown", padding="attention"),
    Case("TS-EVAL", write_ts_eval, CANON, "post", "unknown", padding="mask"),
    Case("TS-TESTDUMP", write_ts_test, CANON, "pre", "pre", has_mask=False),
    Case("TS-ORPHAN", write_ts_orphan, CANON, "post", "unknown", padding="mask"),
    Case("AS-EAGLE3", write_as_eagle3, CANON, "post", "post", padding="mask"),
    Case("AS-DFLASH", write_as_dflash, (2, 3, 4, 5), None, request={"hidden_size": H}, padding="attention"),
    Case(
        "AM-EAGLE3",
        write_am_eagle3,
        CANON,
        None,
        declared=CANON,
        mask_offset=1,
        first_token_known=False,
        padding="attention",
    ),
    Case("AM-DSPARK", write_am_dspark, (0, *CANON), "post", "unknown", declared=(0, *CANON), padding="mask"),
    Case("SG-PASS", write_sg_pass, CANON, "post", "post", declared=CANON, has_mask=False, padding="batch"),
    Case("SG-DUMPER", write_sg_dumper, CANON, "post", "post", declared=CANON, has_mask=False, padding="batch"),
    Case("SG-JSON", write_sg_json, (), "post", "post", has_mask=False),
]
