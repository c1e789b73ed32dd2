"""Replayed rows: the same way as any other, with only the capacity that live rows leave free."""

from __future__ import annotations

from schemas.config import TenantDispatch
from schemas.records import OutcomeKind, RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, PERMANENT, TRANSIENT, ScriptedSink, hang, slow


def dead_rows(host: Host, count: int, *, tenant: str = "acme") -> list[str]:
    """Commit hooks that die at once, and a job to replay them by."""
    host.source("orders", ScriptedSink(PERMANENT))
    dead = hooks(count, prefix="dead", tenant_id=tenant)
    host.commit(dead)
    host.advance(1000)
    assert host.counts() == (0, 0, count)
    host.start_job("job")
    return [hook.id for hook in dead]


def test_a_revived_row_goes_again_under_its_job_with_a_fresh_budget(host: Host) -> None:
    (hook_id,) = dead_rows(host, 1)
    sink = ScriptedSink(TRANSIENT, OK)
    host.source("orders", sink)
    host.revive("job", hook_id)
    row = host.rows(hook_id)[0]
    assert (row.state, row.attempts, row.first_at, row.replay_id) == (RowState.PENDING, 0, 0, "job")
    assert host.counts() == (0, 1, 0)
    host.advance(2000)
    assert [(delivery.id, delivery.replay_id, delivery.attempt) for delivery in sink.got] == [
        (hook_id, "job", 1),
        (hook_id, "job", 2),
    ]
    kinds = [line.kind for line in host.attempts(hook_id)]
    assert kinds == [OutcomeKind.DEAD, OutcomeKind.REVIVED, OutcomeKind.RETRY, OutcomeKind.DELIVERED]
    assert (host.job("job").moved, host.job("job").delivered) == (1, 1)
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_a_revived_row_that_dies_again_is_counted_and_dead(host: Host) -> None:
    (hook_id,) = dead_rows(host, 1)
    host.revive("job", hook_id)
    host.advance(1000)
    assert host.rows(hook_id)[0].state is RowState.DEAD
    assert (host.job("job").moved, host.job("job").dead) == (1, 1)
    assert host.counts() == host.scanned_counts() == (0, 0, 1)


def test_live_rows_go_before_replayed_ones(start: Start) -> None:
    host = start(concurrency=1)
    dead = dead_rows(host, 20)
    sink = ScriptedSink(slow(100))
    host.source("orders", sink)
    host.revive("job", *dead)
    host.advance(150)
    before = len(sink.got)
    host.commit(hooks(5))
    host.advance(700)
    live_at = [place for place, delivery in enumerate(sink.got) if delivery.replay_id is None]
    assert live_at == list(range(before, before + 5))
    host.advance(10_000)
    assert host.counts() == (0, 0, 0)


def test_replayed_rows_leave_slots_and_window_to_the_next_live_hook(start: Start) -> None:
    host = start(concurrency=8, max_inflight=100, sink_concurrency=None)
    dead = dead_rows(host, 60)
    hung = ScriptedSink(hang)
    host.source("orders", hung)
    host.revive("job", *dead)
    host.settle()
    assert hung.running == 6
    well = ScriptedSink()
    host.source("other", well)
    host.commit(hooks(30, source_id="other"))
    host.settle()
    assert len(well.got) == 30
    assert hung.running == 6


def test_replayed_rows_leave_a_part_of_each_sink_keys_cap(start: Start) -> None:
    host = start(concurrency=100, sink_concurrency=4)
    dead = dead_rows(host, 20)
    hung = ScriptedSink(hang, hang, hang, OK)
    host.source("orders", hung)
    host.revive("job", *dead)
    host.settle()
    assert hung.running == 3
    host.commit([Hook("live")])
    assert "live" in hung.ids


def test_replayed_rows_leave_a_part_of_their_tenants_slots(start: Start) -> None:
    host = start(concurrency=100, sink_concurrency=None, tenants={"acme": TenantDispatch(concurrency=4)})
    dead = dead_rows(host, 20)
    host.source("orders", hung := ScriptedSink(hang))
    host.revive("job", *dead)
    host.settle()
    assert hung.running == 3
    host.source("other", well := ScriptedSink())
    host.commit(hooks(10, source_id="other"))
    host.settle()
    assert len(well.got) == 10


def test_replayed_rows_leave_a_part_of_their_tenants_window(start: Start) -> None:
    host = start(concurrency=100, sink_concurrency=None, tenants={"acme": TenantDispatch(max_inflight=8)})
    dead = dead_rows(host, 20)
    host.source("orders", hung := ScriptedSink(hang))
    host.revive("job", *dead)
    host.settle()
    assert hung.running == 2
    host.source("other", well := ScriptedSink())
    host.commit(hooks(10, source_id="other"))
    host.settle()
    assert len(well.got) == 10


def test_a_window_of_one_still_lets_a_replay_through(start: Start) -> None:
    host = start(concurrency=1, max_inflight=1)
    dead = dead_rows(host, 5)
    sink = ScriptedSink(slow(10))
    host.source("orders", sink)
    host.revive("job", *dead)
    host.advance(1000)
    assert sorted(sink.ids) == dead


def test_the_lag_is_that_of_live_rows(start: Start) -> None:
    host = start(concurrency=1, max_inflight=2)
    dead = dead_rows(host, 10)
    host.source("orders", ScriptedSink(hang))
    host.revive("job", *dead)
    host.advance(5000)
    pressure = host.pressure()
    assert pressure is not None
    assert (pressure.lag_ms, pressure.window_full) == (0, True)
    host.commit(hooks(10))
    host.advance(3000)
    pressure = host.pressure()
    assert pressure is not None
    assert pressure.lag_ms == 3000


def test_revivals_in_flight_survive_a_crash(start: Start) -> None:
    host = start(concurrency=2)
    dead = dead_rows(host, 10)
    sink = ScriptedSink(slow(50))
    host.source("orders", sink)
    host.revive("job", *dead)
    host.advance(60)
    host.crash()
    host.advance(5000)
    assert set(sink.ids) == set(dead)
    assert host.counts() == host.scanned_counts() == (0, 0, 0)
    assert (host.job("job").moved, host.job("job").delivered) == (10, 10)
