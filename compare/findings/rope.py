"""E: a draft that turns its positions otherwise than it was trained to, measured by replaying it both ways."""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.result import Finding
from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="rope-mismatch",
        kind="position",
        rank=390,
        listed=20,
        what="Rotary embeddings are parametrised otherwise than in training.",
        signature=(
            "The configs differ in rope_theta or rope_scaling; replayed with the target's base, the draft predicts better."
        ),
        remedy="Give the draft's config the rope parameters of training.",
        cases=("speculators#574",),
    ),
)

_SAME = 0.999  # median cosine from which on a replay is what the server computed


@finder(turn=90)
def find(facts: Facts) -> Iterator[Finding]:
    """``rope-mismatch`` where the draft predicts clearly better with the target's base than with its config's."""
    trial = facts.rope
    if trial is None or not trial.trained_with_the_targets:
        return
    mine, other = trial.loss
    computed = ""
    if trial.served is not None and trial.served[0] >= _SAME and trial.served[0] > trial.served[1]:
        computed = " The server's own states are those of the config's base."
    yield finding(
        "rope-mismatch",
        f"The slots are right, but the draft turns positions with rope_theta {trial.config_base:g}, and it was trained "
        f"with {trial.target_base:g}, the target's: replayed on the {trial.rows} rows of this trace, its loss is "
        f"{mine:.3g} per row with its config's base and {other:.3g} with the target's ({trial.sigmas:.1f} standard errors "
        f"apart).{computed}",
        confidence=0.95 if trial.sigmas >= 6 else 0.9,
        evidence={
            "place": "attention/rope",
            "rope_theta": {"config": trial.config_base, "target": trial.target_base},
            "loss": {"config": mine, "target": other},
            "sigmas": trial.sigmas,
            "rows": trial.rows,
            "served_cosine": {"config": trial.served[0], "target": trial.served[1]}
            if trial.served is not None
            else None,
            "states_apart": {
                "position_0": trial.apart[0],
                "first_quarter": trial.apart[1],
                "last_quarter": trial.apart[2],
            },
        },
        remedy=f'Put "rope_theta": {trial.target_base:g} into the draft\'s config.json (and its rope_parameters, where it '
        "has them), and start the server again.",
    )
