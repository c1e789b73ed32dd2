"""Reading a request's body: whole, byte for byte, within bounds of size, memory and time (spec 02).

Owns those bounds. A body is refused while it streams, not after: at most one chunk more than allowed is ever held.
It never looks into a body and never answers; a `Reply` that it returns is for the caller to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from ankusa.edge.replies import BODY_READ_FAILED, OVERLOAD_MID_BODY, Message, Reply, too_large

Receive = Callable[[], Awaitable[Message]]

BODY_TIMEOUT_MS = 30_000
"""A body must bring `MIN_WINDOW_BYTES`, or its end, in every window of this length. It is the time a provider's own
request timeout allows; a sender that stalls holds a connection and what it sent so far for this long at worst."""

MIN_WINDOW_BYTES = 64 << 10
"""Two kilobytes a second: slower than any link between servers. A body of 8 MB is done in about an hour at worst."""


class Budget(Protocol):
    """Where the bytes of unfinished bodies are counted: they are bounded together with the queue."""

    def reserve(self, size_bytes: int) -> bool: ...
    def release(self, size_bytes: int) -> None: ...


class Body:
    """One body being read. `reserved_bytes` is what it holds of the budget: whoever made it calls `release`, once."""

    __slots__ = ("_since", "_stalled", "_task", "_watch", "_window_bytes", "reserved_bytes")

    def __init__(self, watch: BodyWatch) -> None:
        self._watch = watch
        self._task = asyncio.current_task()
        self._stalled = False
        self._since = 0.0
        self._window_bytes = 0
        self.reserved_bytes = 0

    async def read(self, receive: Receive) -> bytes | Reply:
        """The body, or the reply when it cannot be had: over the limit, cut off, stalled, or no memory for it."""
        watch = self._watch
        self._since = watch.enter(self)
        try:
            return await self._read(receive)
        except asyncio.CancelledError:
            if not self._stalled or self._task is None or self._task.uncancel() > 0:
                raise  # somebody else's cancellation
            return BODY_READ_FAILED
        finally:
            watch.leave(self)

    async def _read(self, receive: Receive) -> bytes | Reply:
        limit_bytes = self._watch.limit_bytes
        chunks: list[bytes] = []
        size_bytes = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return BODY_READ_FAILED
            chunk: bytes = message.get("body", b"")
            size_bytes += len(chunk)
            more = message.get("more_body", False)
            if size_bytes > limit_bytes:
                return self._watch.too_large if more else self._watch.too_large_ended
            if not more:
                # The last chunk is not reserved: it is in memory already and submitted next.
                return chunk if not chunks else b"".join((*chunks, chunk))
            if chunk:
                if not self._watch.budget.reserve(len(chunk)):
                    return OVERLOAD_MID_BODY
                self.reserved_bytes += len(chunk)
                self._window_bytes += len(chunk)
                chunks.append(chunk)

    def release(self) -> None:
        if self.reserved_bytes:
            self._watch.budget.release(self.reserved_bytes)
            self.reserved_bytes = 0

    def check(self, at_s: float, timeout_s: float) -> None:
        """End the reading if its window is over and brought too little."""
        if at_s - self._since < timeout_s or self._stalled:
            return
        if self._window_bytes >= MIN_WINDOW_BYTES:
            self._since, self._window_bytes = at_s, 0
        elif self._task is not None:
            self._stalled = True
            self._task.cancel()


class BodyWatch:
    """The bounds of all bodies of one edge, and one timer for them: a timer each would cost more than the reading."""

    def __init__(self, budget: Budget, limit_bytes: int, timeout_ms: int = BODY_TIMEOUT_MS) -> None:
        self.budget = budget
        self.limit_bytes = limit_bytes
        self.too_large = too_large(limit_bytes)
        self.too_large_ended = too_large(limit_bytes, ended=True)
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._reading: set[Body] = set()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, body: Body) -> float:
        """Watch `body` from now on. Returns the loop's time, seconds."""
        self._reading.add(body)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s / 4, self._sweep)
        return self._loop.time()

    def leave(self, body: Body) -> None:
        self._reading.discard(body)

    def _sweep(self) -> None:
        self._timer = None
        at_s = self._loop.time()
        for body in self._reading:
            body.check(at_s, self._timeout_s)
        if self._reading:
            self._timer = self._loop.call_later(self._timeout_s / 4, self._sweep)

    def close(self) -> None:
        """Stop the timer: for after the last request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
