"""`tick` and `pressure`: what others ask of a dispatcher."""

from __future__ import annotations

from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, TRANSIENT, ScriptedSink, hang, slow


def test_a_tick_runs_until_nothing_is_claimed_running_or_due(host: Host) -> None:
    sink = ScriptedSink(slow(200))
    host.source("orders", sink)
    host.commit(hooks(100))
    assert host.tick() == 100
    assert host.counts() == (0, 0, 0)
    assert host.tick() == 0


def test_a_row_in_backoff_is_not_due(host: Host) -> None:
    host.source("orders", ScriptedSink(TRANSIENT, OK))
    host.commit([Hook("a")])
    began = host.at
    assert host.tick() == 1
    assert host.at - began < 1000
    assert host.tick() == 0
    assert host.counts() == (1, 0, 0)
    host.advance(1100)
    assert host.counts() == (0, 0, 0)


def test_a_tick_works_through_more_than_the_window(start: Start) -> None:
    host = start(max_inflight=7, batch=5, concurrency=3)
    host.source("orders", ScriptedSink(slow(10)))
    host.commit(hooks(100))
    assert host.tick() == 100


def test_a_tick_sees_a_hung_attempt_to_its_deadline(start: Start) -> None:
    host = start(attempt_timeout_ms=2000)
    host.source("orders", ScriptedSink(hang))
    host.commit([Hook("a")])
    began = host.at
    assert host.tick() == 1
    assert host.at - began >= 2000


def test_nothing_due_is_no_lag(host: Host) -> None:
    host.source("orders", ScriptedSink(TRANSIENT))
    pressure = host.pressure()
    assert pressure is not None
    assert (pressure.lag_ms, pressure.window_full) == (0, False)
    host.commit([Hook("a")])
    host.advance(500)
    pressure = host.pressure()
    assert pressure is not None
    assert pressure.lag_ms == 0  # it waits, and is not due


def test_the_lag_is_the_age_of_the_oldest_due_row_that_nobody_has_claimed(start: Start) -> None:
    host = start(max_inflight=2, concurrency=2)
    host.source("orders", ScriptedSink(hang))
    host.commit(hooks(2))
    host.advance(4000)
    pressure = host.pressure()
    assert pressure is not None
    assert (pressure.lag_ms, pressure.window_full) == (0, True)
    host.commit(hooks(2, prefix="more"))
    host.advance(1234)
    pressure = host.pressure()
    assert pressure is not None
    assert pressure.lag_ms == 1234
