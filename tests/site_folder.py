"""A folder whose ``sitecustomize`` changes what a server process imports: how faults get into a real server."""

from __future__ import annotations

import os
from pathlib import Path


def python_path_with(site: Path) -> str:
    """PYTHONPATH with ``site`` in front of what stands there."""
    return os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
