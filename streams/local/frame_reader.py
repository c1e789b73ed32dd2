"""Cutting a byte stream back into frames, and the greeting both ends start with.

Owns the buffer of a connection's reading side. It knows lengths, not payloads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from streams.local.frames import HEAD, MAX_FRAME_BYTES, VERSION, Kind, frame

_LENGTH_BYTES = 4
_VERSION = struct.Struct(">H")


class FrameError(Exception):
    """The peer sent bytes that are no frame of this release. The connection is of no more use."""


class FrameReader:
    """One connection's incoming frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        """`(kind, request id, payload)` of each frame that `data` completes. Raises FrameError.

        Each byte is copied once into the buffer and once out of it: what is consumed is dropped once for all frames
        of a call, and a frame that is not complete is not looked at again until its length is there.
        """
        buffer = self._buffer
        buffer += data
        place, end = 0, len(buffer)
        try:
            while end - place >= HEAD.size:
                size, kind, request_id = HEAD.unpack_from(buffer, place)
                if not HEAD.size - _LENGTH_BYTES <= size <= MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {size} bytes")
                stop = place + _LENGTH_BYTES + size
                if stop > end:
                    break
                with memoryview(buffer) as view:
                    payload = bytes(view[place + HEAD.size : stop])
                place = stop
                yield _kind(kind), request_id, payload
        finally:
            del buffer[:place]


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise FrameError(f"a frame of unknown kind {number}") from None


def hello() -> bytes:
    """The first frame of either end."""
    return frame(Kind.HELLO, 0, _VERSION.pack(VERSION))


def check_hello(kind: Kind, payload: bytes) -> None:
    """Raises FrameError, saying so, when the peer is of another release or does not greet at all."""
    if kind is not Kind.HELLO or len(payload) != _VERSION.size:
        raise FrameError("no greeting")
    (version,) = _VERSION.unpack(payload)
    if version != VERSION:
        raise FrameError(f"it speaks version {version} of the wire and this process {VERSION}: restart the older one")
