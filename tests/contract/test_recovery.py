"""After a crash: what was claimed is due again, what was written holds, and nothing is lost."""

from __future__ import annotations

import pytest

from schemas.records import OutcomeKind, RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, PERMANENT, TRANSIENT, ScriptedSink, hang, slow


def test_rows_claimed_at_a_crash_are_due_again_unspent(start: Start) -> None:
    host = start(concurrency=5)
    sink = ScriptedSink(*[hang] * 5, OK)
    host.source("orders", sink)
    host.commit(hooks(20))
    assert sink.running == 5
    host.crash()
    host.advance(1000)
    assert set(sink.ids) == {hook.id for hook in hooks(20)}
    assert {delivery.attempt for delivery in sink.got} == {1}
    assert len(sink.got) == 25  # twice only what ran when it died
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_outcomes_still_in_the_buffer_are_redelivered_and_no_more(start: Start) -> None:
    host = start(concurrency=100)
    sink = ScriptedSink()
    host.source("orders", sink)
    host.commit(hooks(50))
    host.advance(5)  # answered, not written
    assert host.counts() == (50, 0, 0)
    host.crash()
    host.advance(1000)
    assert len(sink.got) == 100
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_written_outcomes_are_not_repeated(host: Host) -> None:
    sink = ScriptedSink()
    host.source("orders", sink)
    host.commit(hooks(50))
    host.settle()
    host.crash()
    host.advance(60_000)
    assert len(sink.got) == 50


def test_attempts_backoff_and_death_outlive_a_crash(host: Host) -> None:
    sink = ScriptedSink(TRANSIENT)
    host.source("orders", sink)
    host.source("refused", ScriptedSink(PERMANENT))
    began = host.at
    host.commit([Hook("a"), Hook("b", source_id="refused")])
    host.advance(1500)
    before = host.rows("a")[0], host.rows("b")[0], host.counts()
    assert before[0].attempts == 2
    host.crash()
    assert (host.rows("a")[0], host.rows("b")[0], host.counts()) == before
    host.advance(5000)
    assert sink.times()[:3] == [began, began + 1000, began + 3000]
    assert host.rows("b")[0].state is RowState.DEAD


@pytest.mark.parametrize("crash_after_ms", [0, 1, 9, 11, 55, 130, 260, 999, 1010, 2500])
def test_nothing_is_lost_wherever_it_dies(start: Start, crash_after_ms: int) -> None:
    host = start(concurrency=4, max_inflight=10)
    sinks = {
        "slow": ScriptedSink(slow(50)),
        "flaky": ScriptedSink(TRANSIENT, OK, TRANSIENT, OK),
        "dead": ScriptedSink(PERMANENT),
    }
    for name, sink in sinks.items():
        host.source(name, sink)
        host.commit(hooks(12, prefix=name, source_id=name, tenant_id=f"tenant-{name}"))
    host.advance(crash_after_ms)
    host.crash()
    assert host.counts() == host.scanned_counts()
    host.advance(60_000)
    assert host.counts() == host.scanned_counts() == (0, 0, 12)
    for name, sink in sinks.items():
        assert set(sink.ids) == {hook.id for hook in hooks(12, prefix=name)}
    for hook in hooks(12, prefix="slow"):
        kinds = [line.kind for line in host.attempts(hook.id)]
        assert kinds == [OutcomeKind.DELIVERED]


def test_crash_after_crash(start: Start) -> None:
    host = start(concurrency=3)
    sink = ScriptedSink(slow(40))
    host.source("orders", sink)
    host.commit(hooks(30))
    for _ in range(6):
        host.advance(60)
        host.crash()
    host.advance(5000)
    assert set(sink.ids) == {hook.id for hook in hooks(30)}
    assert len(sink.got) <= 30 + 6 * (3 + 3)  # at each crash: three that ran, three whose outcome was not written yet
    assert host.counts() == host.scanned_counts() == (0, 0, 0)
