"""What an attempt's result does to its row, and what is told of it afterwards."""

from __future__ import annotations

import pytest

from ankusa.core.retry import ERROR_LIMIT, RETRY_AFTER_CAP_MS
from ankusa.sinks.contract import Failed, Ok
from schemas.config import Retry
from schemas.records import ErrorClass, OutcomeKind, RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, PERMANENT, TRANSIENT, ScriptedSink, hang


def test_delivered_rows_are_gone_and_their_history_stays(host: Host) -> None:
    sink = ScriptedSink(Ok("201"))
    host.source("orders", sink)
    host.commit([Hook("a", body=b"\x00\xffbytes")])
    host.settle()
    (delivery,) = sink.got
    assert (delivery.id, delivery.body, delivery.attempt, delivery.replay_id) == ("a", b"\x00\xffbytes", 1, None)
    assert host.rows("a") == {}
    assert host.counts() == host.scanned_counts() == (0, 0, 0)
    (line,) = host.attempts("a")
    assert (line.kind, line.attempt, line.detail) == (OutcomeKind.DELIVERED, 1, "201")


def test_each_sink_of_a_source_has_its_own_row(host: Host) -> None:
    well, failing, refusing = ScriptedSink(type="http"), ScriptedSink(TRANSIENT, type="log"), ScriptedSink(PERMANENT)
    host.source("orders", well, failing, refusing)
    host.commit([Hook("a", sinks=("http", "log", "http"))])
    host.settle()
    rows = host.rows("a")
    assert sorted(rows) == [1, 2]
    assert (rows[1].state, rows[2].state) == (RowState.PENDING, RowState.DEAD)
    assert host.counts() == host.scanned_counts() == (1, 0, 1)


def test_a_failed_attempt_is_made_again_by_the_policy_until_it_succeeds(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT, TRANSIENT, TRANSIENT, OK)
    host.source("orders", sink)
    began = host.at
    host.commit([Hook("a")])
    host.advance(60_000)
    assert sink.attempts_of("a") == [1, 2, 3, 4]
    assert sink.times() == [began, began + 1000, began + 3000, began + 7000]
    kinds = [line.kind for line in host.attempts("a")]
    assert kinds == [OutcomeKind.RETRY] * 3 + [OutcomeKind.DELIVERED]
    assert host.counts() == (0, 0, 0)


def test_a_row_in_backoff_shows_its_attempts_its_error_and_when_it_is_due(host: Host) -> None:
    host.source("orders", ScriptedSink(Failed("transient", "503 busy")))
    began = host.at
    host.commit([Hook("a")])
    host.settle()
    row = host.rows("a")[0]
    assert (row.state, row.attempts, row.first_at, row.at) == (RowState.PENDING, 1, began, began + 1000)
    assert (row.error, row.error_class) == ("503 busy", ErrorClass.TRANSIENT)


def test_a_permanent_answer_is_dead_at_once(host: Host) -> None:
    sink = ScriptedSink(Failed("permanent", "410 gone"))
    host.source("orders", sink)
    began = host.at
    host.commit([Hook("a")])
    host.advance(3_600_000)
    row = host.rows("a")[0]
    assert len(sink.got) == 1
    assert (row.state, row.error, row.error_class) == (RowState.DEAD, "410 gone", ErrorClass.PERMANENT)
    assert began <= row.at <= began + 100  # the death time, not the due time
    assert host.counts() == host.scanned_counts() == (0, 0, 1)


def test_the_last_attempt_of_the_policy_is_the_last(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT)
    host.source("orders", sink, retry=Retry(base_ms=10, max_ms=20, max_attempts=5))
    host.commit([Hook("a")])
    host.advance(3_600_000)
    row = host.rows("a")[0]
    assert sink.attempts_of("a") == [1, 2, 3, 4, 5]
    assert (row.state, row.attempts, row.error_class) == (RowState.DEAD, 5, ErrorClass.TRANSIENT)


def test_no_attempt_starts_past_the_horizon(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT)
    host.source("orders", sink, retry=Retry(base_ms=1000, max_ms=1000, max_elapsed_ms=3500, jitter=False))
    began = host.at
    host.commit([Hook("a")])
    host.advance(3_600_000)
    assert sink.times() == [began, began + 1000, began + 2000, began + 3000]
    assert host.rows("a")[0].state is RowState.DEAD


@pytest.mark.parametrize(
    ("asked_ms", "waited_ms"),
    [(5000, 5000), (0, 1000), (10, 1000), (RETRY_AFTER_CAP_MS * 24, RETRY_AFTER_CAP_MS)],
)
def test_retry_after_waits_as_long_as_asked_but_no_less_than_the_policy_and_no_more_than_an_hour(
    host: Host, asked_ms: int, waited_ms: int
) -> None:
    sink = ScriptedSink(Failed("retry_after", "429", asked_ms), OK)
    host.source("orders", sink)
    began = host.at
    host.commit([Hook("a")])
    host.settle()
    assert host.rows("a")[0].error_class is ErrorClass.RETRY_AFTER
    host.advance(2 * RETRY_AFTER_CAP_MS)
    assert sink.times() == [began, began + waited_ms]


def test_an_attempt_past_its_deadline_is_cancelled_counts_as_failed_and_frees_its_slot(start: Start) -> None:
    host = start(concurrency=1, attempt_timeout_ms=30_000)
    sink = ScriptedSink(hang, OK)
    host.source("orders", sink)
    began = host.at
    host.commit(hooks(2))
    host.advance(29_999)
    assert sink.running == 1
    assert len(sink.got) == 1
    host.advance(1)
    assert sink.ids == ["hook-0000", "hook-0001"]
    assert sink.running == 0
    host.settle()
    row = host.rows("hook-0000")[0]
    assert row.error_class is ErrorClass.TIMEOUT
    assert row.error is not None
    assert row.error.startswith("attempt_timeout")
    assert row.at == began + 30_000 + 1000
    assert host.rows("hook-0001") == {}


def test_an_error_is_kept_bounded(host: Host) -> None:
    host.source("orders", ScriptedSink(Failed("transient", "x" * 100_000)))
    host.commit([Hook("a")])
    host.settle()
    assert host.rows("a")[0].error == "x" * ERROR_LIMIT


def test_outcomes_of_a_burst_are_all_written(start: Start) -> None:
    host = start(concurrency=1000, max_inflight=5000)
    sink = ScriptedSink(type="http")
    host.source("orders", sink)
    host.commit(hooks(1500))
    host.settle()
    assert len(set(sink.ids)) == len(sink.ids) == 1500
    assert host.counts() == host.scanned_counts() == (0, 0, 0)
