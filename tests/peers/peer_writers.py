"""Has a project's own writer write a dump: ``python peer_writers.py ACTION WHEEL_DIR ...``, see ``peer_programs.py``.

The states come from a small Llama with random weights, so that the file can be held against the target's own
residual stream: every writer stores that beside its file with :func:`store_truth`.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from peer_programs import AUTOMODEL, absent, angelslim_trainer, bare, part_of_script
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS, H, VOCAB, LENGTH = 8, 16, 300, 13


def target() -> Any:
    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=H, intermediate_size=32, num_hidden_layers=LAYERS,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and loss mask, ``[1, L]`` each."""
    return (torch.arange(LENGTH) * 7 % 251 + 3)[None], (torch.arange(LENGTH) >= 4).long()[None]


@torch.no_grad()
def store_truth(model: Any, out: Path) -> list[torch.Tensor]:
    """Store ``b0`` .. ``bn``, the residual stream before each layer and before the final norm, ``post`` after it, and
    the ids and mask; ``[L, H]`` and ``[L]``. Returns B(0) .. B(n)."""
    ids, mask = sample()
    kept: list[torch.Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _module, given: kept.append(given[0]))
    states = model(ids, output_hidden_states=True).hidden_states
    handle.remove()
    boundaries = [*(state[0] for state in states[:LAYERS]), kept[0][0]]
    named = {f"b{k}": state.numpy() for k, state in enumerate(boundaries)}
    np.savez(out, post=states[-1][0].numpy(), ids=ids[0].numpy(), mask=mask[0].numpy(), **named)
    return boundaries


def automodel_eagle3(root: Path, cache: Path, truth: Path) -> None:
    """nemo-automodel: ``HFEagle3TargetModel`` captures, ``precompute_eagle3`` makes the fields, ``write_shard``."""
    speculative = "nemo_automodel.components.speculative"
    bare(root, *AUTOMODEL, "nemo_automodel.components.loss", speculative, f"{speculative}.eagle")
    absent("nemo_automodel._transformers", "nemo_automodel._transformers.auto_tokenizer",
           "nemo_automodel.components.datasets.llm.eagle3")  # fmt: skip
    wrapper = importlib.import_module(f"{speculative}.eagle.target").HFEagle3TargetModel
    sys.modules[f"{speculative}.eagle"].HFEagle3TargetModel = wrapper  # type: ignore[attr-defined]
    producer = importlib.import_module(f"{speculative}.precompute_eagle3")
    model = target()
    store_truth(model, truth)
    ids, mask = sample()
    captured = wrapper(model)
    chosen = torch.arange(0, VOCAB, 2)
    in_draft = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, chosen, True)
    batch = captured.generate_batch(input_ids=ids, attention_mask=torch.ones_like(ids), loss_mask=mask)
    fields = producer._compute_batch_cache(batch, chosen, in_draft, torch.float32, 0)
    manifest = {"target_model": "small", "target_vocab_size": VOCAB, "draft_vocab_size": len(chosen),
                "seq_length": LENGTH, "dtype": "fp32", "num_samples": 1, "shard_size": 1, "target_probs_topk": 0,
                "aux_hidden_dim": H * len(captured.aux_layer_ids), "aux_layer_ids": list(captured.aux_layer_ids),
                "selected_token_ids": chosen.tolist(), "input_data": "x", "split": None,
                "shuffle_seed": 42}  # fmt: skip
    producer.write_target_embeddings(str(cache), model.get_input_embeddings().weight)
    producer.write_manifest(str(cache), manifest)
    producer.write_shard(str(cache), 0, fields)


def automodel_dspark(root: Path, cache: Path, truth: Path) -> None:
    """nemo-automodel: ``HFDSparkTargetModel`` captures, ``dspark_cache`` makes the fields, manifest and shard."""
    speculative = "nemo_automodel.components.speculative"
    bare(root, *AUTOMODEL, "nemo_automodel.components.utils", speculative, f"{speculative}.dspark")
    absent("nemo_automodel.components.utils.model_utils")
    utils = sys.modules["nemo_automodel.components.utils.model_utils"]
    utils.filter_forward_kwargs = lambda _model, given: given  # type: ignore[attr-defined]
    cached = importlib.import_module("nemo_automodel.components.datasets.llm.dspark_cache")
    model = target()
    store_truth(model, truth)
    ids, mask = sample()
    captured = importlib.import_module(f"{speculative}.dspark.target").HFDSparkTargetModel(model, [-1, 1, 3, 4])
    batch = captured.generate_batch(input_ids=ids, attention_mask=torch.ones_like(ids), loss_mask=mask)
    manifest = cached.build_cache_manifest(
        target_model="small", target_model_type="llama", target_text_config=model.config, seq_length=LENGTH,
        dtype="fp32", num_samples=1, shard_size=1, target_layer_ids=captured.target_layer_ids, train_data_path="x",
        train_split=None, shuffle_seed=42, mask_reasoning_content=False, chat_template_sha256="0")  # fmt: skip
    cached.write_shard(str(cache), 0, cached.compute_batch_cache(batch, torch.float32))
    cached.write_manifest(str(cache), manifest | {"complete": True})


def eagle(root: Path, folder: Path, truth: Path) -> None:
    """eagle-llm: ``ge`` and ``writedata`` of its data generator; the model and the tensors stay on the CPU."""
    model = target()
    store_truth(model, truth)
    torch.Tensor.cuda = lambda self: self  # type: ignore[assignment, method-assign]
    scope = {"torch": torch, "os": importlib.import_module("os"), "bigmodel": model}
    part_of_script(root / "eagle/ge_data/ge_data_all_vicuna.py", {"ge", "writedata"}, scope)
    ids, mask = sample()
    scope["writedata"](str(folder), scope["ge"]({"input_ids": ids, "loss_mask": mask}))


def angelslim_dflash(root: Path, path: Path, truth: Path) -> None:
    """angelslim: what ``OnlineDFlashTrainer`` captures with ``TransformersBackend``, stored as its offline trainer
    takes it. The script that stores it is not in the wheel."""
    trainer = angelslim_trainer(root, "online")
    base = "angelslim.compressor.speculative.train.models"
    bare(root, base, f"{base}.target")
    absent("angelslim.utils", f"{base}.target.cosyvoice3_llm")
    backend = importlib.import_module(f"{base}.target.target_model_wrapper").TransformersBackend("small")
    backend.model = target()
    store_truth(backend.model, truth)
    made = trainer.__new__(trainer)
    made.target_model = backend
    made._aux_hidden_states_layer_ids = [1, 2, 3, 4]
    ids, mask = sample()
    batch = {"input_ids": ids, "loss_mask": mask, "attention_mask": torch.ones_like(ids)}
    torch.save(made.prepare_data_for_draft_model(batch), path)


def specforge_dflash(root: Path, path: Path, truth: Path) -> None:
    """specforge: the record that the DFlash provider's ``OfflineCaptureLayout`` makes of a capture."""
    bare(root, "specforge", "specforge.algorithms", "specforge.algorithms.common", "specforge.algorithms.dflash",
         "specforge.data")  # fmt: skip
    providers = importlib.import_module("specforge.algorithms.dflash.providers").algorithm_providers()
    boundaries = store_truth(target(), truth)
    ids, mask = sample()
    aux = torch.cat([boundaries[k] for k in (2, 3, 4, 5)], -1)[None]
    capture = {"input_ids": ids[0], "loss_mask": mask[0], "aux_hidden_states": aux, "last_hidden_states": None}
    torch.save(providers.offline[0].capture_layout.materialize(capture), path)


class Connector:
    """The little of ``KVConnectorBase_V1`` that its hidden-state connector uses: it keeps what it is given."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._vllm_config, self._kv_transfer_config = vllm_config, vllm_config.kv_transfer_config
        self.metadata: Any = None

    def has_connector_metadata(self) -> bool:
        return self.metadata is not None

    def _get_connector_metadata(self) -> Any:
        return self.metadata


def vllm_module() -> Any:
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    absent("vllm", "vllm.config", base, "vllm.distributed.parallel_state", "vllm.logger", "vllm.utils.gpu_sync_debug",
           "vllm.v1.attention.backend", "vllm.v1.core.sched.output",
           "vllm.model_executor.models.extract_hidden_states")  # fmt: skip
    given: Any = sys.modules[base]
    given.KVConnectorBase_V1 = Connector
    given.KVConnectorMetadata = object
    given.SupportsHMA = type("SupportsHMA", (), {})
    sys.modules["vllm.utils.gpu_sync_debug"].gpu_sync_allowed = nullcontext  # type: ignore[attr-defined]
    state: Any = sys.modules["vllm.distributed.parallel_state"]
    state.get_tensor_model_parallel_rank = lambda: 0
    config: Any = sys.modules["vllm.config"]
    config.get_layers_from_vllm_config = lambda _config, _kind, names: dict.fromkeys(names)
    return importlib.import_module("example_hidden_states_connector")


def without_gpu() -> None:
    """Copies on a stream become plain copies: streams and events are inert, and no memory is pinned."""
    inert = SimpleNamespace(record=lambda *_: None, synchronize=lambda: None, query=lambda: True,
                            wait_event=lambda _: None)  # fmt: skip
    torch.cuda.Stream = torch.cuda.Event = lambda *_a, **_k: inert  # type: ignore[assignment, misc]
    torch.cuda.stream = lambda _stream: nullcontext()  # type: ignore[assignment]
    empty = torch.empty_like
    torch.empty_like = lambda like, *, device, pin_memory: empty(like, device=device)  # type: ignore[assignment]


def vllm_connector(module: Path, folder: Path, truth: Path) -> None:
    """vllm: ``ExampleHiddenStatesConnector`` from its scheduler side to the written file, for one request.

    Its KV cache is filled as vLLM fills it, ``[block, slot, place in block, H]``, from the target's states for the
    ids 2, 4, 5 and n.
    """
    sys.path.insert(0, str(module.parent))
    code = vllm_module()
    boundaries = store_truth(target(), truth)
    stacked = torch.stack([boundaries[k] for k in (2, 4, 5, LAYERS)], 1)
    size, blocks = 4, [6, 1, 3, 5]
    cache = torch.full((8, stacked.shape[1], size, H), torch.nan)
    for t, row in enumerate(stacked):
        cache[blocks[t // size], :, t % size] = row
    without_gpu()
    options: dict[str, Any] = {"shared_storage_path": str(folder)}
    transfer = SimpleNamespace(get_from_extra_config=lambda name, default: options.get(name, default))
    draft = SimpleNamespace(hf_config=SimpleNamespace(eagle_aux_hidden_state_layer_ids=[2, 4, 5, LAYERS]))
    config = SimpleNamespace(kv_transfer_config=transfer, cache_config=SimpleNamespace(block_size=size),
                             speculative_config=SimpleNamespace(draft_model_config=draft))  # fmt: skip
    connector = code.ExampleHiddenStatesConnector(config, None, None)
    connector.register_kv_caches({"cache_only": cache})
    ids = sample()[0][0].tolist()
    new = SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id="cmpl-3f2a", sampling_params=None)])
    connector.metadata = connector.build_connector_meta(new)
    connector.wait_for_save()
    request = SimpleNamespace(request_id="cmpl-3f2a", kv_transfer_params=None, prompt_token_ids=ids)
    _, answer = connector.request_finished(request, blocks)
    connector.metadata = connector.build_connector_meta(SimpleNamespace(scheduled_new_reqs=[]))
    connector.get_finished({"cmpl-3f2a"})
    connector._executor.shutdown()
    read = code.load_hidden_states(answer["hidden_states_path"])  # waits for the lock that the writer releases
    assert torch.equal(read["hidden_states"], stacked)


def vllm_read(module: Path, path: Path, out: Path) -> None:
    """vllm: ``load_hidden_states``, with the slots as speculators takes them: all but the last one are fc's."""
    from peer_programs import save

    sys.path.insert(0, str(module.parent))
    Path(f"{path}.lock").touch()
    made = vllm_module().load_hidden_states(str(path))
    states = made["hidden_states"]
    save(out, states[:, :-1].flatten(1), states[:, -1], made["token_ids"], None)


@torch.no_grad()
def speculators_v1(root: Path, out: Path, truth: Path) -> None:
    """speculators 0.3 and 0.4: the worker extension takes the layers 4, 1, 7, 3 out of a pass. What it imports of vLLM is
    stood in for, and the layers hand out the target's own streams."""
    bare(root, "speculators", "speculators.data_generation")
    absent("vllm", "vllm.distributed", "vllm.sequence", "vllm.model_executor", "vllm.model_executor.models",
           "vllm.model_executor.models.interfaces")  # fmt: skip
    code = importlib.import_module("speculators.data_generation.custom_worker")
    sys.modules["vllm.distributed"].get_tp_group.return_value.rank_in_group = 0  # type: ignore[attr-defined]
    streams, (ids, mask) = store_truth(target(), truth), sample()
    still = torch.zeros_like(streams[0])
    layers = [lambda k=k, **_given: (streams[k + 1], still) for k in range(LAYERS)]  # type: ignore[misc]
    model = SimpleNamespace(layers=layers, start_layer=0, end_layer=LAYERS, norm=lambda *given: given)
    worker, listed = code.HiddenStatesWorkerExtension(), [4, 1, 7, 3]
    worker.model_runner = SimpleNamespace(model=SimpleNamespace(model=model),
                                          input_batch=SimpleNamespace(req_id_to_index={"a": 0}))  # fmt: skip
    worker._setup_hidden_states_capture(listed)
    worker._reset_capture()
    if hasattr(worker, "_set_request_metadata"):  # 0.4
        worker._set_request_metadata({"a": LENGTH})
    model.forward(ids[0], torch.arange(LENGTH), inputs_embeds=streams[0])
    found = worker._get_captured_states()
    found = found["a"] if isinstance(found, dict) else found
    out.mkdir()
    torch.save({"input_ids": ids[0], "hidden_states": found, "loss_mask": mask[0]}, out / "data_0.pt")
    config = {"version": "2.0", "hidden_states": {"layer_ids": listed}, "format": {"data_format_version": 1}}
    (out / "data_config.json").write_text(json.dumps(config))


def main(arguments: list[str]) -> None:
    action, *rest = arguments
    globals()[action](*(Path(part) if "/" in part else part for part in rest))


if __name__ == "__main__":
    main(sys.argv[1:])
