"""Changes that operators make through the API on their way: carried to their end, and judged again while others change.

A change goes on although its caller goes away, so that what is stored is announced. Where several nodes share a log,
one whose ground another has changed is refused by the log, judged anew and tried again. Owns the trying, no judgement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ankusa.clock import unguessable
from ankusa.store.errors import StoreError

T = TypeVar("T")

TRIES = 8
AGAIN_MS = 400
"""Nodes that change the same things at once refuse each other; each tries again after its own time, up to this one."""


class ContendedError(StoreError):
    """Another node changes the same things at this moment: what this change was judged by is not so any more."""


class Changing:
    """The changes of one store. `what` they are of is named in the log."""

    def __init__(self, what: str, log: logging.Logger) -> None:
        self._what = what
        self._log = log
        self._running: set[asyncio.Task[Any]] = set()

    async def carried(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a change to its end although the caller is cancelled. Raises StoreError."""
        task = asyncio.get_running_loop().create_task(self.tried(work))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def tried(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Judged and stored anew while other nodes come in between. Raises StoreError."""
        for _ in range(TRIES - 1):
            try:
                return await work()
            except ContendedError:
                await asyncio.sleep(unguessable() % AGAIN_MS / 1000)
        return await work()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # read: the caller may have gone
            self._log.warning("event=%s_change_failed reason=%s", self._what, error)
