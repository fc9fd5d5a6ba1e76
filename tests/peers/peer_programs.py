"""Runs one project's own reader or writer from its unpacked wheel: ``python peer_programs.py ACTION WHEEL_DIR ...``.

Each project runs in a process of its own: their packages pin other versions of everything, and only the one module
under test is wanted. Package ``__init__`` files, and imports that the module under test does not use here, are
replaced by empty modules; the reader or writer itself is the project's code, unchanged.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch


def bare(root: Path, *packages: str) -> None:
    """Register packages without running their ``__init__``."""
    for name in packages:
        module = types.ModuleType(name)
        module.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = module


def absent(*modules: str) -> None:
    """Give a name to modules that are not installed and that the code under test does not reach."""
    for name in modules:
        sys.modules[name] = MagicMock(name=name)


def save(out: Path, fc_in: Any, last: Any, ids: Any, mask: Any) -> None:
    """What a project hands to its draft: fc input ``[L, K*H]``, last state ``[L, H]``, ids and mask ``[L]``.

    None for what a project does not have: it is left out.
    """

    def plain(value: Any) -> np.ndarray:
        tensor = value.reshape(-1, value.shape[-1]) if value.is_floating_point() else value.reshape(-1)
        return tensor.float().numpy() if tensor.is_floating_point() else tensor.long().numpy()

    given = {"fc_in": fc_in, "last": last, "ids": ids, "mask": mask}
    np.savez(out, **{name: plain(value) for name, value in given.items() if value is not None})


def speculators_sample(root: Path, path: Path, out: Path, version: str) -> None:
    """speculators 0.3 and 0.4: ``standardize_data_v0`` / ``standardize_data_v1`` on a loaded sample."""
    bare(root, "speculators", "speculators.train")
    data = importlib.import_module("speculators.train.data")
    loaded = torch.load(path, mmap=True, weights_only=True)
    made = getattr(data, f"standardize_data_{version}")(loaded)
    save(out, made["hidden_states"], made["verifier_last_hidden_states"], made["input_ids"], made["loss_mask"])


def speculators_arrow(root: Path, connectors: Path, path: Path, out: Path) -> None:
    """speculators 0.9: ``ArrowDataset._get_raw_data`` with hs_connectors' ``FileTransfer``."""
    sys.path.insert(0, str(connectors))
    absent("openai", "mooncake", "mooncake.store")
    bare(root, "speculators", "speculators.train", "speculators.data_generation")
    absent("speculators.data_generation.offline", "speculators.data_generation.vllm_client")
    data = importlib.import_module("speculators.train.data")
    dataset = data.ArrowDataset.__new__(data.ArrowDataset)
    from datasets import load_from_disk
    from hs_connectors import FileTransfer

    dataset.data = load_from_disk(str(path)).with_format("torch")
    dataset.transfer = FileTransfer(path / "hidden_states")
    dataset.start_file_idx = 0
    dataset.on_missing = "raise"
    index = len(dataset.data) - 1
    made = dataset._get_raw_data(index)
    save(out, made["hidden_states"], made["verifier_last_hidden_states"], made["input_ids"], made["loss_mask"])


def connectors_fp8(connectors: Path, states: Path, out: Path) -> None:
    """hs_connectors 0.9: quantise as its fp8 connector does, and write the file."""
    sys.path.insert(0, str(connectors))
    absent("mooncake", "mooncake.store")
    from hs_connectors.fp8_utils import SCALES_KEY, quantize_tensor_to_fp8
    from safetensors.torch import load_file, save_file

    tensors = load_file(states)
    quantised, scales = quantize_tensor_to_fp8(tensors["hidden_states"])
    save_file({**tensors, "hidden_states": quantised, SCALES_KEY: scales}, out)


def connectors_fp8_read(connectors: Path, path: Path, out: Path) -> None:
    """hs_connectors 0.9: ``FP8Transfer`` reads and dequantises."""
    sys.path.insert(0, str(connectors))
    absent("mooncake", "mooncake.store")
    from hs_connectors import FP8Transfer

    made = FP8Transfer(path.parent).get_cached(int(path.stem.removeprefix("hs_")))
    states = made["hidden_states"]
    save(out, states[:, :-1].flatten(1), states[:, -1], made["token_ids"], made["token_ids"])


def specforge_offline(root: Path, path: Path, out: Path, algorithm: str) -> None:
    """specforge: ``load_feature_file`` and the algorithm's ``normalize_*_sample``."""
    bare(root, "specforge", "specforge.runtime", "specforge.runtime.data_plane", "specforge.algorithms",
         "specforge.algorithms.eagle3", "specforge.algorithms.common")  # fmt: skip
    store = importlib.import_module("specforge.runtime.data_plane.feature_store")
    raw = store.load_feature_file(str(path))
    if algorithm == "eagle3":
        made = importlib.import_module("specforge.algorithms.eagle3.data").normalize_offline_sample(raw, 4096)
        save(out, made["hidden_state"], made["target"], made["input_ids"], made["loss_mask"])
        return
    family = importlib.import_module("specforge.algorithms.common.dflash_family_data")
    if algorithm == "dflash":
        made = family.normalize_offline_sample(raw, 4096)
        save(out, made["hidden_states"], None, made["input_ids"], made["loss_mask"])
    else:
        made = family.normalize_dspark_offline_sample(raw, 4096)
        save(out, made["hidden_states"], made["target_last_hidden_states"], made["input_ids"], made["loss_mask"])


def specforge_dump(root: Path, states: Path, out: Path) -> None:
    """specforge: ``LocalFeatureStore`` with a dump folder writes an online sample."""
    bare(root, "specforge", "specforge.runtime", "specforge.runtime.data_plane")
    store = importlib.import_module("specforge.runtime.data_plane.feature_store")
    tensors = torch.load(states, weights_only=True)
    made = store.LocalFeatureStore(dump_dir=str(out))
    made.put(tensors, sample_id="sample0", metadata={"run_id": "x"})


def modelopt(root: Path, path: Path, out: Path) -> None:
    """nvidia-modelopt: ``OfflineSupervisedDataset`` and its collator."""
    bare(root, "modelopt", "modelopt.torch", "modelopt.torch.speculative", "modelopt.torch.speculative.eagle",
         "modelopt.torch.utils")  # fmt: skip
    absent("modelopt.torch.utils.loss_mask")
    utils = importlib.import_module("modelopt.torch.speculative.eagle.utils")
    sample = utils.OfflineSupervisedDataset([str(path)], answer_only_loss=True)[0]
    batch = utils.EagleOfflineDataCollator(len(sample["input_ids"]))([sample])
    states = batch["base_model_outputs"]
    save(
        out, states["aux_hidden_states"], states["base_model_hidden_states"], batch["input_ids"], batch["loss_mask"]
    )
    prenorm = {"prenorm": bool(states["base_hidden_prenorm"])}
    out.with_suffix(".json").write_text(json.dumps(prenorm))


def angelslim(root: Path, path: Path, out: Path) -> None:
    """angelslim: ``OfflineEagle3Dataset``."""
    base = "angelslim.compressor.speculative.train.data"
    parts = base.split(".")
    bare(root, *(".".join(parts[: k + 1]) for k in range(len(parts))), f"{base}.dataset_builder")
    absent("angelslim.utils", f"{base}.data_utils", f"{base}.dataset_builder.base_dataset_builder",
           f"{base}.dataset_builder.dataset_builder_factory")  # fmt: skip
    sys.modules[f"{base}.dataset_builder.base_dataset_builder"].DatasetBuilder = object  # type: ignore[attr-defined]
    factory = sys.modules[f"{base}.dataset_builder.dataset_builder_factory"]
    factory.DatasetBuilderFactory.register = lambda *_a, **_k: lambda cls: cls  # type: ignore[attr-defined]
    builder = importlib.import_module(f"{base}.dataset_builder.offline_dataset_builder")
    sample = builder.OfflineEagle3Dataset(str(path))[0]
    save(out, sample["hidden_states"], sample["target_hiddens"], sample["input_ids"], sample["loss_mask"])


def angelslim_trainer(root: Path, mode: str) -> Any:
    """The class of angelslim's offline or online DFlash trainer, without the packages around it."""
    base = "angelslim.compressor.speculative.train.trainer"
    parts = base.split(".")
    bare(root, *(".".join(parts[: k + 1]) for k in range(len(parts))))
    absent(f"{base}.eagle3_trainer")
    sys.modules[f"{base}.eagle3_trainer"].Eagle3Trainer = object  # type: ignore[attr-defined]
    module = importlib.import_module(f"{base}.{mode}_dflash_trainer")
    return getattr(module, f"{mode.capitalize()}DFlashTrainer")


def angelslim_dflash(root: Path, path: Path, out: Path) -> None:
    """angelslim: what ``OfflineDFlashTrainer`` hands to the draft from a batch of one sample."""
    trainer = angelslim_trainer(root, "offline")
    made = trainer.prepare_data_for_draft_model(trainer.__new__(trainer), torch.load(path, weights_only=True))
    save(out, made["hidden_states"], None, made["input_ids"], made["loss_mask"])


AUTOMODEL = ("nemo_automodel", "nemo_automodel.shared", "nemo_automodel.components",
             "nemo_automodel.components.datasets", "nemo_automodel.components.datasets.llm")  # fmt: skip


def automodel(root: Path, cache: Path, out: Path, kind: str) -> None:
    """nemo-automodel: the first item of ``CachedEagle3Dataset`` or ``CachedDSparkDataset``."""
    bare(root, *AUTOMODEL)
    module = importlib.import_module(f"nemo_automodel.components.datasets.llm.{kind}_cache")
    if kind == "eagle3":
        made = module.CachedEagle3Dataset(str(cache))[0]
        save(out, made["aux_hidden_states"], None, made["input_ids"], made["loss_mask"])
    else:
        made = module.CachedDSparkDataset(str(cache))[0]
        save(out, made["target_hidden_states"], made["target_last_hidden_states"], made["input_ids"],
             made["loss_mask"])  # fmt: skip


def part_of_script(path: Path, names: set[str], scope: dict[str, Any]) -> dict[str, Any]:
    """The classes and functions of a script, by name, defined in scope. The rest of the script does not run."""
    tree = ast.parse(path.read_text("utf-8"))
    wanted = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names]
    if {node.name for node in wanted} != names:
        raise SystemExit(f"{path} defines {[node.name for node in wanted]}, not {sorted(names)}")
    exec(compile(ast.Module(wanted, []), str(path), "exec"), scope)
    return scope


def eagle(root: Path, path: Path, out: Path) -> None:
    """eagle-llm: ``CustomDataset`` of its trainer, without the noise that training adds."""
    scope = {"torch": torch, "Dataset": torch.utils.data.Dataset, "train_config": {"max_len": 2048}}
    part_of_script(root / "eagle/train/main.py", {"CustomDataset"}, scope)
    made = scope["CustomDataset"]([str(path)])[0]
    mask = torch.tensor(made["loss_mask"])
    save(out, None, made["hidden_state_big"], made["input_ids"], mask)


def main(arguments: list[str]) -> None:
    action, *rest = arguments
    paths = [Path(part) if "/" in part else part for part in rest]
    globals()[action](*paths)


if __name__ == "__main__":
    main(sys.argv[1:])
