"""What depends on the SGLang version, and the plugin's manners."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from drafttrace.hooks.sglang_engine import symbols, wiring
from drafttrace.hooks.sglang_engine.install import RequestNames
from drafttrace.hooks.sglang_engine.versions import SCHEDULER_HOOKS, parse_version, unsupported
from drafttrace.hooks.store import Store
from drafttrace.tracer.boundary import WrongWiring, check_wiring


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.5.12", None),
        ("0.5.15.post1", None),
        ("0.5.23", None),
        ("0.5.11", "older than the plugin framework"),
        ("0.4.9", "older"),
        ("0.6.0", "newer than what this drafttrace was tested with"),
        ("main", "no release number"),
        ("0.0.0.dev1+g123abc", "its version cannot be told"),
    ],
)
def test_the_window(version: str, says: str | None) -> None:
    reason = unsupported(version)
    assert (reason is None) if says is None else says in (reason or "")


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("0.5.9") < parse_version("0.5.12.post1")  # type: ignore[operator]


def test_the_installed_sglang_has_every_symbol() -> None:
    verdict = symbols.installed()
    assert verdict is not None
    assert verdict.works, [symbol for symbol in verdict.symbols if symbol.problem]


def test_a_missing_symbol_is_named() -> None:
    source = {"sglang/srt/managers/scheduler.py": b"class Scheduler:\n    def run_batch(self, other): ...\n"}
    verdict = symbols.judge("0.5.23", source.get)
    assert not verdict.works
    problems = {symbol.name: symbol.problem for symbol in verdict.symbols if symbol.problem}
    assert (
        "begin with (self, other), not (self, batch)"
        in problems["sglang.srt.managers.scheduler.Scheduler.run_batch"]
    )
    assert problems["sglang.srt.model_executor.forward_batch_info.ForwardBatch"] == "there is no such class"


def test_a_source_checkout_is_judged_by_its_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's checkout without tags calls itself 0.0.0.dev1+g..., and that was "older than the plugin framework"."""
    from drafttrace.hooks import doctor

    read = symbols.installed_files()
    assert read is not None
    verdict = symbols.judge("0.0.0.dev1+g123", read)
    assert verdict.works and verdict.reason is None
    verdict = symbols.judge("0.0.0.dev1+g123", lambda path: None)
    assert not verdict.works and "its version cannot be told" in (verdict.reason or "")
    assert "ModelRunner.load_model cannot be used" in (verdict.reason or "")
    monkeypatch.setattr(doctor, "installed_version", lambda name: "0.0.0.dev1+g123")
    found = doctor.examine()
    assert found.problem is None and "its symbols were looked at instead" in (found.note or "")


def test_a_dist_info_without_metadata_is_one_sentence(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupted pip leaves: `doctor` ended with a traceback."""
    from drafttrace.compare.audit.installed import installed_version
    from drafttrace.hooks import doctor

    (tmp_path / "sglang-0.5.9.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    found = doctor.examine()
    assert found.problem is not None and "has no METADATA" in found.problem and found.problem.count(". ") == 0
    assert installed_version() is None


def test_every_hook_has_a_function() -> None:
    from drafttrace.hooks.sglang_engine import runtime

    for spec in SCHEDULER_HOOKS:
        assert callable(getattr(runtime.SchedulerHooks, spec.name))


def test_whatever_reaches_a_hook_the_server_gets_its_answer(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Arguments by name or by position, in an order nobody foresaw, or of a shape that no release has."""
    from drafttrace.hooks.config import Settings
    from drafttrace.hooks.sglang_engine.runtime import SchedulerHooks

    store = Store(tmp_path)
    store.create()
    hooks = SchedulerHooks(Settings(tmp_path), store, "0.5.23")
    idle = SimpleNamespace(problem=lambda *_: None, end=lambda *_: None, prompt=[])
    hooks.recorder.sessions["drafttrace-x"] = idle  # type: ignore[assignment]
    hooks.recorder.active = True
    for spec in SCHEDULER_HOOKS:
        hook = hooks.hook(spec)
        for args, kwargs in (((), {}), ((1,), {}), ((None, None), {}), ((None,), {"batch": 3, "result": None})):
            if spec.kind == "around":
                assert hook(lambda *a, **k: (a, k), *args, **kwargs) == (args, kwargs)
            else:
                assert hook(*args, **kwargs) is None
    assert hooks.recorder.errors > 0
    assert len([record for record in caplog.records if "further errors are only counted" in record.message]) <= 1


def test_an_error_of_the_server_stays_the_servers(tmp_path: Any) -> None:
    from drafttrace.hooks.config import Settings
    from drafttrace.hooks.sglang_engine.runtime import SchedulerHooks

    hooks = SchedulerHooks(Settings(tmp_path), Store(tmp_path), "0.5.23")

    def broken(*args: Any) -> None:
        raise MemoryError("the server's own")

    for spec in SCHEDULER_HOOKS:
        if spec.kind == "around":
            with pytest.raises(MemoryError, match="the server's own"):
                hooks.hook(spec)(broken, None, SimpleNamespace(reqs=[]))


class PlusOne:
    def set_eagle3_layers_to_capture(self, ids: list[int]) -> None:
        self.model.layers_to_capture = [k + 1 for k in ids]  # type: ignore[attr-defined]


class IfFirstIsOne:
    def set_eagle3_layers_to_capture(self, ids: list[int]) -> None:
        self.model.layers_to_capture = [k + 1 for k in ids] if ids[0] == 1 else list(ids)  # type: ignore[attr-defined]


class Raw:
    def set_eagle3_layers_to_capture(self, ids: list[int]) -> None:
        self.model.layers_to_capture = list(ids)  # type: ignore[attr-defined]


class Strange:
    def set_eagle3_layers_to_capture(self, ids: list[int]) -> None:
        raise KeyError("needs a real model")


@pytest.mark.parametrize(
    ("cls", "rule"),
    [(PlusOne, "plus_one"), (IfFirstIsOne, "plus_one_if_first_is_one"), (Raw, "raw"), (Strange, "unknown")],
)
def test_the_class_itself_is_asked_for_its_rule(cls: type, rule: str) -> None:
    assert wiring.rule_of(cls, SimpleNamespace(num_hidden_layers=61)) == rule


def test_the_installed_classes_have_the_rules_we_know() -> None:
    from sglang.srt.models import deepseek_v2 as deepseek
    from sglang.srt.models import llama

    config = SimpleNamespace(num_hidden_layers=61)
    assert wiring.rule_of(llama.LlamaForCausalLM, config) == "plus_one"
    assert wiring.rule_of(deepseek.DeepseekV2ForCausalLM, config) == "plus_one_if_first_is_one"


@pytest.mark.parametrize(
    ("config", "source", "ids"),
    [
        ({"eagle_config": {wiring.IDS: [2, 30, 58]}}, wiring.FROM_CONFIG, [2, 30, 58]),
        ({wiring.IDS: [2, 30, 58]}, wiring.FROM_TOP_LEVEL, None),
        ({"eagle_config": {}}, wiring.DEFAULT, None),
        ({"eagle_config": None}, wiring.DEFAULT, None),
        (None, wiring.DEFAULT, None),
    ],
)
def test_where_the_ids_stand(config: Any, source: str, ids: list[int] | None) -> None:
    assert wiring.source_of(config) == (source, ids)


def test_what_layers_capture() -> None:
    # In the order of the layers, whatever the order of the ids; a layer that does not exist captures nothing.
    assert wiring.boundaries_of([31, 3, 59, 61], 61) == [3, 31, 59]


def test_a_wiring_that_cannot_work_is_refused() -> None:
    check_wiring((0, 3, 31), n=61, hidden=64, width=192)
    with pytest.raises(WrongWiring, match="names B62"):
        check_wiring((0, 3, 62), n=61, hidden=64, width=192)
    with pytest.raises(WrongWiring, match="gives 2 slots of 64 columns, but the draft's fc takes 192"):
        check_wiring((0, 3), n=61, hidden=64, width=192)
    with pytest.raises(WrongWiring, match="takes no whole number"):
        check_wiring((0, 3, 31), n=61, hidden=64, width=200)
    with pytest.raises(WrongWiring, match="names B3 twice"):
        check_wiring((0, 3, 3), n=61, hidden=64, width=192)
    check_wiring((0, 61), n=61, hidden=64, width=None)


def test_samples_of_n_keep_the_name(tmp_path: Any) -> None:
    store = Store(tmp_path)
    store.create()
    names = RequestNames(store)
    assert names.next("drafttrace-x_0") is None and names.next("other") is None  # nobody asked
    store.ask("x", {})
    got = [names.next("drafttrace-x_0") for _ in range(4)]
    assert got == [f"drafttrace-x_0{suffix}" for suffix in ("_prefix", "", "_1", "_2")]


def test_the_entry_point_imports_nothing_unless_asked() -> None:
    code = (
        "import sys; from drafttrace.hooks.plugin import register; register();"
        "assert not {'torch', 'h5py', 'numpy', 'sglang'} & set(sys.modules), 'heavy imports'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PATH": "/usr/bin"})


def test_a_plugin_that_cannot_start_does_not_raise() -> None:
    code = (
        "import os, sys; os.environ.update(DRAFTTRACE='1', DRAFTTRACE_DIR='', DRAFTTRACE_QUEUE_BYTES='x');"
        "sys.modules['sglang'] = None;"  # importing it fails
        "from drafttrace.hooks.plugin import register; register()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "DRAFTTRACE_DIR is not set" in done.stderr and "the server runs without it" in done.stderr
