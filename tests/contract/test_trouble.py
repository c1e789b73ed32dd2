"""A store that refuses, hooks that cannot be read now, a stop in the middle: nothing is lost, nothing stands still."""

from __future__ import annotations

from schemas.records import RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, TRANSIENT, ScriptedSink, cling, hang, slow


def test_outcomes_that_the_store_refuses_are_kept_and_written_when_it_takes_them_again(host: Host) -> None:
    sink = ScriptedSink(slow(50))
    host.source("orders", sink)
    host.commit(hooks(20))
    host.refuse_writes(True)
    host.advance(10_000)
    assert len(sink.got) == 20
    assert host.scanned_counts() == (20, 0, 0)
    assert host.pressure() is None
    host.refuse_writes(False)
    host.advance(1100)
    assert host.counts() == host.scanned_counts() == (0, 0, 0)
    assert len(sink.got) == 20
    assert host.pressure() is not None


def test_while_the_store_refuses_the_window_bounds_what_is_sent(start: Start) -> None:
    host = start(max_inflight=10, concurrency=10)
    sink = ScriptedSink(slow(50))
    host.source("orders", sink)
    host.commit(hooks(50))
    host.refuse_writes(True)
    host.advance(60_000)
    assert len(sink.got) == 10
    host.refuse_writes(False)
    host.advance(5000)
    assert sorted(sink.ids) == [hook.id for hook in hooks(50)]
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_retries_refused_and_written_later_keep_their_attempts(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT, TRANSIENT, OK)
    host.source("orders", sink)
    host.commit([Hook("a")])
    host.refuse_writes(True)
    host.advance(5000)
    assert sink.attempts_of("a") == [1]
    host.refuse_writes(False)
    host.advance(10_000)
    assert sink.attempts_of("a") == [1, 2, 3]
    assert host.counts() == (0, 0, 0)


def test_a_refused_write_that_reached_the_store_all_the_same_counts_once(host: Host) -> None:
    sink = ScriptedSink(slow(50), TRANSIENT)
    host.source("orders", sink)
    host.commit([Hook("a"), Hook("b")])
    host.refuse_writes_after_taking_them()
    host.advance(1000)
    host.refuse_writes(False)
    host.settle()
    assert host.counts() == host.scanned_counts()
    host.advance(1100)
    assert host.counts() == host.scanned_counts()
    assert host.rows("a") == {}
    assert host.rows("b")[0].generation == len(host.attempts("b"))


def test_a_hook_that_cannot_be_read_now_waits_alone(host: Host) -> None:
    sink = ScriptedSink()
    host.source("orders", sink)
    host.sources_answer(False)
    host.commit([Hook("unreadable"), Hook("good")])
    host.settle()
    host.sources_answer(True)
    host.refuse_reads("unreadable")
    host.advance(1100)
    assert sink.ids == ["good"]
    for number in range(10):
        host.commit([Hook(f"later-{number}")])
        assert sink.ids[-1] == f"later-{number}"
    turns = host.turns
    host.advance(10_000)
    assert host.turns - turns < 30
    assert host.rows("unreadable")[0].state is RowState.PENDING
    host.refuse_reads()
    host.advance(1000)
    assert sink.attempts_of("unreadable") == [1]
    assert host.counts() == (0, 0, 0)


def test_a_stop_lets_running_attempts_end_and_gives_the_rest_back(start: Start) -> None:
    host = start(concurrency=4)
    sink = ScriptedSink(slow(500))
    host.source("orders", sink)
    host.commit(hooks(10))
    host.restart(grace_ms=1000)
    assert len(sink.got) == 8  # four that ended in time, and the next four
    host.advance(5000)
    assert sorted(sink.ids) == [hook.id for hook in hooks(10)]  # and none of them twice
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_attempts_past_the_grace_are_cancelled_and_due_again_unspent(host: Host) -> None:
    sink = ScriptedSink(hang, hang, OK)
    host.source("orders", sink)
    host.commit(hooks(2))
    host.restart(grace_ms=100)
    host.advance(100)
    assert sink.attempts_of("hook-0000") == [1, 1]
    assert sink.attempts_of("hook-0001") == [1, 1]
    assert host.counts() == (0, 0, 0)


def test_an_attempt_that_will_not_end_does_not_keep_a_stop(host: Host) -> None:
    sink = ScriptedSink(cling, OK)
    host.source("orders", sink)
    host.commit(hooks(1))
    began = host.at
    host.restart(grace_ms=100)
    assert host.at - began < 2000
    host.advance(100)
    assert sink.attempts_of("hook-0000") == [1, 1]


def test_a_stop_while_the_store_refuses_ends_and_redelivers(host: Host) -> None:
    sink = ScriptedSink(slow(10))
    host.source("orders", sink)
    host.commit(hooks(5))
    host.refuse_writes(True)
    host.advance(500)
    host.restart()
    host.advance(500)
    assert host.counts() == (0, 0, 0)
    assert sorted(sink.ids) == sorted([hook.id for hook in hooks(5)] * 2)
