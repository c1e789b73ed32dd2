"""A kill between any two steps: every row moves once, the counters say so, and nothing that was held is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.records import JobState, OutcomeKind
from tests.unit.replay.faulty import KilledError, Watched, kill_at
from tests.unit.replay.world import Place, World, pages

COUNT = 3


async def run_until_killed(world: World, job_id: str, step: int) -> bool:
    """Tick on a host that ends the process before its call number `step`. False when the job ended before that."""
    world.run_on(Watched(world.host, kill_at(step)))
    try:
        while world.job(job_id).state is JobState.RUNNING:
            await world.tick()
    except KilledError:
        return True
    return False


def test_every_row_moves_once_whenever_the_node_is_killed(tmp_path: Path) -> None:
    async def one(step: int) -> bool:
        world = World(tmp_path / f"{step}")
        await world.dead(COUNT)
        job = await world.start(rate=10)
        killed = await run_until_killed(world, job.id, step)
        world = world.crashed(tmp_path / f"{step}-again")
        await world.until(lambda: world.job(job.id).state is JobState.DONE)
        done = world.job(job.id)
        assert (done.moved, done.scanned, done.skipped) == (COUNT, COUNT, 0)
        assert len(world.revived(job.id)) == COUNT
        check_history(world, list(world.rows()), revived=1)
        cursors = [page.cursor for page in pages(world.log)]
        assert cursors == sorted(cursors)
        world.close()
        return killed

    async def every() -> int:
        step = 0
        while await one(step):
            step += 1
        return step

    # Three rows at two a tick: two pages, and the reads around each of them.
    assert asyncio.run(every()) >= 12


def test_what_was_held_is_not_forgotten_whenever_the_node_is_killed(tmp_path: Path) -> None:
    """Between holding a sink key back, reaching the end, and pausing: a job that forgot would end as done."""

    async def one(step: int) -> bool:
        world = World(tmp_path / f"{step}")
        await world.dead(15, source="acme.bad")
        world.wall += 1
        await world.dead(2, source="acme.good")
        job = await world.start(rate=60)
        await world.tick()
        world.settle(world.revived(job.id), OutcomeKind.DEAD)
        assert world.job(job.id).dead == 12
        killed = await run_until_killed(world, job.id, step)
        world = world.crashed(tmp_path / f"{step}-again")
        if world.job(job.id).state is JobState.RUNNING:
            await world.until(lambda: world.job(job.id).state is not JobState.RUNNING)
        paused = world.job(job.id)
        assert (paused.state, paused.held, paused.moved) == (JobState.PAUSED, ("acme/acme.bad/0/http",), 14)
        assert len([place for place, row in world.rows().items() if row.generation == 1]) == 3
        world.close()
        return killed

    async def every() -> int:
        step = 0
        while await one(step):
            step += 1
        return step

    assert asyncio.run(every()) >= 12


@pytest.mark.parametrize("settled", [OutcomeKind.DELIVERED, OutcomeKind.DEAD])
def test_outcomes_and_pages_survive_restarts_together(tmp_path: Path, settled: OutcomeKind) -> None:
    async def body() -> None:
        world = World(tmp_path / "first")
        await world.dead(40)
        job = await world.start(rate=50)
        for _ in range(4):
            await world.tick()
            world.settle(world.revived(job.id)[:7], settled)
            world.restart()
        await world.until(lambda: world.job(job.id).state is not JobState.RUNNING)
        world.settle(world.revived(job.id), settled)
        job = world.job(job.id)
        assert job.delivered + job.dead == job.moved
        check_history(world, world.still_dead(), revived=0 if settled is OutcomeKind.DELIVERED else 1)
        assert job.moved == 40
        world.close()

    asyncio.run(body())


def check_history(world: World, places: list[Place], revived: int) -> None:
    for seq, _ in places:
        kinds = [attempt.kind for _, _, attempt in world.log.tables.attempts_of(seq)]
        assert kinds.count(OutcomeKind.REVIVED) == revived
