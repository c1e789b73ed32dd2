"""One connection of an edge to its engine: the greeting, and frames out and in.

Owns the transport from its making to its loss. Whose request a frame answers is the client's to know.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from schemas.records import DecodeError
from streams.local.frame_reader import FrameError, FrameReader, check_hello, hello
from streams.local.frames import Kind, frame


class Link(asyncio.Protocol):
    """One connection. `greeted` is done when the engine has said hello, `lost` when the connection has ended."""

    def __init__(self, on_frame: Callable[[Kind, int, bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.reason = "it closed the connection"
        self._on_frame = on_frame
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # No isinstance: uvloop's transports are not asyncio's.
        self._transport = transport
        transport.write(hello())

    def send(self, kind: Kind, request_id: int, *payload: bytes) -> None:
        """Queue a frame; dropped when the connection has just been lost, which `lost` tells. The write buffer is
        bounded by the batcher, which has one append in flight."""
        if self._transport is not None:
            self._transport.write(frame(kind, request_id, *payload))

    def data_received(self, data: bytes) -> None:
        try:
            for kind, request_id, payload in self._reader.feed(data):
                if self.greeted.done():
                    self._on_frame(kind, request_id, payload)
                else:
                    check_hello(kind, payload)
                    self.greeted.set_result(None)
        except (FrameError, *DecodeError) as error:
            self.reason = str(error)
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.greeted.done():
            self.greeted.set_exception(FrameError(self.reason))
        if not self.lost.done():
            self.lost.set_result(None)
        with contextlib.suppress(asyncio.CancelledError, FrameError, asyncio.InvalidStateError):
            self.greeted.exception()  # read, so that nobody warns of it
