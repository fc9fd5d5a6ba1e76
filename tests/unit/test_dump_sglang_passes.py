"""Folders of SGLang's passes: target and draft of an EAGLE server, ranks, stages of a pipeline, some of the layers."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import dump_layouts as made
import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors import safe_open

import drafttrace
from drafttrace.compare.diff import diff
from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.inspecting import inspect_capture, render
from drafttrace.tracer.open import open_capture, open_numbered
from drafttrace.tracer.open_two import open_two
from drafttrace.tracer.target_weights import said_of

PASS = "Pass00000.pt"
WHOLE = tuple(range(made.LAYERS + 1))


def held(root: Path, *layers: int, norm: bool = True, embed: bool = True) -> dict[str, object]:
    """A pass of these layers, as ``--debug-tensor-dump-layers`` keeps them: embedding and final norm stay."""
    whole = torch.load(made.write_sg_pass(root / "made"), weights_only=True)
    shutil.rmtree(root / "made")
    kept = {name: value for name, value in whole.items() if ".layers." not in name}
    for k in layers:
        kept |= {name: value for name, value in whole.items() if f".layers.{k}." in name}
        after = 0.9 * made.state(k).float()
        kept[f"model.layers.{k}.post_attention_layernorm"] = [made.state(300 + k).float(), after]
        kept[f"model.layers.{k}.mlp.down_proj"] = made.state(k + 1).float() - after
    drop = {"model.norm": not norm, "model.embed_tokens": not embed}
    return {name: value for name, value in kept.items() if not drop.get(name, False)}


def save(folder: Path, value: dict[str, object], *, tp: int = 0, pp: int = 0, tps: int = 1) -> Path:
    rank = tps * pp + tp
    path = folder / f"TP{tp}_PP{pp}_Rank{rank}_pid{70 + rank}" / PASS
    path.parent.mkdir(parents=True)
    torch.save(value, path)
    return path


def draft_pass() -> dict[str, object]:
    names = {"model.embed_tokens": made.state(0), "model.fc": made.state(90), "model.norm": [made.state(91)] * 2}
    rows = {"input_ids": made.tokens(), "seq_lens": torch.tensor([made.LENGTH]), "positions": torch.arange(13)}
    return names | {f"model.forward_batch_info.{name}": value for name, value in rows.items()}


@pytest.fixture
def eagle(tmp_path: Path) -> Path:
    """What an EAGLE server of two ranks writes: load_model_utils.maybe_register_debug_tensor_dump_hook."""
    value = held(tmp_path, *range(made.LAYERS))
    for tp in (0, 1):
        save(tmp_path / "run/target", value, tp=tp, tps=2)
        save(tmp_path / "run/draft", draft_pass(), tp=tp, tps=2)
    return tmp_path / "run"


def test_the_passes_of_an_eagle_server_are_those_of_its_target(eagle: Path, tmp_path: Path) -> None:
    """The draft's were samples too, and its states those of the target; every rank counted."""
    for spec in (eagle, eagle / "target"):
        capture, count = open_numbered(str(spec))
        assert count == 1 and capture.wiring == made.CANON and tuple(capture.boundaries) == WHOLE
        assert capture.path == str(eagle / "target/TP0_PP0_Rank0_pid70" / PASS)
        assert "rank 0 of 2 ranks" in capture.notes
        said = f"the passes of the draft, in '{eagle / 'draft'}', are left out: they hold no states of the target"
        assert said in capture.notes
    done = convert(str(eagle), tmp_path / "out.safetensors", to="safetensors")
    assert done.samples == 1


@pytest.mark.parametrize("place", ["draft", f"draft/TP0_PP0_Rank0_pid70/{PASS}"])
def test_a_pass_of_a_draft_is_refused_by_its_place(place: str, eagle: Path) -> None:
    with pytest.raises(DrafttraceError, match=rf"of the draft \(it stands .* give '{eagle / 'target'}'\.$"):
        open_numbered(str(eagle / place))


def test_a_pass_of_a_draft_is_refused_by_its_modules(tmp_path: Path) -> None:
    path = save(tmp_path / "draft", draft_pass())
    shutil.copy(path, tmp_path / "any.pt")
    for spec in (path, path.parent, tmp_path / "draft", tmp_path / "any.pt"):
        with pytest.raises(DrafttraceError, match=r"an output of model\.fc\).*give the passes of the target\.$"):
            open_capture(str(spec))


def test_a_folder_that_is_called_draft_may_hold_a_target(tmp_path: Path) -> None:
    save(tmp_path / "draft", held(tmp_path, *range(made.LAYERS)))
    assert open_capture(str(tmp_path / "draft")).wiring == made.CANON


@pytest.mark.parametrize("layers", [(2, 4, 5), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5), (3,), ()])
def test_a_pass_of_some_layers_names_no_layer_that_it_does_not_hold(
    layers: tuple[int, ...], tmp_path: Path
) -> None:
    """The stream before the final norm was that after the highest layer dumped, B6, and n was 6."""
    path = save(tmp_path / "run", held(tmp_path, *layers))
    capture = open_capture(str(path))
    own = sorted({0, *layers})
    assert sorted(capture.boundaries) == own and capture.slots == ()
    assert capture.last is not None and capture.last.boundary is None and capture.about["target_layers"] is None
    (note,) = [note for note in capture.notes if note.startswith("no slots: the number of layers of the target")]
    assert note.endswith("and the last one, whose number is not known")
    convert(str(path), tmp_path / "x.safetensors", to="safetensors", lose=["last-state"])
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        assert sorted(json.loads(file.metadata()["boundaries"])) == own and "layers" not in file.metadata()
    with pytest.raises(
        DrafttraceError, match=r"number of layers of .* is not known, so its last state has no name"
    ):
        convert(str(path), tmp_path / "y.safetensors", to="safetensors")
    convert(str(path), tmp_path / "x.h5", to="trace", lose=["loss-mask", "boundaries"])
    traced = open_capture(str(tmp_path / "x.h5"))
    assert traced.last is None or traced.last.boundary is None


def test_a_pass_of_some_layers_is_whole_numbers_where_the_target_is_known(tmp_path: Path) -> None:
    path = save(tmp_path / "run", held(tmp_path, 0, 2, 4, 5))
    capture = open_capture(str(path), request=Request(layers=made.LAYERS))
    assert capture.wiring == made.CANON and sorted(capture.boundaries) == [0, 2, 4, 5, made.LAYERS]
    assert np.array_equal(capture.boundaries[8].floats(), made.state(8).float().numpy())
    few = open_capture(str(save(tmp_path / "few", held(tmp_path, 2, 5))), request=Request(layers=made.LAYERS))
    assert few.slots == () and any("every boundary of the default [B2, B4, B5] of 8" in note for note in few.notes)


def test_all_layers_and_the_norm_tell_how_many_there_are(tmp_path: Path) -> None:
    value = held(tmp_path, *range(made.LAYERS))
    capture = open_capture(str(save(tmp_path / "run", value)))
    assert capture.wiring == made.CANON and capture.about["target_layers"] == made.LAYERS
    assert {slot.source.partition("ASSUMED default")[2] for slot in capture.slots} == {
        ", n = 8 by the layers that the pass shows"
    }
    # A target of another size cannot move the last boundary of a pass whose numbers say where it is.
    for layers in (4, 12):
        with pytest.raises(DrafttraceError, match=rf"shows a target of 8 layers .* is said to have {layers} "):
            open_capture(str(tmp_path / "run"), request=Request(layers=layers))
    assert open_capture(str(tmp_path / "run"), request=Request(layers=8)).wiring == made.CANON


NO_PROOF = ("sum-of-ranks", "experts", "scaled")


def unproven(root: Path, why: str) -> dict[str, object]:
    """A pass of every layer that does not show that its last one is the last: a part of the sum, experts, a multiplier."""
    value = held(root, *range(made.LAYERS))
    top = f"model.layers.{made.LAYERS - 1}.mlp"
    added = value.pop(f"{top}.down_proj")
    assert isinstance(added, torch.Tensor)
    if why == "experts":
        return value | {f"{top}.experts": added, f"{top}.gate": [torch.ones(made.LENGTH, 4)]}
    return value | {f"{top}.down_proj": made.state(99) if why == "sum-of-ranks" else 4 * added}


def write_pass(root: Path, why: str) -> Path:
    value = unproven(root, why)
    for tp in range(2 if why == "sum-of-ranks" else 1):
        save(root / "run", value, tp=tp, tps=2)
    return root / "run"


def write_dumper(root: Path, why: str) -> Path:
    """The same as the dumper writes it, output by output."""
    named: dict[str, object] = {}
    for name, value in unproven(root, why).items():
        field = name.rpartition("forward_batch_info.")
        if field[1]:
            named[field[2]] = value
        elif isinstance(value, list):
            named |= {f"non_intrusive__{name}.output.{k}": part for k, part in enumerate(value)}
        else:
            named[f"non_intrusive__{name}.output"] = value
    (root / "exp").mkdir()
    for index, (name, item) in enumerate(named.items(), 1):
        file = f"step=0___rank=0___dump_index={index}___name={name}.pt"
        torch.save({"value": item, "meta": {}}, root / "exp" / file)
    return root / "exp"


@pytest.mark.parametrize("why", NO_PROOF)
@pytest.mark.parametrize("write", [write_pass, write_dumper])
def test_a_last_layer_that_the_numbers_do_not_prove_is_not_counted(
    write: Callable[[Path, str], Path], why: str, tmp_path: Path
) -> None:
    """The leading layers of a pass of experts, of several ranks or of a dumper were counted, and the last state was B8."""
    folder = str(write(tmp_path, why))
    capture = open_capture(folder)
    assert tuple(capture.boundaries) == WHOLE[:-1] and capture.slots == ()
    assert capture.about["target_layers"] is None
    [note] = [note for note in capture.notes if note.startswith("no slots: ")]
    assert (
        "(the pass shows the layers 0 to 7)" in note and "give --target DIR, or name them with --layer-ids" in note
    )
    assert "(B8 if these are all layers, which the pass does not prove)" in note
    assert note.endswith("B7, and the last one, whose number is not known")
    found = inspect_capture(folder)
    assert "B8" not in found.boundaries and note in found.notes
    for layers, last in ((8, 8), (12, 12)):  # whoever knows n says which boundary it is
        told = open_capture(folder, request=Request(layers=layers))
        assert sorted(told.boundaries) == [*WHOLE[:-1], last]
        assert np.array_equal(told.boundaries[last].floats(), made.state(8).float().numpy())
    assert open_capture(folder, request=Request(layers=8)).wiring == made.CANON
    shallow = open_capture(folder, request=Request(layers=6))
    assert any("was said to have 6 layers, and the pass shows layer 7" in note for note in shallow.notes)
    assert tuple(shallow.boundaries) == WHOLE[:-1]


@pytest.mark.parametrize("write", [write_pass, write_dumper])
def test_the_target_tells_diff_the_slots_of_either_side(write: Callable[[Path, str], Path], tmp_path: Path) -> None:
    """'give --target DIR', which diff did not take."""
    target = tmp_path / "target"
    target.mkdir()
    config = {"num_hidden_layers": made.LAYERS, "hidden_size": made.H, "vocab_size": 300}
    (target / "config.json").write_text(json.dumps(config))
    whole, dump = str(write(tmp_path, "experts")), str(made.write_sf_eagle3(tmp_path))
    with pytest.raises(
        DrafttraceError, match=r"; say it with --target DIR, which tells the default ones, or with --layer-ids \(3"
    ):
        open_two(dump, whole)
    for sides in ((dump, whole), (whole, dump)):
        result = diff(*open_two(*sides, request=said_of(target, Request())))
        assert (result.verdict, len(result.slots)) == ("match", 3)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 0.0])
def test_broken_rows_are_no_proof_against_the_others(broken: float, tmp_path: Path) -> None:
    value = held(tmp_path, *range(made.LAYERS))
    for item in value.values():
        for tensor in item if isinstance(item, list) else [item]:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor[3] = broken
    assert tuple(open_capture(str(save(tmp_path / "run", value))).boundaries) == WHOLE


def test_a_dumper_folder_of_another_rank_than_0_is_read(tmp_path: Path) -> None:
    """'Step 0 has no input_ids and positions': only the files of rank 0 were looked at."""
    folder = made.write_sg_dumper(tmp_path)
    for path in folder.iterdir():
        path.rename(path.with_name(path.name.replace("rank=0", "rank=3")))
    assert open_capture(str(folder)).wiring == made.CANON
    first = next(folder.iterdir())
    shutil.copy(first, first.with_name(first.name.replace("step=0", "step=²")))
    assert open_capture(str(folder)).wiring == made.CANON


def stages(root: Path) -> list[Path]:
    first = held(root, *range(4), norm=False)
    second = held(root, *range(4, made.LAYERS), embed=False)
    return [save(root / "run", first, pp=0), save(root / "run", second, pp=1)]


def test_the_stages_of_a_pipeline_are_one_pass(tmp_path: Path) -> None:
    """Only rank 0 was read, and the stream entering its last layers was taken for another one."""
    first, second = stages(tmp_path)
    for spec in (tmp_path / "run", first, second):
        capture, count = open_numbered(str(spec))
        assert (count, capture.wiring, tuple(sorted(capture.boundaries))) == (1, made.CANON, WHOLE)
        other = first if spec == second else second
        said = f"joined with the layers that other stages of the pipeline wrote: '{other.parent.name}'"
        assert said in capture.notes


def test_one_stage_of_a_pipeline_alone_names_no_other_layer(tmp_path: Path) -> None:
    first, second = stages(tmp_path)
    shutil.rmtree(second.parent)
    assert sorted(open_capture(str(first)).boundaries) == [0, 1, 2, 3]
    shutil.rmtree(first.parent)
    last = open_capture(str(save(tmp_path / "other", held(tmp_path, *range(4, 8), embed=False), pp=1)))
    assert sorted(last.boundaries) == [4, 5, 6, 7] and last.slots == ()


def test_a_stage_that_one_rank_alone_lacks_is_named(tmp_path: Path) -> None:
    """TP0 without its last stage was read as if the target had no more layers; TP1, which has both, was not looked at."""
    first = held(tmp_path, *range(4), norm=False)
    second = held(tmp_path, *range(4, made.LAYERS), embed=False)
    paths = {
        (tp, pp): save(tmp_path / "run", (first, second)[pp], tp=tp, pp=pp, tps=2) for tp in (0, 1) for pp in (0, 1)
    }
    assert not any("there is no" in note for note in open_capture(str(tmp_path / "run")).notes)
    shutil.rmtree(paths[0, 1].parent)
    words = r"TP0_PP1_\.\.\. of another, which 'TP1_PP1_Rank3_pid73' is of TP1; copy .*, or give "
    for spec in (tmp_path / "run", paths[0, 0]):
        with pytest.raises(DrafttraceError, match=rf"no folder {words}'{paths[1, 0]}', whose rank has them all\.$"):
            open_capture(str(spec))
    whole = open_capture(str(paths[1, 0]))
    assert tuple(sorted(whole.boundaries)) == WHOLE
    assert "of the processes of this run there is no folder TP0_PP1_..." in whole.notes


def test_a_pass_that_one_rank_alone_lacks_is_named(tmp_path: Path) -> None:
    """Of a pass that rank 0 had not written there was no sample, and no word."""
    value = held(tmp_path, *range(made.LAYERS))
    paths = [save(tmp_path / "run", value, tp=tp, tps=4) for tp in (0, 1, 3)]
    for path in paths[1:]:
        shutil.copy(path, path.with_name("Pass00001.pt"))
    paths[1].unlink()
    notes = open_capture(str(tmp_path / "run")).notes
    gone = "no folder of rank TP2, no 'Pass00000.pt' in 'TP1_PP0_Rank1_pid71'"
    assert f"of the processes of this run there is {gone}" in notes
    assert "this process has no 'Pass00001.pt', which 'TP1_PP0_Rank1_pid71' has: no sample is made of that" in notes
    done = convert(str(tmp_path / "run"), tmp_path / "out.safetensors", to="safetensors")
    assert set(notes) <= set(done.notes)


def test_a_stage_that_no_rank_has_is_named(tmp_path: Path) -> None:
    last = open_capture(str(save(tmp_path / "run", held(tmp_path, *range(4, 8), embed=False), pp=1)))
    assert "of the processes of this run there is no folder of stage PP0 of the pipeline" in last.notes


def test_stages_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    _first, second = stages(tmp_path)
    value = torch.load(second, weights_only=True)
    torch.save(value | {"model.forward_batch_info.input_ids": made.tokens() + 1}, second)
    with pytest.raises(DrafttraceError, match=r"do not belong together \(their tokens differ\); move"):
        open_capture(str(tmp_path / "run"))
    torch.save(value | {"model.layers.0.input_layernorm": made.state(1)}, second)
    with pytest.raises(DrafttraceError, match=r"\(model\.layers\.0\.input_layernorm is in both\)"):
        open_capture(str(tmp_path / "run"))
    second.unlink()
    with pytest.raises(DrafttraceError, match=rf"no '{second}' of another; copy the folders of all stages"):
        open_capture(str(tmp_path / "run"))
    second.parent.with_name("TP0_PP1_Rank1_pid99").mkdir()
    with pytest.raises(DrafttraceError, match="holds 2 runs"):
        open_capture(str(tmp_path / "run"))


@pytest.mark.parametrize("write", [made.write_sg_pass, made.write_sg_dumper])
def test_a_boundary_that_the_pass_lacks_is_refused_by_name(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """There were no slots then: the file was written without them, and the comparison was of 3 slots and none."""
    path = write(tmp_path)
    asked = Request(layer_ids=(1, 90, 99), numbering="B", lenient=True)
    with pytest.raises(
        DrafttraceError, match=r"B90 and B99, which .* does not hold: its boundaries are B0, B1, .*B8;"
    ):
        open_capture(str(path), request=asked)
    with pytest.raises(DrafttraceError, match=r"--layer-ids names B91, "):
        open_capture(str(path), request=Request(layer_ids=(90,), numbering="O"))
    assert len(open_capture(str(path), request=dataclasses.replace(asked, tokens_only=True)).tokens) == made.LENGTH


def test_a_last_boundary_without_a_number_cannot_be_named(tmp_path: Path) -> None:
    path = save(tmp_path / "run", held(tmp_path, 2, 4, 5))
    with pytest.raises(
        DrafttraceError, match=r"B8, which .* B5, and the last one, whose number is not known; name"
    ):
        open_capture(str(path), request=Request(layer_ids=(2, 8), numbering="B"))
    assert open_capture(str(path), request=Request(layer_ids=(2, 4, 5))).wiring == (2, 4, 5)


def test_the_boundaries_of_a_pass_are_seen(tmp_path: Path) -> None:
    """'see the boundaries', and nothing showed them."""
    path = save(tmp_path / "run", held(tmp_path, 2, 4, 5))
    found = inspect_capture(str(path))
    assert found.boundaries == ("B0", "B2", "B4", "B5")
    assert found.to_json()["boundaries"] == ["B0", "B2", "B4", "B5"]
    console = Console(record=True, width=200)
    render(found, console)
    assert "boundaries  B0, B2, B4, B5\n" in console.export_text()
    assert inspect_capture(str(made.write_sf_eagle3(tmp_path))).boundaries == ()


def test_the_layers_that_a_pass_holds_are_compared_where_the_other_side_knows_how_many_there_are(
    tmp_path: Path,
) -> None:
    """It was 'slot-count: the reference holds none', and a MATCH of no slot the other way round."""
    whole = str(save(tmp_path / "whole", held(tmp_path, *range(made.LAYERS))))
    some = str(save(tmp_path / "some", held(tmp_path, 2, 4, 5)))
    for left, reference in ((whole, some), (some, whole)):
        result = diff(*open_two(left, reference))
        assert result.verdict == "match" and len(result.slots) == 3


def test_a_pass_without_slots_is_not_compared_with_slots(tmp_path: Path) -> None:
    dump, some = str(made.write_sf_eagle3(tmp_path)), str(save(tmp_path / "some", held(tmp_path, 2, 4, 5)))
    with pytest.raises(DrafttraceError, match=r"B0, B2, B4, B5, and does not say .*--layer-ids \(3 of these\)\.$"):
        open_two(dump, some)
    with pytest.raises(DrafttraceError, match=r"--layer-ids \(3 of these\), and give it as REFERENCE\.$"):
        open_two(some, dump)
    ours, theirs = open_two(dump, some, request=Request(layer_ids=(2, 4, 5), numbering="B"))
    assert diff(ours, theirs).verdict == "match"
    named = open_capture(dump, request=Request(layer_ids=(2, 4, 5), numbering="B"))
    with pytest.raises(DrafttraceError, match=r"layer_ids='B2,B4,B5' of drafttrace\.open\.$"):
        drafttrace.diff(named, some)
