"""A redacted trace says nothing of the text and still compares like the original."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import LAYOUT, PROMPT, TOKENS, H, draft_frame, open_writer, target_frame
from trace_samples import write_sample as write

from drafttrace.tracer.errors import OutputExists, UnreadableFile
from drafttrace.tracer.rows import DType
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TensorSpec, TraceLayout
from drafttrace.tracer.trace.reader import read_ranks, read_rows, read_trace
from drafttrace.tracer.trace.redact import Pseudonyms, clean, redact
from drafttrace.tracer.trace.summary import trace_summary

SALT = b"a salt for tests"
SECRET = "the quick brown fox"


def same_structure(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal where equal, different where different."""
    return len(np.unique(left)) == len(np.unique(right)) == len(np.unique(np.stack([left, right]), axis=1).T)


def test_tensors_stay_and_tokens_go(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5", about={"request": {"text": SECRET, "accept_lengths": [2, 2, 2]}})
    redact(path, tmp_path / "r.h5", salt=SALT)
    before, after = read_trace(path), read_trace(tmp_path / "r.h5")
    for left, right in zip(before.slots, after.slots, strict=True):
        assert left.rows.raw(0, 99).tobytes() == right.rows.raw(0, 99).tobytes()
        assert (left.boundary, left.source) == (right.boundary, right.source)
    assert before.draft is not None and after.draft is not None
    assert before.draft.tensors["fc_in"].raw(0, 99).tobytes() == after.draft.tensors["fc_in"].raw(0, 99).tobytes()
    assert {k: v.tolist() for k, v in before.draft.present.items()} == {
        k: v.tolist() for k, v in after.draft.present.items()
    }
    assert after.complete and after.probes == before.probes and after.notes == ()
    assert after.prompt_length == PROMPT
    # One map for tokens, rows and draft ids.
    assert same_structure(before.tokens, after.tokens) and not np.isin(after.tokens, before.tokens).any()
    assert same_structure(before.table.token_id, after.table.token_id)
    known = dict(zip(before.tokens.tolist(), after.tokens.tolist(), strict=True))
    rows = before.table.accepted == 1
    assert [known[token] for token in before.table.token_id[rows].tolist()] == after.table.token_id[rows].tolist()
    assert same_structure(before.draft.ids["topk_ids"].ravel(), after.draft.ids["topk_ids"].ravel())
    one = np.flatnonzero(before.draft.ids["topk_draft_ids"].ravel() == 9)[0]
    other = np.flatnonzero(before.draft.ids["topk_ids"].ravel() == 9)[0]
    assert after.draft.ids["topk_draft_ids"].ravel()[one] != after.draft.ids["topk_ids"].ravel()[other]


def test_nothing_of_the_original_is_left_in_the_bytes(tmp_path: Path) -> None:
    marks = {"request": {"text": SECRET, "input_ids": TOKENS.tolist(), "accept_lengths": [2, 2, 2]}}
    path = write(tmp_path / "t.h5", about=marks)
    redact(path, tmp_path / "r.h5")
    before, after = path.read_bytes(), (tmp_path / "r.h5").read_bytes()
    for needle in (SECRET.encode(), b"hush", b"dt-1", TOKENS[2:5].astype("<i8").tobytes()):
        assert needle in before and needle not in after
    about = read_trace(tmp_path / "r.h5").about
    assert about["request"]["accept_lengths"] == [2, 2, 2]
    assert about["request"]["text"].startswith("redacted:")
    assert len(set(about["request"]["input_ids"])) == len(set(TOKENS.tolist()))
    assert about["server_args"] == {"model_path": "target", "api_key": "redacted"}
    assert about["wiring"] == read_trace(path).about["wiring"]


def test_the_same_salt_gives_comparable_files(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5")
    one = redact(path, tmp_path / "1.h5", salt=SALT)
    two = redact(path, tmp_path / "2.h5", salt=SALT)
    other = redact(path, tmp_path / "3.h5")
    assert one == two != other
    tokens = [read_trace(tmp_path / f"{k}.h5").tokens.tolist() for k in (1, 2, 3)]
    assert tokens[0] == tokens[1] != tokens[2]
    for k, fingerprint in ((1, one), (3, other)):
        assert read_trace(tmp_path / f"{k}.h5").about["redacted"]["salt_fingerprint"] == fingerprint


def test_a_trace_whose_writer_died_can_be_redacted(tmp_path: Path) -> None:
    with open_writer(tmp_path / "live.h5") as writer:
        writer.append_target(*target_frame(0))
        writer.append_draft(*draft_frame(0))
        writer.flush()
        writer.append_target(*target_frame(1))  # written, not flushed
        redact(tmp_path / "live.h5", tmp_path / "r.h5")
    after = read_trace(tmp_path / "r.h5")
    assert len(after.table) == PROMPT and not after.complete and len(after.tokens) == PROMPT
    assert after.slots[0].rows.raw(0, 99).tobytes() == target_frame(0)[1]["aux/0"].tobytes()


def test_embeddings_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5")
    redact(path, tmp_path / "r.h5", drop_embeddings=True)
    after = read_trace(tmp_path / "r.h5")
    assert after.embed is None and len(after.slots) == 3 and after.last is not None and after.notes == ()
    names = [tensor.name for tensor in trace_summary(tmp_path / "r.h5").tensors]
    assert "target/embed" not in names and "target/last" in names
    with h5py.File(tmp_path / "r.h5", "r") as file:
        assert "embed" not in file["target"] and "embed" not in file["summary/row_norms"]
        assert len(file["summary/row_norms/last"]) > 0


def test_sweeps_and_ranks_are_kept(tmp_path: Path) -> None:
    layout = TraceLayout(
        target=(TensorSpec("aux/0", H, DType.BF16), TensorSpec("boundary/3", H, DType.BF16)),
        ranks=(1,),
        hashed=("aux/0",),
    )
    values = target_frame(0)[1]["aux/0"]
    with open_writer(tmp_path / "t.h5", layout) as writer:
        writer.append_target(target_frame(0)[0], {"aux/0": values, "boundary/3": values[:4]})
        rows = schema.records(schema.RANK_ROW, PROMPT, token_id=TOKENS[:PROMPT])
        writer.append_rank(1, rows, np.arange(PROMPT, dtype=np.uint64)[:, None])
    redact(tmp_path / "t.h5", tmp_path / "r.h5", salt=SALT)
    assert read_trace(tmp_path / "r.h5").boundaries[3].raw(0, 99).tobytes() == values[:4].tobytes()
    (rank,) = read_ranks(tmp_path / "r.h5")
    assert rank.hashes.ravel().tolist() == list(range(PROMPT))
    assert rank.rows["token_id"].tolist() == read_rows(tmp_path / "r.h5")["token_id"].tolist()
    assert not np.isin(rank.rows["token_id"], TOKENS).any()


def test_nothing_is_overwritten_and_nothing_half_made_is_left(tmp_path: Path) -> None:
    path = write(tmp_path / "t.h5")
    (tmp_path / "r.h5").write_text("precious")
    with pytest.raises(OutputExists, match="exists already"):
        redact(path, tmp_path / "r.h5")
    with pytest.raises(OutputExists, match="never redacted in place"):
        redact(path, path, overwrite=True)
    (tmp_path / "bad.h5").write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UnreadableFile):
        redact(tmp_path / "bad.h5", tmp_path / "r.h5", overwrite=True)
    assert (tmp_path / "r.h5").read_text() == "precious"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.h5", "r.h5", "t.h5"]
    redact(path, tmp_path / "r.h5", overwrite=True)
    assert len(read_trace(tmp_path / "r.h5").table) == len(read_trace(path).table)


def test_requests_keep_their_shape_and_lose_their_content() -> None:
    names = Pseudonyms(SALT)
    request = {
        "text": SECRET,
        "messages": [{"role": "user", "content": SECRET}],
        "finish_reason": {"type": "stop", "matched": 7},
        "accept_lengths": [3, 1],
        "output_token_logprobs": [[-0.5, 7, "fox"], [-1.5, 8, None]],
        "logit_bias": {"7": 1.0},
        "prompt_tokens": 17,
        "sampling_params": {"temperature": 0.5, "stop": ["fox"], "stop_token_ids": [7]},
        "eos_token_id": 7,
        "truth": True,
    }
    cleaned = clean(request, names, True)
    seven = names.id(7)
    assert cleaned["finish_reason"] == {"type": "stop", "matched": seven}
    assert cleaned["accept_lengths"] == [3, 1] and cleaned["prompt_tokens"] == 17 and cleaned["truth"] is True
    assert cleaned["output_token_logprobs"] == [[-0.5, seven, names.text("fox")], [-1.5, names.id(8), None]]
    assert cleaned["logit_bias"] == {str(seven): 1.0} and cleaned["eos_token_id"] == seven
    assert cleaned["sampling_params"] == {
        "temperature": 0.5,
        "stop": [names.text("fox")],
        "stop_token_ids": [seven],
    }
    assert SECRET not in str(cleaned) and "fox" not in str(cleaned)
    other = {"hidden_size": 64, "prompt": SECRET, "layers": [1, 2], "admin_api_key": "k", "api_key": None}
    kept = clean(other, names, False)
    assert kept == other | {"prompt": names.text(SECRET), "admin_api_key": "redacted"}


@given(ids=st.lists(st.integers(-5, 2**31 - 1), min_size=1, max_size=200))
def test_ids_are_permuted(ids: list[int]) -> None:
    names = Pseudonyms(SALT)
    values = np.array(ids, np.int64)
    replaced = names.ids(values)
    assert (replaced[values < 0] == values[values < 0]).all()
    assert ((replaced >= 0) & (replaced < 2**31))[values >= 0].all()
    assert len(set(replaced.tolist())) == len(set(ids))
    assert names.ids(values.astype(np.int32)).tolist() == replaced.tolist()


def test_every_id_of_a_small_vocabulary_has_its_own() -> None:
    names = Pseudonyms(SALT)
    assert len(np.unique(names.ids(np.arange(20_000)))) == 20_000
    assert names.id(2**40) != names.id(2**40 + 1) and names.id(2**40) >= 0
    assert LAYOUT.target  # the sample's layout is what the other tests redact
