"""The writes of a connection, joined: those of one turn of the loop go out as one.

uvicorn writes an answer's head and body apart, and a second system call and packet cost a small answer as much as all
the rest of sending it. Owns what waits for the end of the turn; never changes or drops it while the connection lives.
"""

from __future__ import annotations

import asyncio
from typing import Any


class JoinedWrites:
    """A transport whose writes go out at the end of their turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def write_whole(self, data: bytes) -> None:
        """Write what needs no joining."""
        if self._parts:
            self._parts.append(data)
        else:
            self._transport.write(data)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Write what was to go out at the end of this turn. A connection that has gone takes nothing any more."""
        if self._parts:
            parts, self._parts = self._parts, []
            if not self._transport.is_closing():
                self._transport.write(b"".join(parts))
