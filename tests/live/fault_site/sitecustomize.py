"""Faults for the live tests of the recorder: put on PYTHONPATH, it breaks the recorder's own code on request.

The file that DRAFTTRACE_TEST_FAULT names holds the fault that is in force: ``tap``, ``writer``, ``disk`` or ``thread``.
Nothing is replaced but the one function that fails; everything around it is the real thing.

With DRAFTTRACE_TEST_RENAMED set, SGLang's ``EAGLEWorkerV2.verify`` has another name, as a release could give it.
"""

import errno
import importlib.abc
import importlib.util
import os
import sys

_FILE = os.environ.get("DRAFTTRACE_TEST_FAULT", "")
_RENAMED = os.environ.get("DRAFTTRACE_TEST_RENAMED", "")


def _fault():
    try:
        with open(_FILE, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _break_frames(module):
    take = module.Frame.take

    def broken(self, name, tensor, source=0):
        if _fault() == "tap" and name == "last":
            raise ZeroDivisionError("a fault in a hook")
        return take(self, name, tensor, source)

    module.Frame.take = broken


def _break_writer(module):
    append = module.TraceWriter.append_target
    flush = module.TraceWriter.flush

    def broken_append(self, *args, **kwargs):
        if _fault() == "writer":
            raise ZeroDivisionError("a fault in the writer")
        return append(self, *args, **kwargs)

    def broken_flush(self):
        if _fault() == "disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return flush(self)

    module.TraceWriter.append_target = broken_append
    module.TraceWriter.flush = broken_flush


def _break_thread(module):
    attempt = module._attempt

    def broken(job):
        if _fault() == "thread":
            raise SystemExit  # ends the thread without a word, as nothing else does
        attempt(job)

    module._attempt = broken


def _rename_verify(module):
    worker = module.EAGLEWorkerV2
    worker.verify_under_another_name = worker.verify
    del worker.verify

    def found(self, name):  # the callers of that release would say the other name
        if name == "verify":
            return self.verify_under_another_name
        raise AttributeError(name)

    worker.__getattr__ = found


_FAULTS = {
    "drafttrace.hooks.frames": _break_frames,
    "drafttrace.tracer.trace.writer": _break_writer,
    "drafttrace.hooks.sink": _break_thread,
}
_RENAMES = {"sglang.srt.speculative.eagle_worker_v2": _rename_verify}
_BREAKERS = (_FAULTS if _FILE else {}) | (_RENAMES if _RENAMED else {})


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        breaker = _BREAKERS.pop(name, None)
        if breaker is None:
            return None
        spec = importlib.util.find_spec(name)
        loader = spec.loader
        run = loader.exec_module

        def exec_module(module):
            run(module)
            breaker(module)

        loader.exec_module = exec_module
        return spec


if _BREAKERS:
    sys.meta_path.insert(0, _Finder())
