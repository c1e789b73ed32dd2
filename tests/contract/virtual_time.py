"""An event loop whose time is the test's: timers follow it, real threads are waited for, and nothing sleeps.

Time moves in two ways. `advance` runs everything due up to a time, timer by timer. While a coroutine is being run to
its end and nothing else can happen, time jumps to the next timer. When there is none either, the loop is stuck, and
says so instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

REAL_WAIT_S = 30.0
"""The longest a real thread (an fsync) may take before the loop calls itself stuck."""


class StuckError(AssertionError):
    """Nothing is ready, no thread works and no timer waits: whoever is awaited will never be done."""


class _Selector(selectors.DefaultSelector):
    """Asks the loop what to do instead of sleeping."""

    def __init__(self, idle: Callable[[], bool]) -> None:
        super().__init__()
        self._idle = idle

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(0)
        if ready or self._idle():
            return ready
        ready = super().select(REAL_WAIT_S)
        if not ready:
            raise StuckError(f"a thread did not answer within {REAL_WAIT_S} s")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`now_ms` counts from 0. `busy` says whether a thread outside the loop still owes it an answer."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self.now_ms = 0.0
        self._busy = busy
        self._limit_ms: float | None = None
        self._arrived: asyncio.Future[None] | None = None
        super().__init__(_Selector(self._on_idle))

    def time(self) -> float:
        return self.now_ms / 1000

    def run(self, body: Any) -> Any:
        """Run a coroutine to its end; time jumps when only time is missing."""
        return self.run_until_complete(body)

    def advance(self, ms: float) -> None:
        """Move time on by `ms`, running what comes due on the way, at its time."""
        self._limit_ms = self.now_ms + ms
        self.run_until_complete(self._arrive())
        self._limit_ms = None

    async def _arrive(self) -> None:
        self._arrived = self.create_future()
        await self._arrived

    def _on_idle(self) -> bool:
        """Nothing is ready. True when something was done about it; False to wait for a thread."""
        if self._busy():
            return False
        scheduled = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        following_ms = min(scheduled) * 1000 if scheduled else None
        if self._limit_ms is None:
            if following_ms is None:
                raise StuckError("nothing is ready, nothing is scheduled, and somebody waits")
            self.now_ms = max(self.now_ms, following_ms)
            return True
        if following_ms is not None and following_ms <= self._limit_ms:
            self.now_ms = max(self.now_ms, following_ms)
            return True
        self.now_ms = self._limit_ms
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        return True
