"""Lanes on a host (spec 03 "Lanes"): one at a time in commit order, blocked alone, never stuck, never costing."""

from __future__ import annotations

import random  # noqa: TID251 - drawn from a fixed seed

from schemas.config import Retry
from schemas.records import RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host
from tests.contract.sinks import OK, PERMANENT, TRANSIENT, ScriptedSink, hang, slow

QUICK = Retry(base_ms=100, max_ms=1000, max_attempts=10_000, jitter=False)


def ordered(count: int, key: str = "k", prefix: str = "hook") -> list[Hook]:
    return [Hook(f"{prefix}-{number:05d}", ordering_keys=(key,)) for number in range(count)]


def test_a_lane_delivers_one_at_a_time_in_commit_order(host: Host) -> None:
    sink = ScriptedSink(slow(5))
    host.source("orders", sink)
    host.commit(ordered(50))
    lane = host.lane("k")
    assert lane is not None
    assert lane.depth == 50
    host.advance(5_000)
    assert sink.ids == [f"hook-{number:05d}" for number in range(50)]
    assert sink.most_running == 1
    assert host.counts() == (0, 0, 0)
    assert host.lane("k") is None


def test_lanes_of_other_keys_run_beside_a_blocked_one(host: Host) -> None:
    async def act(delivery):  # type: ignore[no-untyped-def]
        return await hang(delivery) if delivery.id.startswith("stuck") else OK

    sink = ScriptedSink(act)
    host.source("orders", sink)
    host.commit(ordered(10, "a", "stuck") + ordered(10, "b", "free") + [Hook("plain")])
    host.advance(1_000)
    assert sink.ids.count("plain") == 1
    assert [hook_id for hook_id in sink.ids if hook_id.startswith("free")] == [f"free-{n:05d}" for n in range(10)]
    assert [hook_id for hook_id in sink.ids if hook_id.startswith("stuck")] == ["stuck-00000"]


def test_a_retry_of_the_head_blocks_its_lane_until_it_is_delivered(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT, TRANSIENT, OK)
    host.source("orders", sink, retry=QUICK)
    host.commit(ordered(3))
    host.advance(150)
    assert set(sink.ids) == {"hook-00000"}
    host.advance(5_000)
    assert sink.ids == ["hook-00000"] * 3 + ["hook-00001", "hook-00002"]


def test_a_poison_head_dies_and_its_lane_goes_on(host: Host) -> None:
    sink = ScriptedSink(PERMANENT, OK)
    host.source("orders", sink)
    host.commit(ordered(3))
    host.advance(1_000)
    assert sink.ids == ["hook-00000", "hook-00001", "hook-00002"]
    assert host.counts() == (0, 0, 1)


def test_every_way_a_head_dies_promotes_the_next(host: Host) -> None:
    sink = ScriptedSink(OK)
    host.source("orders", sink)
    host.remove_source("orders")
    host.commit(ordered(5))
    host.advance(2_000)
    assert host.counts() == (0, 0, 5)
    host.source("orders", sink)
    host.commit(ordered(3, prefix="more"))
    host.advance(1_000)
    assert sink.ids == ["more-00000", "more-00001", "more-00002"]


def test_what_waits_in_a_lane_holds_no_window_room(start: Start) -> None:
    host = start(max_inflight=4)
    stuck, free = ScriptedSink(hang), ScriptedSink(OK)
    host.source("orders", stuck)
    host.source("other", free)
    host.commit(ordered(200))
    host.commit([Hook(f"o-{number}", source_id="other") for number in range(50)])
    host.advance(1_000)
    assert len(free.got) == 50
    assert len(stuck.got) == 1


def test_a_revived_row_joins_at_the_tail(host: Host) -> None:
    sink = ScriptedSink(PERMANENT, slow(50), slow(50), OK)
    host.source("orders", sink)
    host.commit(ordered(3))
    host.settle()
    host.start_job("job")
    host.revive("job", "hook-00000")
    row = host.rows("hook-00000")[0]
    assert row.state is RowState.MEMBER
    host.commit(ordered(1, prefix="later"))
    host.advance(2_000)
    assert sink.ids == ["hook-00000", "hook-00001", "hook-00002", "hook-00000", "later-00000"]
    assert host.job("job").delivered == 1


def test_a_revived_row_of_an_empty_lane_is_its_head(host: Host) -> None:
    sink = ScriptedSink(PERMANENT, OK)
    host.source("orders", sink)
    host.commit(ordered(1))
    host.settle()
    host.start_job("job")
    host.revive("job", "hook-00000")
    host.settle()
    assert sink.ids == ["hook-00000", "hook-00000"]
    assert host.counts() == (0, 0, 0)


def test_revived_rows_of_a_lane_come_after_what_waits_in_it_and_in_the_order_they_died(host: Host) -> None:
    host.source("orders", ScriptedSink(PERMANENT))
    host.commit(ordered(5))
    host.advance(1_000)
    assert host.counts() == (0, 0, 5)
    sink = ScriptedSink(slow(50))
    host.source("orders", sink)
    host.commit(ordered(3, prefix="live"))
    host.start_job("job")
    host.revive("job", *[f"hook-{number:05d}" for number in range(5)])
    host.commit(ordered(2, prefix="later"))
    host.advance(60)
    host.crash()
    host.advance(5_000)
    in_lane = [f"live-{number:05d}" for number in range(3)] + [f"hook-{number:05d}" for number in range(5)]
    in_lane += [f"later-{number:05d}" for number in range(2)]
    assert list(dict.fromkeys(sink.ids)) == in_lane
    assert sink.most_running == 1
    assert host.job("job").delivered == 5
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_a_revived_head_holds_its_lane_until_it_ends_again(host: Host) -> None:
    host.source("orders", ScriptedSink(PERMANENT))
    host.commit(ordered(1))
    host.settle()
    sink = ScriptedSink(TRANSIENT, PERMANENT, OK)
    host.source("orders", sink, retry=QUICK)
    host.start_job("job")
    host.revive("job", "hook-00000")
    host.commit(ordered(2, prefix="live"))
    host.advance(90)
    assert sink.ids == ["hook-00000"]
    assert host.rows("live-00000")[0].state is RowState.MEMBER
    host.advance(1_000)
    assert sink.ids == ["hook-00000", "hook-00000", "live-00000", "live-00001"]
    assert host.job("job").dead == 1
    assert host.counts() == (0, 0, 1)


def test_random_failures_and_crashes_keep_first_deliveries_in_commit_order(start: Start) -> None:
    host = start(concurrency=16)
    draw = random.Random(7)
    delivered: dict[str, list[str]] = {}
    accepted: dict[str, list[str]] = {}

    async def flaky(delivery):  # type: ignore[no-untyped-def]
        if draw.random() < 0.2:
            return TRANSIENT
        seen = delivered.setdefault(delivery.id.split("_")[0], [])
        if delivery.id not in seen:
            seen.append(delivery.id)
        return OK

    host.source("orders", ScriptedSink(flaky), retry=QUICK)
    number = 0
    for _ in range(5):
        batch = []
        for _ in range(400):
            key = f"k{draw.randrange(20)}"
            hook_id = f"{key}_{number:05d}"
            accepted.setdefault(key, []).append(hook_id)
            batch.append(Hook(hook_id, ordering_keys=(key,)))
            number += 1
        host.commit(batch)
        host.advance(draw.randrange(300))
        host.crash()
    host.advance(600_000)
    assert host.counts() == (0, 0, 0)
    assert delivered == accepted


def test_a_lane_that_lost_its_head_is_healed(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT, OK)
    host.source("orders", sink)
    host.commit(ordered(3))
    host.settle()
    host.lose_row("hook-00000")
    host.advance(3_000)
    waiting = host.rows("hook-00002")
    assert waiting[0].state is RowState.MEMBER
    host.sweep_lanes()
    host.advance(1_000)
    assert not host.rows("hook-00001")
    assert not host.rows("hook-00002")
    assert host.lane("k") is None


def test_a_long_lane_costs_nothing_to_scan(host: Host) -> None:
    stuck, free = ScriptedSink(hang), ScriptedSink(OK)
    host.source("orders", stuck)
    host.source("other", free)
    host.commit(ordered(20_000))
    turns = host.turns
    host.commit([Hook("one", source_id="other")])
    host.settle()
    assert free.ids == ["one"]
    assert host.turns - turns < 10
    assert len(stuck.got) == 1
    lane = host.lane("k")
    assert lane is not None
    assert lane.depth == 20_000
