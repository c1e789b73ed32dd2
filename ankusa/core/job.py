"""A replay job: its states, the one table of its moves, and what records make of it (spec 05).

Owns every change of a job. Reading entries, pacing and the gate are elsewhere; times come in with the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from msgspec.structs import replace

from ankusa.core.pace import SPEED_LIMIT
from schemas.records import Job, JobPatch, JobState, Page, SinkTally


class JobEvent(Enum):
    PAUSE = auto()
    RESUME = auto()
    CANCEL = auto()
    FINISH = auto()
    FAIL = auto()


MOVES: dict[tuple[JobState, JobEvent], JobState] = {
    (JobState.RUNNING, JobEvent.PAUSE): JobState.PAUSED,
    (JobState.RUNNING, JobEvent.RESUME): JobState.RUNNING,
    (JobState.RUNNING, JobEvent.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobEvent.FINISH): JobState.DONE,
    (JobState.RUNNING, JobEvent.FAIL): JobState.FAILED,
    (JobState.PAUSED, JobEvent.PAUSE): JobState.PAUSED,
    (JobState.PAUSED, JobEvent.RESUME): JobState.RUNNING,
    (JobState.PAUSED, JobEvent.CANCEL): JobState.CANCELLED,
}
"""A finished job (done, cancelled, failed) moves no more; a pair that is not here does nothing."""

EVENT_OF: dict[JobState, JobEvent] = {
    JobState.RUNNING: JobEvent.RESUME,
    JobState.PAUSED: JobEvent.PAUSE,
    JobState.CANCELLED: JobEvent.CANCEL,
    JobState.DONE: JobEvent.FINISH,
    JobState.FAILED: JobEvent.FAIL,
}

UNFINISHED = frozenset({JobState.RUNNING, JobState.PAUSED})

MAX_UNFINISHED = 16
"""Jobs that may be running or paused at once."""

KEPT_FINISHED = 100
"""Finished jobs that are kept; older ones are dropped, and their ids forgotten."""

FAILURES_FLOOR = 10
FAILURES_CEILING = 100
"""Auto-pause needs at least min(100, moved) failures and never fewer than 10 (spec 05): a small job is not paused
by its first bad hook, a large one not later than its hundredth."""

TALLIED = 256
"""Sink keys that a job counts each for itself: some 80 bytes each, in a record that is written with every page and
every batch of outcomes. A job over more of them counts the rest together."""

OTHERS = "*"
"""The key of what is counted together: no sink key's text."""


def patched(job: Job, patch: JobPatch) -> Job:
    """The job after an operator's or the replayer's patch; unchanged when the job is finished.

    Resuming a paused job clears `error`, the tallies and what was held, and starts its scan again when anything was
    held (those entries lie behind the cursor; what was moved is no longer where the scan looks).
    """
    if job.state not in UNFINISHED:
        return job
    state = job.state
    if patch.state is not None:
        target = MOVES.get((job.state, EVENT_OF[patch.state]))
        state = job.state if target is None else target
    resumed = job.state is JobState.PAUSED and state is JobState.RUNNING
    changed = replace(
        job,
        state=state,
        rate=job.rate if patch.rate is None else patch.rate,
        whole_rate=job.whole_rate if patch.rate is None else patch.whole_rate,
        max_lag_ms=job.max_lag_ms if patch.max_lag_ms is None else patch.max_lag_ms,
        updated_at=patch.at,
        finished_at=patch.at if state not in UNFINISHED else None,
        error=job.error if patch.error is None else patch.error,
        held=job.held if patch.held is None else patch.held,
        throttled=job.throttled if patch.throttled is None else patch.throttled,
    )
    if resumed:
        changed = replace(changed, error=None, tallies={}, held=(), cursor=None if job.held else job.cursor)
    return changed


def paged(job: Job, page: Page, moved: dict[str, int]) -> Job:
    """The job after a page: cursor and counters; `moved` is rows moved by sink key. A page of a job that is not running
    still counts, for the rows it moved have moved."""
    tallies = dict(job.tallies)
    for sink, count in moved.items():
        key = _tallied(tallies, sink)
        tally = tallies.get(key, SinkTally())
        tallies[key] = replace(tally, moved=tally.moved + count)
    throttled = dict(job.throttled)
    for reason, count in page.throttled.items():
        throttled[reason] = throttled.get(reason, 0) + count
    state = job.state
    if page.finished:
        state = MOVES.get((job.state, JobEvent.FINISH), job.state)
    return replace(
        job,
        state=state,
        cursor=page.cursor,
        scanned=job.scanned + page.scanned,
        skipped=job.skipped + page.skipped,
        moved=job.moved + sum(moved.values()),
        tallies=tallies,
        throttled=throttled,
        updated_at=page.at,
        finished_at=page.at if state is JobState.DONE and job.finished_at is None else job.finished_at,
    )


class Settled:
    """What a batch of outcomes did to one job's rows: counts by sink key, gathered before the job is written once."""

    __slots__ = ("dead", "delivered", "parked")

    def __init__(self) -> None:
        self.delivered: dict[str, int] = {}
        self.dead: dict[str, int] = {}
        self.parked: dict[str, int] = {}


def settled(job: Job, counts: Settled, at: int) -> Job:
    """The job after outcomes of its rows. A finished job goes on counting: its last rows settle after its last page."""
    tallies = dict(job.tallies)
    # Sorted, since which are counted for themselves depends on the order.
    for sink in sorted(counts.delivered.keys() | counts.dead.keys() | counts.parked.keys()):
        key = _tallied(tallies, sink)
        tally = tallies.get(key, SinkTally())
        tallies[key] = replace(
            tally,
            delivered=tally.delivered + counts.delivered.get(sink, 0),
            failed=tally.failed + counts.dead.get(sink, 0) + counts.parked.get(sink, 0),
        )
    return replace(
        job,
        delivered=job.delivered + sum(counts.delivered.values()),
        dead=job.dead + sum(counts.dead.values()),
        tallies=tallies,
        updated_at=at,
    )


def _tallied(tallies: dict[str, SinkTally], sink: str) -> str:
    """The key that a sink key is counted under."""
    return sink if sink in tallies or len(tallies) - (OTHERS in tallies) < TALLIED else OTHERS


def failing(tally: SinkTally) -> bool:
    """The auto-pause rule for one sink key, since the job last resumed."""
    return tally.failed > tally.delivered and tally.failed >= max(FAILURES_FLOOR, min(FAILURES_CEILING, tally.moved))


def newly_held(job: Job) -> tuple[str, ...]:
    """Sink keys past the rule, sorted, those held already included."""
    failed = {key for key, tally in job.tallies.items() if key != OTHERS and failing(tally)}
    return tuple(sorted(set(job.held) | failed))


def failing_others(job: Job) -> SinkTally | None:
    """What is counted together, where it is past the rule: nobody can say which of these sinks to hold back."""
    others = job.tallies.get(OTHERS)
    return others if others is not None and failing(others) else None


def remaining(job: Job) -> int | None:
    """Entries still to move, as counted when it started; None when they were not counted. A finished range has none."""
    if job.state is JobState.DONE:
        return 0
    return None if job.total is None else max(0, job.total - job.moved)


def duration_ms(items: int, rate: int) -> int:
    """How long `items` take at `rate` per second, at least."""
    return -(-items * 1000 // min(rate, SPEED_LIMIT))


def eta_ms(job: Job) -> int | None:
    """How long a running job still takes at its rate, if live traffic leaves the room; None when that is unknown."""
    left = remaining(job)
    return None if left is None or job.state is not JobState.RUNNING else duration_ms(left, job.rate)


def surplus(kept: Iterable[Job]) -> list[str]:
    """Ids of finished jobs past the newest `KEPT_FINISHED`, oldest first."""
    finished = [job for job in kept if job.state not in UNFINISHED]
    finished.sort(key=lambda job: (job.finished_at or job.updated_at, job.created_at, job.sequence))
    return [job.id for job in finished[: max(0, len(finished) - KEPT_FINISHED)]]
