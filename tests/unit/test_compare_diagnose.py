"""Every fault of a dump, alone and in pairs, must be named; healthy comparisons must give none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import compare_faults as faults
import numpy as np
import pytest
from compare_world import World, bf16, dumped, make_world, rms, served

from drafttrace.compare.acceptance import parse_expected
from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.noise_pair import measure_noise
from drafttrace.compare.result import FAULT, NOTE, Result
from drafttrace.compare.thresholds import DEFAULT, parse_thresholds
from drafttrace.tracer.capture import Capture, DraftRows, Phase, Probe, RowTable
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare
from drafttrace.tracer.rows import ArrayRows

WORLD = make_world(layers=24, tokens=44)
NOISY = WORLD.noisy(0.02)
BASE = (0, 3, 12)
GAIN = (1 + 0.3 * np.random.default_rng(1).standard_normal(64)).astype(np.float32)
WEIGHT = WORLD.norm_weight
ABOUT = {
    "rule": "plus_one_if_first_is_one",
    "model_class": "DeepseekV3ForCausalLM",
    "sglang_version": "0.5.23",
}
Fault = Callable[[Capture], Capture]


def trace(wiring: tuple[int, ...] = BASE, world: World = WORLD, **options: Any) -> Capture:
    return served(world, wiring, prompt=30, about=ABOUT, **options)


def slots_at(boundaries: tuple[int, ...]) -> Fault:
    """The dump's slots replaced by other boundaries of the same run."""

    def put_in(dump: Capture) -> Capture:
        rows = [bf16(NOISY.streams[k]) for k in boundaries]
        return replace(dump, slots=tuple(replace(s, rows=r) for s, r in zip(dump.slots, rows, strict=True)))

    return put_in


def mlp_half_only(dump: Capture) -> Capture:
    """What a layer returns before its residual is added."""
    slots = list(dump.slots)
    for i, k in enumerate(BASE):
        if k:
            half = NOISY.streams[k] - WORLD.streams[k - 1] - WORLD.attention[k - 1]
            slots[i] = replace(slots[i], rows=bf16(half))
    return replace(dump, slots=tuple(slots))


def last_of(boundary: int) -> Fault:
    def put_in(dump: Capture) -> Capture:
        assert dump.last is not None
        return replace(dump, last=replace(dump.last, rows=bf16(NOISY.streams[boundary])))

    return put_in


SINGLE: dict[str, tuple[str, Fault]] = {
    "states one row later": ("token-shift", faults.shifted_states(1)),
    "states one row earlier": ("token-shift", faults.shifted_states(-1)),
    "states two rows later": ("token-shift", faults.shifted_states(2)),
    "ids shifted by one": ("token-shift", faults.shifted_ids(1)),
    "ids shifted by two": ("token-shift", faults.shifted_ids(2)),
    "two slots swapped": ("slot-permutation", faults.permuted((1, 0, 2))),
    "slots rotated": ("slot-permutation", faults.permuted((1, 2, 0))),
    "one slot late": ("boundary-offset", slots_at((0, 4, 12))),
    "all slots late": ("boundary-offset", slots_at((1, 4, 13))),
    "another boundary": ("wrong-boundary", slots_at((0, 8, 12))),
    "embedding out": ("slot-count", faults.without_first),
    "bf16 bytes as fp16": ("dtype-reinterpretation", faults.reread_as_fp16),
    "rotation": ("rotation", faults.rotated),
    "slot 0 zero": ("zero-rows", faults.zeroed((0,))),
    "two rows zero": ("zero-rows", faults.zero_rows((5, 6))),
    "one NaN": ("nan-inf", faults.nan_at(7)),
    "one row of another token": ("stale-rows", faults.one_wrong_row(20)),
    "one unknown row": ("unexplained", faults.one_unknown_row(20)),
    "4 % scale": ("scale", faults.scaled(1.04)),
    "sqrt(H) on the embedding": ("scale", faults.scaled(8.0, (0,))),
    "gain w - 1 in a slot": ("norm-gain", faults.gain((GAIN - 1) / GAIN, (1,))),
    "gain everywhere": ("norm-gain", faults.gain(GAIN)),
    "slots normed": ("norm-missing", faults.normed(GAIN)),
    "slots normed, flat weight": ("norm-missing", faults.normed(np.ones(64, np.float32))),
    "residual missing": ("residual-missing", mlp_half_only),
    "fp8 dump": ("quantization-noise", faults.fp8),
    "other template": ("template-divergence", faults.extra_tokens(3, 10)),
    "one token more": ("template-divergence", faults.extra_tokens(1, 4)),
    "truncated prompt": ("template-divergence", faults.truncated(20)),
    "final norm twice": ("norm-extra", faults.over_last(lambda x: rms(x) * WEIGHT)),
    "final norm with w - 1": ("norm-gain", faults.over_last(lambda x: x * (WEIGHT - 1) / WEIGHT)),
    "final norm missing": ("norm-missing", last_of(24)),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_fault_is_named_first(name: str) -> None:
    wanted, put_in = SINGLE[name]
    found = diff(trace(), put_in(dumped(NOISY, BASE)))
    assert found.findings[0].id == wanted, [(f.id, f.summary) for f in found.findings]
    assert found.exit_code == (0 if wanted == "quantization-noise" else 1)
    assert found.findings[0].remedy and found.findings[0].evidence


ON_THE_SERVER: dict[str, tuple[str, Fault]] = {
    "two slots swapped": ("slot-permutation", faults.permuted((1, 0, 2))),
    "bf16 bytes as fp16": ("dtype-reinterpretation", faults.reread_as_fp16),
    "rotation": ("rotation", faults.rotated),
    "slot 0 zero": ("zero-rows", faults.zeroed((0,))),
    "two rows zero": ("zero-rows", faults.zero_rows((5, 6))),
    "one NaN": ("nan-inf", faults.nan_at(7)),
    "4 % scale": ("scale", faults.scaled(1.04)),
    "gain w - 1 in a slot": ("norm-gain", faults.gain((GAIN - 1) / GAIN, (1,))),
    "slots normed": ("norm-extra", faults.normed(GAIN)),
    "residual missing": ("residual-missing", mlp_half_only),
}


@pytest.mark.parametrize("name", ON_THE_SERVER)
def test_a_fault_of_the_server_is_named_first(name: str) -> None:
    wanted, put_in = ON_THE_SERVER[name]
    found = diff(put_in(served(WORLD, BASE, about=ABOUT)), dumped(NOISY, BASE))
    assert found.findings[0].id == wanted, [(f.id, f.summary) for f in found.findings]
    assert found.exit_code == 1


def test_slots_permuted_by_the_option_are_no_riddle() -> None:
    """``serve --wiring`` is what reorders them: the remedy told people to look for something that does."""
    about = {**ABOUT, "source": "override", "boundaries": [8, 4, 12]}
    found = diff(faults.permuted((1, 0, 2))(served(WORLD, BASE, about=about)), dumped(NOISY, BASE))
    remedy = next(f.remedy for f in found.findings if f.id == "slot-permutation")
    assert "--wiring B8,B4,B12" in remedy and "Check what reorders" not in remedy


PAIRS = [
    ("states one row later", "two slots swapped"),
    ("all slots late", "states one row later"),
    ("states one row earlier", "4 % scale"),
    ("two slots swapped", "4 % scale"),
    ("all slots late", "4 % scale"),
    ("slots rotated", "one NaN"),
    ("one slot late", "slot 0 zero"),
    ("rotation", "two slots swapped"),
    ("rotation", "states one row later"),
    ("bf16 bytes as fp16", "two slots swapped"),
    ("all slots late", "one NaN"),
    ("another boundary", "states one row later"),
    ("slots normed", "two slots swapped"),
    ("all slots late", "slots normed"),
    ("one slot late", "sqrt(H) on the embedding"),
    ("one slot late", "two slots swapped"),
    ("two slots swapped", "other template"),
    ("all slots late", "truncated prompt"),
    ("gain w - 1 in a slot", "states one row later"),
    ("final norm twice", "two slots swapped"),
    ("residual missing", "final norm twice"),
    ("two slots swapped", "fp8 dump"),
    ("all slots late", "fp8 dump"),
    ("ids shifted by one", "two slots swapped"),
    ("embedding out", "4 % scale"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_both_of_two_stacked_faults_are_named(first: str, second: str) -> None:
    wanted = {SINGLE[first][0], SINGLE[second][0]}
    found = diff(trace(), SINGLE[second][1](SINGLE[first][1](dumped(NOISY, BASE))))
    assert wanted <= {f.id for f in found.findings}, [(f.id, f.summary) for f in found.findings]
    assert found.exit_code == 1


def no_fault(found: Result) -> None:
    assert found.exit_code == 0, [(f.id, f.summary) for f in found.findings]
    assert not [f for f in found.findings if f.severity == FAULT]
    assert found.findings[0].id == "none"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_healthy_comparisons_give_no_finding(seed: int, noise: float) -> None:
    world = make_world(layers=12, tokens=40, seed=seed, massive=seed % 2 == 0)
    left = served(world, (2, 6, 9), prompt=25, about=ABOUT, sweep_rows=None if seed % 3 else 20)
    no_fault(diff(left, dumped(world.noisy(noise, seed), (2, 6, 9))))
    no_fault(diff(left, dumped(world.noisy(noise, seed), (2, 6, 9), last="pre")))
    no_fault(diff(left, served(world.noisy(noise, seed + 1), (2, 6, 9), prompt=31, about=ABOUT)))


@pytest.mark.parametrize("seed", range(6))
def test_healthy_comparisons_without_a_sweep_give_no_finding(seed: int) -> None:
    world = make_world(layers=12, tokens=40, seed=seed)
    left = served(world, (2, 6, 9), prompt=25, about=ABOUT, sweep=())
    no_fault(diff(left, dumped(world.noisy(0.03, seed), (2, 6, 9))))
    no_fault(diff(left, dumped(world.noisy(0.03, seed), (2, 6, 9), last=None)))


def test_rows_that_a_router_sent_elsewhere_are_noise_not_a_fault() -> None:
    world = WORLD.noisy(0.02)
    flipped = [s.copy() for s in world.streams]
    for k in range(5, len(flipped)):
        flipped[k][17] += 0.35 * np.linalg.norm(flipped[k][17]) / 8 * np.random.default_rng(k).standard_normal(64)
    found = diff(trace(), dumped(replace(world, streams=flipped), BASE))
    no_fault(found)


def incident(live: tuple[int, ...], **options: Any) -> Result:
    world = make_world(layers=61, tokens=32)
    left = served(world, live, prompt=24, about=ABOUT, **options)
    return diff(left, dumped(world.noisy(0.02), (0, 3, 31), last=59, last_declared=59))


def test_the_incident_as_the_trainer_left_it() -> None:
    found = incident((2, 30, 58), sweep_rows=20)
    assert [f.id for f in found.findings] == ["slot-shift", "boundary-offset", "last-not-last"]
    assert (found.verdict, found.exit_code) == ("mismatch", 1)
    assert '"eagle_aux_hidden_state_layer_ids": [0, 3, 31]' in found.findings[0].remedy
    assert "the embedding (B0)" in found.findings[0].summary
    assert [(s.left_boundary, s.reference_boundary) for s in found.slots] == [
        ("B2", "B0"),
        ("B30", "B3"),
        ("B58", "B31"),
    ]
    assert {s.left_by for s in found.slots} == {"value"}


def test_the_incident_of_older_releases() -> None:
    assert [f.id for f in incident((3, 31, 59)).findings] == ["slot-shift", "last-not-last"]


def test_the_incident_put_right() -> None:
    found = incident((0, 3, 31))
    assert (found.verdict, found.exit_code) == ("match", 0)
    assert [f.id for f in found.findings] == ["none", "last-not-last"]
    assert {f.severity for f in found.findings} == {"note"}


def test_values_overrule_what_files_declare() -> None:
    found = incident((2, 30, 58), declared=(0, 3, 31))
    assert [f.id for f in found.findings][:2] == ["slot-shift", "boundary-offset"]
    assert found.findings[0].evidence["decided_by"] == "value"
    assert found.findings[0].evidence["left_declared"] == ["B0", "B3", "B31"]


def test_declarations_decide_where_there_is_no_sweep_and_are_named_as_such() -> None:
    world = make_world(layers=61, tokens=32)
    left = served(world, (2, 30, 58), sweep=(), about=ABOUT)
    found = diff(left, dumped(world.noisy(0.02), (0, 3, 31), declared=(0, 3, 31), last=59, last_declared=59))
    assert [f.id for f in found.findings][:2] == ["slot-shift", "boundary-offset"]
    assert "declarations" in found.findings[0].summary
    assert found.findings[0].confidence < 0.7


def test_a_shift_is_seen_in_the_slot_matrix_alone() -> None:
    world = make_world(layers=61, tokens=32)
    left = served(world, (3, 31, 59), sweep=(), declared=(None, None, None))
    found = diff(left, dumped(world.noisy(0.02), (0, 3, 31), last=59))
    assert found.findings[0].id == "slot-shift"


@pytest.mark.parametrize("source", ["default", "draft config (top level, ignored by SGLang) → default"])
def test_the_server_s_default_is_the_first_cause(source: str) -> None:
    left = served(WORLD, (2, 12, 21), about=ABOUT | {"source": source})
    found = diff(left, dumped(NOISY, (0, 3, 12)))
    assert found.findings[0].id == "default-wiring"
    no_fault(diff(left, dumped(NOISY, (2, 12, 21))))


def test_a_last_state_that_is_an_aux_is_a_fault_where_the_file_says_otherwise() -> None:
    found = diff(trace(), dumped(NOISY, BASE, last=21, last_declared=24))
    assert found.findings[0].id == "last-not-last" and found.exit_code == 1
    no_fault(diff(trace(), dumped(NOISY, BASE, last=21, last_declared=21)))


def test_a_stale_row_of_the_server_is_traced_to_its_source() -> None:
    left = trace()
    row = int(np.flatnonzero(left.table.position == 35)[0])
    source = int(np.flatnonzero(left.table.position == 31)[0])
    bits = np.asarray(left.slots[1].rows.raw(0, len(left.table))).copy()
    bits[row] = bits[source]
    slots = (left.slots[0], replace(left.slots[1], rows=ArrayRows(bits, left.slots[1].rows.dtype)), left.slots[2])
    found = diff(replace(left, slots=slots), dumped(NOISY, BASE))
    assert found.findings[0].id == "stale-rows"
    assert found.findings[0].evidence["1"] == {"35": [31, 0]}


def test_constant_rows_are_named() -> None:
    left = trace()
    bits = np.asarray(left.slots[1].rows.raw(0, len(left.table))).copy()
    bits[:] = bits[4]
    slots = (left.slots[0], replace(left.slots[1], rows=ArrayRows(bits, left.slots[1].rows.dtype)), left.slots[2])
    found = diff(replace(left, slots=slots), dumped(NOISY, BASE))
    assert found.findings[0].id == "constant-rows"


def test_a_cached_prefix_is_a_note() -> None:
    left = trace()
    keep = left.table.position >= 9
    found = diff(_rows_of(left, keep), dumped(NOISY, BASE))
    assert found.exit_code == 0
    assert [f.id for f in found.findings] == ["none", "prefix-gap"]


def _rows_of(left: Capture, keep: np.ndarray) -> Capture:
    def cut(rows: Any) -> ArrayRows:
        return bf16(rows.floats()[keep])

    table = RowTable(*(getattr(left.table, name)[keep] for name in RowTable.__dataclass_fields__))
    assert left.embed is not None and left.last is not None
    return replace(
        left,
        table=table,
        slots=tuple(replace(s, rows=cut(s.rows)) for s in left.slots),
        embed=replace(left.embed, rows=cut(left.embed.rows)),
        last=replace(left.last, rows=cut(left.last.rows)),
        boundaries={k: cut(rows) for k, rows in left.boundaries.items()},
    )


def test_a_prompt_of_another_tokenizer_shares_nothing() -> None:
    dump = dumped(NOISY, BASE)
    tokens = dump.tokens + 1000
    found = diff(
        trace(), replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens)), decode=lambda t: f"<{t}>"
    )
    assert (found.verdict, found.exit_code) == ("incomparable", 2)
    assert found.findings[0].id == "no-overlap"
    assert found.alignment.first_difference is not None
    assert found.alignment.first_difference.left_text is not None


def test_other_hidden_sizes_are_refused_in_one_sentence() -> None:
    other = make_world(layers=4, tokens=40, width=32)
    with pytest.raises(NothingToCompare, match=r"The hidden sizes differ: 64 .* 32"):
        diff(trace(), dumped(other, (0, 1, 2)))


def test_a_recorded_noise_floor_sets_the_limits() -> None:
    noise = measure_noise(trace(), trace(world=WORLD.noisy(0.03)))
    found = diff(trace(), dumped(WORLD.noisy(0.05, 4), BASE), noise=noise)
    assert found.verdict == "match"
    assert found.slots[1].judged.match_limit == pytest.approx(2 * noise.rel_l2[1], rel=0.1)
    assert "noise floor" in found.slots[1].judged.against
    assert diff(trace(), dumped(WORLD.noisy(0.062, 4), BASE)).verdict == "noise"


def test_two_recordings_with_a_fault_between_them_are_no_noise_floor() -> None:
    """They would have made every later fault a match."""
    with pytest.raises(NothingToCompare, match=r"differ by more than noise \(slot 1: relative L2"):
        measure_noise(trace(), trace((0, 12, 12)))


def test_thresholds_are_settable_and_checked() -> None:
    tight = parse_thresholds(["match=0.001", "neighbour_noise=0.01"])
    assert diff(trace(), dumped(NOISY, BASE), thresholds=tight).verdict == "mismatch"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nosuch=1", r"There is no threshold 'nosuch' \('nosuch=1'\); choose out of match, noise"),
        ("match=abc", "'match=abc' is not NAME=NUMBER: 'abc' is no number"),
        ("match=", "'match=' is not NAME=NUMBER: '' is no number"),
        ("match", "'match' is not NAME=NUMBER; give one like match=0.05"),
        ("match=-1", "'match=-1' is out of range; give a number of 0 or more"),
        ("match=nan", "'match=nan' is out of range"),
        ("match=inf", "'match=inf' is out of range"),
    ],
)
def test_a_threshold_that_is_none_says_whether_name_or_number_is_wrong(wrong: str, said: str) -> None:
    """All of them were "not NAME=NUMBER", and most are just that."""
    with pytest.raises(DrafttraceError, match=said):
        parse_thresholds([wrong])


def draft_rows(left: Capture, values: np.ndarray | None) -> DraftRows:
    """Draft extend rows for every accepted target row, with fc's input (None: fc never ran)."""
    index = np.flatnonzero(left.table.accepted == 1)
    count = len(index)
    phase = np.where(
        left.table.phase[index] == Phase.PREFILL, Phase.DRAFT_EXTEND_PREFILL, Phase.DRAFT_EXTEND_VERIFY
    )
    table = replace(
        RowTable.of_tokens(left.table.token_id[index]),
        position=left.table.position[index],
        phase=phase.astype(np.int64),
        round=left.table.round[index],
    )
    held = np.zeros((count, 3 * 64), np.float32) if values is None else values[index]
    present = np.full(count, values is not None)
    return DraftRows(table, {"fc_in": bf16(held)}, {"fc_in": present})


def fc_input(left: Capture) -> np.ndarray:
    return np.concatenate([s.rows.floats() for s in left.slots], axis=1)


def with_draft(left: Capture, values: np.ndarray | None, accept: list[int], **config: Any) -> Capture:
    about = {**left.about, "request": {"accept_counts": accept}, "draft_config": config}
    return replace(left, draft=draft_rows(left, values), about=about)


def test_right_slots_and_a_low_accept_length_are_downstream() -> None:
    left = with_draft(trace(), fc_input(trace()), [1] * 39 + [2])
    found = diff(left, dumped(NOISY, BASE))
    assert [f.id for f in found.findings if f.severity == FAULT] == ["downstream"] and found.exit_code == 1
    assert "the fault is downstream of fc" in found.summary
    assert found.acceptance.observed == pytest.approx(41 / 40)


def test_a_low_accept_length_over_few_rounds_is_no_fault() -> None:
    """A healthy server that answered "Hi" with ten tokens was called faulty over 7 rounds."""
    for counts in ([1] * 7, [1] * 3, [2, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 2, 1] * 2):
        found = diff(with_draft(trace(), fc_input(trace()), counts), dumped(NOISY, BASE))
        assert [(f.id, f.severity) for f in found.findings] == [("downstream", NOTE)], counts
        assert (found.verdict, found.exit_code) == ("match", 0)
        assert f"{len(counts)} rounds cannot tell that from chance" in found.summary
        assert "--expected" in found.findings[0].remedy and "longer answer" in found.findings[0].remedy


def test_an_accept_length_of_1_2_without_an_expected_one_is_no_fault_however_long() -> None:
    """Text unlike the draft's training, on a server that is wired right: emoji 1.23 (pairs/smol/accept_length.json)."""
    left = with_draft(trace(), fc_input(trace()), [1, 1, 1, 1, 2] * 100)
    assert faults_in(diff(left, dumped(NOISY, BASE))) == []
    # What training promised says more.
    expected = parse_expected("0.75,0.71,0.68")
    assert faults_in(diff(left, dumped(NOISY, BASE), expected=expected)) == ["downstream"]


def test_rounds_whose_next_token_the_draft_cannot_say_are_no_evidence() -> None:
    """Emoji and Japanese: accept length 1.00 over 39 rounds, and hardly a token of them in the draft's vocabulary."""
    rounds = 39
    base = with_draft(trace(), fc_input(trace()), [1] * rounds)
    prompt = base.prompt_length or 0
    answer = np.arange(500, 501 + rounds)
    left = replace(base, tokens=np.concatenate([base.tokens[:prompt], answer]))
    for said, wanted in ((answer[-2:], []), (answer, ["downstream"])):
        ids = frozenset(map(int, said))
        found = diff(left, dumped(NOISY, BASE), vocabulary=lambda ids=ids: ids)
        assert faults_in(found) == wanted, found.summary
        notes = [f for f in found.findings if f.id == "vocab-coverage"]
        assert bool(notes) == (not wanted)
        if not wanted:
            assert "only 2 of 39 rounds" in found.summary and "95% of the answer's tokens" in notes[0].summary
        assert rejudge(found, DEFAULT).to_json() == found.to_json()


def faults_in(found: Result) -> list[str]:
    return [f.id for f in found.findings if f.severity == FAULT]


def test_right_slots_and_a_good_accept_length_are_none() -> None:
    left = with_draft(trace(), fc_input(trace()), [3, 2, 4, 3])
    found = diff(left, dumped(NOISY, BASE))
    no_fault(found)
    assert "observed accept length 3.00" in found.summary and "bit for bit" in found.summary


def test_fc_that_never_ran_is_named() -> None:
    left = with_draft(trace(), None, [1, 1, 1, 1])
    found = diff(replace(left, probes=(Probe("draft/fc_in", 12, 0, 0, 0),)), dumped(NOISY, BASE))
    assert found.findings[0].id == "fc-not-called"
    assert "EAGLE3" in found.findings[0].remedy
    assert diff(left, None).findings[0].id == "fc-not-called"


def test_eagle_in_place_of_eagle3_hands_over_no_slots_at_all() -> None:
    left = with_draft(replace(trace(), slots=()), None, [1, 1, 1, 1])
    found = diff(left, dumped(NOISY, BASE))
    assert (found.findings[0].id, found.exit_code) == ("fc-not-called", 1)


def test_drafts_without_slots_are_compared_by_their_last_state() -> None:
    left, dump = replace(trace(), slots=()), replace(dumped(NOISY, BASE), slots=())
    assert diff(left, dump).verdict == "match"
    far = faults.over_last(lambda x: np.roll(x, 7, axis=0))(dump)
    assert diff(left, far).exit_code == 1
    found = diff(trace(), dump)
    assert (found.findings[0].id, found.exit_code) == ("slot-count", 1)


def test_no_row_in_common_says_why() -> None:
    left = trace()
    hidden = np.zeros(len(left.table), np.bool_)
    found = diff(replace(left, present=dict.fromkeys(("aux/0", "aux/1", "aux/2"), hidden)), dumped(NOISY, BASE))
    assert (found.findings[0].id, found.exit_code) == ("no-overlap", 2)
    assert "not recorded in any slot" in found.summary


def test_rows_that_one_slot_lacks_are_compared_in_the_others() -> None:
    left = trace()
    some = np.ones(len(left.table), np.bool_)
    some[5:9] = False
    zeroed = np.asarray(left.slots[1].rows.raw(0, len(some))).copy()
    zeroed[5:9] = 0
    slots = (left.slots[0], replace(left.slots[1], rows=ArrayRows(zeroed, left.slots[1].rows.dtype)), left.slots[2])
    found = diff(replace(left, slots=slots, present={"aux/1": some}), dumped(NOISY, BASE))
    no_fault(found)
    assert [s.rows for s in found.slots] == [44, 40, 44] and found.slots[1].zero_rows == 0


def test_a_slot_without_a_common_row_is_neither_match_nor_mismatch() -> None:
    left = trace()
    hidden = np.zeros(len(left.table), np.bool_)
    found = diff(replace(left, present={"aux/0": hidden}), dumped(NOISY, BASE))
    assert [s.verdict for s in found.slots] == ["incomparable", "match", "match"]
    assert (found.verdict, found.exit_code) == ("incomparable", 2)
    assert "slot 0 has no row on both sides" in found.summary
    wrong = diff(replace(left, present={"aux/0": hidden}), slots_at((0, 8, 12))(dumped(NOISY, BASE)))
    assert (wrong.findings[0].id, wrong.exit_code) == ("wrong-boundary", 1)


def test_a_shared_header_is_no_comparison() -> None:
    dump = dumped(NOISY, BASE)
    tokens = np.concatenate([dump.tokens[:2], dump.tokens[2:] + 1000])
    found = diff(trace(), replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens)))
    assert (found.verdict, found.exit_code) == ("incomparable", 2)
    assert found.findings[0].id == "no-overlap"


def test_ids_beyond_the_served_vocabulary_are_another_tokenizer_and_no_comparison() -> None:
    """The first tokens agreed, so it was called another template, and the rows before it were judged."""
    dump = dumped(NOISY, BASE)
    tokens = np.concatenate([dump.tokens[:9], dump.tokens[9:] + 100_000])
    foreign = replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens))
    left = trace()
    known = replace(left, about={**left.about, "target_config": {"vocab_size": 50_000}})
    found = diff(known, foreign)
    assert (found.verdict, found.exit_code) == ("incomparable", 2)
    assert found.findings[0].id == "no-overlap" and "another tokenizer" in found.summary and not found.slots
    assert f"id {tokens[9]}" in found.summary and "50000" in found.summary
    assert "tokenizer of the target that is served" in found.findings[0].remedy
    assert diff(known, dump).exit_code == 0
    # Within the vocabulary nobody can prove it.
    wide = replace(left, about={**left.about, "target_config": {"vocab_size": 500_000}})
    assert "other prompts, or ids of two tokenizers" in diff(wide, foreign).summary


def test_prompts_that_share_a_header_only_are_no_comparison() -> None:
    """Ids of another tokenizer within the vocabulary: five equal ones were enough for a verdict."""
    dump = dumped(NOISY, BASE)
    tokens = np.concatenate([dump.tokens[:5], dump.tokens[5:] + 1000])
    found = diff(trace(), replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens)))
    assert (found.verdict, found.exit_code, found.findings[0].id) == ("incomparable", 2, "no-overlap")
    assert "another tokenizer" in found.findings[0].remedy and "--tokenizer DIR" in found.summary
    # Tokens in between, as another chat template puts them: the text after them is the same.
    assert diff(trace(), faults.extra_tokens(1, 4)(dump)).findings[0].id == "template-divergence"


def test_a_state_that_the_draft_does_not_hand_on_is_seen() -> None:
    left = trace()
    raw = np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32)
    normed = rms(raw) * GAIN
    count = 24
    order = np.arange(count)
    table = replace(
        RowTable.of_tokens(np.arange(count)),
        phase=np.where(order % 2 == 0, Phase.DRAFT_EXTEND_VERIFY, Phase.DRAFT_DECODE).astype(np.int64),
        position=30 + (order + 1) // 2,
        round=(order + 1) // 2,
        step=np.where(order % 2 == 0, -1, 0),
        frame=order,
    )

    def draft(taken: np.ndarray) -> DraftRows:
        hidden_in, hidden_out = np.random.default_rng(1).standard_normal((2, count, 192)).astype(np.float32)
        hidden_out[0::2, :64] = raw
        hidden_in[1::2, :64] = taken
        tensors = {"hidden_in": bf16(hidden_in), "hidden_out": bf16(hidden_out[:, :64])}
        return DraftRows(table, tensors, {name: np.ones(count, np.bool_) for name in tensors})

    about = {**left.about, "request": {"accept_counts": [3, 3, 3]}}
    probes = (Probe("fc_in", 2, 2, 9, 0),)
    no_fault(diff(replace(left, draft=draft(raw), about=about, probes=probes), None))
    found = diff(replace(left, draft=draft(normed), about=about, probes=probes), None)
    assert found.findings[0].id == "norm-extra"
    stale = diff(replace(left, draft=draft(np.roll(raw, 3, axis=0)), about=about, probes=probes), None)
    assert stale.findings[0].id == "stale-rows"


@pytest.mark.parametrize(
    ("mapped", "wanted"),
    [
        (lambda ids: ids + ids // 3, "none"),
        (lambda ids: ids, "vocab-map-missing"),
        (lambda ids: (ids + ids // 3) + ids, "vocab-map-offset"),
        (lambda ids: ids // 3, "vocab-map-offset"),
        (lambda ids: ids + np.where(ids == 390, 900, ids // 3), "vocab-map-range"),
    ],
)
def test_the_draft_s_ids_show_a_wrong_vocabulary_map(mapped: Callable[..., Any], wanted: str) -> None:
    left = with_draft(trace(), fc_input(trace()), [3, 3, 3], draft_vocab_size=400)
    assert left.draft is not None
    count = len(left.draft.table)
    before = np.random.default_rng(1).integers(0, 400, (count, 8))
    before[0, 0] = 390
    draft = replace(
        left.draft,
        ids={"topk_draft_ids": before, "topk_ids": mapped(before)},
        present={**left.draft.present, "topk_ids": np.ones(count, np.bool_)},
    )
    found = diff(replace(left, draft=draft, about={**left.about, "target_config": {"vocab_size": 600}}), None)
    assert found.findings[0].id == wanted


def test_one_trace_alone_is_checked() -> None:
    healthy = with_draft(trace(), fc_input(trace()), [3, 3, 3])
    no_fault(diff(healthy, None))
    swapped = np.concatenate(
        [fc_input(trace())[:, 64:128], fc_input(trace())[:, :64], fc_input(trace())[:, 128:]], 1
    )
    assert diff(with_draft(trace(), swapped, [1]), None).findings[0].id == "slot-permutation"
    normed = np.concatenate([rms(s.rows.floats()) * GAIN for s in trace().slots], axis=1)
    assert diff(with_draft(trace(), normed, [1]), None).findings[0].id == "norm-extra"
    no_fault(diff(with_draft(trace(), normed, [3, 3, 3], fc_norm=True), None))
    whole = rms(fc_input(trace())) * np.tile(GAIN, 3)
    no_fault(diff(with_draft(trace(), whole, [3, 3, 3], eagle_config={"norm_before_fc": True}), None))
    assert diff(with_draft(trace(), whole, [1]), None).findings[0].id == "norm-extra"
    missing = diff(with_draft(trace(), fc_input(trace()), [1], fc_norm=True), None)
    assert missing.findings[0].id == "norm-missing"


def test_a_stale_fc_input_is_named() -> None:
    values = fc_input(trace())
    late = np.flatnonzero(trace().table.position >= 32)
    values[late[1]] = values[late[0] - 3]
    found = diff(with_draft(trace(), values, [1]), None)
    assert found.findings[0].id == "stale-rows"


def test_decode_positions_that_do_not_follow_the_extend_are_named() -> None:
    left = trace()
    order = np.arange(8)
    extend = order % 4 == 0
    table = replace(
        RowTable.of_tokens(order),
        phase=np.where(extend, Phase.DRAFT_EXTEND_VERIFY, Phase.DRAFT_DECODE).astype(np.int64),
        position=np.array([30, 31, 32, 33, 33, 34, 35, 36]),
        round=np.array([0, 1, 1, 1, 1, 2, 2, 2]),
        step=np.array([-1, 0, 1, 2, -1, 0, 1, 2]),
        frame=order,
    )
    probes = (Probe("fc_in", 2, 2, 9, 0),)

    def look(draft: DraftRows) -> Result:
        return diff(replace(left, draft=draft, probes=probes), None)

    no_fault(look(DraftRows(table, {}, {})))
    late = replace(table, position=np.where(extend, table.position, table.position + 1))
    assert look(DraftRows(late, {}, {})).findings[0].id == "position-seam"


def test_a_factor_that_is_the_number_of_ranks_is_told_as_such() -> None:
    left = faults.scaled(2.0)(trace())
    found = diff(replace(left, about={**left.about, "server_args": {"tp_size": 2}}), dumped(NOISY, BASE))
    assert found.findings[0].id == "scale" and "the server has 2 ranks" in found.findings[0].summary
    assert "ranks" not in diff(left, dumped(NOISY, BASE)).findings[0].summary


def test_a_draft_that_embeds_some_tokens_otherwise_than_the_target_is_named() -> None:
    left = served(WORLD, BASE, about=ABOUT)
    assert left.embed is not None
    count = len(left.table)

    def with_embeddings(values: np.ndarray) -> Capture:
        draft = DraftRows(left.table, {"embed_in": bf16(values)}, {"embed_in": np.ones(count, np.bool_)})
        return replace(left, draft=draft, probes=(Probe("fc_in", 2, 2, 9, 0),))

    rows = left.embed.rows.floats()
    no_fault(diff(with_embeddings(rows), None))
    no_fault(diff(with_embeddings(np.roll(rows, 7, axis=1)), None))  # a draft with an embedding of its own
    some = rows.copy()
    some[7] = rows[3]
    found = diff(with_embeddings(some), None)
    assert found.findings[0].id == "stale-rows" and "98% of the rows" in found.findings[0].summary


def test_pictures_in_the_places_of_one_token_are_no_stale_rows() -> None:
    """The rows of a multimodal model's placeholders are a picture's, which the draft does not look up."""
    left = served(WORLD, BASE, about=ABOUT)
    assert left.embed is not None
    ids, rows = left.table.token_id.copy(), left.embed.rows.floats()
    ids[4:12] = 900
    mine = rows.copy()
    mine[4:12] = rows[4] * 0.5  # the token's own embedding
    table = replace(left.table, token_id=ids)
    draft = DraftRows(table, {"embed_in": bf16(mine)}, {"embed_in": np.ones(len(ids), np.bool_)})
    no_fault(diff(replace(left, table=table, draft=draft, probes=(Probe("fc_in", 2, 2, 9, 0),)), None))


def test_a_probe_that_never_fired_and_dropped_rows_are_told() -> None:
    probes = (Probe("target/aux", 10, 0, 0, 0), Probe("draft/fc_in", 10, 10, 90, 4))
    found = diff(replace(trace(), probes=probes, complete=False), dumped(NOISY, BASE))
    ids = [f.id for f in found.findings]
    assert ids[0] == "probe-silent" and {"rows-dropped", "trace-incomplete"} <= set(ids)
    assert found.exit_code == 1


def test_why_rows_were_dropped_is_told_as_the_recorder_told_it() -> None:
    """A budget or a queue was blamed for a disk that was full."""
    left = trace()
    about = {**left.about, "request": {"incomplete_reason": "writing failed: No space left on device"}}
    probes = (Probe("target/aux", 10, 10, 90, 4),)
    found = diff(replace(left, probes=probes, complete=False, about=about), dumped(NOISY, BASE))
    told = [f.summary for f in found.findings if f.id in {"rows-dropped", "trace-incomplete"}]
    assert len(told) == 2 and all("No space left on device" in text and "budget" not in text for text in told), told


def test_one_empty_trace_is_no_match() -> None:
    found = diff(replace(trace(), draft=None, probes=()), None)
    assert (found.verdict, found.exit_code) == ("incomparable", 2)
