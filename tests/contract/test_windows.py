"""The windows: how much may be claimed at once, in all and by a tenant."""

from __future__ import annotations

from schemas.config import TenantDispatch
from tests.contract.conftest import Start
from tests.contract.host import Hook, hooks
from tests.contract.sinks import ScriptedSink, hang, slow

SLOTS = 1000
"""More than any window here, so that what runs is what is claimed."""


def test_no_more_rows_are_claimed_than_the_window_holds(start: Start) -> None:
    host = start(max_inflight=10, concurrency=SLOTS)
    sink = ScriptedSink(slow(100))
    host.source("orders", sink)
    host.commit(hooks(100))
    assert sink.running == 10
    host.advance(10_000)
    assert sink.most_running == 10
    assert len(sink.got) == 100


def test_no_more_bytes_are_claimed_than_the_window_holds_and_one_row(start: Start) -> None:
    host = start(max_inflight_bytes=10_000, concurrency=SLOTS)
    sink = ScriptedSink(slow(100))
    host.source("orders", sink)
    host.commit(hooks(50, body=b"x" * 3000))
    assert 3 <= sink.running <= 4
    host.advance(10_000)
    assert sink.most_running <= 4
    assert len(sink.got) == 50


def test_a_row_larger_than_the_window_goes_alone(start: Start) -> None:
    host = start(max_inflight_bytes=1000, concurrency=SLOTS)
    sink = ScriptedSink(slow(100))
    host.source("orders", sink)
    host.commit([Hook("small-1"), Hook("large", body=b"x" * 100_000), Hook("small-2")])
    host.advance(10_000)
    assert sorted(sink.ids) == ["large", "small-1", "small-2"]


def test_a_row_larger_than_its_tenants_window_goes_too(start: Start) -> None:
    host = start(concurrency=SLOTS, tenants={"acme": TenantDispatch(max_inflight_bytes=1000)})
    sink = ScriptedSink(slow(100))
    host.source("orders", sink)
    host.commit([Hook("large-1", body=b"x" * 100_000), Hook("large-2", body=b"x" * 100_000)])
    assert sink.running == 1
    host.advance(1000)
    assert sorted(sink.ids) == ["large-1", "large-2"]
    assert sink.most_running == 1


def test_a_tenant_at_its_window_leaves_the_rest_to_others_and_is_not_woken_for(start: Start) -> None:
    host = start(concurrency=SLOTS, max_inflight=100, tenants={"a": TenantDispatch(max_inflight=5)})
    hung, well = ScriptedSink(hang), ScriptedSink()
    host.source("bad", hung)
    host.source("orders", well)
    host.commit(hooks(50, prefix="a", tenant_id="a", source_id="bad"))
    assert hung.running == 5
    host.settle()
    turns = host.turns
    host.advance(20_000)
    assert host.turns == turns
    host.commit(hooks(50, prefix="b", tenant_id="b"))
    host.settle()
    assert len(well.got) == 50
    assert hung.running == 5


def test_a_tenant_goes_on_when_an_outcome_frees_its_window(start: Start) -> None:
    host = start(concurrency=SLOTS, tenants={"default": TenantDispatch(max_inflight=3)})
    sink = ScriptedSink(slow(100))
    host.source("orders", sink)
    host.commit(hooks(20))
    host.advance(5000)
    assert len(sink.got) == 20
    assert sink.most_running == 3
    assert host.counts() == (0, 0, 0)


def test_limits_are_taken_from_a_new_config_while_it_runs(start: Start) -> None:
    host = start(concurrency=2, sink_concurrency=2, max_inflight=4)
    sink = ScriptedSink(slow(1000))
    host.source("orders", sink)
    host.commit(hooks(100))
    host.settle()
    assert sink.running == 2
    host.reconfigure(concurrency=20, sink_concurrency=None, max_inflight=24)
    host.settle()
    assert sink.running == 19  # one slot is for another tenant
    host.reconfigure(concurrency=3, max_inflight=3)
    host.settle()
    assert sink.running == 19  # what runs goes on
    host.advance(5000)
    assert sink.running == 3
    host.reconfigure(concurrency=50, max_inflight=50, sink_concurrency=10)
    host.settle()
    assert sink.running == 10
    host.advance(30_000)
    assert len(sink.got) == 100
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_a_raised_window_of_a_tenant_counts_at_once(start: Start) -> None:
    host = start(concurrency=SLOTS, tenants={"acme": TenantDispatch(max_inflight=2)})
    sink = ScriptedSink(hang)
    host.source("orders", sink)
    host.commit(hooks(20))
    host.settle()
    assert sink.running == 2
    host.reconfigure(tenants={"acme": TenantDispatch(max_inflight=7)})
    host.settle()
    assert sink.running == 7


def test_a_stop_takes_the_rows_of_a_full_window_back(start: Start) -> None:
    host = start(max_inflight=10, concurrency=2)
    sink = ScriptedSink(slow(10))
    host.source("orders", sink)
    host.commit(hooks(50))
    host.restart()
    host.advance(1000)
    assert sorted(sink.ids) == [hook.id for hook in hooks(50)]


def test_a_tenant_whose_sinks_hang_leaves_room_in_the_window_for_who_comes_later(start: Start) -> None:
    """Without limits of its own it may have fifteen sixteenths, and two of them leave room for a third."""
    host = start(concurrency=SLOTS, max_inflight=320)
    hung, well = ScriptedSink(hang), ScriptedSink()
    host.source("bad", hung)
    host.source("orders", well)
    host.commit(hooks(500, prefix="a", tenant_id="a", source_id="bad"))
    assert hung.running == 301
    host.commit(hooks(500, prefix="b", tenant_id="b", source_id="bad"))
    host.settle()
    assert 301 < hung.running < 320
    host.commit(hooks(200, prefix="c", tenant_id="c"))
    host.advance(5000)
    assert len(well.got) == 200


def test_a_tenant_whose_large_rows_hang_leaves_bytes_for_who_comes_later(start: Start) -> None:
    host = start(concurrency=SLOTS, max_inflight_bytes=1_000_000)
    hung, well = ScriptedSink(hang), ScriptedSink()
    host.source("bad", hung)
    host.source("orders", well)
    host.commit(hooks(60, prefix="a", tenant_id="a", source_id="bad", body=b"x" * 20_000))
    assert 40 < hung.running < 50
    host.commit(hooks(100, prefix="b", tenant_id="b", body=b"x" * 20_000))
    host.advance(1000)
    assert len(well.got) == 100
