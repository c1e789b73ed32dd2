"""Pacing, the gate, states, fairness and trouble, over a real store with time passed in."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ankusa.core.pace import PAGE_ITEMS, TICK_ENTRIES, TICK_ITEMS
from ankusa.core.pressure import Pressure
from ankusa.replay import pager
from schemas.records import Job, JobStart, JobState, OutcomeKind
from tests.unit.replay.faulty import Watched, refuse
from tests.unit.replay.running import in_world
from tests.unit.replay.world import START, World, pages


async def moved_by_tick(world: World, job: Job, ticks: int) -> list[int]:
    found = []
    for _ in range(ticks):
        before = world.job(job.id).moved
        await world.tick()
        found.append(world.job(job.id).moved - before)
    return found


# -- pacing -----------------------------------------------------------------------


@in_world
async def test_a_job_moves_its_rate_and_ends(world: World) -> None:
    await world.dead(210)
    job = await world.start(rate=250)
    assert await moved_by_tick(world, job, 6) == [50, 50, 50, 50, 10, 0]
    done = world.job(job.id)
    assert (done.state, done.moved, done.scanned, done.finished_at) == (JobState.DONE, 210, 210, world.wall - 200)
    assert len(world.revived(job.id)) == 210


@in_world
async def test_one_a_second(world: World) -> None:
    await world.dead(4)
    job = await world.start(rate=1)
    assert await moved_by_tick(world, job, 11) == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


@in_world
async def test_no_page_holds_the_loop_for_more_than_its_items(world: World) -> None:
    await world.dead(TICK_ITEMS + 500)
    job = await world.start(rate=100_000)
    assert await moved_by_tick(world, job, 2) == [TICK_ITEMS, 500]
    assert max(len(page.revivals) for page in pages(world.log)) == PAGE_ITEMS


@in_world
async def test_scanning_is_paced_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 300
    monkeypatch.setattr("ankusa.core.pace.TICK_ENTRIES", limit)
    await world.dead(650)
    job = await world.start(error_class="timeout", rate=100_000)
    scanned = []
    for _ in range(3):
        await world.tick()
        scanned.append(world.job(job.id).scanned)
    assert scanned == [limit, 2 * limit, 650]
    assert (world.job(job.id).state, world.job(job.id).moved) == (JobState.DONE, 0)
    assert limit < TICK_ENTRIES


@in_world
async def test_a_patched_rate_holds_from_the_next_tick(world: World) -> None:
    await world.dead(600)
    job = await world.start(rate=10)
    assert await moved_by_tick(world, job, 2) == [2, 2]
    await world.patch(job, rate=1_000)
    assert await moved_by_tick(world, job, 2) == [200, 200]
    await world.patch(job, rate=5)
    assert await moved_by_tick(world, job, 2) == [1, 1]


# -- states -----------------------------------------------------------------------


@in_world
async def test_a_paused_job_stands_still_and_goes_on(world: World) -> None:
    await world.dead(10)
    job = await world.start(rate=10)
    await world.tick()
    await world.patch(job, state="paused")
    assert await moved_by_tick(world, job, 5) == [0] * 5
    await world.patch(job, state="running")
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    assert len(world.revived(job.id)) == world.job(job.id).moved == 10


@in_world
async def test_a_cancelled_job_moves_no_more(world: World) -> None:
    await world.dead(10)
    job = await world.start(rate=10)
    await world.tick()
    cancelled = await world.patch(job, state="cancelled")
    assert (cancelled.state, cancelled.finished_at) == (JobState.CANCELLED, world.wall)
    await world.tick(3)
    assert len(world.revived(job.id)) == 2
    assert len(world.still_dead()) == 8


@in_world
async def test_a_done_job_goes_on_counting_its_deliveries(world: World) -> None:
    await world.dead(3)
    job = await world.start()
    await world.tick()
    assert world.job(job.id).state is JobState.DONE
    first, second, third = world.revived(job.id)
    world.settle([first, second], OutcomeKind.DELIVERED)
    world.settle([third], OutcomeKind.DEAD)
    counted = world.job(job.id)
    assert (counted.delivered, counted.dead, counted.state) == (2, 1, JobState.DONE)


@in_world
async def test_a_restart_goes_on_from_the_last_page(world: World) -> None:
    await world.dead(20)
    job = await world.start(rate=20)
    await world.tick(2)
    before = world.job(job.id)
    world.restart()
    assert world.job(job.id) == before
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    assert len(world.revived(job.id)) == world.job(job.id).moved == 20
    assert all(row.generation == 2 for row in world.rows().values())


@in_world
async def test_a_kind_this_release_cannot_run_fails_and_says_so(world: World) -> None:
    later = Job(
        id="0190f5fe-7a3c-7cde-8b1a-000000000001",
        kind="archive",
        state=JobState.RUNNING,
        filter={"from": 1, "to": 2},
        rate=1,
        max_lag_ms=100,
        created_at=START - 1,
        updated_at=START - 1,
    )
    await world.host.command(JobStart(later))
    await world.tick()
    failed = world.job(later.id)
    assert failed.state is JobState.FAILED
    assert failed.error == "this release runs no replays of kind archive"


# -- fairness ---------------------------------------------------------------------


@in_world
async def test_an_early_fast_job_does_not_starve_a_later_one(world: World) -> None:
    await world.dead(3_000, source="acme.first")
    await world.dead(1_500, source="acme.second")
    first = await world.start(source_id="acme.first", rate=100_000)
    second = await world.start(source_id="acme.second", rate=100_000)
    await world.tick()
    # The dead index is shared: the second job also scans past the first one's rows, a page's entries at a time.
    assert world.job(first.id).moved > 0
    assert world.job(second.id).scanned > 0
    await world.until(lambda: world.job(second.id).moved >= 500, ticks=3)
    assert world.job(first.id).moved + world.job(second.id).moved <= 3 * TICK_ITEMS


@in_world
async def test_equal_jobs_move_equally(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.dead(600, tenant=name, source=f"{name}.orders")
    jobs = [await world.start(tenants=[name], rate=500) for name in ("c", "a", "b")]
    await world.until(lambda: all(world.job(job.id).moved >= 300 for job in jobs), ticks=6)


@in_world
async def test_a_job_that_rests_leaves_its_share_to_the_others(world: World) -> None:
    await world.dead(10, source="acme.first")
    await world.dead(10, source="acme.second")
    bad = await world.start(source_id="acme.first", rate=10)
    good = await world.start(source_id="acme.second", rate=10)

    def before(name: str, given: tuple[Any, ...]) -> None:
        if name == "publish" and given[0].job_id == bad.id:
            raise RuntimeError("a page of this job cannot be written")

    world.run_on(Watched(world.host, before))
    await world.until(lambda: world.job(good.id).state is JobState.DONE, ticks=6)
    assert world.job(bad.id).moved == 0


# -- the gate ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pressure", "reason"),
    [
        (Pressure(2_001, window_full=False), "lag"),
        (Pressure(0, window_full=True), "window_full"),
        (None, "unavailable"),
    ],
)
@in_world
async def test_no_page_runs_while_the_gate_is_shut(world: World, pressure: Pressure | None, reason: str) -> None:
    await world.dead(10)
    job = await world.start(rate=10)
    world.pressure = pressure
    assert await moved_by_tick(world, job, 6) == [0] * 6
    waiting = world.job(job.id)
    assert (waiting.state, waiting.moved, waiting.scanned) == (JobState.RUNNING, 0, 0)
    assert waiting.throttled == {reason: 6}
    world.pressure = Pressure(2_000, window_full=False)
    assert await moved_by_tick(world, job, 1) == [2]


@in_world
async def test_each_job_has_its_own_patience(world: World) -> None:
    await world.dead(2, source="acme.first")
    await world.dead(2, source="acme.second")
    tight = await world.start(source_id="acme.first", max_lag_ms=100)
    loose = await world.start(source_id="acme.second", max_lag_ms=5_000)
    world.pressure = Pressure(1_000, window_full=False)
    await world.tick()
    assert world.job(loose.id).state is JobState.DONE
    assert world.job(tight.id).moved == 0
    await world.patch(tight, max_lag_ms=1_000)
    await world.tick()
    assert world.job(tight.id).state is JobState.DONE


@in_world
async def test_the_gate_is_asked_before_every_page(world: World) -> None:
    await world.dead(PAGE_ITEMS * 3)
    job = await world.start(rate=100_000)
    asked = 0

    def before(name: str, given: tuple[Any, ...]) -> None:
        nonlocal asked
        if name == "pressure":
            asked += 1
            if asked == 2:
                world.pressure = Pressure(9_999, window_full=False)

    world.run_on(Watched(world.host, before))
    await world.tick()
    assert world.job(job.id).moved == PAGE_ITEMS


@in_world
async def test_waiting_is_written_once_a_second_and_with_the_next_page(world: World) -> None:
    await world.dead(10)
    job = await world.start(rate=10)
    world.pressure = None
    await world.tick(10)
    assert len(pages(world.log)) == 1
    assert world.job(job.id).throttled == {"unavailable": 6}
    world.pressure = Pressure(0, window_full=False)
    await world.tick()
    assert world.job(job.id).throttled == {"unavailable": 10}
    assert len(pages(world.log)) == 2


# -- trouble ----------------------------------------------------------------------


@in_world
async def test_a_page_error_rests_the_job_for_a_second(world: World) -> None:
    await world.dead(10)
    job = await world.start(rate=10)
    failing = True
    world.run_on(Watched(world.host, refuse("publish", while_true=lambda: failing)))
    await world.tick()
    failing = False
    assert await moved_by_tick(world, job, 5) == [0, 0, 0, 0, 2]


@in_world
async def test_a_row_that_cannot_be_read_rests_the_job_and_loses_nothing(world: World) -> None:
    await world.dead(10)
    job = await world.start(rate=1_000)
    failing = True
    world.run_on(Watched(world.host, refuse("rows", "dead_keys", while_true=lambda: failing)))
    await world.tick(3)
    assert (world.job(job.id).cursor, world.job(job.id).scanned) == (None, 0)
    failing = False
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    assert world.job(job.id).moved == 10


@in_world
async def test_trouble_is_told_once_a_minute(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.dead(10)
    await world.start(rate=10)
    world.run_on(Watched(world.host, refuse("publish")))
    with caplog.at_level(logging.WARNING, "ankusa.replay"):
        await world.tick(5 * 119)
    assert [record.message.split()[0] for record in caplog.records] == ["event=replay_page_failed"] * 2


@in_world
async def test_jobs_that_cannot_be_read_are_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.dead(10)
    job = await world.start(rate=1_000)
    failing = True
    world.run_on(Watched(world.host, refuse("jobs", while_true=lambda: failing)))
    with caplog.at_level(logging.WARNING, "ankusa.replay"):
        await world.tick(5)
    assert len(caplog.records) == 1
    failing = False
    await world.tick()
    assert world.job(job.id).state is JobState.DONE


@in_world
async def test_a_store_that_recovers_goes_on(world: World) -> None:
    await world.dead(10)
    job = await world.start(rate=10)
    await world.tick()
    world.log.fail("no space left")
    assert await moved_by_tick(world, job, 3) == [0, 0, 0]
    world.log.recover()
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    assert len(world.revived(job.id)) == world.job(job.id).moved == 10


# -- the loop ---------------------------------------------------------------------


@in_world
async def test_the_loop_ticks_while_a_job_runs_and_is_woken_by_a_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ankusa.replay.replayer.IDLE_S", 600.0)
    ticked = asyncio.Event()

    def before(name: str, given: tuple[Any, ...]) -> None:
        if name == "jobs":
            world.wall += 200
            ticked.set()

    world.run_on(Watched(world.host, before))
    task = asyncio.create_task(world.replayer.run())
    await ticked.wait()  # idle now: only a start wakes it before its longest sleep
    await world.dead(5)
    job = await world.start(rate=100)

    async def done() -> None:
        while world.job(job.id).state is not JobState.DONE:
            await asyncio.sleep(0.005)

    await asyncio.wait_for(done(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_world
async def test_finished_jobs_past_the_cap_are_dropped_when_one_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ankusa.core.job.KEPT_FINISHED", 2)
    jobs = [await world.start(sink=sink) for sink in range(4)]
    await world.tick()
    assert {job.state for job in world.listed()} == {JobState.DONE}
    assert len(world.listed()) == 2
    assert {job.id for job in world.listed()} < {job.id for job in jobs}


@in_world
async def test_a_patch_between_two_pages_of_a_tick_is_seen(world: World) -> None:
    await world.dead(PAGE_ITEMS * 4)
    job = await world.start(rate=100_000)

    async def pause() -> None:
        while not world.job(job.id).moved:
            await asyncio.sleep(0)
        await world.patch(job, state="paused")

    await asyncio.gather(world.tick(), pause())
    assert PAGE_ITEMS <= world.job(job.id).moved < PAGE_ITEMS * 4
    assert world.job(job.id).state is JobState.PAUSED


def test_the_numbers_are_the_specs() -> None:
    assert (TICK_ITEMS, TICK_ENTRIES) == (2_000, 20_000)
    assert pager.THROTTLED_MS <= 1_000
