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
        answers: list[Answer | None] = [None] * len(batch)
        if again:
            answers = [self._kept(submission.entry) for submission, _ in batch]
        refusing = self._log.refusing
        if refusing is None and self._wall() > deadline_at:
            refusing = "deadline passed before the commit"
        if refusing is None:
            try:
                await self._commit(batch, answers)
            except StoreError as error:
                refusing = str(error)
        return [unavailable(refusing or "") if answer is None else answer for answer in answers]

    async def _commit(self, batch: Sequence[tuple[Submission, bytes]], answers: list[Answer | None]) -> None:
        """Admit and store what has no answer yet, and fill the answers in. StoreError leaves those to store without."""
        hooks: list[tuple[Envelope, bytes, bytes]] = []
        holds: list[tuple[Held, bytes, bytes]] = []
        hook_places: list[int] = []
        hold_places: list[int] = []
        at = self._log.now()
        _, pen_bytes = self._log.tables.pen_size()
        for index, (submission, entry_bytes) in enumerate(batch):
            if answers[index] is not None:
                continue
            entry, body = submission.entry, submission.body
            size_bytes = len(entry_bytes) + len(body)
            refusal = self._admission.admit(entry, size_bytes, pen_bytes, at)
            if refusal is not None:
                answers[index] = refusal
            elif isinstance(entry, Held):
                pen_bytes += size_bytes
                holds.append((entry, entry_bytes, body))
                hold_places.append(index)
            else:
                hooks.append((entry, entry_bytes, body))
                hook_places.append(index)
        if not hooks and not holds:
            return
        stored = await self._log.commit(hooks, holds)
        for index, outcome in zip(hook_places, stored, strict=True):
            answers[index] = _answer(outcome)
        for index, (held, _, _) in zip(hold_places, holds, strict=True):
            answers[index] = Answer(AnswerStatus.QUARANTINED, held.id)

    def _kept(self, entry: Envelope | Held) -> Answer | None:
        """The answer to a submission that an engine that died did store: the truth, whatever this one refuses now."""
        try:
            if not self._stored(entry):
                return None
        except StoreError:
            return None
        return Answer(AnswerStatus.QUARANTINED if isinstance(entry, Held) else AnswerStatus.ACCEPTED, entry.id)

    def _stored(self, entry: Envelope | Held) -> bool:
        tables = self._log.tables
        if isinstance(entry, Held):
            return tables.held(entry.received_at, entry.id)
        return tables.seq_of(entry.id) is not None


def _answer(outcome: Accepted | Duplicate) -> Answer:
    if isinstance(outcome, Accepted):
        return Answer(AnswerStatus.ACCEPTED, outcome.id)
    return Answer(AnswerStatus.DUPLICATE, outcome.id)
