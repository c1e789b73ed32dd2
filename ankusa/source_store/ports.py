"""What the source store asks of its host: where sources are kept, and what their rows do. Owns no behaviour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from schemas.config import ManagedSource
from schemas.records import Change, SourceChange


class SourceLog(Protocol):
    """Where sources are kept."""

    def now(self) -> int:
        """Unix ms."""

    def kept_sources(self) -> list[SourceChange]:
        """The last change of every source there is. Raises StoreError."""

    async def begin(self) -> None:
        """A change comes next. What other nodes have changed is told (`SourceStore.follow`) before it returns, and one
        of theirs that is stored from now on has this change refused. Raises StoreError."""

    async def change(self, record: SourceChange, audit: Change | None) -> None:
        """Store a change with its audit record, durably. Raises StoreError: then nothing of it is stored;
        `changing.ContendedError` when another node has changed sources since `begin`."""


class Deliveries(Protocol):
    """The rows of a source."""

    async def unsettled(self, source_id: str) -> tuple[int, int]:
        """`(waiting, claimed)`. Raises StoreError."""

    async def dead_letter_source(self, source_id: str) -> int | None:
        """Kill those that wait; how many died, None for unavailable."""


Announce = Callable[[str, ManagedSource | None], Awaitable[None]]
"""Tell a source's change (None: it is gone) to the node's edges and dispatcher; returns once they go by it."""
