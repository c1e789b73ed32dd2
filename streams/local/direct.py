"""The log of an edge that runs inside its engine's process (`node.edges: 0`): no socket between them.

Owns nothing but the step from a submission to its bytes, which elsewhere the wire makes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from schemas.append import Answer, AnswerStatus, Submission
from schemas.records import encode
from streams.local.server import IntakePort

log = logging.getLogger("ankusa.edge")

RETRY_AFTER_MS = 1000


class DirectLog:
    """An `EdgeLog` over an intake in the same process. `probe` is the engine's."""

    def __init__(self, intake: IntakePort, probe: Callable[[], Awaitable[str | None]]) -> None:
        self._intake = intake
        self._probe = probe

    async def append(self, submissions: Sequence[Submission], deadline_at: int) -> list[Answer]:
        batch = [(submission, encode(submission.entry)) for submission in submissions]
        try:
            return await self._intake.append(batch, deadline_at)
        except Exception:
            # What became of it is unknown, as when a process dies: refused, and perhaps delivered all the same.
            log.exception("event=append_failed hooks=%d", len(batch))
            answer = Answer(AnswerStatus.STORE_UNAVAILABLE, retry_after_ms=RETRY_AFTER_MS, reason="internal error")
            return [answer] * len(batch)

    async def probe(self) -> str | None:
        return await self._probe()
