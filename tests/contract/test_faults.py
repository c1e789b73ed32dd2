"""Faults that users of other delivery systems met (docs/faults.md), those that no other test here holds already."""

from __future__ import annotations

import asyncio
from typing import Any

from ankusa.sinks.contract import Delivery
from schemas.config import Retry
from schemas.records import ErrorClass, OutcomeKind, RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, PERMANENT, TRANSIENT, ScriptedSink, hang, slow

HOUR_MS = 3_600_000


def test_an_attempt_that_takes_as_long_as_it_may_is_not_started_a_second_time(start: Start) -> None:
    """No lease runs out: a claim lasts as long as its attempt, which the timeout alone bounds."""
    host = start(concurrency=8, attempt_timeout_ms=HOUR_MS)
    sink = ScriptedSink(slow(HOUR_MS - 1000))
    host.source("orders", sink)
    host.source("other", ScriptedSink())
    host.commit(hooks(4))
    for number in range(59):
        host.advance(60_000)
        host.commit([Hook(f"other-{number}", source_id="other")])  # wakes it, as every commit does
    assert sorted(sink.ids) == [hook.id for hook in hooks(4)]
    assert sink.running == 4
    host.advance(60_000)
    assert len(sink.got) == 4
    assert host.counts() == (0, 0, 0)


def test_an_answer_that_comes_after_its_row_was_claimed_again_changes_nothing(start: Start) -> None:
    """The first attempt is given up and answers ok all the same while the second runs, which fails: the row is tried a
    third time, and what the late one said is neither written nor counted."""
    late_answer = asyncio.Event()

    async def late(_: Delivery) -> Any:
        while not late_answer.is_set():
            try:
                await late_answer.wait()
            except asyncio.CancelledError:
                continue  # as a thread or a C library would
        return OK

    async def second(_: Delivery) -> Any:
        late_answer.set()
        await asyncio.sleep(0.5)
        return TRANSIENT

    host = start(attempt_timeout_ms=1000)
    sink = ScriptedSink(late, second, OK)
    host.source("orders", sink)
    host.commit([Hook("a")])
    host.advance(2700)  # given up at 1000, tried again at 2000, failed at 2500
    row = host.rows("a")[0]
    assert (row.state, row.attempts, row.error_class) == (RowState.PENDING, 2, ErrorClass.TRANSIENT)
    assert [line.kind for line in host.attempts("a")] == [OutcomeKind.RETRY] * 2
    host.advance(10_000)
    assert sink.attempts_of("a") == [1, 2, 3]
    assert [line.kind for line in host.attempts("a")] == [OutcomeKind.RETRY, OutcomeKind.RETRY, OutcomeKind.DELIVERED]
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_two_tenants_of_one_source_and_sink_share_no_breaker_no_window_and_no_count(start: Start) -> None:
    """As after a source was given to another tenant, whose rows of before are still the first one's."""
    host = start(concurrency=1, breaker_failures=5, breaker_open_ms=60_000)

    async def act(delivery: Delivery) -> Any:
        return TRANSIENT if delivery.tenant_id == "a" else OK

    sink = ScriptedSink(act)
    host.source("orders", sink)
    host.commit(hooks(20, prefix="a", tenant_id="a"))
    host.settle()
    assert len(sink.got) == 5
    host.commit(hooks(20, prefix="b", tenant_id="b"))
    host.advance(1000)
    assert len(sink.got) == 25, "a's breaker stopped b, or b's answers closed it"
    assert host.counts() == (20, 0, 0)
    assert host.dead_letter_source("orders") == 20
    assert host.counts() == (0, 0, 20)


def test_every_way_an_attempt_ends_is_counted_once(host: Host) -> None:
    ends: list[Any] = [TRANSIENT, ValueError("boom"), None, hang, asyncio.CancelledError(), slow(50)]
    sink = ScriptedSink(*ends)
    host.source("orders", sink, retry=Retry(base_ms=1000, max_ms=1000, max_attempts=50, jitter=False))
    host.commit([Hook("a")])
    host.advance(120_000)
    assert sink.attempts_of("a") == [1, 2, 3, 4, 5, 6]
    lines = host.attempts("a")
    assert [line.attempt for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line.kind for line in lines] == [OutcomeKind.RETRY] * 5 + [OutcomeKind.DELIVERED]


def test_a_row_that_is_put_off_for_ever_by_everything_at_once_still_ends(start: Start) -> None:
    """Failures, an open breaker, probes and crashes: the horizon counts from the first of them, and no later one moves
    it."""
    host = start(concurrency=1, breaker_failures=2, breaker_open_ms=1000, breaker_max_open_ms=30_000)
    host.source("orders", ScriptedSink(TRANSIENT), retry=Retry(base_ms=1000, max_ms=10_000, max_elapsed_ms=HOUR_MS))
    began = host.at
    host.commit(hooks(10))
    for _ in range(6):
        host.advance(HOUR_MS // 8)
        host.crash()
    host.advance(HOUR_MS)
    assert host.counts() == (0, 0, 10)
    assert all(host.rows(hook.id)[0].at <= began + HOUR_MS + 120_000 for hook in hooks(10))


def test_a_destination_that_is_taken_out_of_its_source_ends_its_rows_and_no_others(host: Host) -> None:
    """Due, in backoff, parked, in a lane: each dies as sink_gone, once, and the sink beside it goes on."""
    gone, stays = ScriptedSink(TRANSIENT, type="kafka"), ScriptedSink(slow(5), type="http")
    host.source("orders", stays, gone)
    both = ("http", "kafka")
    host.commit(hooks(10, sinks=both))
    host.commit([Hook(f"lane-{number}", sinks=both, ordering_keys=(None, "k")) for number in range(5)])
    host.settle()
    host.source("orders", stays)
    host.commit(hooks(5, prefix="after", sinks=("http",)))
    host.advance(5000)
    assert host.counts() == host.scanned_counts() == (0, 0, 15)
    names = [hook.id for hook in hooks(10)] + [f"lane-{number}" for number in range(5)]
    assert {host.rows(name)[1].error for name in names} == {"sink_gone"}
    assert len(stays.got) == 20
    host.source("orders", stays, ScriptedSink(PERMANENT, type="kafka"))
    host.advance(HOUR_MS)
    assert host.counts() == (0, 0, 15), "a dead row came back by itself"
