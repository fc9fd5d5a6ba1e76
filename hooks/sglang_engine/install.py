"""Registers the hooks that this process needs with SGLang's hook registry."""

from __future__ import annotations

import atexit
import collections
import logging
import multiprocessing
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from drafttrace.hooks.config import RID_PREFIX, BadSetting, Settings, trace_id_of
from drafttrace.hooks.routes import Service, add_routes
from drafttrace.hooks.sglang_engine import status
from drafttrace.hooks.sglang_engine.symbols import installed_version, refusal
from drafttrace.hooks.sglang_engine.versions import HTTP_HOOKS, SCHEDULER_HOOKS, HookSpec, parse_version
from drafttrace.hooks.store import Store

logger = logging.getLogger("drafttrace")

_NAMES_KEPT = 1024  # requests with n > 1 whose samples are still being named


def sglang_version() -> str:
    """The installed SGLang's version, without importing it; "unknown" where its dist-info does not say."""
    return installed_version("sglang") or "unknown"


def install(environment: Mapping[str, str]) -> None:
    """Hook this process: the HTTP server (the first process) or a scheduler; others are left alone."""
    version = sglang_version()
    reason = refusal(version)
    settings: Settings | None = None
    try:
        settings = Settings.from_environment(environment)
        store = Store(settings.directory, settings.wait_seconds)
        if store.create() and multiprocessing.parent_process() is None:
            atexit.register(store.remove_empty)
    except BadSetting as error:
        reason = reason or str(error)
    except OSError as error:
        reason = reason or f"the trace folder cannot be made ({error})"
    if reason is not None:
        logger.error("drafttrace is off: %s", reason)
    elif parse_version(version) is None and multiprocessing.parent_process() is None:
        logger.warning(
            "drafttrace: SGLang calls itself '%s', so its version cannot be told; its symbols are those that are hooked",
            version,
        )
    if multiprocessing.parent_process() is None:
        _install_http(settings, version, reason)
    elif "sglang.srt.managers.scheduler" in sys.modules and settings is not None and reason is None:
        _install_scheduler(settings, version)


def _install_scheduler(settings: Settings, version: str) -> None:
    """Hook a scheduler. What fails here is told by the health route; the server runs untouched."""
    store = Store(settings.directory, settings.wait_seconds)
    try:
        from drafttrace.hooks.sglang_engine.runtime import SchedulerHooks

        hooks = SchedulerHooks(settings, store, version)
        _register([(spec, hooks.hook(spec)) for spec in SCHEDULER_HOOKS])
    except Exception as error:
        store.write_status(
            f"scheduler-{os.getpid()}", {"role": "scheduler", "reason": f"the hooks failed: {error}"}
        )
        raise


def _register(hooks: Iterable[tuple[HookSpec, Callable[..., Any]]]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for spec, hook in hooks:
        if not spec.needed and not _exists(spec.target):
            continue  # SGLang would log an error about a symbol that this version never had
        HookRegistry.register(spec.target, hook, HookType(spec.kind))


def _exists(target: str) -> bool:
    try:
        pkgutil.resolve_name(target)
    except Exception:
        return False
    return True


class RequestNames:
    """Request ids of the samples of n > 1. SGLang gives each a random one; a traced request keeps its name in them.

    SGLang runs the prompt alone first, so that the samples find it in the prefix cache: ``<id>_prefix``. Then follow
    the samples: ``<id>``, ``<id>_1``, ``<id>_2`` and so on.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._count: collections.OrderedDict[str, int] = collections.OrderedDict()

    def next(self, rid: Any) -> str | None:
        """The next id for a request that came as ``rid``; None where it is not traced."""
        trace_id = trace_id_of(rid)
        if trace_id is None or self._store is None or self._store.request_of(trace_id) is None:
            return None
        count = self._count.pop(rid, 0)
        self._count[rid] = count + 1
        while len(self._count) > _NAMES_KEPT:
            self._count.popitem(last=False)
        suffix = "_prefix" if count == 0 else "" if count == 1 else f"_{count - 1}"
        return f"{RID_PREFIX}{trace_id}{suffix}"


def _install_http(settings: Settings | None, version: str, reason: str | None) -> None:
    """Mount the routes when SGLang sets up its HTTP server. A plugin that is off still says why."""
    fired: collections.Counter[str] = collections.Counter()
    store = Store(settings.directory, settings.wait_seconds) if settings is not None else None
    if store is not None and reason is None:
        store.forget_the_dead()

    def health() -> dict[str, Any]:
        own = status.hook_report(HTTP_HOOKS, fired, "http")
        return status.health(settings, version, reason, own, store.statuses() if store is not None else ())

    def http(*args: Any, **kwargs: Any) -> None:
        fired["http"] += 1
        try:
            from sglang.srt.entrypoints import http_server

            if settings is not None and store is not None:
                add_routes(http_server.app, Service(settings, store, health))
            else:
                http_server.app.add_api_route("/drafttrace/health", health, include_in_schema=False)
        except Exception:
            logger.exception("drafttrace: the HTTP routes could not be mounted")

    names = RequestNames(store)

    def regenerate_rid(original: Callable[..., Any], request: Any) -> Any:
        fired["regenerate_rid"] += 1
        try:
            name = names.next(request.rid)
        except Exception:
            logger.exception("drafttrace: a request with n > 1 could not be named")
            name = None
        if name is None:
            return original(request)
        request.rid = name
        return name

    table = {"http": http, "regenerate_rid": regenerate_rid}
    _register([(spec, table[spec.name]) for spec in HTTP_HOOKS])
