"""A dry run counts exactly, moves nothing, and lets the event loop turn; a start knows its total when that is cheap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ankusa.core.pace import PAGE_ENTRIES
from ankusa.replay import plan as plans
from ankusa.replay.answers import Invalid, Plan
from schemas.records import ErrorClass
from tests.unit.replay.running import in_world
from tests.unit.replay.world import START, World


async def planned(world: World, **body: Any) -> Plan:
    answer = await world.operator.start({"kind": "dlq", "dry_run": True} | body)
    assert isinstance(answer, Plan), answer
    return answer


@in_world
async def test_a_plan_counts_splits_and_dates(world: World) -> None:
    await world.dead(3, died_at=START + 1_000)
    await world.dead(2, sinks=("http", "log"), died_at=START + 2_000)
    await world.dead(1, tenant="umbra", source="umbra.orders", died_at=START + 3_000)
    before = world.rows()
    plan = await planned(world, rate=2)
    assert world.operator.to_json(plan) == {
        "dry_run": True,
        "kind": "dlq",
        "filter": {},
        "rate": 2,
        "at": START + 3_000,
        "count": 8,
        "skipped": 0,
        "scanned": 8,
        "by_source": {"acme.orders": 7, "umbra.orders": 1},
        "by_sink": {"acme/acme.orders/0/http": 5, "acme/acme.orders/1/log": 2, "umbra/umbra.orders/0/http": 1},
        "oldest_at": START + 1_000,
        "newest_at": START + 3_000,
        "duration_ms": 4_000,
    }
    assert world.rows() == before
    assert world.listed() == []


@in_world
async def test_a_plan_counts_what_its_filter_wants(world: World) -> None:
    await world.dead(3, died_at=START + 1_000)
    await world.dead(2, error_class=ErrorClass.TIMEOUT, died_at=START + 2_000)
    plan = await planned(world, error_class="timeout")
    assert (plan.count, plan.scanned, plan.oldest_at, plan.newest_at) == (2, 5, START + 2_000, START + 2_000)


@in_world
async def test_a_plan_of_nothing_is_empty(world: World) -> None:
    plan = await planned(world)
    assert (plan.count, plan.by_source, plan.by_sink, plan.oldest_at, plan.newest_at) == (0, {}, {}, None, None)
    assert plan.duration_ms == 0


@in_world
async def test_a_plan_is_refused_as_its_start_would_be(world: World) -> None:
    refused = await world.operator.start({"kind": "dlq", "dry_run": True, "tenants": ["umbra"]}, ["acme"])
    assert isinstance(refused, Invalid)


@in_world
async def test_a_plan_never_takes_longer_than_its_fastest_pace(world: World) -> None:
    await world.dead(500)
    assert (await planned(world, rate=100_000)).duration_ms == 50


@in_world
async def test_the_event_loop_turns_while_a_plan_counts(world: World) -> None:
    await world.dead(PAGE_ENTRIES * 3 + 1)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    plan = await planned(world)
    seen = turns
    task.cancel()
    assert plan.count == PAGE_ENTRIES * 3 + 1
    assert seen >= 3


@pytest.mark.parametrize(
    ("chosen", "total"),
    [
        ({}, 6),
        ({"tenants": ["umbra"]}, 1),
        ({"source_id": "acme.orders", "sink": 1}, 2),
        ({"error_class": "timeout"}, 1),
        ({"until": START}, 4),
        ({"since": START + 1}, 2),
        ({"id": "00000000-0000-7000-8000-000000000001"}, 2),
    ],
)
@in_world
async def test_a_start_knows_how_much_there_is(world: World, chosen: dict[str, Any], total: int) -> None:
    await world.dead(2, sinks=("http", "log"), died_at=START)
    await world.dead(1, tenant="umbra", source="umbra.orders", died_at=START + 1)
    await world.dead(1, error_class=ErrorClass.TIMEOUT, died_at=START + 2)
    assert (await world.start(**chosen)).total == total


@in_world
async def test_a_total_that_would_take_long_stays_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "COUNT_ENTRIES", PAGE_ENTRIES)
    await world.dead(PAGE_ENTRIES + 1)
    job = await world.start(error_class="transient")
    shown = world.operator.to_json(job)
    assert (job.total, shown["remaining"], shown["eta_ms"]) == (None, None, None)
    assert (await world.start()).total == PAGE_ENTRIES + 1
