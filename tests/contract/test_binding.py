"""Rows meet their source as it is now: by index and type, or by type alone, or not at all."""

from __future__ import annotations

import pytest

from ankusa.sinks.contract import Failed
from schemas.records import ErrorClass, OutcomeKind, RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, TRANSIENT, ScriptedSink, hang


def test_options_are_those_of_now(host: Host) -> None:
    old, new = ScriptedSink(TRANSIENT), ScriptedSink()
    host.source("orders", old)
    host.commit([Hook("a")])
    host.settle()
    host.source("orders", new)
    host.advance(1000)
    assert (old.attempts_of("a"), new.attempts_of("a")) == ([1], [2])


def test_after_a_reorder_a_row_goes_to_the_one_sink_of_its_type(host: Host) -> None:
    host.source("orders", ScriptedSink(TRANSIENT, type="http"), ScriptedSink(type="log"))
    host.commit([Hook("a", sinks=("http", "log"))])
    host.settle()
    log, http = ScriptedSink(type="log"), ScriptedSink(type="http")
    host.source("orders", log, http)
    host.advance(1000)
    assert (log.ids, http.ids) == ([], ["a"])
    assert host.counts() == (0, 0, 0)


@pytest.mark.parametrize("now", [(), ("log",), ("log", "http", "http")])
def test_with_no_sink_of_its_type_or_several_it_is_dead(host: Host, now: tuple[str, ...]) -> None:
    host.source("orders", ScriptedSink(TRANSIENT))
    host.commit([Hook("a")])
    host.settle()
    sinks = [ScriptedSink(type=kind) for kind in now]
    host.source("orders", *sinks)
    host.advance(1100)
    row = host.rows("a")[0]
    assert (row.state, row.error, row.error_class) == (RowState.DEAD, "sink_gone", ErrorClass.PERMANENT)
    assert all(not sink.got for sink in sinks)
    assert host.attempts("a")[-1].kind is OutcomeKind.DEAD


def test_without_its_source_it_is_dead(host: Host) -> None:
    host.source("orders", ScriptedSink(TRANSIENT))
    host.commit([Hook("a")])
    host.settle()
    host.remove_source("orders")
    host.advance(1100)
    row = host.rows("a")[0]
    assert (row.state, row.error, row.attempts) == (RowState.DEAD, "source_gone", 1)
    assert host.counts() == host.scanned_counts() == (0, 0, 1)


def test_a_source_that_goes_while_its_rows_are_queued_takes_them_with_it(start: Start) -> None:
    host = start(concurrency=1, attempt_timeout_ms=1000)
    host.source("orders", ScriptedSink(hang))
    host.commit(hooks(3))
    host.remove_source("orders")
    host.advance(1100)
    assert [host.rows(hook.id)[0].error for hook in hooks(3)[1:]] == ["source_gone"] * 2


def test_while_the_source_store_cannot_answer_rows_come_back_a_second_later_unspent(host: Host) -> None:
    sink = ScriptedSink(OK)
    host.source("orders", sink)
    host.sources_answer(False)
    host.commit(hooks(20))
    host.advance(3500)
    row = host.rows("hook-0000")[0]
    assert (row.state, row.attempts, row.error) == (RowState.PENDING, 0, None)
    assert host.counts() == host.scanned_counts() == (20, 0, 0)
    assert host.attempts("hook-0000") == []  # it may go on for hours, every second
    host.sources_answer(True)
    host.advance(1000)
    assert len(sink.got) == 20
    assert {delivery.attempt for delivery in sink.got} == {1}


def test_a_source_store_that_falls_silent_while_rows_are_queued(start: Start) -> None:
    host = start(concurrency=1, attempt_timeout_ms=1000)
    sink = ScriptedSink(hang, OK)
    host.source("orders", sink)
    host.commit(hooks(3))
    host.sources_answer(False)
    host.advance(1050)
    assert [host.rows(hook.id)[0].attempts for hook in hooks(3)] == [1, 0, 0]
    host.sources_answer(True)
    host.advance(5000)
    assert host.counts() == (0, 0, 0)


def test_a_source_that_cannot_be_built_stops_nobody_else(host: Host) -> None:
    sink = ScriptedSink()
    host.source("orders", sink)
    host.source("broken", ScriptedSink())
    host.break_source("broken")
    host.commit([Hook("bad", source_id="broken"), Hook("good")])
    host.settle()
    assert sink.ids == ["good"]
    host.advance(3000)
    row = host.rows("bad")[0]
    assert (row.state, row.attempts) == (RowState.PENDING, 0)
    host.source("broken", mended := ScriptedSink())
    host.advance(1100)
    assert mended.attempts_of("bad") == [1]


def test_rows_that_wait_for_the_source_store_count_for_no_job(host: Host) -> None:
    host.source("orders", ScriptedSink(Failed("permanent", "410")))
    host.commit([Hook("a")])
    host.settle()
    host.start_job("job")
    host.sources_answer(False)
    host.revive("job", "a")
    host.advance(5000)
    assert all(not tally.failed for tally in host.job("job").tallies.values())
    host.source("orders", ScriptedSink())
    host.sources_answer(True)
    host.advance(1100)
    assert (host.job("job").moved, host.job("job").delivered, host.job("job").dead) == (1, 1, 0)
