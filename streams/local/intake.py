"""The engine's side of an append: deadline, admission, commit, answers (spec 02, spec 08).

Owns the order of those steps; never touches a socket or a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ankusa.admission import Admission
from ankusa.core.fold import Accepted, Duplicate
from ankusa.store.errors import StoreError
from schemas.append import Answer, AnswerStatus, Submission
from schemas.records import Envelope, Held
from streams.local.log import LocalLog

RETRY_AFTER_MS = 1000


def unavailable(reason: str) -> Answer:
    return Answer(AnswerStatus.STORE_UNAVAILABLE, retry_after_ms=RETRY_AFTER_MS, reason=reason)


class Intake:
    """Takes batches of submissions into the log."""

    def __init__(self, log: LocalLog, admission: Admission, wall: Callable[[], int]) -> None:
        """`wall` is the clock that edges take their deadlines from, unix ms."""
        self._log = log
        self._wall = wall
        self._admission = admission
        self.answered: dict[AnswerStatus, int] = dict.fromkeys(AnswerStatus, 0)

    async def append(
        self, batch: Sequence[tuple[Submission, bytes]], deadline_at: int, *, again: bool = False
    ) -> list[Answer]:
        """One answer per submission, in order, given when what it says is durable. `again` marks a batch that was
        sent before, to an engine that died with it: what that one did store is found by its hook id."""
        answers = await self._append(batch, deadline_at, again=again)
        for answer in answers:
            self.answered[answer.status] += 1
        return answers

    async def _append(
        self, batch: Sequence[tuple[Submission, bytes]], deadline_at: int, *, again: bool
    ) -> list[Answer]:
        at = self._log.now()
        if self._log.refusing is not None:
            return [unavailable(self._log.refusing)] * len(batch)
        if self._wall() > deadline_at:
            return [unavailable("deadline passed before the commit")] * len(batch)
        answers: list[Answer | None] = [None] * len(batch)
        hooks: list[tuple[Envelope, bytes, bytes]] = []
        holds: list[tuple[Held, bytes, bytes]] = []
        places: list[int] = []
        _, pen_bytes = self._log.tables.pen_size()
        for index, (submission, entry_bytes) in enumerate(batch):
            entry, body = submission.entry, submission.body
            if again and self._stored(entry):
                kept = AnswerStatus.QUARANTINED if isinstance(entry, Held) else AnswerStatus.ACCEPTED
                answers[index] = Answer(kept, entry.id)
                continue
            size_bytes = len(entry_bytes) + len(body)
            refusal = self._admission.admit(entry, size_bytes, pen_bytes, at)
            if refusal is not None:
                answers[index] = refusal
            elif isinstance(entry, Held):
                pen_bytes += size_bytes
                holds.append((entry, entry_bytes, body))
                answers[index] = Answer(AnswerStatus.QUARANTINED, entry.id)
            else:
                hooks.append((entry, entry_bytes, body))
                places.append(index)
        if hooks or holds:
            try:
                stored = await self._log.commit(hooks, holds)
            except StoreError as error:
                return [
                    unavailable(str(error)) if answer is None or answer.status is AnswerStatus.QUARANTINED else answer
                    for answer in answers
                ]
            for index, outcome in zip(places, stored, strict=True):
                answers[index] = _answer(outcome)
        return [answer for answer in answers if answer is not None]

    def _stored(self, entry: Envelope | Held) -> bool:
        tables = self._log.tables
        if isinstance(entry, Held):
            return tables.held(entry.received_at, entry.id)
        return tables.seq_of(entry.id) is not None


def _answer(outcome: Accepted | Duplicate) -> Answer:
    if isinstance(outcome, Accepted):
        return Answer(AnswerStatus.ACCEPTED, outcome.id)
    return Answer(AnswerStatus.DUPLICATE, outcome.id)
