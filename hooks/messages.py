"""Messages between the server and its writer process, over a socket that only these two have."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

STEP = "step"  # the one verb that gets no answer: waiting for it would hold up the next step
ALIGNED = 8  # every array of a message begins at a multiple of this
# Bytes of an array from which on it is sent from where it lies, and not copied into the message first.
_APART = 1 << 16
_HEAD = struct.Struct("<QQ")


class Message(NamedTuple):
    """What was said, and the bytes of the arrays that came with it, each from a multiple of ``ALIGNED`` on."""

    said: Any
    data: memoryview


def send(link: socket.socket, said: Any, arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
    """Send ``said`` and contiguous ``arrays``. Raises OSError where the other end is gone."""
    words = pickle.dumps(said, protocol=5)
    words += _filling(len(words))  # which pickle does not look at
    parts = [_HEAD.pack(len(words), sum(aligned(array.nbytes) for array in arrays)), words]
    for array in arrays:
        if array.nbytes < _APART:
            parts.append(array.tobytes())
        else:
            link.sendall(b"".join(parts))
            link.sendall(array.reshape(-1).view(np.uint8).data)
            parts = []
        parts.append(_filling(array.nbytes))
    link.sendall(b"".join(parts))


def receive(link: socket.socket) -> Message | None:
    """The next message; None where the other end is gone, also in the middle of one."""
    head = _read(link, _HEAD.size)
    if head is None:
        return None
    words, data = _HEAD.unpack(head)
    whole = _read(link, words + data)
    if whole is None:
        return None
    return Message(pickle.loads(whole[:words]), whole[words:])


def aligned(size: int) -> int:
    """Bytes that an array of ``size`` bytes takes in a message."""
    return -(-size // ALIGNED) * ALIGNED


def _filling(size: int) -> bytes:
    return bytes(aligned(size) - size)


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
