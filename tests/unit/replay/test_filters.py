"""What a dlq replay moves: every filter key, their AND, the horizon, what does not decode."""

from __future__ import annotations

from typing import Any

import pytest

from ankusa.replay.dlq import DlqFilter, read
from ankusa.store import keys
from schemas.records import ErrorClass, JobState, OutcomeKind
from tests.unit.replay.running import in_world
from tests.unit.replay.world import START, World, pages


async def mixed(world: World) -> dict[str, list[str]]:
    """Dead hooks that differ in one thing each, a second apart."""
    return {
        "acme": await world.dead(2, died_at=START + 1_000),
        "bill": await world.dead(1, source="acme.bill", died_at=START + 2_000),
        "umbra": await world.dead(1, tenant="umbra", source="umbra.orders", died_at=START + 3_000),
        "wide": await world.dead(1, sinks=("log", "http"), died_at=START + 4_000),
        "gone": await world.dead(1, error_class=ErrorClass.PERMANENT, died_at=START + 5_000),
        "slow": await world.dead(1, error_class=ErrorClass.TIMEOUT, died_at=START + 6_000),
    }


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "acme acme bill umbra wide/0 wide/1 gone slow"),
        ({"source_id": "acme.bill"}, "bill"),
        ({"tenants": ["umbra"]}, "umbra"),
        ({"tenants": ["umbra", "nobody"]}, "umbra"),
        ({"tenants": ["nobody"]}, ""),
        ({"sink": 1}, "wide/1"),
        ({"sink": 2}, ""),
        ({"error_class": "permanent"}, "gone"),
        ({"error_class": "timeout"}, "slow"),
        ({"error_class": "retry_after"}, ""),
        ({"since": START + 5_000}, "gone slow"),
        ({"until": START + 2_000}, "acme acme bill"),
        ({"since": START + 2_000, "until": START + 3_000}, "bill umbra"),
        ({"since": START + 2_001, "until": START + 2_999}, ""),
        ({"since": START + 3_000, "sink": 0, "tenants": ["acme"]}, "wide/0 gone slow"),
        ({"source_id": "acme.orders", "sink": 0, "error_class": "transient"}, "acme acme wide/0"),
        ({"source_id": "acme.bill", "tenants": ["umbra"]}, ""),
        ({"since": 1 << 53}, ""),
    ],
)
@in_world
async def test_a_filter_moves_what_matches_all_of_it(world: World, chosen: dict[str, Any], expected: str) -> None:
    hooks = await mixed(world)
    names = {world.seq(hook_id): name for name, ids in hooks.items() for hook_id in ids}
    job = await world.start(**chosen)
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    moved = [f"{names[seq]}/{sink}" if names[seq] == "wide" else names[seq] for seq, sink in world.revived(job.id)]
    assert moved == expected.split()
    done = world.job(job.id)
    assert (done.moved, done.skipped, done.error) == (len(moved), 0, None)
    assert done.total == len(moved)
    assert len(world.still_dead()) == 8 - len(moved)


@pytest.mark.parametrize(
    ("name", "chosen", "moved"),
    [
        ("wide", {}, 2),
        ("wide", {"sink": 1}, 1),
        ("wide", {"until": START}, 0),
        ("wide", {"since": START + 4_000, "until": START + 4_000}, 2),
        ("bill", {"tenants": ["umbra"]}, 0),
        ("gone", {"error_class": "permanent"}, 1),
    ],
)
@in_world
async def test_a_filter_by_hook_reads_only_that_hook(
    world: World, name: str, chosen: dict[str, Any], moved: int
) -> None:
    hooks = await mixed(world)
    job = await world.start(id=hooks[name][0], **chosen)
    await world.tick()
    done = world.job(job.id)
    assert (done.state, done.moved) == (JobState.DONE, moved)
    assert done.scanned <= 2
    assert {seq for seq, _ in world.revived(job.id)} <= {world.seq(hooks[name][0])}


@in_world
async def test_a_hook_that_is_not_stored_leaves_nothing_to_do(world: World) -> None:
    await mixed(world)
    job = await world.start(id="00000000-0000-7000-8000-ffffffffffff")
    await world.tick()
    assert (world.job(job.id).state, world.job(job.id).moved) == (JobState.DONE, 0)


@in_world
async def test_a_hook_with_more_sinks_than_tokens_takes_several_ticks(world: World) -> None:
    (hook_id,) = await world.dead(1, sinks=("http",) * 7)
    job = await world.start(id=hook_id, rate=10)
    await world.tick()
    assert world.job(job.id).moved == 2
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    assert len(world.revived(job.id)) == world.job(job.id).moved == 7


@in_world
async def test_a_live_row_of_the_same_hook_is_left_alone(world: World) -> None:
    (hook_id,) = await world.commit(1, sinks=("http", "log"))
    world.settle([(world.seq(hook_id), 1)], OutcomeKind.DEAD)
    job = await world.start(id=hook_id)
    await world.tick()
    assert world.revived(job.id) == [(world.seq(hook_id), 1)]
    row = world.row(world.seq(hook_id), 0)
    assert row is not None and row.replay_id is None


@in_world
async def test_what_dies_again_is_not_picked_up_twice(world: World) -> None:
    await world.dead(3)
    job = await world.start(rate=10)
    for _ in range(10):
        await world.tick()
        world.settle(world.revived(job.id), OutcomeKind.DEAD)
    done = world.job(job.id)
    assert (done.state, done.moved, done.dead) == (JobState.DONE, 3, 3)
    assert all(row.generation == 3 for row in world.rows().values())


@in_world
async def test_the_horizon_is_the_start_to_the_millisecond(world: World) -> None:
    before = await world.dead(1)
    job = await world.start()
    world.wall = job.created_at
    same_ms = await world.dead(1)
    # No page may run in the ms of the start: what it moved could die again inside the horizon.
    await world.replayer.tick(world.wall)
    assert world.revived() == []
    world.wall += 1
    after = await world.dead(1)
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    assert {seq for seq, _ in world.revived()} == {world.seq(before[0]), world.seq(same_ms[0])}
    assert world.still_dead() == [(world.seq(after[0]), 0)]


@in_world
async def test_what_does_not_decode_is_counted_left_and_does_not_stall(world: World) -> None:
    ids = await world.dead(5)
    broken, missing = world.seq(ids[1]), world.seq(ids[3])
    database = world.log.tables.database
    batch = database.batch()
    batch.put(keys.row_key(broken, 0), b"\xc1 not a row", database.handles["rows"])
    batch.delete(keys.row_key(missing, 0), database.handles["rows"])
    batch.put(b"odd", b"", database.handles["dead"])
    batch.put(keys.dead_key(START, 0, 0)[:-1], b"", database.handles["dead"])
    database.write(batch)
    job = await world.start()
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    done = world.job(job.id)
    assert (done.moved, done.skipped, done.scanned) == (3, 3, 6)
    assert len(list(database.keys("dead", b"", b"\xff" * 19))) == 4


@in_world
async def test_a_row_that_does_not_decode_is_left_out_of_its_hooks_replay(world: World) -> None:
    (hook_id,) = await world.dead(1, sinks=("http", "log"))
    database = world.log.tables.database
    batch = database.batch()
    batch.put(keys.row_key(world.seq(hook_id), 0), b"\xc1", database.handles["rows"])
    database.write(batch)
    job = await world.start(id=hook_id)
    await world.tick()
    assert (world.job(job.id).state, world.job(job.id).moved) == (JobState.DONE, 1)


@in_world
async def test_a_revived_row_has_a_fresh_budget_and_names_its_replay(world: World) -> None:
    (hook_id,) = await world.dead(1)
    job = await world.start()
    await world.tick()
    row = world.row(world.seq(hook_id))
    assert row is not None
    assert (row.attempts, row.first_at, row.generation, row.replay_id) == (0, 0, 2, job.id)
    assert (row.at, row.error) == (world.wall, "boom")
    attempts = world.log.tables.attempts_of(world.seq(hook_id))
    assert [attempt.kind for _, _, attempt in attempts] == [OutcomeKind.DEAD, OutcomeKind.REVIVED]
    assert world.log.tables.hook(world.seq(hook_id)) is not None


@in_world
async def test_reading_in_any_steps_covers_the_range_once(world: World) -> None:
    await world.dead(40)
    wanted = DlqFilter({}, world.wall)
    for step in (1, 7, 39, 40, 41):
        found: list[bytes] = []
        end = False
        while not end:
            entries, end = read(world.host, wanted, found[-1] if found else None, step)
            found.extend(entry.key for entry in entries)
        assert len(found) == len(set(found)) == 40
        assert found == sorted(found)


@in_world
async def test_the_cursor_only_moves_forward(world: World) -> None:
    await world.dead(300)
    job = await world.start(rate=300)
    await world.until(lambda: world.job(job.id).state is JobState.DONE)
    cursors = [page.cursor for page in pages(world.log)]
    assert cursors == sorted(cursors)
    assert len(cursors) >= 5
