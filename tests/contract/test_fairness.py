"""Shares: one tenant's backlog, however large or stuck, is its own trouble."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from schemas.config import TenantDispatch
from tests.contract.conftest import Start
from tests.contract.host import Hook, hooks
from tests.contract.sinks import Gauge, ScriptedSink, hang, slow

SHARED: list[dict[str, int]] = [
    {"concurrency": 10},  # the slots are short
    {"concurrency": 12, "sink_concurrency": 8},  # and a sink key has a cap
    {"concurrency": 200, "max_inflight": 20},  # the window is short
    {"concurrency": 12, "max_inflight": 48, "batch": 16},  # everything is
]


def test_a_tenant_with_a_hanging_sink_does_not_keep_another_waiting(start: Start) -> None:
    """The shape of spec 09: A has 500 rows for a sink that hangs, B has 100; B is complete, A within its cap."""
    host = start(concurrency=32, sink_concurrency=8, tenants={"a": TenantDispatch(concurrency=6, max_inflight=200)})
    gauge = Gauge()
    hung, well = ScriptedSink(gauge.watched(hang)), ScriptedSink(gauge.watched(slow(20)))
    host.source("bad", hung)
    host.source("orders", well)
    host.commit(hooks(500, prefix="a", tenant_id="a", source_id="bad"))
    host.commit(hooks(100, prefix="b", tenant_id="b"))
    host.advance(1000)
    assert len(well.got) == 100
    assert gauge.most["a"] == 6
    host.advance(60_000)
    assert gauge.most["a"] == 6


def test_without_caps_a_hung_sink_key_has_its_share_of_the_slots_and_no_more(start: Start) -> None:
    host = start(concurrency=32, sink_concurrency=8)
    hung, well = ScriptedSink(hang), ScriptedSink()
    host.source("bad", hung)
    host.source("orders", well)
    host.commit(hooks(500, prefix="a", tenant_id="a", source_id="bad"))
    host.commit(hooks(100, prefix="b", tenant_id="b"))
    host.advance(1000)
    assert len(well.got) == 100
    assert hung.most_running == 8


def test_a_tenant_with_many_hung_sinks_leaves_slots_although_nothing_caps_it(start: Start) -> None:
    host = start(concurrency=32, sink_concurrency=8)
    hung, well = [ScriptedSink(hang) for _ in range(10)], ScriptedSink(slow(5))
    host.source("bad", *hung)
    host.source("orders", well)
    host.commit(hooks(50, prefix="a", tenant_id="a", source_id="bad", sinks=("http",) * 10))
    host.settle()
    assert sum(sink.running for sink in hung) == 31
    host.commit(hooks(100, prefix="b", tenant_id="b"))
    host.advance(1000)
    assert len(well.got) == 100


def test_slots_go_round_over_tenants_whatever_their_backlog(start: Start) -> None:
    host = start(concurrency=6, sink_concurrency=None)
    sink = ScriptedSink(slow(100))
    host.source("orders", sink)
    host.sources_answer(False)
    host.commit(hooks(300, prefix="a", tenant_id="a"))
    host.commit(hooks(30, prefix="b", tenant_id="b"))
    host.commit(hooks(30, prefix="c", tenant_id="c"))
    host.sources_answer(True)
    host.advance(1000 + 10 * 100)
    share = Counter(delivery.tenant_id for delivery in sink.got)
    assert share["b"] >= 18
    assert share["c"] >= 18
    assert share["a"] >= 18


@pytest.mark.parametrize("settings", SHARED, ids=str)
def test_a_tenant_with_fifty_sinks_and_one_with_one_get_equal_shares(start: Start, settings: dict[str, int]) -> None:
    """Counted while both have a backlog, and over again in each part of that time, whatever bounds them."""
    host = start(**settings)
    many = [ScriptedSink(slow(100)) for _ in range(50)]
    one = ScriptedSink(slow(100))
    host.source("many", *many)
    host.source("one", one)
    host.sources_answer(False)
    host.commit(hooks(20, prefix="a", tenant_id="a", source_id="many", sinks=("http",) * 50))
    host.commit(hooks(1000, prefix="b", tenant_id="b", source_id="one"))
    host.sources_answer(True)

    def count() -> tuple[int, int]:
        return sum(len(sink.got) for sink in many), len(one.got)

    host.advance(2000)  # until all of both are due: the one's came first
    first = before = count()
    for _ in range(5):
        host.advance(1000)
        delivered = count()
        assert max(delivered) < 1000, "one of them has no backlog any more"
        shares = delivered[0] - before[0], delivered[1] - before[1]
        assert min(shares) > 0
        # The window is given back partition by partition, and what a few rows of it are refilled with are too few to
        # share: in several partitions shares are equal over the whole time, and not in each second of it.
        assert host.partitions > 1 or abs(shares[0] - shares[1]) <= 2 + max(shares) // 50, shares
        before = delivered
    shares = before[0] - first[0], before[1] - first[1]
    assert abs(shares[0] - shares[1]) <= max(shares) // 10, shares


@pytest.mark.parametrize("first_sink", ["slow", "hung"])
def test_one_hook_behind_a_hundred_thousand_of_another_tenant_is_delivered_within_two_scans(
    start: Start, first_sink: str
) -> None:
    host = start(sink_concurrency=8)
    act: Any = {"slow": slow(100), "hung": hang}[first_sink]
    first, second = ScriptedSink(act), ScriptedSink()
    host.source("first", first)
    host.source("orders", second)
    host.commit(hooks(100_000, prefix="a", tenant_id="a", source_id="first"))
    host.settle()
    assert sum(host.counts()) >= 100_000 - len(first.got)
    turns = host.turns
    host.commit([Hook("b", tenant_id="b")])
    while not second.got:
        assert host.turns - turns <= 2, "two scans went by"
        host.advance(1)
    assert host.turns - turns <= 2


def test_a_scan_takes_rows_of_every_tenant_and_not_of_the_first_alone(start: Start) -> None:
    host = start(batch=16, max_inflight=64, concurrency=1000)
    sink = ScriptedSink(hang)
    host.source("orders", sink)
    host.sources_answer(False)
    host.commit(hooks(200, prefix="a", tenant_id="a"))
    host.commit(hooks(200, prefix="b", tenant_id="b"))
    host.commit(hooks(5, prefix="c", tenant_id="c"))
    host.sources_answer(True)
    host.advance(3000)
    share = Counter(delivery.tenant_id for delivery in sink.got)
    assert share["c"] == 5
    assert abs(share["a"] - share["b"]) <= 8
    assert 60 <= sum(share.values()) <= 64  # the last few are for whoever comes next
