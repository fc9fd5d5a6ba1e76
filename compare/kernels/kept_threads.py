"""Threads that stay between calls that take a millisecond: to make one takes up to two on a busy machine."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor


@functools.cache
def beside(count: int) -> ThreadPoolExecutor:
    """``count`` threads to work beside the caller's, the same at every call. A process that was forked off has none of its
    parent's threads, and gets its own. Work given to them must not wait for other such work."""
    return ThreadPoolExecutor(count, "drafttrace-kernel")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=beside.cache_clear)
