"""One page of a replay job, from its gate to its record (spec 05 "Gate", "Auto-pause", "Durable and exact").

Its steps: (1) read the job as it is now, (2) ask the gate, (3) hold back sink keys past the auto-pause rule, durably,
(4) read entries from the committed cursor on, (5) publish the rows and the new cursor as one record. Between pages
nothing is remembered that a page depends on, so a crash after any step goes on from the last committed page.
Never paces, never folds, and never decides what a page does to a row.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from ankusa.core import job as jobs
from ankusa.core.pace import Grant
from ankusa.core.pressure import gate
from ankusa.replay.dlq import DlqFilter, find_held, only_held_left, scan
from ankusa.replay.kept import drop_surplus
from ankusa.replay.ports import PagingHost
from schemas.records import Job, JobPatch, JobState, Page, Revival

log = logging.getLogger("ankusa.replay")

THROTTLED_MS = 1_000
"""How often the counts of a job that only waits are written: its reason shows within a second, not in every tick."""

NAMED_KEYS = 5
"""Sink keys that the error of a job that paused itself names; the job's `held` lists them all."""


class Used(Struct, frozen=True, gc=False):
    """What a page cost, and whether the job has another one in this tick."""

    items: int = 0
    scanned: int = 0
    more: bool = False


class _Sweep(Struct, frozen=True, gc=False):
    """How far the search for held rows is. It is void when the job's `held` or committed cursor is another one."""

    held: tuple[str, ...]
    committed: bytes | None
    place: bytes | None


class Pager:
    """Makes pages for one host's jobs. What it keeps (waits not yet written, a search's place) may be lost."""

    def __init__(self, host: PagingHost) -> None:
        self._host = host
        self._throttled: dict[str, dict[str, int]] = {}
        self._written_at: dict[str, int] = {}
        self._sweeps: dict[str, _Sweep] = {}

    def forget(self, running: set[str]) -> None:
        """Keep nothing of jobs that are not in `running`."""
        for kept in (self._throttled, self._written_at, self._sweeps):
            for job_id in kept.keys() - running:
                del kept[job_id]

    async def page(self, grant: Grant, at: int) -> Used:
        """One page at `at` (unix ms), within the grant. Raises StoreError; then nothing of the page happened."""
        job = self._host.job(grant.job_id)
        # The horizon includes the ms of the start: until that is over, a row may still die inside it.
        if job is None or job.state is not JobState.RUNNING or self._host.now() <= job.created_at:
            return Used()
        if job.kind != "dlq":
            await self._stop(job, JobState.FAILED, f"this release runs no replays of kind {job.kind}", at)
            return Used()
        reason = gate(self._host.pressure(), job.max_lag_ms)
        if reason is not None:
            await self._throttle(job, reason, at)
            return Used()
        held = jobs.newly_held(job)
        if held != job.held:
            await self._host.command(JobPatch(job.id, at, held=held))
            log.warning("event=sinks_held id=%s held=%s", job.id, _named(job, held))
            return Used(more=True)
        others = jobs.failing_others(job)
        if others is not None:
            text = (
                f"paused itself: more failures ({others.failed}) than deliveries ({others.delivered}) at the sinks "
                f"that came after the first {jobs.TALLIED}, which are counted together"
            )
            await self._stop(job, JobState.PAUSED, text, at)
            return Used()
        wanted = DlqFilter(job.filter, job.created_at)
        if job.held and self._only_held(job, wanted, first=grant.first):
            return await self._sweep(job, wanted, grant, at)
        return await self._move(job, wanted, grant, at)

    async def _move(self, job: Job, wanted: DlqFilter, grant: Grant, at: int) -> Used:
        found = scan(self._host, wanted, job.cursor, job.held, grant.items, grant.entries)
        finished = found.end and not job.held
        await self._publish(job, at, found.cursor, found.scanned, found.skipped, found.revivals, finished=finished)
        if finished:
            await self._finished(job, job.moved + len(found.revivals))
        return Used(len(found.revivals), found.scanned, not finished)

    # -- held sink keys ---------------------------------------------------------

    def _only_held(self, job: Job, wanted: DlqFilter, *, first: bool) -> bool:
        """Whether nothing but rows of held sink keys can be left. Without a search under way or the range's end
        reached, the counts say it; they are asked once a tick."""
        sweep = self._sweeps.get(job.id)
        if sweep is not None and (sweep.held, sweep.committed) == (job.held, job.cursor):
            return True
        self._sweeps.pop(job.id, None)
        if job.cursor is not None and job.cursor >= wanted.end:
            return True
        return first and only_held_left(self._host, wanted, job.held)

    async def _sweep(self, job: Job, wanted: DlqFilter, grant: Grant, at: int) -> Used:
        """Look for one held row in the whole range: with one the job pauses, without any it is done.

        The counts cannot tell: they include rows that died again, which lie behind the horizon.
        """
        sweep = self._sweeps.get(job.id)
        found = find_held(self._host, wanted, sweep.place if sweep else None, job.held, grant.entries)
        if found.found:
            text = f"paused itself: all that is left is held back, after more failures than deliveries at {_named(job)}"
            await self._stop(job, JobState.PAUSED, text, at)
            return Used(0, found.scanned)
        if found.end:
            await self._publish(job, at, wanted.end, 0, 0, (), finished=True)
            await self._finished(job, job.moved)
            return Used(0, found.scanned)
        self._sweeps[job.id] = _Sweep(job.held, job.cursor, found.cursor)
        return Used(0, found.scanned, more=True)

    async def _stop(self, job: Job, state: JobState, error: str, at: int) -> None:
        await self._host.command(JobPatch(job.id, at, state, error=error))
        log.warning("event=replay_stopped id=%s state=%s reason=%s", job.id, state.name.lower(), error)

    # -- records ----------------------------------------------------------------

    async def _throttle(self, job: Job, reason: str, at: int) -> None:
        """Count a tick in which the gate was shut. Written with the next page, or soon as a page that moves nothing."""
        counts = self._throttled.setdefault(job.id, {})
        counts[reason] = counts.get(reason, 0) + 1
        since = self._written_at.setdefault(job.id, at)
        if not 0 <= at - since < THROTTLED_MS:
            await self._publish(job, at, job.cursor or b"", 0, 0, (), finished=False)

    async def _publish(
        self,
        job: Job,
        at: int,
        cursor: bytes,
        scanned: int,
        skipped: int,
        revivals: tuple[Revival, ...],
        *,
        finished: bool,
    ) -> None:
        throttled = self._throttled.get(job.id, {})
        await self._host.publish(Page(job.id, at, cursor, scanned, skipped, revivals, finished, throttled))
        self._throttled.pop(job.id, None)
        self._written_at[job.id] = at

    async def _finished(self, job: Job, moved: int) -> None:
        log.info("event=replay_finished id=%s moved=%d", job.id, moved)
        await drop_surplus(self._host)


def _named(job: Job, held: tuple[str, ...] = ()) -> str:
    """The held sink keys with their counts, the first few of many."""
    names = held or job.held
    parts = []
    for key in names[:NAMED_KEYS]:
        tally = job.tallies.get(key)
        counts = f" ({tally.failed} failed, {tally.delivered} delivered)" if tally else ""
        parts.append(f"{key}{counts}")
    more = f" and {len(names) - NAMED_KEYS} more" if len(names) > NAMED_KEYS else ""
    return ", ".join(parts) + more
