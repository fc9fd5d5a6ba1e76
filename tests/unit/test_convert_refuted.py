"""What the values of --target refute is not written as declared: the output would be believed as the dump was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_inspect_values import TARGET, N, Sample

from drafttrace.tracer.convert import convert
from drafttrace.tracer.dumps.from_mapping import parse_fields
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.inspecting import inspect_capture
from drafttrace.tracer.open import open_capture

RIGHT = [1, 7, 12, N - 1]


@pytest.fixture(scope="module")
def sample() -> Sample:
    return Sample()


def dump(folder: Path, sample: Sample, states: list[torch.Tensor], ids: list[int], **other: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": ids}}))
    value = {"input_ids": sample.tokens, "loss_mask": sample.mask, "hidden_states": states} | other
    torch.save(value, folder / "data_0.pt")
    return str(folder / "data_0.pt")


def refusal(path: str, out: Path, to: str = "safetensors", **more: Any) -> str:
    with pytest.raises(DrafttraceError, match="refute what would be written as declared") as error:
        convert(path, out, to, target=TARGET, **more)
    assert not out.exists()
    return str(error.value)


def test_a_right_dump_is_converted_without_a_word(sample: Sample, tmp_path: Path) -> None:
    path = dump(tmp_path / "in", sample, [sample.b2, sample.b8, sample.b13, sample.last_pre], RIGHT)
    for to in ("safetensors", "speculators-v1", "specforge"):
        written = convert(path, tmp_path / f"out-{to}", to, target=TARGET, lose=["layer-ids"] * (to == "specforge"))
        assert not any("value" in text for text in (*written.left_out, *written.notes))


@pytest.mark.parametrize("to", ["safetensors", "speculators-v1"])
def test_a_refuted_state_is_not_written_as_declared(to: str, sample: Sample, tmp_path: Path) -> None:
    """Only what was normed on the way was checked: everything else passed into the output as it was declared."""
    b2, b8, b13, last = sample.b2, sample.b8, sample.b13, sample.last_pre
    for k, (states, ids, told) in enumerate(
        [
            ([b2, b8, b13, b2], RIGHT, "hidden_states[3] is no last state: hidden_states[2] predicts the next token"),
            ([b2, b8, b13, sample.last_post], RIGHT, "stands after the final norm, but the format says pre"),
            ([sample.embedding, b8, b13, last], RIGHT, "hidden_states[0] is B0, the embedding, though it is declared B2"),
            ([b2, b8, b13, last], [-1, 7, 12, N - 1], "hidden_states[0] is declared B0 but is not the embedding"),
            ([part.roll(1, 0) for part in (b2, b8, b13, last)], RIGHT, "ids and states are shifted by -1"),
        ]
    ):  # fmt: skip
        said = refusal(dump(tmp_path / f"in{k}", sample, states, ids), tmp_path / "out", to)
        assert told in said and said.endswith("or keep it as declared with --lose value-checks.")


def test_a_slot_after_the_norm_is_not_written_as_the_last_boundary(sample: Sample, tmp_path: Path) -> None:
    states = [sample.b2, sample.b8, sample.last_post, sample.last_pre]
    path = dump(tmp_path / "in", sample, states, [1, 7, N - 1, N - 1])
    said = refusal(path, tmp_path / "out", "speculators-v1")
    assert (
        "declared B16, the stream before the final norm, and stands after it" in said and "--lose layer-ids" in said
    )
    convert(path, tmp_path / "out", "speculators-v1", target=TARGET, lose=["layer-ids"])


def test_the_remedy_goes(sample: Sample, tmp_path: Path) -> None:
    b8, b13, last = sample.b8, sample.b13, sample.last_pre
    path = dump(tmp_path / "in", sample, [sample.embedding, b8, b13, last], RIGHT)
    assert "say the boundaries of the slots with --layer-ids" in refusal(path, tmp_path / "out")
    convert(path, tmp_path / "out", "safetensors", target=TARGET, request=Request(layer_ids=(-1, 7, 12)))
    assert open_capture(str(tmp_path / "out")).wiring == (0, 8, 13)
    path = dump(tmp_path / "in", sample, [sample.b2], RIGHT, a=sample.b2, b=b8, c=b13, z=sample.last_post)
    named = {"tokens": "input_ids", "last": "z", "mask": "loss_mask", "boundaries": "2,8,13"}
    lose = ["loss-mask", "other-fields"]
    wrong, right = (parse_fields("a,b,c", **named, last_norm=norm) for norm in ("pre", "post"))
    assert "say --last-norm post" in refusal(path, tmp_path / "o.h5", "trace", mapping=wrong, lose=lose)
    convert(path, tmp_path / "o.h5", "trace", target=TARGET, mapping=right, lose=lose)


def test_kept_on_purpose_it_is_named_and_seen_again(sample: Sample, tmp_path: Path) -> None:
    path = dump(tmp_path / "in", sample, [sample.b2, sample.b8, sample.b13, sample.b2], RIGHT)
    written = convert(path, tmp_path / "out", "safetensors", target=TARGET, lose=["value-checks"])
    assert any(
        "proof by value" in text and "hidden_states[3] is no last state" in text for text in written.left_out
    )
    assert any(
        "is no last state" in text for text in inspect_capture(str(tmp_path / "out"), target=TARGET).problems
    )


def test_what_is_not_written_is_not_refused(sample: Sample, tmp_path: Path) -> None:
    path = dump(tmp_path / "in", sample, [sample.b2, sample.b8, sample.b13, sample.b2], RIGHT)
    convert(path, tmp_path / "out", "safetensors", target=TARGET, lose=["last-state"])
    honest = dump(tmp_path / "in", sample, [sample.embedding, sample.b2, sample.b8, sample.b13], [-1, 1, 7, 12])
    convert(
        honest, tmp_path / "honest", "speculators-v1", target=TARGET
    )  # its last state is an inner layer by its own word
    assert open_capture(str(tmp_path / "honest/data_0.pt")).wiring == (0, 2, 8)


def test_a_target_without_weights_leaves_a_note(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_bytes((TARGET / "config.json").read_bytes())
    path = dump(tmp_path / "in", sample, [sample.b2, sample.b8, sample.b13, sample.b2], RIGHT)
    written = convert(path, tmp_path / "out", "safetensors", target=tmp_path / "bare")
    assert any("declares is not held against the values of the target" in note for note in written.notes)


def test_of_many_samples_the_first_eight_and_every_hundredth_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    from drafttrace.tracer import convert_refuted

    held: list[int] = []
    monkeypatch.setattr(convert_refuted, "TargetWeights", lambda _folder: object())
    monkeypatch.setattr(convert_refuted, "check_values", lambda capture, _weights: held.append(capture) or [])
    monkeypatch.setattr(convert_refuted, "_refuted", lambda *_given: [])
    by_value = convert_refuted.ByValue(TARGET)
    for number in range(250):
        by_value.held(type("Cut", (), {"capture": number})(), "trace")  # type: ignore[arg-type]
    assert held == [*range(8), 100, 200]
