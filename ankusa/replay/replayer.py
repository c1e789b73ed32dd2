"""The replayer: runs a node's replay jobs, a tick at a time (spec 05 "Pacing").

Owns when pages run, whose turn it is and what a page's trouble costs its job; what a page does is the pager's.
"""

from __future__ import annotations

import asyncio
import logging
import time

from msgspec import Struct

from ankusa.core import pace as paces
from ankusa.core.pace import Grant, Pace, Round
from ankusa.replay.pager import Pager, Used
from ankusa.replay.ports import PagingHost
from ankusa.store.errors import StoreError
from schemas.records import JobState

log = logging.getLogger("ankusa.replay")

BACKOFF_MS = 1_000
"""How long a job rests after a page that failed."""

COMPLAIN_MS = 60_000
"""One line a minute for a job whose pages keep failing."""

IDLE_S = 5.0
"""The longest sleep without a running job, should a wake be missed."""

REST_S = 0.02
"""The least pause between ticks, however long the last one took."""

EVERY_JOB = "*"
"""Stands for a job's id when the jobs themselves cannot be read."""


class _Trouble(Struct, frozen=True, gc=False):
    """A job rests until `until`; its last complaint was at `complained_at`. Both unix ms."""

    until: int
    complained_at: int


class Replayer:
    """Runs every running job of one host. `tick` does the work; `run` only calls it in time."""

    def __init__(self, host: PagingHost) -> None:
        self._host = host
        self._pager = Pager(host)
        self._ticks = 0
        self._paces: dict[str, Pace] = {}
        self._trouble: dict[str, _Trouble] = {}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """A job was started or changed."""
        self._woken.set()

    async def run(self) -> None:
        """Tick by the host's log time until cancelled, which loses nothing; sleep while no job runs."""
        while True:
            self._woken.clear()
            started = time.monotonic()
            if await self.tick(self._host.now()):
                await asyncio.sleep(max(REST_S, paces.TICK_MS / 1000 - (time.monotonic() - started)))
                continue
            try:
                await asyncio.wait_for(self._woken.wait(), IDLE_S)
            except TimeoutError:
                continue

    async def tick(self, at: int) -> bool:
        """One tick at `at` (unix ms); the event loop turns between its pages. False when no job runs."""
        try:
            running = [job for job in self._host.jobs() if job.state is JobState.RUNNING]
        except Exception as error:
            self._rest(EVERY_JOB, error, at)
            return True
        self._trouble.pop(EVERY_JOB, None)
        self._forget({job.id for job in running})
        self._ticks += 1
        turns = Round(self._due({job.id: job.rate for job in reversed(running)}, at))
        while (grant := turns.next()) is not None:
            used = await self._guarded(grant, at)
            self._paces[grant.job_id] = paces.spend(self._paces[grant.job_id], used.items)
            turns.used(grant, used.items, used.scanned, more=used.more)
            await asyncio.sleep(0)
        return bool(running)

    def _due(self, rates: dict[str, int], at: int) -> list[tuple[str, int]]:
        """`(job id, items it may move now)` in turn order; jobs that rest are left out."""
        due: list[tuple[str, int]] = []
        for job_id in paces.in_turn(list(rates), self._ticks):
            pace = self._paces[job_id] = paces.refill(self._paces.get(job_id), rates[job_id], at)
            trouble = self._trouble.get(job_id)
            if trouble is None or at >= trouble.until:
                due.append((job_id, paces.items(pace)))
        return due

    def _forget(self, running: set[str]) -> None:
        for kept in (self._paces, self._trouble):
            for job_id in kept.keys() - running:
                del kept[job_id]
        self._pager.forget(running)

    async def _guarded(self, grant: Grant, at: int) -> Used:
        """A page's trouble is its job's alone: it rests, and the others go on."""
        try:
            used = await self._pager.page(grant, at)
        except Exception as error:
            self._rest(grant.job_id, error, at)
            return Used()
        self._trouble.pop(grant.job_id, None)
        return used

    def _rest(self, job_id: str, error: Exception, at: int) -> None:
        trouble = self._trouble.get(job_id)
        complained_at = at if trouble is None else trouble.complained_at
        if trouble is None or at - complained_at >= COMPLAIN_MS:
            complained_at = at
            unexpected = None if isinstance(error, StoreError) else error
            log.warning("event=replay_page_failed id=%s reason=%s", job_id, error, exc_info=unexpected)
        self._trouble[job_id] = _Trouble(at + BACKOFF_MS, complained_at)
