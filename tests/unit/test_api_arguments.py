"""What a notebook gives where a list is meant, or a number that is none: taken for what it says, or refused."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import drafttrace

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"
DUMP = KIMI / "dump/data_0.pt"


def test_one_path_is_not_taken_for_its_letters(tmp_path: Path) -> None:
    """others="served" looked for traces named s, e, r, v, e, d."""
    served = tmp_path / "served"
    served.mkdir()
    shutil.copy(KIMI / "fixed.h5", served / "one.h5")
    found = drafttrace.diff(KIMI / "as-trained.h5", DUMP, others=str(served))
    assert found.findings[0].id == "slot-shift"
    with pytest.raises(drafttrace.DrafttraceError, match=r"nosuch\.h5"):
        drafttrace.diff(KIMI / "as-trained.h5", DUMP, others="nosuch.h5")
    with pytest.raises(drafttrace.DrafttraceError, match=r"nosuch\.h5"):
        drafttrace.diff(KIMI / "as-trained.h5", DUMP, rank_traces="nosuch.h5")


def test_names_and_ids_may_be_one_text_as_the_commands_take_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.pt"
    torch.save({"ids": torch.arange(5), "aa": torch.randn(5, 8), "bb": torch.randn(5, 8)}, path)
    said = drafttrace.open(path, slots="aa, bb", tokens="ids", layer_ids="B1,B3")
    listed = drafttrace.open(path, slots=["aa", "bb"], tokens="ids", layer_ids=["B1", "B3"])
    assert said.wiring == listed.wiring == (1, 3)
    assert [slot.name for slot in said.slots] == [slot.name for slot in listed.slots]


@pytest.mark.parametrize("steps", [0, -1])
def test_a_replay_of_no_steps_is_refused(steps: int) -> None:
    """steps=0 ran with the default, and nothing said so."""
    pair = ROOT / "pairs/tiny-kimi"
    with pytest.raises(drafttrace.DrafttraceError, match=f"^steps={steps} is outside 1.."):
        drafttrace.replay(DUMP, pair / "draft", pair / "target", steps=steps)


def test_a_file_is_not_held_against_itself() -> None:
    """The command refuses it; drafttrace.diff(F, F) said match."""
    with pytest.raises(drafttrace.DrafttraceError, match="are the same file"):
        drafttrace.diff(KIMI / "fixed.h5", KIMI / "fixed.h5")


READING = {
    "layer_ids",
    "hidden_size",
    "slots",
    "tokens",
    "last",
    "last_norm",
    "mask",
    "boundaries",
}  # of drafttrace.open
OF_OPEN = READING | {"left_format", "reference_format", "format_", "dump_format", "every"}
OUTPUT = {"json_out", "markdown", "html", "png", "quiet", "verbose", "fix_to", "force"}
CALLED = {"threshold": "thresholds", "rank_trace": "rank_traces", "capture": "captures", "wiring": "wirings"}
# check reads a trace for its folders, and asks a server: Python gives the folders
OF_CHECK = {"trace", "url", "api_key"}


@pytest.mark.parametrize("name", ["diff", "check", "replay"])
def test_what_a_command_takes_python_takes(name: str) -> None:
    """--noise was checked against the trace by the command alone; --algorithm, --ignore and --slots-are had no name."""
    command = importlib.import_module(f"drafttrace.tracer.commands.{name}")
    wanted = set(inspect.signature(getattr(command, name)).parameters) - OUTPUT - OF_OPEN
    wanted -= OF_CHECK if name == "check" else set()
    taken = set(inspect.signature(getattr(drafttrace, name)).parameters)
    assert {CALLED.get(one, one) for one in wanted} <= taken


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: drafttrace.reference(KIMI / "fixed.h5", "o.safetensors", target="t", dtype="foo"), "dtype 'foo'"),  # type: ignore[arg-type]
        (lambda: drafttrace.diff(KIMI / "as-trained.h5", DUMP, noise="fixed.h5"), "noise 'fixed.h5'"),  # type: ignore[arg-type]
        (lambda: drafttrace.diff(None, DUMP), "left None"),  # type: ignore[arg-type]
        (lambda: drafttrace.diff(DUMP, 3), "reference 3"),  # type: ignore[arg-type]
        (lambda: drafttrace.measure(None, DUMP), "left None"),  # type: ignore[arg-type]
        (lambda: drafttrace.noise(None, DUMP), "one None"),  # type: ignore[arg-type]
        (lambda: drafttrace.open(b"trace.h5"), "path b'trace.h5'"),  # type: ignore[arg-type]
        (lambda: drafttrace.open(DUMP, last_norm="foo"), "last_norm 'foo'"),
    ],
)
def test_a_wrong_argument_is_no_raw_exception(call: Callable[[], object], said: str) -> None:
    """KeyError, AttributeError and TypeError escaped; last_norm='foo' was passed over."""
    with pytest.raises(drafttrace.DrafttraceError, match=re.escape(said)):
        call()


def _everything() -> dict[str, Callable[..., object]]:
    names = [name for name in drafttrace.__all__ if inspect.isfunction(getattr(drafttrace, name))]
    return {name: getattr(drafttrace, name) for name in names}


@pytest.mark.parametrize(("name", "function"), _everything().items())
def test_no_argument_of_a_wrong_type_is_a_raw_exception(name: str, function: Callable[..., object]) -> None:
    """check, redact, convert and load let TypeError and AttributeError out; hash_weights="no" was yes."""
    parameters = inspect.signature(function).parameters
    assert parameters
    needed = {key: "x" for key, one in parameters.items() if one.default is one.empty}
    its_own = {"to", "dtype", "noise"} | ({"boundaries"} if name == "reference" else set())  # of certain words
    for key in set(parameters) - its_own:
        with pytest.raises(drafttrace.DrafttraceError, match=rf"{key} <object .* is no .*; give "):
            function(**{**needed, key: object()})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: drafttrace.open(DUMP, hidden_size=0), "hidden_size is 0"),
        (lambda: drafttrace.open(DUMP, layer_ids=[1]), "with layer_ids."),
        (lambda: drafttrace.convert(DUMP, KIMI / "fixed.h5", "trace"), "or force=True to replace it."),
        (lambda: drafttrace.convert(KIMI / "fixed.h5", "x.pt", "specforge"), "give it up with lose=['recording']."),
        (lambda: drafttrace.reference(DUMP, "x.safetensors"), "with target."),
        (lambda: drafttrace.check("t", "d", trained=[1.5]), "The trained [1.5] is no wiring"),
        (
            lambda: drafttrace.record("x.h5", input_ids=[1, "2"]),
            "The input_ids[1] '2' is no whole number; give an int.",
        ),
    ],
)
def test_errors_name_parameters_and_not_options(call: Callable[[], object], said: str) -> None:
    """'--hidden-size is 0', said to a notebook."""
    with pytest.raises(drafttrace.DrafttraceError) as caught:
        call()
    assert said in str(caught.value)


def test_what_an_option_is_in_python() -> None:
    from drafttrace.python_words import in_python

    def told(sentence: str, function: Callable[..., object]) -> str:
        return in_python(sentence, inspect.signature(function))

    assert told("give --target DIR or --hidden-size H.", drafttrace.diff) == (
        "give target=DIR or hidden_size=H of drafttrace.open."
    )
    assert told("give it up with --lose layer-ids, or --mask-ones.", drafttrace.convert) == (
        "give it up with lose=['layer-ids'], or mask_ones=True."
    )
    kept = "run drafttrace reference --target DIR; see '--target' and the server's --speculative-num-steps."
    assert told(kept, drafttrace.diff) == kept
    assert told("write --layer-ids B3,B31,B59 and --threshold.", drafttrace.diff) == (
        "write layer_ids='B3,B31,B59' of drafttrace.open and thresholds."
    )


def test_what_dir_names_is_there_to_be_used() -> None:
    """dir(drafttrace) showed Any and TYPE_CHECKING, and not plots."""
    names = dir(drafttrace)
    assert "plots" in names and {*drafttrace.__all__} <= {*names}
    assert not {"Any", "TYPE_CHECKING", "annotations"} & {*names}


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_the_package_that_is_missing_is_the_one_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the remedy was `pip install transformers`."""
    import sys

    from drafttrace.tracer.reference_model import load

    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(drafttrace.DrafttraceError, match=f"pip install {missing}"):
        load(Path("target"), "auto", None)
