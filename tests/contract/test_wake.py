"""When a dispatcher looks at its rows: on a commit, at the earliest due time, and not otherwise."""

from __future__ import annotations

import pytest

from ankusa.dispatch.dispatcher import MAX_SLEEP_MS
from schemas.config import Retry
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, TRANSIENT, ScriptedSink


def test_a_commit_wakes_it(host: Host) -> None:
    sink = ScriptedSink()
    host.source("orders", sink)
    host.advance(60_000)
    host.commit([Hook("a")])
    assert sink.times() == [host.at]


def test_nothing_to_do_takes_no_turn(host: Host) -> None:
    host.source("orders", ScriptedSink())
    host.commit([Hook("a")])
    host.settle()
    turns = host.turns
    host.advance(3_600_000)
    assert host.turns == turns


def test_it_sleeps_until_the_earliest_due_time_and_wakes_exactly_then(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT, OK)
    host.source("orders", sink, retry=Retry(base_ms=3000, jitter=False))
    began = host.at
    host.commit([Hook("a")])
    host.settle()
    turns = host.turns
    host.advance(2000)
    assert host.turns == turns
    host.advance(2000)
    assert sink.times() == [began, began + 3000]
    # One for the retry, one when its outcome had been written.
    assert host.turns == turns + 2


def test_a_long_wait_is_cut_so_that_a_clock_step_cannot_oversleep_and_no_finer(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT, OK)
    host.source("orders", sink, retry=Retry(base_ms=60_000, max_ms=60_000, jitter=False))
    began = host.at
    host.commit([Hook("a")])
    host.settle()
    turns = host.turns
    host.advance(61_000)
    assert sink.times() == [began, began + 60_000]
    assert host.turns - turns <= 60_000 // MAX_SLEEP_MS + 2


def test_a_commit_wakes_it_out_of_a_sleep(host: Host) -> None:
    failing, well = ScriptedSink(TRANSIENT), ScriptedSink()
    host.source("bad", failing, retry=Retry(base_ms=4000, jitter=False))
    host.source("orders", well)
    host.commit([Hook("a", source_id="bad")])
    host.advance(1000)
    host.commit([Hook("b")])
    assert well.times() == [host.at]


def test_rows_that_came_due_while_it_was_down_are_due_at_start(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT, OK)
    host.source("orders", sink, retry=Retry(base_ms=10_000, jitter=False))
    host.commit(hooks(1))
    host.settle()
    host.crash()
    assert sink.attempts_of("hook-0000") == [1]
    host.advance(10_000)
    assert sink.attempts_of("hook-0000") == [1, 2]
    assert host.counts() == (0, 0, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_an_hour_behind_the_log_holds_up_neither_a_retry_nor_a_breaker(start: Start, restarted: bool) -> None:
    host = start(breaker_failures=2, breaker_open_ms=4000)
    sink = ScriptedSink(TRANSIENT, TRANSIENT, OK)
    host.source("orders", sink, retry=Retry(base_ms=200, jitter=False))
    host.commit([Hook("a")])
    host.settle()
    assert sink.attempts_of("a") == [1]
    host.step_clock(-3_600_000)
    if restarted:
        host.crash()
    host.advance(1000)
    assert sink.attempts_of("a") == [1, 2]
    host.advance(10_000)
    assert sink.attempts_of("a") == [1, 2, 3]
    assert host.counts() == (0, 0, 0)


def test_a_full_batch_is_followed_by_another_turn_at_once(start: Start) -> None:
    host = start(batch=10, max_inflight=1000, concurrency=1000)
    sink = ScriptedSink()
    host.source("orders", sink)
    host.commit(hooks(95))
    assert len(sink.got) == 95
    assert set(sink.times()) == {host.at}
