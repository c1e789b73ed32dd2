"""A replay job under every event and in any order of pages, outcomes, patches, repeats and restarts.

The fold, the reader and the replayer are the real ones; only the store is a few dicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ankusa.core import fold
from ankusa.core import job as jobs
from ankusa.core import ops as operations
from ankusa.core.job import EVENT_OF, MOVES, UNFINISHED, JobEvent
from ankusa.core.pressure import Pressure
from ankusa.replay.ports import Unreadable
from ankusa.replay.replayer import Replayer
from ankusa.store import keys
from schemas.records import (
    Attempt,
    Breaker,
    ErrorClass,
    Job,
    JobPatch,
    JobRecord,
    JobStart,
    JobState,
    Lane,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    Page,
    Row,
    RowState,
    SinkTally,
    sink_key,
)

START = 1_000_000
ID = "0190f5fe-7a3c-7cde-8b1a-000000000001"

Place = tuple[int, int]


def new_job(state: JobState = JobState.RUNNING, rate: int = 25) -> Job:
    return Job(id=ID, kind="dlq", state=state, filter={}, rate=rate, max_lag_ms=100, created_at=START, updated_at=START)


class Memory:
    """A replay host and the tables of its fold, in dicts."""

    roles = ("dispatch",)

    def __init__(self) -> None:
        self.at = START
        self.busy = False
        self.rows_by_place: dict[Place, Row] = {}
        self.jobs_by_id: dict[str, Job] = {}
        self.attempts: dict[tuple[int, int, int], Attempt] = {}
        self.cursors: list[bytes | None] = []
        self.pages: list[Page] = []

    # what a fold reads
    def row(self, seq: int, sink: int) -> Row | None:
        return self.rows_by_place.get((seq, sink))

    def job(self, job_id: str) -> Job | None:
        return self.jobs_by_id.get(job_id)

    def breaker(self, key: str) -> Breaker | None:
        return None

    def lane(self, key: str) -> Lane | None:
        return None

    def members(self, key: str, place: int = 0) -> Iterator[tuple[int, int]]:
        return iter(())

    def dedupe(self, key: str) -> tuple[str, int] | None:
        return None

    # what a replay reads
    def now(self) -> int:
        return self.at

    def pressure(self) -> Pressure | None:
        return Pressure(101 if self.busy else 0, window_full=False)

    def jobs(self) -> list[Job]:
        return list(self.jobs_by_id.values())

    def dead_keys(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        dead = [
            keys.dead_key(row.at, *place) for place, row in self.rows_by_place.items() if row.state is RowState.DEAD
        ]
        return sorted(key for key in dead if start <= key < end)[:limit]

    def dead_keys_of(self, hook_id: str) -> list[bytes]:
        raise AssertionError("no filter here names a hook")

    def rows(self, places: Sequence[Place]) -> list[Row | Unreadable | None]:
        return [self.rows_by_place.get(place) for place in places]

    def dead_counts(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for (_, sink), row in self.rows_by_place.items():
            key = sink_key(row.tenant_id, row.source_id, sink, row.sink_type)
            counts[key] = counts.get(key, 0) + (row.state is RowState.DEAD)
        return counts

    # what is appended
    async def command(self, record: JobRecord) -> None:
        self.apply(fold.fold_job(record, self))

    def publish(self, page: Page) -> None:
        self.pages.append(page)
        self.apply(fold.fold_outcomes(page, 1, self.at, self))
        self.cursors.append(page.cursor)

    def settle(self, batch: OutcomeBatch) -> None:
        self.apply(fold.fold_outcomes(batch, 1, self.at, self))

    def apply(self, ops: Sequence[operations.Op]) -> None:
        for op in ops:
            if isinstance(op, operations.PutRow):
                if op.row is None:
                    del self.rows_by_place[op.seq, op.sink]
                else:
                    self.rows_by_place[op.seq, op.sink] = op.row
            elif isinstance(op, operations.PutAttempt):
                assert (op.seq, op.sink, op.generation) not in self.attempts, "two moves of one generation"
                self.attempts[op.seq, op.sink, op.generation] = op.attempt
            elif isinstance(op, operations.PutJob):
                self.jobs_by_id[op.job.id] = op.job
            elif isinstance(op, operations.DropJob):
                del self.jobs_by_id[op.job_id]


# -- every state and event ------------------------------------------------------------


@given(st.sampled_from(JobState), st.sampled_from(JobEvent))
def test_every_event_in_every_state_is_known(state: JobState, event: JobEvent) -> None:
    after = MOVES.get((state, event), state)
    assert after in JobState
    assert state in UNFINISHED or after is state


@given(st.sampled_from(JobState), st.none() | st.sampled_from(JobState), st.booleans())
def test_every_patch_of_every_state_lands_where_the_table_says(
    state: JobState, target: JobState | None, held: bool
) -> None:
    before = replace(new_job(state), held=("k",) if held else (), cursor=b"c", error="e", tallies={"k": SinkTally(1)})
    after = jobs.patched(before, JobPatch(ID, START + 5, target, rate=7))
    if state not in UNFINISHED:
        assert after == before
        return
    expected = state if target is None else MOVES.get((state, EVENT_OF[target]), state)
    assert (after.state, after.rate, after.updated_at) == (expected, 7, START + 5)
    assert (after.finished_at is None) == (after.state in UNFINISHED)
    resumed = state is JobState.PAUSED and expected is JobState.RUNNING
    assert (after.error, after.tallies, after.held) == (
        (None, {}, ()) if resumed else ("e", before.tallies, before.held)
    )
    assert after.cursor == (None if resumed and held else b"c")


@given(st.sampled_from(JobState), st.booleans())
def test_a_page_ends_only_a_running_job(state: JobState, finished: bool) -> None:
    page = Page(ID, START + 9, b"z", 3, 1, (), finished, {"lag": 2})
    after = jobs.paged(new_job(state), page, {"k": 2})
    assert after.state is (JobState.DONE if finished and state is JobState.RUNNING else state)
    assert (after.scanned, after.skipped, after.moved, after.cursor) == (3, 1, 2, b"z")
    assert (after.throttled, after.tallies) == ({"lag": 2}, {"k": SinkTally(2)})


@given(st.lists(st.sampled_from(JobState), max_size=130), st.integers(0, 5))
def test_only_the_oldest_finished_jobs_are_surplus(states: list[JobState], step: int) -> None:
    kept = [
        replace(
            new_job(state), id=str(number), finished_at=None if state in UNFINISHED else START + number // (step + 1)
        )
        for number, state in enumerate(states)
    ]
    kept = [replace(job, created_at=START + number) for number, job in enumerate(kept)]
    finished = [job.id for job in kept if job.state not in UNFINISHED]
    assert jobs.surplus(kept) == finished[: max(0, len(finished) - jobs.KEPT_FINISHED)]


# -- any order ------------------------------------------------------------------------

DEAD, DELIVERED, PARKED, RETRY = OutcomeKind.DEAD, OutcomeKind.DELIVERED, OutcomeKind.PARKED, OutcomeKind.RETRY

steps = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.sampled_from([DEAD, DELIVERED, PARKED, RETRY])),
        st.tuples(st.just("turns"), st.sampled_from([DEAD, DEAD, DEAD, PARKED])),
        st.tuples(st.just("patch"), st.sampled_from([JobState.RUNNING, JobState.RUNNING, JobState.PAUSED])),
        st.tuples(st.just("rate"), st.sampled_from([1, 5, 25, 100, 5_000])),
        st.tuples(st.just("dies"), st.integers(1, 5)),
        st.tuples(st.just("repeat page"), st.integers(0, 100)),
        st.tuples(st.just("repeat outcomes"), st.integers(0, 100)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("busy"), st.booleans()),
        st.tuples(st.just("cancel"), st.just(0)),
    ),
    max_size=20,
)


class Story:
    """One run: a store with dead rows of two sources, `(source, how many)` a ms, a job, and what befalls them."""

    def __init__(self, dead: list[tuple[int, int]]) -> None:
        self.host = Memory()
        self.seq = 0
        self.batches: list[OutcomeBatch] = []
        for source, count in dead:
            for _ in range(count):
                self.die(source)
            self.host.at += 1
        self.horizon = dict(self.host.rows_by_place)
        self.host.jobs_by_id = {}
        self.host.apply(fold.fold_job(JobStart(replace(new_job(), created_at=self.host.at)), self.host))
        self.host.at += 1
        self.replayer = Replayer(self.host)

    def die(self, source: int) -> None:
        self.seq += 1
        row = Row(RowState.DEAD, "acme", f"acme.{source}", "http", self.host.at, 10, 3, 1, START, "boom")
        self.host.rows_by_place[self.seq, 0] = row

    @property
    def job(self) -> Job:
        return self.host.jobs_by_id[ID]

    async def do(self, step: str, value: int) -> None:
        host = self.host
        if step == "tick":
            for _ in range(value):
                host.at += 200
                await self.replayer.tick(host.at)
        elif step == "settle":
            self.settle(OutcomeKind(value))
        elif step == "turns":
            for _ in range(6):
                await self.do("tick", 1)
                self.settle(OutcomeKind(value))
        elif step == "patch":
            await host.command(JobPatch(ID, host.at, JobState(value)))
        elif step == "rate":
            await host.command(JobPatch(ID, host.at, rate=value))
        elif step == "dies":
            for source in range(value):
                self.die(source % 2)
        elif step == "repeat page" and host.pages:
            host.apply(self.without_counts(host.pages[value % len(host.pages)]))
        elif step == "repeat outcomes" and self.batches:
            host.settle(self.batches[value % len(self.batches)])
        elif step == "restart":
            self.replayer = Replayer(host)
        elif step == "busy":
            host.busy = bool(value)
        elif step == "cancel":
            await host.command(JobPatch(ID, host.at, JobState.CANCELLED))

    def without_counts(self, page: Page) -> list[operations.Op]:
        """A page folded again: a log that is folded twice does not repeat a page, a late worker may repeat its rows."""
        ops = fold.fold_outcomes(page, 1, self.host.at, self.host)
        assert not [op for op in ops if isinstance(op, operations.PutRow)], "a repeated page moved a row"
        return []

    def settle(self, kind: OutcomeKind) -> None:
        """One attempt at each row that waits: the first source's go as `kind`, the second's are delivered."""
        items = []
        for (seq, sink), row in self.host.rows_by_place.items():
            if row.state is RowState.PENDING:
                verdict = kind if row.source_id == "acme.0" else DELIVERED
                outcome = Outcome(
                    *(seq, sink, row.generation, verdict, self.host.at, self.host.at, row.attempts + 1),
                    due_at=self.host.at + 5,
                    error_class=ErrorClass.TRANSIENT,
                )
                items.append(outcome)
        if items:
            self.batches.append(OutcomeBatch(tuple(items)))
            self.host.settle(self.batches[-1])

    def check(self) -> None:
        host, job = self.host, self.job
        revived = [place for place, attempt in host.attempts.items() if attempt.kind is OutcomeKind.REVIVED]
        assert job.moved == len(revived)
        assert len({(seq, sink) for seq, sink, _ in revived}) == len(revived), "a row moved twice"
        assert {(seq, sink) for seq, sink, _ in revived} <= self.horizon.keys()
        kinds = [attempt.kind for attempt in host.attempts.values() if attempt.replay_id == ID]
        assert (job.delivered, job.dead) == (kinds.count(DELIVERED), kinds.count(DEAD))
        assert job.delivered + job.dead <= job.moved
        assert job.state is not JobState.FAILED


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 0, 1]), st.integers(1, 30)), max_size=4), steps)
def test_any_order_moves_each_row_once_and_counts_it(
    dead: list[tuple[int, int]], befall: list[tuple[str, int]]
) -> None:
    async def body() -> None:
        story = Story(dead)
        for step, value in befall:
            before = story.job.cursor
            await story.do(step, value)
            story.check()
            after = story.job.cursor
            # Only resuming a job that held something starts its range again.
            assert step == "patch" or (after or b"") >= (before or b"")
        await end(story)

    asyncio.run(body())


async def end(story: Story) -> None:
    """Healthy sinks and a patient operator: every row of the horizon moves, unless the job was cancelled."""
    story.host.busy = False
    for _ in range(600):
        if story.job.state not in UNFINISHED:
            break
        if story.job.state is JobState.PAUSED:
            await story.do("patch", JobState.RUNNING)
        await story.do("rate", 5_000)
        await story.do("tick", 1)
        story.settle(DELIVERED)
        story.check()
    assert story.job.state in (JobState.DONE, JobState.CANCELLED)
    if story.job.state is JobState.DONE:
        assert story.job.moved == len(story.horizon)
        assert story.job.finished_at is not None
    story.settle(DELIVERED)
    story.check()
