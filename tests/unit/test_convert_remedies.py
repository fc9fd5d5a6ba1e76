"""Every remedy that a refused conversion names is an option that works: it is given, and the refusal is gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dump_layouts as made
import numpy as np
import pytest
import torch
from dump_layouts import CASES, Case
from safetensors.torch import save_file

from drafttrace.tracer.commands.reading import said
from drafttrace.tracer.convert import convert
from drafttrace.tracer.convert_layouts import OUT_LAYOUTS
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.open import open_capture

OPTION = re.compile(
    r"--(?:lose [a-z-]+|to [a-z0-9-]*[a-z0-9]|mask-ones|layer-ids|boundaries|last-norm [a-z]+|target DIR)"
)
# What no option mends: another file is to be made.
MADE_ANEW = ("drafttrace reference --target DIR", "record it again", "choose another layout with --to")
FIELDS = ("hidden_size", "layer_ids", "slots", "tokens", "last", "last_norm", "mask", "boundaries")


@dataclass(frozen=True)
class Call:
    """A command line of convert: what is said of the dump, by the names of ``said``, and the arguments of ``convert``."""

    source: str
    target: Path
    count: int
    to: str
    told: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def with_option(self, option: str) -> Call:
        name, _, value = option.removeprefix("--").partition(" ")
        if name == "to":
            return replace(self, to=value)
        if name == "lose":
            lost = set(self.more.get("lose", ())) ^ {value}  # "leave out --lose last-state" takes it away
            return replace(self, more={**self.more, "lose": sorted(lost)})
        if name in {"mask-ones", "target"}:
            extra = {"mask": "ones"} if name == "mask-ones" else {"target": self.target}
            return replace(self, more={**self.more, **extra})
        ids = [1, 3, 4, 5, 6, 7][: self.count]
        given = {"layer-ids": ",".join(map(str, ids)), "boundaries": ",".join(f"B{k + 1}" for k in ids)}
        return replace(self, told={**self.told, name.replace("-", "_"): given.get(name, value)})

    def run(self, out: Path) -> str | None:
        """The refusal, None where there is none."""
        try:
            dump = said(**dict.fromkeys(FIELDS) | self.told)
            convert(self.source, out, self.to, mapping=dump.mapping, request=dump.request, **self.more)
        except DrafttraceError as error:
            return str(error)
        return None


def follow(call: Call, root: Path) -> list[str]:
    """Give every option that a refusal names, one after the other, and go on with the first; gives the refusals."""
    met: list[str] = []
    for step in range(12):
        refusal = call.run(root / f"out{step}")
        if refusal is None:
            return met
        met.append(refusal)
        remedy = re.split("; | \\(give", refusal)[1:]
        told = "; ".join(remedy).replace("drafttrace reference --target DIR", "drafttrace reference")
        options = OPTION.findall(told)
        if not options:
            assert any(words in refusal for words in MADE_ANEW), refusal
            return met
        together = " with " in told and options[0].startswith("--to")
        for k, option in enumerate(options):
            if not (together and k):
                assert call.with_option(option).run(root / f"try{step}-{k}") != refusal, (option, refusal)
        for option in options if together else options[:1]:
            call = call.with_option(option)
    raise AssertionError(met)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    (folder / "config.json").write_text(
        f'{{"num_hidden_layers": {made.LAYERS}, "hidden_size": {made.H}, "vocab_size": 300, "rms_norm_eps": 1e-6}}'
    )
    save_file({"model.embed_tokens.weight": torch.zeros(300, made.H),
               "model.norm.weight": torch.ones(made.H).to(torch.bfloat16)}, folder / "model.safetensors")  # fmt: skip
    return folder


@pytest.mark.parametrize("to", OUT_LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.write.__name__}")
def test_every_remedy_works(case: Case, to: str, target: Path, tmp_path: Path) -> None:
    """``--boundaries`` was named for dumps of a known layout, where it is refused."""
    (tmp_path / "source").mkdir()
    path = case.write(tmp_path / "source")
    told = dict(case.request)
    spec = str(path)
    fmt = {} if case.detectable else {"format": case.id}
    follow(Call(spec, target, len(case.slots), to, told, fmt), tmp_path)


def npz(root: Path, names: str, **more: Any) -> str:
    states = {name: np.random.default_rng(k).normal(size=(9, 4)).astype(np.float32) for k, name in enumerate(names)}
    np.savez(root / "mine.npz", ids=np.arange(9), **{**states, **more})
    return str(root / "mine.npz")


NAMED = {"slots": "a,b,c", "tokens": "ids"}


@pytest.mark.parametrize(
    ("told", "more", "words"),
    [
        (NAMED, {}, "say it with --boundaries"),
        ({**NAMED, "last": "d"}, {}, "say it with --boundaries"),
        ({**NAMED, "last": "d", "boundaries": "B2,B2,B5"}, {}, "declares B2 for two slots; choose --to speculators-v1"),
        ({**NAMED, "last": "d", "boundaries": "B2,B4,B5"}, {"layers": True}, "say where it stands with --last-norm pre"),
        ({**NAMED, "last": "d", "boundaries": "B2,B4,B5"}, {}, "its last state has no name; give --target DIR"),
        ({**NAMED, "last": "d", "boundaries": f"B2,B4,B{made.LAYERS}", "last_norm": "pre"}, {"layers": True},
         "with other numbers; choose --to speculators-v1 with --mask-ones"),
        ({**NAMED, "boundaries": "B2,B4,B5"}, {"c": np.zeros((9, 4), np.float16)},
         "a stacked layout holds one; choose --to speculators-v1"),
    ],
)  # fmt: skip
def test_every_remedy_works_for_named_fields(
    told: dict[str, str], more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    wide = {name: value for name, value in more.items() if name != "layers"}
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text(
        f'{{"num_hidden_layers": {made.LAYERS}, "hidden_size": 4, "vocab_size": 300, "rms_norm_eps": 1e-6}}'
    )
    known = {"target": tmp_path / "target"} if "layers" in more else {}
    source = npz(tmp_path, "abcd" if "last" in told else "abc", **wide)
    met = follow(Call(source, tmp_path / "target", 3, "safetensors", told, known), tmp_path)
    assert words in met[0], met


def test_an_fp8_last_state_is_normed_as_float32(target: Path, tmp_path: Path) -> None:
    """It asked for 'bf16 first', which no option makes."""
    path = made.write_spec_fp8(tmp_path)
    call = Call(str(path), target, 3, "specforge", {"layer_ids": "2,4,5"}, {"mask": "ones", "target": target})
    out = tmp_path / "data_0.ckpt"
    assert call.with_option("--lose layer-ids").run(out) is None
    source, stored = open_capture(str(path)), torch.load(out, weights_only=True)
    assert source.last is not None and stored["hidden_state"].dtype == torch.float32
    before = torch.from_numpy(source.last.rows.floats())
    normed = before / (before.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.allclose(stored["hidden_state"][0], normed, rtol=1e-5)


def test_the_last_state_is_not_given_up_where_nothing_else_is_there(tmp_path: Path) -> None:
    path = made.write_eagle12(tmp_path)
    call = Call(str(path), tmp_path, 0, "safetensors", {}, {"lose": ["last-state"]})
    assert "leave out --lose last-state" in (call.run(tmp_path / "x") or "")
    refusal = call.with_option("--lose last-state").run(tmp_path / "x")
    assert refusal is not None and "--lose" not in refusal and "give --target DIR" in refusal


@pytest.mark.parametrize("write", [made.write_vllm, made.write_sf_last])
def test_a_layout_is_named_in_the_middle_of_a_sentence(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """``has no loss mask, which The SpecForge layout needs``."""
    path = write(tmp_path)
    for to in OUT_LAYOUTS:
        refusal = Call(str(path), tmp_path, 3, to, {"hidden_size": made.H}).run(tmp_path / to)
        assert refusal is None or not re.search(r"[a-z,] (The|A) ", refusal), refusal
