"""Faults of drafttrace itself: a tap that never fires, a writer that stops in the middle of a request."""

from __future__ import annotations

from typing import Any

import torch

from served_faults.switch import Switch


def break_on_request(switch: Switch) -> None:
    """Wrap the two functions that fail; everything around them is the real thing. The writer process has no plugins: what
    it cannot write is told here, where its answer comes."""
    from drafttrace.hooks.frames import Frame
    from drafttrace.hooks.writer_link import FileApart

    take, append = Frame.take, FileApart.append

    def tap(self: Any, name: str, tensor: torch.Tensor, source: int = 0) -> None:
        if not (name == "last" and "tap-silent" in switch.names()):
            take(self, name, tensor, source)

    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "writer-fails" in switch.names():
            switch.memory["frames"] = switch.memory.get("frames", 0) + 1
            if switch.memory["frames"] > 3:
                raise OSError("the disk is gone")
        return append(self, *args, **kwargs)

    Frame.take = tap  # type: ignore[method-assign]
    FileApart.append = write  # type: ignore[method-assign]
