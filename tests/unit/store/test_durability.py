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
from schemas import records
from schemas.records import Job, JobStart, JobState, Outcome, OutcomeBatch, OutcomeKind, RowState, Topic
from streams.local.dispatch_host import LocalDispatchHost
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


def wanted(log: LocalLog) -> Callable[[int, int], bool]:
    """As the dispatcher scans: it claims no row of a hook that is not durable."""
    return lambda seq, _: LocalDispatchHost(log).claimable(seq)


def due(log: LocalLog) -> list[str]:
    """Ids of the hooks whose rows the due index would hand out, in order."""
    ids = {log.tables.database.get("ids", key): key.decode() for key in log.tables.database.keys("ids", b"", b"\xff")}
    page = log.tables.live.page("acme", AT, 100, wanted(log)) if log.tables.live.turn(AT) else []
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


# -- lanes ---------------------------------------------------------------------------


def deliver(log: LocalLog, seq: int, generation: int = 0) -> None:
    log.publish(OutcomeBatch((Outcome(seq, 0, generation, OutcomeKind.DELIVERED, AT, AT, 1),)))


def test_a_member_that_became_head_before_it_was_durable_is_due_when_it_is(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        (head,) = await log.commit([hook("head", lane="k")], [])
        assert isinstance(head, Accepted)
        assert due(log) == ["head"]
        disk.hold()
        commit = asyncio.create_task(log.commit([hook("member", lane="k")], []))
        await until(lambda: disk.began == 2)
        deliver(log, head.seq)
        assert due(log) == []
        disk.go()
        await commit
        assert due(log) == ["member"]

    run(tmp_path, body)


def test_a_member_that_became_head_and_was_refused_leaves_its_lane_to_the_next(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        (head,) = await log.commit([hook("head", lane="k")], [])
        assert isinstance(head, Accepted)
        disk.hold()
        disk.errors = ["disk gone"]
        commit = asyncio.create_task(log.commit([hook("first", lane="k"), hook("second", lane="k")], []))
        await until(lambda: disk.began == 2)
        deliver(log, head.seq)
        disk.go()
        with pytest.raises(StoreError):
            await commit
        log.recover()
        for family in ("rows", "due", "members", "lanes", "hooks", "counts"):
            left = list(log.tables.database.keys(family, b"", b"\xff"))
            assert left == ([(1 << records.INDEX_BITS).to_bytes(8, "big")] if family == "hooks" else []), family
        await log.commit([hook("next", lane="k")], [])
        assert due(log) == ["next"]

    run(tmp_path, body)


def test_refused_members_leave_the_head_and_its_lane_as_they_were(tmp_path: Path) -> None:
    async def body(log: LocalLog, disk: Disk) -> None:
        await log.commit([hook("head", lane="k"), hook("kept", lane="k")], [])
        lane = log.tables.lane("acme/orders/0/http/k")
        disk.errors = ["disk gone"]
        with pytest.raises(StoreError):
            await log.commit([hook("refused", lane="k")], [])
        log.recover()
        assert log.tables.lane("acme/orders/0/http/k") == lane
        assert log.tables.lane_counts() == (1, 1)
        kept = log.tables.seq_of("kept")
        assert kept is not None
        row = log.tables.row(kept, 0)
        assert row is not None
        assert row.state is RowState.MEMBER

    run(tmp_path, body)


# -- the record of a commit ------------------------------------------------------------


def test_hooks_keep_their_places_in_a_commits_record(tmp_path: Path) -> None:
    """Where a repeat was, and where a hook has gone since: a refold gives every hook the seq it had."""

    async def body(log: LocalLog, disk: Disk) -> None:
        answers = await log.commit(
            [hook("a", dedupe="evt"), hook("repeat", dedupe="evt"), hook("b"), hook("gone"), hook("c")], []
        )
        log.drop([("hooks", answers[3].seq.to_bytes(8, "big"))])  # type: ignore[union-attr]
        ((offset, _, record),) = list(log.read(Topic.HOOKS))
        _, found = records.decode_commit(record)
        seqs = {
            records.decode_envelope(envelope).id: records.seq_of(offset, index)
            for index, (envelope, _) in enumerate(found)
            if envelope
        }
        assert seqs == {answer.id: answer.seq for answer in (answers[0], answers[2], answers[4])}  # type: ignore[union-attr]

    run(tmp_path, body)
