"""The embedded log over a real RocksDB: commit, refold, dedupe, undo, log time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ankusa.core.fold import Accepted, Duplicate
from ankusa.store.errors import StoreError, StoreLockedError
from schemas import records
from schemas.records import Envelope, Outcome, OutcomeBatch, OutcomeKind, RowState, Topic
from streams.local.log import LocalLog

AT = 1_700_000_000_000


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def hook(
    number: int, *, dedupe: str | None = None, tenant: str = "acme", sinks: int = 1
) -> tuple[Envelope, bytes, bytes]:
    envelope = Envelope(
        f"hook-{number:06d}",
        "orders",
        tenant,
        AT,
        ("http",) * sinks,
        (("x-a", "1"),),
        "application/json",
        f"hook-{number:06d}",
        dedupe,
        60_000 if dedupe else 0,
    )
    return envelope, records.encode(envelope), b"body %d \xff" % number


def test_a_commit_makes_a_hook_and_a_due_row_per_sink(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        answers = await log.commit([hook(1, sinks=2), hook(2)], [])
        assert [type(answer) for answer in answers] == [Accepted, Accepted]
        seq = log.tables.seq_of("hook-000001")
        assert seq is not None
        assert [(sink, row.state, row.at) for sink, row in log.tables.rows_of(seq)] == [
            (0, RowState.PENDING, AT),
            (1, RowState.PENDING, AT),
        ]
        assert log.tables.counts.total() == (3, 0, 0)
        log.close()
        log = LocalLog(tmp_path / "store", lambda: AT)
        stored = log.tables.hook(seq)
        assert stored is not None
        assert stored[1] == b"body 1 \xff"
        assert log.tables.counts.total() == (3, 0, 0)
        log.close()

    run(body)


def test_a_repeat_inside_the_ttl_is_the_first_hook_and_after_it_a_new_one(tmp_path: Path) -> None:
    async def body() -> None:
        now = [AT]
        log = LocalLog(tmp_path / "store", lambda: now[0])
        first = await log.commit([hook(1, dedupe="evt"), hook(2, dedupe="evt")], [])
        assert [answer.id for answer in first] == ["hook-000001", "hook-000001"]
        now[0] += 59_999
        (again,) = await log.commit([hook(3, dedupe="evt")], [])
        assert again == Duplicate("hook-000001")
        now[0] += 1
        (later,) = await log.commit([hook(4, dedupe="evt")], [])
        assert later.id == "hook-000004"
        assert log.tables.counts.total() == (2, 0, 0)
        log.close()

    run(body)


def test_an_outcome_is_folded_once_and_a_stale_one_never(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        (answer,) = await log.commit([hook(1)], [])
        assert isinstance(answer, Accepted)
        retry = Outcome(answer.seq, 0, 0, OutcomeKind.RETRY, AT, AT, 1, AT + 100, "boom")
        log.publish(OutcomeBatch((retry, retry)))
        log.publish(OutcomeBatch((Outcome(answer.seq, 0, 0, OutcomeKind.DELIVERED, AT, AT, 1),)))
        row = log.tables.row(answer.seq, 0)
        assert row is not None
        assert (row.attempts, row.generation, row.at) == (1, 1, AT + 100)
        log.publish(OutcomeBatch((Outcome(answer.seq, 0, 1, OutcomeKind.DELIVERED, AT, AT, 2),)))
        assert log.tables.row(answer.seq, 0) is None
        assert log.tables.counts.total() == (0, 0, 0)
        assert [attempt.kind for _, _, attempt in log.tables.attempts_of(answer.seq)] == [
            OutcomeKind.RETRY,
            OutcomeKind.DELIVERED,
        ]
        log.close()

    run(body)


def test_a_commit_whose_fsync_failed_is_taken_back(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        await log.commit([hook(1)], [])
        flush = log.tables.database.flush

        def refuse() -> None:
            raise StoreError("No space left on device")

        log.tables.database.flush = refuse  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="No space left"):
            await log.commit([hook(2, dedupe="evt")], [])
        assert log.refusing is not None
        with pytest.raises(StoreError):
            await log.commit([hook(3)], [])
        log.tables.database.flush = flush  # type: ignore[method-assign]
        log.recover()
        assert log.tables.seq_of("hook-000002") is None
        assert log.tables.counts.total() == (1, 0, 0)
        assert [seq for _, seq, _ in log.tables.live.page("acme", AT, 10, lambda *_: True)] == [
            log.tables.seq_of("hook-000001")
        ]
        (answer,) = await log.commit([hook(4, dedupe="evt")], [])
        assert answer.id == "hook-000004"
        log.close()

    run(body)


def test_log_time_never_runs_backwards(tmp_path: Path) -> None:
    async def body() -> None:
        now = [AT]
        log = LocalLog(tmp_path / "store", lambda: now[0])
        await log.commit([hook(1)], [])
        now[0] -= 3_600_000
        await log.commit([hook(2)], [])
        times = [at for _, at, _ in log.read(Topic.HOOKS)]
        assert times == sorted(times)
        assert log.offset_at(Topic.HOOKS, AT + 10_000_000) == log.next_offset
        log.close()
        log = LocalLog(tmp_path / "store", lambda: now[0])
        assert log.now() >= times[-1]
        log.close()

    run(body)


def test_records_read_back_as_they_were_written(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        hooks = [hook(number) for number in range(5)]
        await log.commit(hooks, [])
        ((_, _, record),) = list(log.read(Topic.HOOKS))
        at, read = records.decode_commit(record)
        assert at == AT
        assert read == [(envelope, body) for _, envelope, body in hooks]
        log.close()

    run(body)


def test_a_second_opening_is_refused_with_the_way_out(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        with pytest.raises(StoreLockedError, match=r"node\.data_dir"):
            LocalLog(tmp_path / "store", lambda: AT)
        log.close()

    run(body)
