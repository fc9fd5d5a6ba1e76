"""Replays of the traces in this repository: what is at fault stays a fault, whatever else was asked for."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drafttrace.compare.replay import ranking
from drafttrace.compare.replay.findings import served_useless_findings
from drafttrace.compare.replay.ranking import Scored, better, order
from drafttrace.compare.replay.render import markdown
from drafttrace.compare.replay.result import ReplayResult
from drafttrace.compare.replay.run import replay
from drafttrace.compare.replay.score import StepScore, WiringScore
from drafttrace.tracer.open import open_capture

ROOT = Path(__file__).resolve().parents[2]


def replayed(pair: str, trace: str, search: bool = False) -> ReplayResult:
    folder = ROOT / "pairs" / pair
    capture = open_capture(str(ROOT / "traces" / pair / f"{trace}.h5"))
    return replay(capture, folder / "draft", folder / "target", search_wirings=search, sglang_version="0.5.23")


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("trace", ["as-trained", "shifted"])
def test_a_search_does_not_turn_a_found_fault_into_a_match(trace: str, search: bool) -> None:
    """The incident: 0 % with what was served. With --search it was "nothing better found", exit code 0."""
    result = replayed("tiny-kimi", trace, search)
    assert result.exit_code == 1 and result.verdict == "mismatch"
    if search:
        assert result.search is not None and result.search.winner == "[B0, B3, B31]"
        (first, *_) = result.faults
        assert first.id == "slot-shift" and first.evidence["trained"] == [0, 3, 31]
        undecided = result.search.undecided  # 51 rows do not decide, and the finding says between which
        assert undecided and all(wiring in first.summary for wiring in undecided[:3])


def test_a_served_shift_is_measured_from_what_the_trace_holds_and_not_from_the_config() -> None:
    """shifted.h5 was served as [B3, B31, B59]; it was called one boundary early after the config's [B2, B30, B58]."""
    result = replayed("tiny-kimi", "shifted", search=True)
    assert [fault.id for fault in result.faults] == ["slot-shift"]
    assert result.faults[0].evidence["served"] == [3, 31, 59]


def test_no_switch_is_a_cause_where_the_draft_does_not_work_and_the_switch_does_not_help_step_one() -> None:
    """A switch took step 3 from 0 % to 22.6 %, step 1 stayed at 0 %: norm-missing was named for a pure slot shift."""
    result = replayed("tiny-kimi", "shifted")
    later = [v for v in result.variants if v.gain > 0.1 and v.step > 0]
    assert later and all(v.score.top1 < 0.1 for v in later)  # the trap is still there
    assert [fault.id for fault in result.faults] == ["unexplained"] and result.exit_code == 1


def test_a_worse_wiring_does_not_stand_above_the_healthy_one_that_was_served() -> None:
    result = replayed("tiny-llama", "healthy", search=True)
    assert result.exit_code == 0 and result.best is not None and result.best.score is not None
    assert result.best.wiring == result.served == "[B2, B8, B13]"
    shares = [row.score.top1 for row in result.wirings if row.score is not None]
    assert shares[1:] == sorted(shares[1:], reverse=True) and shares[0] == max(shares)
    assert result.search is not None and result.search.margin >= 0 and "[B2, B8, B13]" in result.summary


def test_a_first_wiring_with_the_lower_numbers_is_not_said_to_be_ahead() -> None:
    """It stood "-2.0% and -0.53 nats before" the one that has more right proposals."""
    result = replayed("tiny-kimi", "as-trained", search=True)
    found = result.search
    assert found is not None and found.margin < 0 and found.nll_margin < 0  # the trap is still there
    text = markdown(result)
    assert (
        f"; next is {found.runner_up} with {-found.margin:.1%} more right proposals at the first step and a loss "
        f"{-found.nll_margin:.2f} nats lower" in text
    )
    assert f"{found.winner} stands before" in text and "chance explains the difference" in text
    for points, nats, words in (
        (0.05, 0.4, ", 5.0% and 0.40 nats before [B1]"),
        (0.05, -0.4, "; next is [B1] with 5.0% fewer right proposals at the first step and a loss 0.40 nats lower"),
        (-0.05, 0.4, "; next is [B1] with 5.0% more right proposals at the first step and a loss 0.40 nats higher"),
        (0.0, -0.4, "and a loss 0.40 nats lower; a lower loss alone takes no place"),
        (0.05, float("nan"), "; next is [B1] with 5.0% fewer right proposals at the first step"),
    ):
        text = markdown(
            replace(result, search=replace(found, runner_up="[B1]", margin=points, nll_margin=nats, undecided=()))
        )
        assert words in text and not re.search(
            r"-\d[\d.]*(%| nats)|nan", text.split("ordered wirings tried")[1][:200]
        )


def test_the_fixed_trace_stays_healthy_with_a_search() -> None:
    assert replayed("tiny-kimi", "fixed", search=True).exit_code == 0


def scored(top1: float, hits: list[int], loss: float) -> Scored:
    step = StepScore(0, len(hits), top1, top1, top1, top1, top1, top1, len(hits), top1, top1, top1, 1.0)
    counts = WiringScore((step,), loss, loss, 1 + top1, 1 + top1, len(hits))
    return Scored(counts, np.full(len(hits), loss, np.float32), np.array(hits, np.float32))


def test_a_lower_loss_alone_takes_no_place_and_more_hits_do() -> None:
    served, blurred = scored(0.5, [2, 0] * 20, 4.0), scored(0.5, [2, 0] * 20, 1.0)
    right = scored(0.6, [5, 4, 5, 0] * 10, 6.0)
    assert not better(blurred, served) and better(right, served)
    assert order({(1,): blurred, (2,): served}, [(2,)], []) == [(2,), (1,)]
    assert order({(1,): blurred, (2,): served, (3,): right}, [(2,)], [(1,)]) == [(3,), (1,), (2,)]
    assert not better(scored(0.51, [2, 0] * 20, 4.0), served)  # one row's difference


def test_rows_decide_against_a_wiring_whose_losses_are_two_standard_errors_higher_and_no_less() -> None:
    """One and a half standard errors are chance, two and a half are not."""
    first = scored(0.5, [2, 0] * 20, 4.0)

    def higher(by: float) -> Scored:
        noise = np.tile(np.array([-1.0, 1.0], np.float32), 20)
        spread = float(noise.std(ddof=1)) / 40**0.5
        return replace(first, losses=(first.losses + noise + by * spread).astype(np.float32))

    for by, same in ((-3.0, True), (0.0, True), (1.5, True), (1.9, True), (2.1, False), (2.5, False)):
        assert ranking.sigmas(higher(by).losses, first.losses) == pytest.approx(by, abs=1e-3)
        assert ranking.alike(first, higher(by)) is same, by


def test_few_rows_do_not_show_that_a_draft_does_not_work() -> None:
    assert ranking.works(scored(0.0, [0] * 10, 5.0).score) and not ranking.works(scored(0.0, [0] * 40, 5.0).score)


def test_a_useless_served_wiring_is_a_fault_though_nothing_is_proven_to_be_better() -> None:
    useless, first = scored(0.0, [0] * 40, 5.0).score, scored(0.1, [1, 0, 0, 0] * 5, 5.0).score
    (found,) = served_useless_findings((2, 30, 58), useless, (0, 3, 31), first)
    assert found.severity == "fault" and "[B2, B30, B58] gives 0.0% over 40 rows" in found.summary
    assert "[B0, B3, B31] ranks first with 10.0%" in found.summary and "--boundaries all" in found.remedy
    assert not list(served_useless_findings((2, 30, 58), scored(0.3, [1] * 40, 5.0).score, (0, 3, 31), first))


@pytest.mark.parametrize(("rows", "said"), [(3, False), (7, False), (8, True), (20, True)])
def test_few_rows_make_no_wiring_better_than_another(rows: int, said: bool) -> None:
    """Three rows of three against none of three were a fault with confidence 0.99, and its line was wrong."""
    all_right, none_right = scored(1.0, [5] * rows, 0.1), scored(0.0, [0] * rows, 9.0)
    assert better(all_right, none_right) is said
    assert ranking.significant(1.0, 0.0, rows) is said
    assert ranking.alike(all_right, none_right) is not said
    assert ranking.confidence(1.0, 0.0, rows) < (0.9 if rows < 8 else 1.0)
    assert order({(0,): none_right, (1,): all_right}, [(0,)], [])[0] == ((1,) if said else (0,))


def test_a_window_in_the_config_is_one_fault(tmp_path: Path) -> None:
    """Where a switch is the cause, another that softens what it does (3 % to 32 %, of 100 %) was a second fault."""
    folder, draft = ROOT / "pairs/tiny-kimi", tmp_path / "draft"
    shutil.copytree(folder / "draft", draft)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "sliding_window": 4, "use_sliding_window": True}))
    result = replay(open_capture(str(ROOT / "traces/tiny-kimi/fixed.h5")), draft, folder / "target")
    softened = [v for v in result.variants if v.switch == "token_shift" and v.gain > 0.1]
    assert softened and ranking.works(softened[0].score)  # the trap is still there
    assert [fault.id for fault in result.faults] == ["window-mismatch"]


def test_a_config_that_is_right_already_is_not_the_remedy_of_a_server_that_was_told_otherwise(
    tmp_path: Path,
) -> None:
    """Served with --wiring: "eagle_aux_hidden_state_layer_ids": [2, 30, 58] was to be written into a config that had it."""
    trace = open_capture(str(ROOT / "traces/tiny-kimi/as-trained.h5"))  # B2, B30, B58
    draft = tmp_path / "draft"
    shutil.copytree(ROOT / "pairs/tiny-kimi/draft", draft)
    config = json.loads((draft / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 3, 31]
    (draft / "config.json").write_text(json.dumps(config))
    target = ROOT / "pairs/tiny-kimi/target"
    found = replay(trace, draft, target, search_wirings=True, sglang_version="0.5.23")
    first = found.findings[0]
    assert first.id in {"slot-shift", "wrong-boundary", "boundary-offset"} and found.exit_code == 1
    assert "says so already" in first.remedy and "without --wiring" in first.remedy, first.remedy
