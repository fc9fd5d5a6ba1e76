"""Two replays of one trace: with the rope base of the draft's config, and with the target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from drafttrace.compare.audit.gathering import gather
from drafttrace.compare.replay.live import compare_live
from drafttrace.compare.replay.loading import Replayer
from drafttrace.compare.replay.model import DraftModel
from drafttrace.compare.replay.packs import Pack
from drafttrace.compare.replay.prepare import Bench, open_bench
from drafttrace.compare.replay.score import row_losses, run_wirings
from drafttrace.compare.rope_facts import RopeTrial
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.rows import Floats

_FEWEST = 24  # rows that say anything about a loss


def try_target_base(capture: Capture, target_dir: Path, draft_dir: Path) -> RopeTrial | None:
    """The trial; None where the bases are the same, the trace has too few rows to tell them apart, or tokens that the
    draft attended to have no states (a cached prefix): what is missing there may favour either base.

    Raises DrafttraceError where draft, target and trace cannot be replayed together.
    """
    subject, _, _ = gather(target_dir, draft_dir)
    mine, other = subject.draft.rope.theta, subject.target.rope_theta
    if other is None or mine == other:
        return None
    with torch.inference_mode():
        bench = open_bench(subject, [capture], 1, (), False)
        text = bench.texts[0]
        if len(text.file_wiring) != bench.replayer.model.slots or text.rows < _FEWEST:
            return None
        if text.rows_lacking(bench.served.windows, bench.replayer.config.layers):
            return None
        both = (bench.replayer, _with_base(bench, other))
        first, second = (
            row_losses([text], run_wirings(one, [text], [text.file_wiring], bench.served, 1)[0]) for one in both
        )
        states = [_states(one, bench) for one in both]
        served = [_served(one, capture, bench) for one in both]
    rows = np.isfinite(first) & np.isfinite(second)
    if rows.sum() < _FEWEST:
        return None
    return RopeTrial(
        config_base=mine,
        target_base=other,
        rows=int(rows.sum()),
        loss=(float(first[rows].mean()), float(second[rows].mean())),
        sigmas=signed_rank((first - second)[rows]),
        served=(served[0], served[1]) if served[0] is not None and served[1] is not None else None,
        apart=_apart(*states),
    )


def _with_base(bench: Bench, base: float) -> Replayer:
    old = bench.replayer
    config = replace(old.config, rope=replace(old.config.rope, theta=base))
    longest = len(bench.texts[0].tokens) + 1
    return replace(old, config=config, model=DraftModel(config, old.model.weights, old.model.slots, longest))


def _states(replayer: Replayer, bench: Bench) -> Floats:
    """The states ``[R, H]`` of the first step."""
    text, switches, model = bench.texts[0], bench.served, replayer.model
    pack = Pack((text,), (text.rows,))
    fc_out = model.fc(model.fc_in([pack.states(key) for key in text.file_wiring], switches))
    done = model.steps(fc_out[None], pack.reading(replayer, 1, switches), switches)
    states: Floats = done[0].handed[0].numpy()
    return states


def _served(replayer: Replayer, capture: Capture, bench: Bench) -> float | None:
    """Median cosine of the server's own states with the replay's, at the first step."""
    live = compare_live(replayer, capture, bench.live_text, bench.live_text.file_wiring, bench.served)
    stages = live.stages if live is not None else ()
    return next((s.cosine_p50 for s in stages if s.step == 0 and s.tensor == "hidden_out"), None)


def signed_rank(gain: Floats) -> float:
    """Wilcoxon's signed-rank statistic in standard errors: how sure it is that a row's gain is above 0.

    Losses have heavy tails: a mean is at the mercy of the few rows where one replay is confidently wrong.
    """
    moved = gain[gain != 0].astype(np.float64)
    count = len(moved)
    if count == 0:
        return 0.0
    ranks = np.empty(count)
    ranks[np.argsort(np.abs(moved), kind="stable")] = np.arange(1, count + 1)
    expected, spread = count * (count + 1) / 4, np.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return float((ranks[moved > 0].sum() - expected) / spread)


def _apart(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Relative L2 at row 0, and its median over the first and the last quarter of the rows."""
    distance = np.linalg.norm(x - y, axis=1) / np.maximum(np.linalg.norm(x, axis=1), 1e-30)
    quarter = max(1, len(distance) // 4)
    return float(distance[0]), float(np.median(distance[:quarter])), float(np.median(distance[-quarter:]))
