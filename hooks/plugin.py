"""The entry point that SGLang calls once in every process it starts.

It returns at once, importing nothing, unless ``DRAFTTRACE=1``; and whatever happens in here, the server runs.
"""

from __future__ import annotations

import logging
import os


def register() -> None:
    """Entry point of the group ``sglang.srt.plugins``. Never raises."""
    if os.environ.get("DRAFTTRACE") != "1":
        return
    try:
        from drafttrace.hooks.sglang_engine.install import install

        install(os.environ)
    except Exception:
        logging.getLogger("drafttrace").exception("drafttrace could not be switched on; the server runs without it")
