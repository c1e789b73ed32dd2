"""A job stops feeding what keeps failing: that sink key while others are healthy, itself when nothing else is left."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest

from ankusa.core.job import OTHERS, TALLIED
from ankusa.core.pace import PAGE_ENTRIES
from schemas.records import ErrorClass, Job, JobState, OutcomeKind, Row, SinkTally
from tests.unit.replay.running import in_world
from tests.unit.replay.world import Place, World, pages

BAD = "acme/acme.bad/0/http"
GOOD = "acme/acme.good/0/http"


def fails(kind: OutcomeKind = OutcomeKind.DEAD) -> Callable[[Row], OutcomeKind]:
    """The bad source's attempts end so, every other delivers."""
    return lambda row: kind if row.source_id == "acme.bad" else OutcomeKind.DELIVERED


async def turn(world: World, job: Job, verdict: Callable[[Row], OutcomeKind]) -> None:
    """A tick, then one attempt at every row that waits."""
    await world.tick()
    rows = world.rows()
    by_kind: dict[OutcomeKind, list[Place]] = {}
    for place in world.revived(job.id):
        by_kind.setdefault(verdict(rows[place]), []).append(place)
    for kind, places in by_kind.items():
        world.settle(places, kind)


async def turns(world: World, job: Job, verdict: Callable[[Row], OutcomeKind], most: int = 60) -> Job:
    """Turns until the job runs no more."""
    for _ in range(most):
        await turn(world, job, verdict)
        if world.job(job.id).state is not JobState.RUNNING:
            return world.job(job.id)
    raise AssertionError(f"still running: {world.job(job.id)}")


async def mixed(world: World, each: int = 60) -> None:
    """Bad and good rows in turn, by death time."""
    for _ in range(each // 10):
        await world.dead(10, source="acme.bad")
        await world.dead(10, source="acme.good")
        world.wall += 1


@in_world
async def test_one_dead_sink_does_not_pause_the_healthy_rest(world: World) -> None:
    await mixed(world)
    job = await world.start(rate=100)
    paused = await turns(world, job, fails())
    assert paused.state is JobState.PAUSED
    assert paused.held == (BAD,)
    assert paused.delivered == 60
    assert 10 <= paused.dead <= 30
    assert paused.moved == paused.delivered + paused.dead
    assert paused.error == (
        "paused itself: all that is left is held back, after more failures than deliveries at "
        f"{BAD} ({paused.dead} failed, 0 delivered)"
    )
    assert {row.source_id for row in world.rows().values()} == {"acme.bad"}


@in_world
async def test_held_rows_stay_where_they_were(world: World) -> None:
    await mixed(world)
    job = await world.start(rate=100)
    before = world.rows()
    await turns(world, job, fails())
    untouched = {place: row for place, row in world.rows().items() if row.generation == 1}
    assert len(untouched) >= 30
    assert all(before[place] == row for place, row in untouched.items())


@in_world
async def test_a_job_with_only_a_dead_sink_pauses_at_once(world: World) -> None:
    await world.dead(PAGE_ENTRIES + 200, source="acme.bad")
    job = await world.start(rate=100)
    paused = await turns(world, job, fails(), most=3)
    assert (paused.state, paused.held, paused.moved, paused.dead) == (JobState.PAUSED, (BAD,), 20, 20)


@in_world
async def test_rows_parked_behind_an_open_breaker_count_as_failures(world: World) -> None:
    await world.dead(50, source="acme.bad")
    job = await world.start(rate=50)
    paused = await turns(world, job, fails(OutcomeKind.PARKED), most=4)
    assert (paused.state, paused.held, paused.dead) == (JobState.PAUSED, (BAD,), 0)


@in_world
async def test_retries_are_no_verdict(world: World) -> None:
    await world.dead(50, source="acme.bad")
    job = await world.start(rate=50)
    done = await turns(world, job, fails(OutcomeKind.RETRY), most=8)
    assert (done.state, done.held, done.moved) == (JobState.DONE, (), 50)


@in_world
async def test_a_small_job_is_not_paused_by_nine_failures(world: World) -> None:
    await world.dead(9, source="acme.bad")
    job = await world.start(rate=5)
    done = await turns(world, job, fails(), most=12)
    assert (done.state, done.held, done.moved) == (JobState.DONE, (), 9)


@in_world
async def test_as_many_failures_as_deliveries_hold_nothing(world: World) -> None:
    await world.dead(300, source="acme.bad")
    job = await world.start(rate=500)
    verdicts = cycle([OutcomeKind.DELIVERED, OutcomeKind.DEAD])
    done = await turns(world, job, lambda row: next(verdicts))
    assert (done.state, done.held, done.moved) == (JobState.DONE, (), 300)
    assert world.job(job.id).tallies[BAD] == SinkTally(300, 150, 150)


@in_world
async def test_a_failure_more_than_the_deliveries_holds_past_the_hundredth(world: World) -> None:
    await world.dead(300, source="acme.bad")
    job = await world.start(rate=500)
    verdicts = cycle([OutcomeKind.DEAD, OutcomeKind.DELIVERED, OutcomeKind.DEAD])
    paused = await turns(world, job, lambda row: next(verdicts))
    # 100 moved a turn, two of three failing: 67 are too few, the second turn passes the hundredth failure.
    assert (paused.state, paused.held, paused.moved) == (JobState.PAUSED, (BAD,), 200)
    assert paused.tallies[BAD] == SinkTally(200, 67, 133)


@in_world
async def test_a_held_sink_with_nothing_left_does_not_pause_the_job(world: World) -> None:
    await world.dead(12, source="acme.bad")
    world.wall += 1
    await world.dead(30, source="acme.good")
    job = await world.start(rate=60)
    done = await turns(world, job, fails())
    assert (done.state, done.held, done.error) == (JobState.DONE, (BAD,), None)
    assert (done.moved, done.dead, done.delivered + len(world.revived(job.id))) == (42, 12, 30)


@in_world
async def test_a_resumed_job_starts_with_a_clean_sheet_and_takes_what_was_held(world: World) -> None:
    await mixed(world)
    job = await world.start(rate=100)
    paused = await turns(world, job, fails())
    resumed = await world.patch(job, state="running")
    assert (resumed.error, resumed.held, resumed.tallies) == (None, (), {})
    done = await turns(world, job, lambda row: OutcomeKind.DELIVERED)
    assert (done.state, done.moved) == (JobState.DONE, 120)
    # What died again before the pause died after the start: it is for another job.
    assert len(world.still_dead()) == paused.dead
    assert all(row.generation == 3 for row in world.rows().values())


@in_world
async def test_a_sink_that_fails_again_after_a_resume_is_held_again(world: World) -> None:
    await mixed(world)
    job = await world.start(rate=100)
    first = await turns(world, job, fails())
    await world.patch(job, state="running")
    second = await turns(world, job, fails())
    assert (second.state, second.held) == (JobState.PAUSED, (BAD,))
    assert second.moved > first.moved
    assert second.tallies[BAD] == SinkTally(second.moved - first.moved, 0, second.moved - first.moved)


@in_world
async def test_an_operators_pause_keeps_its_error_empty(world: World) -> None:
    await mixed(world)
    job = await world.start(rate=100)
    await turn(world, job, fails())
    paused = await world.patch(job, state="paused")
    assert (paused.error, paused.state) == (None, JobState.PAUSED)


@in_world
async def test_the_rule_counts_each_sink_of_a_source(world: World) -> None:
    await world.dead(40, sinks=("http", "http"))
    job = await world.start(rate=100)
    for _ in range(30):
        await world.tick()
        waiting = world.revived(job.id)
        world.settle([place for place in waiting if place[1] == 0], OutcomeKind.DELIVERED)
        world.settle([place for place in waiting if place[1] == 1], OutcomeKind.DEAD)
    paused = world.job(job.id)
    assert (paused.state, paused.held) == (JobState.PAUSED, ("acme/acme.orders/1/http",))
    assert paused.delivered == 40


@in_world
async def test_rows_outside_the_filter_keep_no_job_from_pausing(world: World) -> None:
    await world.dead(40, source="acme.bad")
    await world.dead(40, source="acme.good")
    job = await world.start(source_id="acme.bad", rate=100)
    paused = await turns(world, job, fails(), most=3)
    assert (paused.state, paused.held) == (JobState.PAUSED, (BAD,))


@in_world
async def test_what_is_held_is_found_however_far_behind_it_lies(world: World) -> None:
    """The counts cannot tell a held row inside the filter from others of its sink key: the range is searched, a page
    at a time, and a crash in the middle of that search only starts it again."""
    await world.dead(20, source="acme.bad", error_class=ErrorClass.TIMEOUT)
    world.wall += 1
    await world.dead(PAGE_ENTRIES + 50, source="acme.bad")
    world.wall += 1
    await world.dead(5, source="acme.bad", error_class=ErrorClass.TIMEOUT)
    job = await world.start(error_class="timeout", rate=100)
    await turn(world, job, fails())
    world.run_on(world.host)
    paused = await turns(world, job, fails(), most=6)
    assert (paused.state, paused.held, paused.moved) == (JobState.PAUSED, (BAD,), 20)
    assert len(world.still_dead()) == PAGE_ENTRIES + 75


@in_world
async def test_a_search_that_finds_nothing_held_ends_the_job(world: World) -> None:
    await world.dead(20, source="acme.bad", error_class=ErrorClass.TIMEOUT)
    world.wall += 1
    await world.dead(2 * PAGE_ENTRIES, source="acme.bad")
    job = await world.start(error_class="timeout", rate=100)
    done = await turns(world, job, fails(), most=6)
    assert (done.state, done.moved, done.error) == (JobState.DONE, 20, None)
    assert [page.finished for page in pages(world.log)].count(True) == 1


@in_world
async def test_a_search_is_void_after_a_resume(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sinks are held, then one of them again: a search begun for both must not pass over the other's rows."""
    monkeypatch.setattr("ankusa.core.pace.TICK_ENTRIES", 100)
    for _ in range(2):
        for source in ("acme.one", "acme.two"):
            await world.dead(10, source=source, error_class=ErrorClass.TIMEOUT)
            world.wall += 1
        await world.dead(150, source="acme.other")
        world.wall += 1
    job = await world.start(error_class="timeout", rate=100)
    await turn(world, job, lambda row: OutcomeKind.DEAD)
    assert world.job(job.id).dead == 20
    # Past the end of the others, with 20 rows held back: the search for them is under way.
    await world.until(lambda: len(world.job(job.id).held) == 2 and world.job(job.id).scanned == 340, ticks=6)
    assert world.job(job.id).state is JobState.RUNNING
    await world.patch(job, state="paused")
    await world.patch(job, state="running", rate=50)
    done = await turns(
        world, job, lambda row: OutcomeKind.DEAD if row.source_id == "acme.one" else OutcomeKind.DELIVERED
    )
    assert (done.state, done.held, done.moved) == (JobState.DONE, ("acme/acme.one/0/http",), 40)


@in_world
async def test_many_held_sinks_are_named_in_part(world: World) -> None:
    for _ in range(2):
        for number in range(8):
            await world.dead(10, source=f"acme.bad{number}")
        world.wall += 1
    job = await world.start(rate=400)
    paused = await turns(world, job, lambda row: OutcomeKind.DEAD, most=3)
    assert (paused.state, paused.moved) == (JobState.PAUSED, 80)
    assert paused.held == tuple(f"acme/acme.bad{number}/0/http" for number in range(8))
    assert paused.error is not None and paused.error.endswith(
        "acme/acme.bad4/0/http (10 failed, 0 delivered) and 3 more"
    )


@in_world
async def test_a_job_keeps_no_more_counts_than_it_can_carry(world: World) -> None:
    """Its record is written with every page, so what is past the bound is counted together."""
    for number in range(TALLIED + 30):
        await world.dead(1, source=f"acme.s{number:03}")
    job = await world.start(rate=10_000)
    done = await turns(world, job, lambda row: OutcomeKind.DELIVERED)
    settled = world.job(job.id)
    assert (done.state, settled.moved, settled.delivered) == (JobState.DONE, TALLIED + 30, TALLIED + 30)
    assert len(settled.tallies) == TALLIED + 1
    assert settled.tallies[OTHERS] == SinkTally(30, 30, 0)


@in_world
async def test_sinks_past_the_bound_are_judged_together(world: World) -> None:
    for number in range(TALLIED):
        await world.dead(1, source=f"acme.s{number:03}")
    world.wall += 1
    await world.dead(5, source="acme.good")
    await world.dead(200, source="acme.bad")
    job = await world.start(rate=100)
    paused = await turns(world, job, fails())
    assert (paused.state, paused.held) == (JobState.PAUSED, ())
    others = paused.tallies[OTHERS]
    assert (others.delivered, others.failed) == (5, paused.dead)
    assert paused.dead < 200
    assert paused.error == (
        f"paused itself: more failures ({paused.dead}) than deliveries (5) at the sinks that came after the first "
        f"{TALLIED}, which are counted together"
    )
    resumed = await world.patch(job, state="running")
    assert (resumed.error, resumed.tallies) == (None, {})
