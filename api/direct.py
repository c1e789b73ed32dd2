"""Answering a request that came whole, beside uvicorn's request cycle.

Owns what stands where uvicorn keeps its cycle while the answer is awaited, and the bytes of that answer. Which requests
go this way is `api/edge_protocol.py`'s to say, and what is answered the app's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE as STATUS_LINE
from uvicorn.server import ServerState

from ankusa.edge.replies import Reply


class DirectApp(Protocol):
    """An app that takes some requests without ASGI."""

    def direct(self, url: bytes) -> Any | None:
        """What the request target names, where a whole POST to it may be given to `take_whole`."""

    def take_whole(
        self,
        source: Any,
        raw_headers: Sequence[tuple[bytes, bytes]],
        url: bytes,
        body: bytes,
        answer: Callable[[Reply], None],
    ) -> bool:
        """Take the request; False when it is the app's after all. `answer` is called once."""


def direct_of(app: Any) -> DirectApp | None:
    """The short cut of an app that has one."""
    return app if hasattr(app, "take_whole") else None


class _Deaf:
    """Stands for the event by which uvicorn wakes a cycle: nobody waits for this one."""

    def set(self) -> None:
        """Nothing to wake."""


_DEAF = _Deaf()


class Owner(Protocol):
    """The connection of an exchange."""

    server_state: ServerState

    def answered(self, exchange: Exchange, answer: bytes) -> None: ...


class Exchange:
    """One request that was read whole and awaits its answer. It has what uvicorn asks of a `RequestResponseCycle`."""

    __slots__ = ("_owner", "disconnected", "keep_alive", "response_complete")

    more_body = False
    response_started = False
    message_event = _DEAF

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False

    def answer(self, reply: Reply) -> None:
        """Send the reply, whole, unless the client has gone."""
        if self.disconnected:
            return
        self.response_complete = True
        owner = self._owner
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        parts = (STATUS_LINE[reply.status], head_lines(owner.server_state), reply.lines, end, reply.body["body"])
        owner.answered(self, b"".join(parts))


_lines: tuple[Any, bytes] = (None, b"")


def head_lines(state: ServerState) -> bytes:
    """The headers that every answer has (the date), as they are sent; uvicorn makes a new list of them each second."""
    global _lines
    headers = state.default_headers
    if _lines[0] is not headers:
        _lines = (headers, b"".join(b"%s: %s\r\n" % header for header in headers))
    return _lines[1]
