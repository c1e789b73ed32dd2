"""Batching sinks on a host (spec 03 "Batching sinks"): no slot, but the window, the timeout and the breaker."""

from __future__ import annotations

from tests.contract.conftest import Start
from tests.contract.host import STEADY, hooks
from tests.contract.sinks import OK, TRANSIENT, ScriptedSink, hang, slow


def test_its_attempts_take_no_slot(start: Start) -> None:
    host = start(concurrency=2, sink_concurrency=1)
    gathering, plain = ScriptedSink(slow(1_000), batching=True), ScriptedSink(OK)
    host.source("gathering", gathering)
    host.source("plain", plain)
    host.commit(hooks(300, prefix="g", source_id="gathering"))
    host.commit(hooks(100, prefix="p", source_id="plain"))
    host.advance(500)
    assert gathering.most_running == 300
    assert len(plain.got) == 100
    host.advance(1_000)
    assert host.counts() == (0, 0, 0)


def test_the_window_bounds_how_many_wait(start: Start) -> None:
    host = start(max_inflight=50)
    sink = ScriptedSink(hang, batching=True)
    host.source("orders", sink)
    host.commit(hooks(300))
    host.advance(500)
    assert sink.most_running == 47  # the last three are for another tenant


def test_each_attempt_times_out_on_its_own(start: Start) -> None:
    host = start(attempt_timeout_ms=1_000)
    sink = ScriptedSink(hang, OK, batching=True)
    host.source("orders", sink, retry=STEADY)
    host.commit(hooks(10))
    host.advance(5_000)
    assert host.counts() == (0, 0, 0)
    assert sink.attempts_of("hook-0000") == [1, 2]


def test_an_open_breaker_keeps_its_rows_out_of_the_batch(start: Start) -> None:
    host = start(breaker_failures=5, breaker_open_ms=30_000)
    sink = ScriptedSink(TRANSIENT, batching=True)
    host.source("orders", sink, retry=STEADY)
    host.commit(hooks(5))
    host.settle()
    handed = len(sink.got)
    host.commit(hooks(100, prefix="later"))
    host.advance(20_000)
    assert len(sink.got) == handed
