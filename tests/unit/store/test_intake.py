"""The intake over a real log: what each submission is answered, and that an answer is given when it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ankusa.admission import Admission
from ankusa.store.errors import StoreError
from schemas.append import Answer, AnswerStatus, Submission
from schemas.config import Quarantine, RateLimit, RateLimits
from schemas.records import Envelope, Held
from streams.local.intake import Intake
from streams.local.log import LocalLog
from tests.unit.store.entries import AT, held, hook

LATER = AT + 60_000
Entry = tuple[Envelope | Held, bytes, bytes]


class Node:
    def __init__(self, path: Path, limits: RateLimits, quarantine: Quarantine) -> None:
        self.at = AT
        self.log = LocalLog(path, lambda: self.at)
        self.intake = Intake(self.log, Admission(limits, quarantine, {}), lambda: self.at)

    async def append(self, *entries: Entry, deadline_at: int = LATER, again: bool = False) -> list[Answer]:
        batch = [(Submission(entry, body), entry_bytes) for entry, entry_bytes, body in entries]
        return await self.intake.append(batch, deadline_at, again=again)

    async def statuses(self, *entries: Entry, **options: Any) -> list[AnswerStatus]:
        return [answer.status for answer in await self.append(*entries, **options)]


def run(
    tmp_path: Path,
    body: Callable[[Node], Awaitable[None]],
    limits: RateLimits | None = None,
    quarantine: Quarantine | None = None,
) -> None:
    async def main() -> None:
        node = Node(tmp_path / "store", limits or RateLimits(), quarantine or Quarantine())
        try:
            await body(node)
        finally:
            node.log.close()

    asyncio.run(main())


def test_each_submission_is_answered_in_its_place(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        answers = await node.append(
            hook("a", dedupe="evt"), held("pen-1"), hook("repeat", dedupe="evt"), hook("b"), held("pen-2")
        )
        assert answers == [
            Answer(AnswerStatus.ACCEPTED, "a"),
            Answer(AnswerStatus.QUARANTINED, "pen-1"),
            Answer(AnswerStatus.DUPLICATE, "a"),
            Answer(AnswerStatus.ACCEPTED, "b"),
            Answer(AnswerStatus.QUARANTINED, "pen-2"),
        ]
        assert node.log.tables.counts.total() == (2, 0, 0)
        assert node.log.tables.pen_size()[0] == 2
        assert node.intake.answered[AnswerStatus.ACCEPTED] == 2

    run(tmp_path, body)


def test_limits_refuse_some_of_a_batch_and_the_rest_is_stored(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        assert await node.statuses(hook("a"), hook("b"), hook("c", tenant="other"), hook("d")) == [
            AnswerStatus.ACCEPTED,
            AnswerStatus.ACCEPTED,
            AnswerStatus.ACCEPTED,
            AnswerStatus.RATE_LIMITED,
        ]
        assert node.log.tables.seq_of("d") is None
        node.at += 1000
        assert await node.statuses(hook("d")) == [AnswerStatus.ACCEPTED]

    run(tmp_path, body, RateLimits(default=RateLimit(rate=1, burst=2)))


def test_the_pen_fills_within_a_batch_too(tmp_path: Path) -> None:
    size_bytes = sum(map(len, held("pen-0")[1:]))

    async def body(node: Node) -> None:
        full = AnswerStatus.QUARANTINE_FULL
        assert await node.statuses(held("pen-0"), held("pen-1"), held("pen-2")) == [
            AnswerStatus.QUARANTINED,
            AnswerStatus.QUARANTINED,
            full,
        ]
        assert await node.statuses(held("pen-3")) == [full]
        assert node.log.tables.pen_size() == (2, 2 * size_bytes)

    run(tmp_path, body, quarantine=Quarantine(max_bytes=2 * size_bytes))


def test_past_the_deadline_nothing_is_stored(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        (answer,) = await node.append(hook("a"), deadline_at=AT - 1)
        assert answer.status is AnswerStatus.STORE_UNAVAILABLE
        assert answer.retry_after_ms > 0
        assert "deadline" in answer.reason
        assert node.log.tables.seq_of("a") is None
        assert await node.statuses(hook("a"), deadline_at=AT) == [AnswerStatus.ACCEPTED]

    run(tmp_path, body)


def test_a_store_that_refuses_is_told_with_its_reason_and_spends_no_limit(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        node.log.low_space = "disk full"
        (answer,) = await node.append(hook("a"))
        assert (answer.status, answer.reason) == (AnswerStatus.STORE_UNAVAILABLE, "disk full")
        node.log.low_space = None
        assert await node.statuses(hook("a")) == [AnswerStatus.ACCEPTED]

    run(tmp_path, body, RateLimits(default=RateLimit(rate=0.001, burst=1)))


def test_a_commit_that_is_not_durable_is_refused_for_all_it_held(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        def refuse() -> None:
            raise StoreError("Input/output error")

        node.log.tables.database.flush = refuse  # type: ignore[method-assign]
        statuses = await node.statuses(hook("a"), held("pen"), hook("b", tenant="limited"), hook("c", tenant="limited"))
        unavailable = AnswerStatus.STORE_UNAVAILABLE
        assert statuses == [unavailable, unavailable, unavailable, AnswerStatus.RATE_LIMITED]
        node.log.recover()
        assert node.log.tables.counts.total() == (0, 0, 0)
        assert node.log.tables.pen_size() == (0, 0)

    run(tmp_path, body, RateLimits(tenants={"limited": RateLimit(rate=0.001, burst=1)}))


def test_a_batch_sent_again_finds_what_its_first_sending_stored(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        first = (hook("a"), held("pen"))
        await node.append(*first)
        answers = await node.append(*first, hook("new"), again=True)
        assert [answer.status for answer in answers] == [
            AnswerStatus.ACCEPTED,
            AnswerStatus.QUARANTINED,
            AnswerStatus.ACCEPTED,
        ]
        assert node.log.tables.counts.total() == (2, 0, 0)
        assert node.log.tables.pen_size()[0] == 1

    run(tmp_path, body)
