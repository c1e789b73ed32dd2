"""A worker's sources, with the care that a fleet needs: one that is not known here may have been set up a moment ago.

An edge may have taken a source up before this worker has read of it, and rows of a source that is gone die. So one that
is not known is unavailable, which puts its rows back for a second, until the topic `sources` has been read up to where
it ended after the question: only then it is gone. Owns that word, and for how long it holds. Builds and keeps nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ankusa.dispatch.ports import SourcesUnavailableError
from ankusa.dispatch.sources import DispatchSource
from ankusa.store.errors import StoreError

log = logging.getLogger("ankusa.dispatch")

GONE_MS = 10_000
"""How long it holds that a source is gone: its rows come back after a second, and one may be set up again."""

GONE_SOURCES = 10_000
"""Sources known as gone at most: past it all are asked for again."""


class KnownSources:
    """Implements `ankusa.dispatch.ports.Sources`. `known` knows the sources; `caught_up` returns when all is read that
    was in the topic when it was called, and raises StoreError when that cannot be told; `clock` gives unix ms."""

    def __init__(
        self,
        known: Callable[[str], DispatchSource | None],
        caught_up: Callable[[], Awaitable[None]],
        clock: Callable[[], int],
    ) -> None:
        self._known = known
        self._caught_up = caught_up
        self._clock = clock
        # By source, when it was asked for first and, once the topic was read after that, when that was.
        self._asked: set[str] = set()
        self._gone: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def resolve(self, source_id: str) -> DispatchSource | None:
        """A source as it is now, None for one that is gone. Raises SourcesUnavailableError while nobody knows."""
        found = self._known(source_id)
        if found is not None:
            return found
        gone_at = self._gone.get(source_id)
        if gone_at is not None and self._clock() - gone_at <= GONE_MS:
            return None
        self._asked.add(source_id)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())
        raise SourcesUnavailableError(f"{source_id} is not known yet")

    async def _look(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, set()
                await self._caught_up()
                if len(self._gone) + len(asked) > GONE_SOURCES:
                    self._gone.clear()
                self._gone.update(dict.fromkeys(asked, self._clock()))
        except StoreError as error:  # the rows come back in a second, and ask again
            log.warning("event=sources_unknown reason=%s", error)
        finally:
            self._task = None

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
