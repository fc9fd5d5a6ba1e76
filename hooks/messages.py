"""Messages between the server and its writer process, over a socket that only these two have."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

import numpy as np

STEP = "step"  # the one verb that gets no answer: waiting for it would hold up the next step
# Bytes of an array from which on it is sent from where it lies, and not copied into the message first.
_APART = 1 << 16
_COUNT = struct.Struct("<Q")


def send(link: socket.socket, message: Any) -> None:
    """Send ``message``. Raises OSError where the other end is gone."""
    apart: list[memoryview] = []

    def within(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _APART:
            return True
        apart.append(view)
        return False

    packed = pickle.dumps(message, protocol=5, buffer_callback=within)
    sizes = [len(packed), *(view.nbytes for view in apart)]
    link.sendall(b"".join([_COUNT.pack(len(sizes)), *map(_COUNT.pack, sizes), packed]))
    for view in apart:
        link.sendall(view)


def receive(link: socket.socket) -> Any:
    """The next message; None where the other end is gone, also in the middle of one."""
    head = _read(link, _COUNT.size)
    if head is None:
        return None
    sizes = _read(link, _COUNT.size * _COUNT.unpack(head)[0])
    if sizes is None:
        return None
    pieces = [_read(link, size) for (size,) in _COUNT.iter_unpack(sizes)]
    if any(piece is None for piece in pieces):
        return None
    return pickle.loads(pieces[0], buffers=pieces[1:])  # type: ignore[arg-type]


def _read(link: socket.socket, size: int) -> memoryview | None:
    """Exactly ``size`` bytes; None where the other end is gone before."""
    view = np.empty(size, np.uint8).data  # not filled with zeros first
    left = view
    while left.nbytes:
        try:
            count = link.recv_into(left)
        except ConnectionError:
            return None
        if count == 0:
            return None
        left = left[count:]
    return view
