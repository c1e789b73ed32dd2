"""The operator API of replays: start, watch and change jobs (spec 05). HTTP and the command line only translate it.

Owns the rules of a start (repeats, caps, tenant scope) and what a caller may see. Never moves a row: the replayer
does. Expected trouble is answered as a value (`ankusa/replay/answers.py`); a store that cannot answer is always
`StoreUnavailable`, never an empty list.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from typing import Any

from msgspec.structs import replace

from ankusa import clock
from ankusa.core import job as jobs
from ankusa.replay import answers
from ankusa.replay.answers import (
    Finished,
    Invalid,
    NotFound,
    Plan,
    RoleNotEnabled,
    Started,
    StoreUnavailable,
    TooManyReplays,
)
from ankusa.replay.dlq import DlqFilter
from ankusa.replay.kept import drop_surplus
from ankusa.replay.plan import count, make_plan
from ankusa.replay.ports import OperatedHost
from ankusa.replay.spec import StartSpec, parse_patch, parse_start
from ankusa.store.errors import StoreError
from schemas.records import Job, JobPatch, JobStart, JobState

log = logging.getLogger("ankusa.replay")

ROLE_OF = {"dlq": "dispatch"}
"""The role a node needs to run a job of a kind: dead rows are where rows are delivered from."""

StartAnswer = Started | Plan | Invalid | TooManyReplays | RoleNotEnabled | StoreUnavailable
UpdateAnswer = Job | NotFound | Finished | Invalid | StoreUnavailable


class Operator:
    """Starts and changes the replays of one host. All methods run on the event loop's thread.

    `tenants` limits a caller to jobs whose filter names only such tenants; None is a caller who may see all.
    """

    def __init__(
        self,
        host: OperatedHost,
        changed: Callable[[], None] = lambda: None,
        new_id: Callable[[int], str] = clock.uuid7,
    ) -> None:
        """`changed` hears of every start and change; `new_id` makes an id from unix ms."""
        self._host = host
        self._changed = changed
        self._new_id = new_id
        # Two equal starts at one moment must find one job: the second waits until the first one is stored.
        self._starting = asyncio.Lock()
        # One plan at a time: each takes what the event loop has left.
        self._planning = asyncio.Lock()

    async def start(self, body: object, tenants: Collection[str] | None = None) -> StartAnswer:
        """Start a job, or plan it when `body` has `dry_run: true`. `body` is a JSON object as the API takes it."""
        parsed = parse_start(body)
        if isinstance(parsed, Invalid):
            return parsed
        spec = _scoped(parsed, tenants)
        if isinstance(spec, Invalid):
            return spec
        role = ROLE_OF[spec.kind]
        if role not in self._host.roles:
            return RoleNotEnabled(role)
        try:
            if spec.dry_run:
                async with self._planning:
                    return await make_plan(self._host, spec, self._host.now())
            async with self._starting:
                return await self._start(spec)
        except StoreError as error:
            return StoreUnavailable(str(error))

    async def _start(self, spec: StartSpec) -> Started | Invalid | TooManyReplays:
        kept = self._host.jobs()
        same = _same([*kept, *self._host.begun()], spec)
        if isinstance(same, Job):
            await self._host.complete(same)
            self._changed()
            return Started(created=False, job=self._host.job(same.id) or same)
        if same is not None:
            return same
        if sum(job.state in jobs.UNFINISHED for job in kept) >= jobs.MAX_UNFINISHED:
            return TooManyReplays(jobs.MAX_UNFINISHED)
        at = self._host.now()
        job = Job(
            id=spec.job_id or self._new_id(at),
            kind=spec.kind,
            state=JobState.RUNNING,
            filter=spec.filter,
            rate=spec.rate,
            max_lag_ms=spec.max_lag_ms,
            created_at=at,
            updated_at=at,
            sequence=max((job.sequence + 1 for job in kept if job.created_at == at), default=0),
            total=await count(self._host, DlqFilter(spec.filter, at)),
        )
        await self._host.command(JobStart(job))
        log.info("event=replay_started id=%s kind=%s rate=%d total=%s", job.id, job.kind, job.rate, job.total)
        await drop_surplus(self._host)
        self._changed()
        return Started(created=True, job=job)

    def get(self, job_id: str, tenants: Collection[str] | None = None) -> Job | NotFound | StoreUnavailable:
        """One job."""
        try:
            job = self._host.job(job_id)
        except StoreError as error:
            return StoreUnavailable(str(error))
        return job if job is not None and _visible(job, tenants) else NotFound(job_id)

    def list(self, tenants: Collection[str] | None = None) -> list[Job] | StoreUnavailable:
        """Every kept job that the caller may see, newest first."""
        try:
            return [job for job in self._host.jobs() if _visible(job, tenants)]
        except StoreError as error:
            return StoreUnavailable(str(error))

    async def update(self, job_id: str, body: object, tenants: Collection[str] | None = None) -> UpdateAnswer:
        """Change a job's state, rate or lag limit; the job after it. `body` is a JSON object as the API takes it."""
        found = self.get(job_id, tenants)
        if not isinstance(found, Job):
            return found
        finished = found.state not in jobs.UNFINISHED
        patch = parse_patch(body)
        if isinstance(patch, Invalid):
            return Finished(found) if finished else patch
        record = JobPatch(job_id, self._host.now(), patch.state, patch.rate, patch.max_lag_ms)
        try:
            if finished:
                await self._host.pass_on(record)
                return Finished(found)
            await self._host.command(record)
            state = "-" if patch.state is None else patch.state.name.lower()
            log.info("event=replay_changed id=%s state=%s rate=%s", job_id, state, patch.rate or "-")
            changed = self.get(job_id)
            if patch.state is JobState.CANCELLED:
                await drop_surplus(self._host)
        except StoreError as error:
            return StoreUnavailable(str(error))
        self._changed()
        return changed

    def live_floor(self, kind: str, key: str) -> float:
        """The earliest `key` (unix ms) in the filters of unfinished jobs of `kind`: retention deletes nothing after it.

        A job without the key needs everything (0). Infinity when nothing is needed or this node runs no replayer;
        0 while nobody can say.
        """
        if "dispatch" not in self._host.roles:
            return math.inf
        try:
            kept = self._host.jobs()
        except StoreError:
            return 0
        floors = [job.filter.get(key, 0) for job in kept if job.kind == kind and job.state in jobs.UNFINISHED]
        return min(floors, default=math.inf)

    @staticmethod
    def to_json(found: Job | Plan) -> dict[str, Any]:
        """The job object, or the plan, as the API answers it."""
        return answers.job_json(found) if isinstance(found, Job) else answers.plan_json(found)


def _scoped(spec: StartSpec, tenants: Collection[str] | None) -> StartSpec | Invalid:
    """A limited caller's start: its tenants filled in when it names none, refused when it names others."""
    if tenants is None:
        return spec
    wanted = spec.filter.get("tenants")
    if wanted is None and tenants:
        return replace(spec, filter={**spec.filter, "tenants": sorted(tenants)})
    if wanted is None or not set(wanted) <= set(tenants):
        return Invalid("tenants", "must name only tenants that this token covers")
    return spec


def _same(kept: list[Job], spec: StartSpec) -> Job | Invalid | None:
    """The job that this start already is. By `job_id` first, in any state; then by kind and filter, unfinished."""
    for job in kept:
        if job.id == spec.job_id:
            if job.kind == spec.kind and job.filter == spec.filter:
                return job
            return Invalid("job_id", "names a job with another kind or filter")
    for job in kept:
        if job.state in jobs.UNFINISHED and job.kind == spec.kind and job.filter == spec.filter:
            return job
    return None


def _visible(job: Job, tenants: Collection[str] | None) -> bool:
    if tenants is None:
        return True
    named = job.filter.get("tenants", ())
    return len(named) > 0 and set(named) <= set(tenants)
