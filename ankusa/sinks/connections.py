"""Connections of the queue sinks: opened at first use, shared per destination, closed when idle or unused.

Owns when a connection is opened and closed and who shares it. What a connection is, how it is opened and what breaks
it are the sink's. One event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar, cast

log = logging.getLogger("ankusa.sinks.connections")

OPEN_S = 15.0  # one that takes longer ends, although those who waited for it have given up already
CLOSE_S = 5.0  # a peer that does not answer a goodbye is left after this

C = TypeVar("C")
D = TypeVar("D", bound="Destination")


class Destination(Protocol):
    """What sinks of one destination share."""

    async def close(self) -> None:
        """Let everything go. Idempotent."""


class Destinations:
    """What the sinks of one process share, by key: a sink type and all options that make a destination another one."""

    def __init__(self, sink_concurrency: int | None = 8) -> None:
        """`sink_concurrency`: how many requests a batching destination may have in flight; None is no limit."""
        self.sink_concurrency = sink_concurrency
        self._shared: dict[Hashable, tuple[Destination, int]] = {}

    def reconfigure(self, sink_concurrency: int | None) -> None:
        """Take `dispatch.sink_concurrency` from the current config; destinations read it before every request."""
        self.sink_concurrency = sink_concurrency

    def take(self, key: Hashable, build: Callable[[], D]) -> D:
        """The destination of `key`, built if nobody has it; each call is one user until `give_back`. Opens nothing."""
        found, users = self._shared.get(key) or (build(), 0)
        self._shared[key] = found, users + 1
        return cast(D, found)

    async def give_back(self, key: Hashable) -> None:
        """One user fewer; without users the destination closes."""
        found, users = self._shared[key]
        if users > 1:
            self._shared[key] = found, users - 1
            return
        del self._shared[key]
        await found.close()

    @property
    def count(self) -> int:
        """Destinations in use, for metrics."""
        return len(self._shared)


class Share(Generic[D]):
    """One sink's part in a destination: `destination` until `end`, then None."""

    def __init__(self, destinations: Destinations, key: Hashable, build: Callable[[], D]) -> None:
        self._destinations, self._key = destinations, key
        self.destination: D | None = destinations.take(key, build)

    async def end(self) -> None:
        """Give it back. Idempotent."""
        if self.destination is not None:
            self.destination = None
            await self._destinations.give_back(self._key)


class Connection(Generic[C]):
    """One connection, or none: opened by the first who needs it, for all who come meanwhile.

    `opening` and `closing` do it; `is_open` says whether an open one still is. After `idle_timeout_ms` without a use
    it is closed (0: never), and the next use opens another.
    """

    def __init__(
        self,
        opening: Callable[[], Awaitable[C]],
        closing: Callable[[C], Awaitable[Any]],
        is_open: Callable[[C], bool],
        idle_timeout_ms: int,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now`: a monotonic clock in seconds."""
        self._opening, self._closing, self._is_open = opening, closing, is_open
        self._idle_s, self._now = idle_timeout_ms / 1000, now
        self._current: C | None = None
        self._opener: asyncio.Task[C] | None = None
        self._closers: set[asyncio.Task[None]] = set()
        self._users = 0
        self._used_at = now()
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[C]:
        """The connection, for one delivery. Raises what opening it raised."""
        self._users += 1
        try:
            yield await self._get()
        finally:
            self._users -= 1
            self._used_at = self._now()
            if self._timer is None and self._idle_s and self._current is not None:
                self._watch(self._idle_s)

    def drop(self, broken: C) -> None:
        """Part with a connection that is of no use any more; the next use opens another."""
        if broken is self._current:
            self._current = None
            self._part(broken)

    async def close(self) -> None:
        """Close it, an opening under way too. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._opener is not None:
            self._opener.cancel()
            await asyncio.gather(self._opener, return_exceptions=True)
        if (current := self._current) is not None:
            self.drop(current)
        if self._closers:
            await asyncio.wait(set(self._closers))

    async def _get(self) -> C:
        current = self._current
        if current is not None and self._is_open(current):
            return current
        if current is not None:
            self.drop(current)
        if self._opener is None:
            self._opener = asyncio.create_task(self._open())
            self._opener.add_done_callback(self._opened)
        opener = self._opener
        try:
            return await asyncio.shield(opener)  # whoever is cancelled leaves the others their connection
        except asyncio.CancelledError:
            if not opener.cancelled():
                raise
            raise ConnectionError("the sink was closed while it connected") from None

    async def _open(self) -> C:
        async with asyncio.timeout(OPEN_S):
            return await self._opening()

    def _opened(self, opener: asyncio.Task[C]) -> None:
        self._opener = None
        if not opener.cancelled() and opener.exception() is None:
            self._current = opener.result()
            if self._timer is None and self._idle_s:  # also for one whose users all gave up before it was open
                self._watch(self._idle_s)

    def _watch(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._check_idle)

    def _check_idle(self) -> None:
        """One timer at a time, set again for the rest: a use costs no timer of its own."""
        self._timer = None
        current = self._current
        if current is None:
            return
        left_s = self._used_at + self._idle_s - self._now()
        if self._users:
            self._watch(self._idle_s)
        elif left_s > 0:
            self._watch(left_s)
        else:
            self.drop(current)

    def _part(self, connection: C) -> None:
        task = asyncio.create_task(self._close(connection))
        self._closers.add(task)
        task.add_done_callback(self._closers.discard)

    async def _close(self, connection: C) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._closing(connection)
        except Exception as error:  # it is gone either way
            log.debug("event=close_failed error=%s", type(error).__name__)
