"""The engine's side of an append: what a batch that is sent again is told, and what a refusal leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ankusa.admission import Admission
from ankusa.store.errors import StoreError
from schemas.append import AnswerStatus, Submission
from schemas.config import Quarantine, RateLimits
from schemas.records import Envelope, Held, encode
from streams.local.intake import Intake
from streams.local.log import LocalLog

AT = 1_700_000_000_000
LATER = AT + 60_000


def hook(name: str) -> tuple[Submission, bytes]:
    entry = Envelope(name, "orders", "acme", AT, ("http",), (), None, name)
    return Submission(entry, b"{}"), encode(entry)


def held(name: str) -> tuple[Submission, bytes]:
    entry = Held(name, "orders", "acme", AT, "POST", "/webhooks/orders", (), "signature_mismatch", 2)
    return Submission(entry, b"{}"), encode(entry)


def intake(log: LocalLog) -> Intake:
    return Intake(log, Admission(RateLimits(), Quarantine(), {}), lambda: AT)


def test_what_a_dead_engine_stored_is_answered_so_whatever_is_refused_now(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        taken = intake(log)
        await taken.append([hook("a"), held("b")], LATER)
        log.low_space = "disk full"
        for deadline in (LATER, AT - 1):
            answers = await taken.append([hook("a"), held("b"), hook("c"), held("d")], deadline, again=True)
            assert [answer.status for answer in answers] == [
                AnswerStatus.ACCEPTED,
                AnswerStatus.QUARANTINED,
                AnswerStatus.STORE_UNAVAILABLE,
                AnswerStatus.STORE_UNAVAILABLE,
            ]
        assert log.tables.counts.total() == (1, 0, 0)
        log.close()

    asyncio.run(body())


def test_a_batch_sent_again_stores_only_what_is_missing(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        taken = intake(log)
        await taken.append([hook("a")], LATER)
        answers = await taken.append([hook("a"), hook("b")], LATER, again=True)
        assert [answer.id for answer in answers] == ["a", "b"]
        assert log.tables.counts.total() == (2, 0, 0)
        log.close()

    asyncio.run(body())


def test_a_refused_fsync_refuses_held_hooks_too(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        flush = log.tables.database.flush

        def refuse() -> None:
            raise StoreError("No space left on device")

        log.tables.database.flush = refuse  # type: ignore[method-assign]
        answers = await intake(log).append([hook("a"), held("b")], LATER)
        assert {answer.status for answer in answers} == {AnswerStatus.STORE_UNAVAILABLE}
        log.tables.database.flush = flush  # type: ignore[method-assign]
        log.recover()
        assert log.tables.counts.total() == (0, 0, 0)
        assert log.tables.pen_size() == (0, 0)
        log.close()

    asyncio.run(body())


def test_a_passed_deadline_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        (answer,) = await intake(log).append([hook("a")], AT - 1)
        assert answer.status is AnswerStatus.STORE_UNAVAILABLE
        assert log.tables.counts.total() == (0, 0, 0)
        log.close()

    asyncio.run(body())
