"""The edge's port to the log: append, and a probe. The embedded edge speaks it over a socket to its engine."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from schemas.append import Answer, Submission


class EdgeLog(Protocol):
    """What an edge needs of a log."""

    def append(self, submissions: Sequence[Submission], deadline_at: int) -> Awaitable[list[Answer]]:
        """Store up to 256 submissions; one answer each, in order, given only when durable.

        May begin with the call, before the answers are awaited, which they must be. A batch that has not started by
        `deadline_at` (unix ms) is refused whole. Never raises: a log that cannot be reached answers STORE_UNAVAILABLE
        for each.
        """

    async def probe(self) -> str | None:
        """None while the log takes a durable write, else the reason in a few words."""
