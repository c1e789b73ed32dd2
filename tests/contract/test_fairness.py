"""Shares: one tenant's backlog, however large or stuck, is its own trouble."""

from __future__ import annotations

from collections import Counter

from schemas.config import TenantDispatch
from tests.contract.conftest import Start
from tests.contract.host import hooks
from tests.contract.sinks import Gauge, ScriptedSink, hang, slow


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


def test_a_tenant_with_many_sinks_gets_one_tenants_share(start: Start) -> None:
    host = start(concurrency=10, sink_concurrency=None)
    many = [ScriptedSink(slow(100)) for _ in range(50)]
    one = ScriptedSink(slow(100))
    host.source("many", *many)
    host.source("one", one)
    host.sources_answer(False)
    host.commit(hooks(4, prefix="a", tenant_id="a", source_id="many", sinks=("http",) * 50))
    host.commit(hooks(60, prefix="b", tenant_id="b", source_id="one"))
    host.sources_answer(True)
    host.advance(1000 + 1000)
    assert len(one.got) >= 40
    assert sum(len(sink.got) for sink in many) >= 40


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
    assert sum(share.values()) == 64
