"""How far a followed topic of one partition is read, and who waits for that: the event loop's side of a feed.

Owns the waiting. The feed's thread says where it is and, when it is `asked`, where the topic ends.
"""

from __future__ import annotations

import asyncio
import threading

from ankusa.store.errors import StoreError

CAUGHT_UP_S = 10.0
"""How long one waits for everything that is in the topic."""


class TopicEnd:
    """Of `topic`. All but `asked` is for the event loop."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._at = -1
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._askers: list[asyncio.Future[int | None]] = []
        self.asked = threading.Event()

    async def reached(self, offset: int) -> None:
        """Wait until everything before `offset` is read and told."""
        if self._at < offset:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((offset, reached))
            await reached

    async def caught_up(self) -> None:
        """Wait until everything is told that is in the topic now. Raises StoreError when that takes long."""
        asker: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._askers.append(asker)
        self.asked.set()
        try:
            async with asyncio.timeout(CAUGHT_UP_S):
                if (ends := await asker) is None:
                    raise StoreError(f"no broker says where {self._topic} ends")
                await self.reached(ends)
        except TimeoutError:
            raise StoreError(f"{self._topic} is not read to its end in {CAUGHT_UP_S:.0f} s") from None

    # -- what the feed says ---------------------------------------------------------

    def answered(self, ends: int | None) -> None:
        """Where the topic ends; None when no broker says it."""
        askers, self._askers = self._askers, []
        for asker in askers:
            if not asker.done():
                asker.set_result(ends)

    def is_at(self, offset: int) -> None:
        """Everything before `offset` is told."""
        self._at = offset
        waiting, self._waiting = self._waiting, []
        for wanted, reached in waiting:
            if wanted > offset:
                self._waiting.append((wanted, reached))
            elif not reached.done():
                reached.set_result(None)
