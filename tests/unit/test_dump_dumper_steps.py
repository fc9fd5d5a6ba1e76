"""Steps of SGLang's dumper: those of a draft, files of one name, stages of a pipeline; and how a pass proves n."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch

from drafttrace.tracer.capture import Accepted, Phase
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture, open_numbered

WHOLE = tuple(range(made.LAYERS + 1))


def dump(folder: Path, named: dict[str, torch.Tensor], *, step: int = 0, rank: int = 0, first: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, (name, value) in enumerate(named.items(), first):
        file = f"step={step}___rank={rank}___dump_index={index}___name={name}.pt"
        torch.save({"value": value, "meta": {}}, folder / file)
    return folder


def rows() -> dict[str, torch.Tensor]:
    return {"input_ids": made.tokens(), "positions": torch.arange(made.LENGTH)}


def outputs(values: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        f"non_intrusive__{name}.output.{k}": part for name, parts in values.items() for k, part in enumerate(parts)
    }


def draft_step(module: str) -> dict[str, torch.Tensor]:
    """A pass of a draft of one layer whose numbers show that it is whole."""
    after = made.state(31)
    added = made.state(32).float() - after.float()
    layer = {
        "model.embed_tokens": [made.state(0)],
        "model.layers.0.input_layernorm": [made.state(30)],
        "model.layers.0.post_attention_layernorm": [made.state(33), after],
        "model.layers.0.mlp": [added],
        "model.norm": [made.state(34), made.state(32)],
        module: [made.state(35)],
    }
    return rows() | outputs(layer)


@pytest.mark.parametrize(
    "module",
    [
        "model.layers.0.hidden_norm",
        "model.midlayer.self_attn",
        "model.fc",
        "model.eh_proj",
        "fc",
        "pre_fc_norm_hidden",
    ],
)
def test_the_draft_steps_of_a_dumper_are_no_samples(module: str, tmp_path: Path) -> None:
    """They were samples of the target, and a draft of one layer proved that the target has one."""
    folder = made.write_sg_dumper(tmp_path)
    dump(folder, draft_step(module), step=1, first=200)
    for path in list(folder.glob("step=0_*")):
        shutil.copy(path, path.with_name(path.name.replace("step=0", "step=2")))
    capture, count = open_numbered(f"{folder}#2")
    assert count == 2 and capture.wiring == made.CANON
    said = f"1 of the 3 steps (1) are passes of the draft (they have {module}), and are left out: "
    assert [note for note in capture.notes if "draft" in note] == [f"{said}they hold no states of the target"]
    with pytest.raises(DrafttraceError, match="has no sample 1"):
        open_capture(f"{folder}#1")
    done = convert(str(folder), tmp_path / "out", to="safetensors")
    assert done.samples == 2 and any(note.startswith(said) for note in done.notes)


def test_a_dumper_folder_of_a_draft_alone_is_refused(tmp_path: Path) -> None:
    folder = dump(tmp_path / "exp", draft_step("model.fc"))
    with pytest.raises(DrafttraceError, match=r"Every step of .* of the draft \(step 0 has model\.fc\)"):
        open_capture(str(folder))


def test_of_two_files_of_one_name_the_last_by_number_is_read(tmp_path: Path) -> None:
    """The last in string order was, "99" and not "100", and nothing said so."""
    folder = made.write_sg_dumper(tmp_path)
    name = "non_intrusive__model.layers.2.input_layernorm.output.1"
    (old,) = folder.glob(f"*{name}.pt")
    old.unlink()
    dump(folder, {name: made.state(77)}, first=99)
    dump(folder, {name: made.state(2)}, first=100)
    capture = open_capture(str(folder))
    assert np.array_equal(capture.boundaries[2].floats(), made.state(2).float().numpy())
    assert f"step 0 has {name} twice, with different contents: the last is read" in capture.notes
    dump(folder, {name: made.state(2)}, first=99)
    assert not any("twice" in note for note in open_capture(str(folder)).notes)


def stages(folder: Path) -> None:
    """Two stages of a pipeline, of two tensor-parallel ranks each."""
    whole = made.module_outputs()
    for rank in range(4):
        low, high = (0, 4) if rank < 2 else (4, made.LAYERS)
        own = {
            name: parts for name, parts in whole.items() if any(f".layers.{k}." in name for k in range(low, high))
        }
        own |= {
            name: parts
            for name, parts in whole.items()
            if name == ("model.norm" if rank > 1 else "model.embed_tokens")
        }
        dump(folder, rows() | outputs(own), rank=rank)


def test_the_stages_of_a_pipeline_in_a_dumper_folder_are_one_pass(tmp_path: Path) -> None:
    """The other stage was neither joined nor named, and 'give --target DIR' could not help."""
    stages(tmp_path / "exp")
    capture = open_capture(str(tmp_path / "exp"))
    assert tuple(sorted(capture.boundaries)) == WHOLE and capture.wiring == made.CANON
    assert "joined with the layers of other stages of the pipeline: rank 2" in capture.notes
    assert "rank 0 of 4 ranks" in capture.notes


def test_a_stage_of_other_tokens_is_named_and_left_out(tmp_path: Path) -> None:
    stages(tmp_path / "exp")
    (path,) = (tmp_path / "exp").glob("*rank=2_*name=input_ids.pt")
    torch.save({"value": made.tokens() + 1, "meta": {}}, path)
    capture = open_capture(str(tmp_path / "exp"))
    assert sorted(capture.boundaries) == [0, 1, 2, 3]
    assert any(
        note.startswith("the layers of rank 2, another stage of the pipeline, are left out")
        for note in capture.notes
    )


# --- the proof of n ------------------------------------------------------------------------------------------


def leading(
    *, quiet: float, large: float, length: int = 1, kind: torch.dtype = torch.bfloat16
) -> dict[str, torch.Tensor]:
    """All but the last layer, which adds ``quiet`` of what the others do; ``large``: a few elements that layer n - 2 adds,
    as the first token of a real model has them."""
    draw = torch.Generator().manual_seed(5)
    stream = torch.randn(length, 64, generator=draw).to(kind)
    after = stream + torch.randn(length, 64, generator=draw).to(kind)
    added = torch.randn(length, 64, generator=draw).to(kind)
    added[:, :2] += large
    before_last = after + added
    final = before_last + (quiet * torch.randn(length, 64, generator=draw)).to(kind)
    parts = {"model.embed_tokens": [stream], "model.layers.0.input_layernorm": [stream]}
    parts |= {"model.layers.0.post_attention_layernorm": [after, after], "model.layers.0.mlp": [added]}
    parts |= {"model.norm": [final, final]}
    fields = {"input_ids": torch.arange(3, 3 + length), "positions": torch.arange(length)}
    return fields | outputs(parts)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("quiet", "large"), [(0.1, 0.0), (0.3, 0.0), (1.0, 300.0), (0.1, 300.0)])
def test_a_layer_that_is_left_out_is_no_rounding(
    quiet: float, large: float, kind: torch.dtype, tmp_path: Path
) -> None:
    """30 % were agreement: a pass of one token of layers 0 to 28 of 30 was named B29, for a few large elements."""
    for length in (1, 13):
        folder = dump(tmp_path / str(length), leading(quiet=quiet, large=large, length=length, kind=kind))
        assert open_capture(str(folder)).about["target_layers"] is None
        whole = dump(tmp_path / f"w{length}", leading(quiet=0.0, large=large, length=length, kind=kind))
        assert open_capture(str(whole)).about["target_layers"] == 1


def test_a_told_number_of_layers_that_a_pass_disproves_is_an_error(tmp_path: Path) -> None:
    """It was overruled, and nothing said so."""
    folder = made.write_sg_dumper(tmp_path)
    with pytest.raises(DrafttraceError, match=r"shows a target of 8 layers .* is said to have 30 \(--target"):
        open_capture(str(folder), request=Request(layers=30))


# --- verify passes -------------------------------------------------------------------------------------------

TREE = [0, 1, 1, 2, 2, 3]  # depths of a tree of topk 2, the root first


def verify_step(roots: list[int], depths: list[int], padded: int = 0) -> dict[str, torch.Tensor]:
    """A verify pass as SGLang builds it: ``size`` rows each, the root at the length that the request had before."""
    size = len(depths)
    positions = [root + depth for root in roots for depth in depths]
    whole = made.module_outputs()
    count = size * (len(roots) + padded)
    values = {name: [torch.cat([part, part])[:count] for part in parts] for name, parts in whole.items()}
    tokens = torch.arange(100, 100 + size * len(roots))
    rows = {
        "input_ids": torch.cat([tokens, torch.zeros(size * padded).long()]),
        "positions": torch.cat([torch.tensor(positions), torch.zeros(size * padded).long()]),
        "seq_lens": torch.tensor(roots + [1] * padded),
    }
    return rows | outputs(values)


def as_pass(folder: Path, named: dict[str, torch.Tensor]) -> Path:
    value: dict[str, object] = {}
    for name, tensor in named.items():
        module = name.removeprefix("non_intrusive__").partition(".output.")[0]
        if module in {"input_ids", "positions", "seq_lens"}:
            value[f"model.forward_batch_info.{module}"] = tensor
        else:
            held = value.setdefault(module, [])
            assert isinstance(held, list)
            held.append(tensor)
    folder.mkdir()
    torch.save(value, folder / "Pass00000.pt")
    return folder / "Pass00000.pt"


@pytest.mark.parametrize("write", [dump, as_pass])
@pytest.mark.parametrize(
    ("roots", "depths", "padded"),
    [
        ([7, 9], TREE, 0),
        ([7, 13], TREE, 0),
        ([7, 7], TREE, 1),
        ([7, 11], [0, 1, 2, 3], 0),
        ([7, 3], [0, 2, 1, 1], 0),
    ],
)
def test_a_verify_pass_is_as_many_requests_as_it_has_lengths(
    write: Callable[..., Path], roots: list[int], depths: list[int], padded: int, tmp_path: Path
) -> None:
    """A tree of topk 2 was read as a request for every branch, and its rows as accepted ones of a prefill."""
    path = write(tmp_path / "run", verify_step(roots, depths, padded))
    for number, root in enumerate(roots):
        capture, count = open_numbered(f"{path}#{number}")
        assert count == len(roots)
        table = capture.table
        assert table.position.tolist() == [root + depth for depth in depths]
        first = 100 + number * len(depths)
        assert table.token_id.tolist() == list(range(first, first + len(depths)))
        assert table.accepted.tolist() == [Accepted.ACCEPTED] + [Accepted.UNKNOWN] * (len(depths) - 1)
        assert set(table.phase.tolist()) == {Phase.VERIFY}
        assert capture.tokens.tolist() == [-1] * root + [first] + [-1] * max(depths)
        rows = slice(number * len(depths), (number + 1) * len(depths))
        both = torch.cat([made.state(2), made.state(2)]).float().numpy()
        assert np.array_equal(capture.boundaries[2].floats(), both[rows])
        said = (
            f"a verify pass at position {root}: {len(depths) - 1} of its {len(depths)} rows are of drafted tokens"
        )
        assert any(note.startswith(said) for note in capture.notes)
    said = rf"holds a verify pass: the row of token 7, and {len(depths) - 1} rows of drafted tokens"
    with pytest.raises(DrafttraceError, match=said):
        convert(f"{path}#0", tmp_path / "x.safetensors", to="safetensors", lose=["first-token"])


def test_passes_that_only_look_like_a_verify_pass_are_none(tmp_path: Path) -> None:
    """Rows of other passes stand below the length of their request."""
    named = verify_step([7, 9], [0, 1, 2])
    named["seq_lens"] = torch.tensor([10, 12])  # an extend of three tokens each, behind a cached prefix
    folder = dump(tmp_path / "run", named)
    capture, count = open_numbered(f"{folder}#1")
    assert count == 2 and capture.table.position.tolist() == [9, 10, 11]
    assert set(capture.table.phase.tolist()) == {Phase.PREFILL}


def test_the_names_of_a_folder_are_read_once_for_all_of_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 steps took three minutes: every sample listed the whole folder twice."""
    from drafttrace.tracer.dumps import from_sglang_dumper
    from drafttrace.tracer.dumps.folder import open_collection
    from drafttrace.tracer.dumps.registry import Request

    folder = made.write_sg_dumper(tmp_path)
    for path in list(folder.iterdir()):
        for step in range(1, 6):
            copy = re.sub(r"step=\d+", f"step={step}", path.name)
            (folder / copy).write_bytes(path.read_bytes())
    listed: list[Path] = []
    own = from_sglang_dumper._dumper_files
    monkeypatch.setattr(from_sglang_dumper, "_dumper_files", lambda place: listed.append(place) or own(place))
    collection = open_collection(folder)
    assert len(collection.refs) >= 5
    for ref in collection.refs:
        collection.read(ref, Request())
    assert listed.count(folder) <= 1
    for path in [path for path in folder.iterdir() if "step=5_" in path.name]:
        path.unlink()
    assert len(open_collection(folder).refs) == len(collection.refs) - 1  # a new listing where the folder changed


def test_a_scale_of_infinity_warns_nobody(recwarn: pytest.WarningsRecorder) -> None:
    from drafttrace.tracer.dumps.tensor import StoredRows, Tensor
    from drafttrace.tracer.rows import DType

    rows = StoredRows(
        Tensor.held(np.zeros((2, 4), np.float32), "fp32"), DType.FP32, np.array([np.inf, 1], np.float32)
    )
    assert np.isnan(rows.floats()[0]).all() and np.isnan(rows.take(np.arange(2))[0]).all()
    assert not recwarn.list
