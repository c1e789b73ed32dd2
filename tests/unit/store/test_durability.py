"""Commits and their fsync: what is answered is durable, what was refused is taken back, and a cancelled caller is no
reason to forget a hook."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ankusa.core.fold import Accepted, Duplicate
from ankusa.store.errors import StoreError
from schemas.records import Job, JobStart, JobState
from streams.local.log import LocalLog
from tests.unit.store.entries import AT, held, hook

DEADLINE_S = 20.0


class Disk:
    """The fsync of one log, under the test's hand: it blocks until it is let go, and fails when told to."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._flush = log.tables.database.flush
        self._gate = threading.Event()
        self._gate.set()
        self.errors: list[str | None] = []
        self.began = 0
        log.tables.database.flush = self._run  # type: ignore[method-assign]

    def _run(self) -> None:
        self.began += 1
        assert self._gate.wait(DEADLINE_S)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise StoreError(error)
        self._flush()

    def hold(self) -> None:
        self._gate.clear()

    def go(self) -> None:
        self._gate.set()


def run(tmp_path: Path, body: Callable[[LocalLog, Disk], Awaitable[None]]) -> None:
    async def main() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        disk = Disk(log)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await body(log, disk)
        finally:
            disk.go()
            log.close()

    asyncio.run(main())


async def until(done: Callable[[], object]) -> None:
    while not done():
        await asyncio.sleep(0.001)


def due(log: LocalLog) -> list[str]:
    """Ids of the hooks whose rows the due index would hand out, in order."""
    ids = {log.tables.database.get("ids", key): key.decode() for key in log.tables.database.keys("ids", b"", b"\xff")}
    page = log.tables.live.page("acme", AT, 100, lambda *_: True) if log.tables.live.turn(AT) else []
    return [ids[seq.to_bytes(8, "big")] for _, seq, _ in page]


def test_a_row_is_announced_when_it_is_durable_and_not_before(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        disk.hold()
        commit = asyncio.create_task(log.commit([hook("a")], []))
        await until(lambda: disk.began)
        assert not log.tables.live.turn(AT)
        assert log.undurable
        disk.go()
        await commit
        assert not log.undurable
        assert due(log) == ["a"]

    run(tmp_path, body)


def test_many_commits_share_an_fsync(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        disk.hold()
        commits = [asyncio.create_task(log.commit([hook(f"{number:02d}")], [])) for number in range(20)]
        await until(lambda: disk.began)
        disk.go()
        await asyncio.gather(*commits)
        assert disk.began <= 2
        assert len(due(log)) == 20

    run(tmp_path, body)


def test_a_cancelled_caller_leaves_a_hook_that_is_delivered(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        disk.hold()
        commit = asyncio.create_task(log.commit([hook("a")], []))
        await until(lambda: disk.began)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        woken: list[int] = []
        log.on_rows = lambda: woken.append(1)
        disk.go()
        await until(lambda: woken)
        assert due(log) == ["a"]

    run(tmp_path, body)


def test_a_cancelled_caller_whose_fsync_fails_leaves_nothing(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        disk.hold()
        disk.errors = ["disk gone"]
        commit = asyncio.create_task(log.commit([hook("a")], []))
        await until(lambda: disk.began)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        disk.go()
        await until(lambda: log.unavailable)
        log.recover()
        assert log.tables.seq_of("a") is None
        assert log.tables.counts.total() == (0, 0, 0)

    run(tmp_path, body)


def test_what_waited_behind_a_failed_fsync_is_refused_too(tmp_path: Path) -> None:
    """Its own fsync succeeds; that of the one before it did not, and it may lean on it: a duplicate does."""

    async def body(log: LocalLog, disk: Disk) -> None:
        disk.hold()
        disk.errors = ["disk gone"]
        first = asyncio.create_task(log.commit([hook("first", dedupe="evt")], []))
        await until(lambda: disk.began)
        repeat = asyncio.create_task(log.commit([hook("repeat", dedupe="evt")], []))
        other = asyncio.create_task(log.commit([hook("other")], [held("pen")]))
        await asyncio.sleep(0)
        disk.go()
        refused = await asyncio.gather(first, repeat, other, return_exceptions=True)
        assert [type(answer) for answer in refused] == [StoreError] * 3
        log.recover()
        assert [log.tables.seq_of(name) for name in ("first", "repeat", "other")] == [None] * 3
        assert log.tables.pen_size() == (0, 0)
        assert log.tables.counts.total() == (0, 0, 0)
        (answer,) = await log.commit([hook("again", dedupe="evt")], [])
        assert isinstance(answer, Accepted)
        assert due(log) == ["again"]

    run(tmp_path, body)


def test_a_duplicate_of_a_hook_in_flight_is_answered_when_that_is_durable(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        disk.hold()
        first = asyncio.create_task(log.commit([hook("first", dedupe="evt")], []))
        await until(lambda: disk.began)
        repeat = asyncio.create_task(log.commit([hook("repeat", dedupe="evt")], []))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not repeat.done()
        disk.go()
        assert await repeat == [Duplicate("first")]
        assert first.done()

    run(tmp_path, body)


def test_a_recovery_waits_for_the_fsync_that_runs(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        disk.hold()
        commit = asyncio.create_task(log.commit([hook("a")], []))
        await until(lambda: disk.began)
        log.fail("an outcome could not be written")
        with pytest.raises(StoreError, match="fsync"):
            log.recover()
        disk.go()
        await commit
        log.recover()
        assert log.tables.seq_of("a") is not None
        assert due(log) == ["a"]

    run(tmp_path, body)


def test_a_refused_commit_that_reached_the_store_all_the_same_is_taken_back(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        write = log.tables.database.write

        def take_and_refuse(batch: object) -> None:
            write(batch)  # type: ignore[arg-type]
            raise StoreError("Input/output error")

        log.tables.database.write = take_and_refuse  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            await log.commit([hook("a", dedupe="evt", sinks=3)], [held("pen")])
        log.recover()
        assert log.tables.seq_of("a") is None
        assert log.tables.counts.total() == (0, 0, 0)
        assert log.tables.pen_size() == (0, 0)
        assert list(log.tables.database.keys("due", b"", b"\xff")) == []
        (answer,) = await log.commit([hook("b", dedupe="evt")], [])
        assert isinstance(answer, Accepted)

    run(tmp_path, body)


def test_a_refused_commit_that_never_reached_the_store_costs_nothing_at_recovery(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        await log.commit([hook("before", dedupe="evt")], [held("kept")])

        def refuse(_: object) -> None:
            raise StoreError("No space left on device")

        log.tables.database.write = refuse  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            await log.commit([hook("a", dedupe="evt"), hook("b")], [held("pen")])
        log.recover()
        assert log.tables.counts.total() == (1, 0, 0)
        assert log.tables.pen_size()[0] == 1
        assert await log.commit([hook("c", dedupe="evt")], []) == [Duplicate("before")]
        assert due(log) == ["before"]

    run(tmp_path, body)


def test_a_job_whose_start_was_refused_is_no_job(tmp_path: Path) -> None:
    job = Job(id="j", kind="dlq", state=JobState.RUNNING, filter={}, rate=1, max_lag_ms=1, created_at=AT, updated_at=AT)

    async def body(log: LocalLog, disk: Disk) -> None:
        disk.errors = ["disk gone"]
        with pytest.raises(StoreError):
            await log.command(JobStart(job))
        log.recover()
        assert log.tables.job("j") is None

    run(tmp_path, body)


def test_offsets_of_refused_records_do_not_meet_those_of_later_ones(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        disk.errors = ["disk gone"]
        with pytest.raises(StoreError):
            await log.commit([hook("a")], [])
        log.recover()
        answers = await log.commit([hook("b")], [])
        assert isinstance(answers[0], Accepted)
        assert log.tables.seq_of("b") == answers[0].seq
        assert log.tables.hook(answers[0].seq) is not None
        assert log.tables.seq_of("a") is None

    run(tmp_path, body)
