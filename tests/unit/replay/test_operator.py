"""Starting, repeating, seeing and changing jobs."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from ankusa.core.job import KEPT_FINISHED, MAX_UNFINISHED
from ankusa.core.pace import PAGE_ENTRIES
from ankusa.replay.answers import (
    Finished,
    Invalid,
    NotFound,
    RoleNotEnabled,
    Started,
    StoreUnavailable,
    TooManyReplays,
)
from ankusa.replay.operator import Operator
from ankusa.store.errors import StoreError
from schemas.records import Job, JobRecord, JobStart, JobState
from streams.local.replay_host import LocalReplayHost
from tests.unit.replay.faulty import Watched, refuse
from tests.unit.replay.running import in_world
from tests.unit.replay.world import CALM, START, World

FIRST = "0190f5fe-7a3c-7cde-8b1a-000000000001"
SECOND = "0190f5fe-7a3c-7cde-8b1a-000000000002"


async def started(world: World, tenants: list[str] | None = None, **body: Any) -> Started:
    answer = await world.operator.start({"kind": "dlq"} | body, tenants)
    assert isinstance(answer, Started), answer
    return answer


async def finish(world: World, job: Job) -> None:
    await world.patch(job, state="cancelled")


@in_world
async def test_a_start_is_a_durable_running_job(world: World) -> None:
    await world.dead(3)
    answer = await started(world, source_id="acme.orders", rate=50)
    job = answer.job
    assert answer.created
    assert (job.state, job.kind, job.rate, job.max_lag_ms) == (JobState.RUNNING, "dlq", 50, 2_000)
    assert (job.filter, job.created_at, job.total) == ({"source_id": "acme.orders"}, START, 3)
    assert world.operator.get(job.id) == job
    assert world.listed() == [job]


@in_world
async def test_the_job_object_is_the_one_of_the_api(world: World) -> None:
    await world.dead(30)
    job = await world.start(rate=10, tenants=["acme"])
    await world.tick()
    assert Operator.to_json(world.job(job.id)) == {
        "id": job.id,
        "kind": "dlq",
        "state": "running",
        "filter": {"tenants": ["acme"]},
        "rate": 10,
        "max_lag_ms": 2_000,
        "created_at": START,
        "updated_at": START + 201,
        "finished_at": None,
        "scanned": 2,
        "moved": 2,
        "skipped": 0,
        "delivered": 0,
        "dead": 0,
        "remaining": 28,
        "eta_ms": 2_800,
        "throttled": {},
        "held": [],
        "error": None,
    }


@in_world
async def test_what_is_left_is_unknown_until_counted_and_none_when_done(world: World) -> None:
    await world.dead(2)
    job = await world.start()
    await world.operator.update(job.id, {"state": "paused"})
    shown = Operator.to_json(world.job(job.id))
    assert (shown["remaining"], shown["eta_ms"]) == (2, None)
    await world.operator.update(job.id, {"state": "running"})
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    shown = Operator.to_json(world.job(job.id))
    assert (shown["remaining"], shown["eta_ms"], shown["finished_at"]) == (0, None, world.wall)


@in_world
async def test_the_same_start_again_answers_the_same_job(world: World) -> None:
    first = await started(world, tenants=["a", "b"], rate=5)
    again = await started(world, tenants=["b", "a"], rate=900)
    assert again == Started(created=False, job=first.job)
    await world.operator.update(first.job.id, {"state": "paused"})
    paused = await started(world, tenants=["a", "b"])
    assert (paused.created, paused.job.id, paused.job.state) == (False, first.job.id, JobState.PAUSED)
    await finish(world, first.job)
    assert (await started(world, tenants=["a", "b"])).created


@in_world
async def test_another_filter_is_another_job(world: World) -> None:
    first, second = await started(world), await started(world, sink=0)
    assert second.created and second.job.id != first.job.id
    assert [job.id for job in world.listed()] == [second.job.id, first.job.id]


@in_world
async def test_equal_starts_at_one_moment_make_one_job(world: World) -> None:
    await world.dead(PAGE_ENTRIES + 1)  # counting them lets the event loop turn, so the starts meet
    answers = await asyncio.gather(*(started(world, error_class="transient") for _ in range(20)))
    assert len({answer.job.id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1


@in_world
async def test_a_named_start_answers_its_job_whatever_its_state(world: World) -> None:
    first = await started(world, job_id=FIRST, sink=1)
    assert first.created and first.job.id == FIRST
    await finish(world, first.job)
    again = await started(world, job_id=FIRST, sink=1)
    assert (again.created, again.job.state) == (False, JobState.CANCELLED)


@in_world
async def test_a_name_taken_by_another_filter_is_refused(world: World) -> None:
    await started(world, job_id=FIRST, sink=1)
    refused = await world.operator.start({"kind": "dlq", "job_id": FIRST, "sink": 2})
    assert isinstance(refused, Invalid) and refused.field == "job_id"


@in_world
async def test_a_new_name_for_a_running_filter_answers_the_running_job(world: World) -> None:
    await started(world, job_id=FIRST, sink=1)
    again = await started(world, job_id=SECOND, sink=1)
    assert (again.created, again.job.id) == (False, FIRST)


@in_world
async def test_sixteen_jobs_may_be_unfinished(world: World) -> None:
    jobs = [(await started(world, sink=sink)).job for sink in range(MAX_UNFINISHED)]
    refused = await world.operator.start({"kind": "dlq", "sink": 99})
    assert refused == TooManyReplays(MAX_UNFINISHED)
    assert not (await started(world, sink=3)).created
    await world.operator.update(jobs[0].id, {"state": "paused"})
    assert await world.operator.start({"kind": "dlq", "sink": 99}) == TooManyReplays(MAX_UNFINISHED)
    await finish(world, jobs[0])
    assert (await started(world, sink=99)).created


@in_world
async def test_the_newest_hundred_finished_jobs_are_kept(world: World) -> None:
    paused = (await started(world, error_class="timeout")).job
    await world.operator.update(paused.id, {"state": "paused"})
    ids = []
    for sink in range(KEPT_FINISHED + 3):
        world.wall += 1
        job = (await started(world, sink=sink)).job
        ids.append(job.id)
        await finish(world, job)
    assert [job.id for job in world.listed()] == [*reversed(ids[3:]), paused.id]
    assert world.operator.get(ids[0]) == NotFound(ids[0])
    world.restart()
    assert world.operator.get(ids[2]) == NotFound(ids[2])
    assert isinstance(world.operator.get(ids[3]), Job)


@in_world
async def test_jobs_of_one_millisecond_are_listed_in_their_order(world: World) -> None:
    ids = [(await started(world, sink=sink)).job.id for sink in range(5)]
    assert [job.id for job in world.listed()] == ids[::-1]


@in_world
async def test_patches_change_a_job(world: World) -> None:
    job = (await started(world)).job
    world.wall += 5
    changed = await world.operator.update(job.id, {"rate": 7, "max_lag_ms": 500, "state": "paused"})
    assert isinstance(changed, Job)
    assert (changed.rate, changed.max_lag_ms, changed.state) == (7, 500, JobState.PAUSED)
    assert changed.updated_at == START + 5
    assert changed == world.operator.get(job.id)


@in_world
async def test_a_finished_job_changes_no_more(world: World) -> None:
    job = (await started(world)).job
    await finish(world, job)
    for patch in ({"state": "running"}, {"rate": 5}, {"state": "cancelled"}, {"nonsense": 1}):
        answer = await world.operator.update(job.id, patch)
        assert isinstance(answer, Finished)
        assert answer.job.state is JobState.CANCELLED


@in_world
async def test_a_bad_patch_changes_nothing(world: World) -> None:
    job = (await started(world)).job
    refused = await world.operator.update(job.id, {"rate": 5, "state": "done"})
    assert isinstance(refused, Invalid) and refused.field == "state"
    assert world.job(job.id) == job
    assert await world.operator.update(FIRST, {"rate": 5}) == NotFound(FIRST)


@in_world
async def test_a_limited_caller_sees_only_jobs_inside_its_tenants(world: World) -> None:
    every = (await started(world)).job
    mine = (await started(world, tenants=["acme"])).job
    shared = (await started(world, tenants=["acme", "umbra"])).job
    listed = world.operator.list(tenants=["acme"])
    assert listed == [mine]
    for hidden in (every, shared):
        assert world.operator.get(hidden.id, ["acme"]) == NotFound(hidden.id)
        assert await world.operator.update(hidden.id, {"state": "cancelled"}, ["acme"]) == NotFound(hidden.id)
        assert world.job(hidden.id).state is JobState.RUNNING
    assert world.operator.list({"acme", "umbra"}) == [shared, mine]
    assert isinstance(await world.operator.update(mine.id, {"rate": 5}, ["acme"]), Job)
    assert world.listed([]) == []


@in_world
async def test_a_limited_callers_start_is_filled_in_with_its_tenants(world: World) -> None:
    await world.dead(2, tenant="acme")
    await world.dead(3, tenant="umbra", source="umbra.orders")
    answer = await world.operator.start({"kind": "dlq"}, frozenset({"umbra", "acme"}))
    assert isinstance(answer, Started) and answer.job.filter == {"tenants": ["acme", "umbra"]}
    only = await world.operator.start({"kind": "dlq"}, frozenset({"umbra"}))
    assert isinstance(only, Started) and only.job.total == 3


@pytest.mark.parametrize(("named", "scope"), [(["umbra"], ["acme"]), (["acme", "umbra"], ["acme"]), (None, [])])
@in_world
async def test_a_limited_caller_starts_nothing_outside_its_tenants(
    world: World, named: list[str] | None, scope: list[str]
) -> None:
    body = {"kind": "dlq"} if named is None else {"kind": "dlq", "tenants": named}
    refused = await world.operator.start(body, scope)
    assert isinstance(refused, Invalid) and refused.field == "tenants"
    assert world.listed() == []


@in_world
async def test_a_node_that_does_not_dispatch_has_no_dead_rows(world: World) -> None:
    edge = Operator(LocalReplayHost(world.log, lambda: CALM, ("edge",)))
    assert await edge.start({"kind": "dlq"}) == RoleNotEnabled("dispatch")
    assert await edge.start({"kind": "dlq", "dry_run": True}) == RoleNotEnabled("dispatch")


@in_world
async def test_a_store_that_cannot_answer_says_so(world: World) -> None:
    job = (await started(world)).job
    refused = StoreUnavailable("the disk is full")
    unread = Operator(Watched(world.host, refuse("jobs", "job")))
    assert await unread.start({"kind": "dlq", "sink": 1}) == refused
    assert unread.list() == refused
    assert unread.get(job.id) == refused
    assert await unread.update(job.id, {"rate": 1}) == refused
    unwritten = Operator(Watched(world.host, refuse("command")))
    assert await unwritten.start({"kind": "dlq", "sink": 1}) == refused
    assert await unwritten.update(job.id, {"rate": 1}) == refused
    assert world.listed() == [job]


@in_world
async def test_a_closed_store_is_unavailable_and_not_empty(world: World) -> None:
    job = (await started(world)).job
    world.log.fail("the disk is gone")
    assert world.operator.get(job.id) == job
    assert await world.operator.update(job.id, {"rate": 1}) == StoreUnavailable("the disk is gone")
    world.log.tables.close()
    assert world.operator.list() == StoreUnavailable("the disk is gone")
    assert await world.operator.start({"kind": "dlq"}) == StoreUnavailable("the disk is gone")
    world.log.recover()
    assert world.operator.get(job.id) == job


@in_world
async def test_a_job_that_cannot_be_read_is_not_hidden(world: World) -> None:
    await started(world)
    database = world.log.tables.database
    batch = database.batch()
    batch.put(FIRST.encode(), b"\xc1", database.handles["jobs"])
    database.write(batch)
    for answer in (world.operator.list(), world.operator.get(FIRST), await world.operator.start({"kind": "dlq"})):
        assert isinstance(answer, StoreUnavailable) and "decoded" in answer.reason


@in_world
async def test_a_start_that_was_not_durable_is_no_job_after_recovery(world: World) -> None:
    class Unflushed(LocalReplayHost):
        async def command(self, record: JobRecord) -> None:
            world.log.tables.database.flush = _full  # type: ignore[method-assign]
            await super().command(record)

    answer = await Operator(Unflushed(world.log, lambda: CALM, ("dispatch",))).start({"kind": "dlq"})
    assert isinstance(answer, StoreUnavailable)
    world.log.recover()
    assert world.listed() == []
    assert (await started(world)).created


def _full() -> None:
    raise StoreError("no space left")


@in_world
async def test_what_retention_must_leave(world: World) -> None:
    assert world.operator.live_floor("quarantine", "since") == math.inf
    await started(world)
    assert world.operator.live_floor("quarantine", "since") == math.inf
    assert world.operator.live_floor("dlq", "since") == 0
    edge = Operator(LocalReplayHost(world.log, lambda: CALM, ("edge",)))
    assert edge.live_floor("dlq", "since") == math.inf
    blind = Operator(Watched(world.host, refuse("jobs")))
    assert blind.live_floor("quarantine", "since") == 0


@in_world
async def test_the_floor_is_the_earliest_of_unfinished_jobs(world: World) -> None:
    for name, since in ((FIRST, START - 500), (SECOND, START - 900)):
        job = Job(
            id=name,
            kind="quarantine",
            state=JobState.RUNNING,
            filter={"since": since},
            rate=1,
            max_lag_ms=100,
            created_at=START,
            updated_at=START,
        )
        await world.host.command(JobStart(job))
    assert world.operator.live_floor("quarantine", "since") == START - 900
    assert world.operator.live_floor("archive", "from") == math.inf
    await finish(world, world.job(SECOND))
    assert world.operator.live_floor("quarantine", "since") == START - 500
