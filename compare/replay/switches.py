"""What a draft's forward can switch on, read from its config; and the keys that no switch of this replay covers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from drafttrace.compare.config_switches import keys_of, near_name, unknown_switches
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights
from drafttrace.tracer.errors import UnknownFormat

OFFSETS, ABSOLUTE, ASCENDING = "offsets", "absolute", "ascending"
TARGETS, OWN = "target", "own"
TRAINED, SERVED = "as trained", "as SGLang"


@dataclass(frozen=True)
class Switches:
    """One way to run the draft.

    fc_norm: a norm per slot before fc. input_norm: one norm over all slots. norm_before_residual: the residual is the
    normed state. norm_output: the state handed to the next step is the normed one. d2t: how the map's numbers are
    meant, "ascending": as offsets, their tokens sorted. token_shift: added to the index of the token that goes with a row
    (0: x[t+1]). embedding: whose table.
    windows: tokens that a row of each layer sees, itself included; () where every layer sees everything. rope: whose
    rotary table, where the server's is another one. rope_base: another base than the config's. biases: whose, where the
    server leaves out some that training added.
    """

    fc_norm: bool = False
    input_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    d2t: str = OFFSETS
    token_shift: int = 0
    embedding: str = TARGETS
    windows: tuple[int | None, ...] = ()
    rope: str = TRAINED
    rope_base: float | None = None
    biases: str = TRAINED


def switches_of(config: DraftConfig, weights: DraftWeights, ignore: Collection[str] = ()) -> Switches:
    """The forward as the draft's config describes it: what training did.

    A norm is on where its flag is set, or where its weights are there (SGLang then skips it: the audit says so).
    Raises UnknownFormat for a config with a switch that this replay does not know, and for a key in ``ignore`` that the
    config does not have.
    """
    _check_ignored(config, ignore)
    unknown = unknown_switches(config, ignore)
    if unknown:
        listed = ", ".join(f"'{key}'{_meant(key)}" for key in unknown)
        raise UnknownFormat(
            f"{config.path} sets {listed}, which the replay does not know, so its numbers would be another model's; "
            f"give --ignore {unknown[0]} if it changes nothing in the draft's forward."
        )
    if config.activation not in ACTIVATIONS:
        raise UnknownFormat(
            f"{config.path} has hidden_act '{config.activation}', which the replay does not know; copy the training "
            f"run's config (known are {', '.join(sorted(ACTIVATIONS))})."
        )
    own = "embed_tokens.weight" in weights
    return Switches(
        fc_norm="fc_norm.0.weight" in weights,
        input_norm="input_norm.weight" in weights,
        norm_before_residual=config.norm_before_residual,
        norm_output=bool(config.norm_output),
        embedding=OWN if own else TARGETS,
        windows=config.windows if config.window is not None else (),
    )


def _meant(key: str) -> str:
    """The known key that an unknown one is nearly, as a question."""
    near = near_name(key)
    return f" (did you mean '{near}'?)" if near is not None else ""


def _check_ignored(config: DraftConfig, ignore: Collection[str]) -> None:
    absent = next((key for key in ignore if key not in keys_of(config)), None)
    if absent is not None:
        unknown = unknown_switches(config)
        known = f"those of it that the replay does not know are {', '.join(unknown)}"
        raise UnknownFormat(
            f"--ignore {absent} names a key that {config.path} does not have; leave it out"
            f" ({known if unknown else 'the replay knows every key of it'})."
        )


ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu")
