"""Stored bytes that are damaged, gone or not to be read now: each costs its own row at most, once, and nobody else."""

from __future__ import annotations

from schemas.records import ErrorClass, RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import ScriptedSink


def held_back(host: Host, *committed: Hook) -> None:
    """Commit while no attempt can start, so that the test can spoil what is stored before it is claimed."""
    host.source("orders")
    host.sources_answer(False)
    host.commit(committed)
    host.settle()
    host.sources_answer(True)


def test_a_hook_that_does_not_decode_is_dead_at_once_and_the_rest_moves_on(host: Host) -> None:
    sink = ScriptedSink()
    held_back(host, Hook("bad"), Hook("good"))
    host.source("orders", sink)
    host.corrupt("bad")
    host.advance(5000)
    row = host.rows("bad")[0]
    assert (row.state, row.error, row.error_class, row.attempts) == (
        RowState.DEAD,
        "undecodable",
        ErrorClass.PERMANENT,
        0,
    )
    assert sink.ids == ["good"]
    assert host.counts() == host.scanned_counts() == (0, 0, 1)


def test_a_hook_that_is_gone_is_dead_at_once_and_the_rest_moves_on(host: Host) -> None:
    sink = ScriptedSink()
    held_back(host, Hook("gone"), Hook("good"))
    host.source("orders", sink)
    host.lose("gone")
    seen = host.attempts("gone")
    host.advance(5000)
    row = host.rows("gone")[0]
    assert (row.state, row.error, row.error_class) == (RowState.DEAD, "hook_missing", ErrorClass.PERMANENT)
    assert len(host.attempts("gone")) == len(seen) + 1
    assert sink.ids == ["good"]
    assert host.counts() == host.scanned_counts() == (0, 0, 1)


def test_a_row_that_does_not_decode_stops_nobody(host: Host) -> None:
    sink = ScriptedSink()
    held_back(host, *hooks(10))
    host.source("orders", sink)
    host.corrupt_row("hook-0003")
    host.advance(5000)
    assert sorted(sink.ids) == [hook.id for hook in hooks(10) if hook.id != "hook-0003"]


def test_index_entries_without_rows_stop_nobody_and_let_a_tick_end(start: Start) -> None:
    host = start(batch=4)
    sink = ScriptedSink()
    held_back(host, *hooks(40))
    host.source("orders", sink)
    for hook in hooks(32):
        host.orphan_index_entry(hook.id)
    host.advance(1000)
    assert sorted(sink.ids) == [hook.id for hook in hooks(40)[32:]]
    host.restart()  # finds the entries without rows again
    assert host.tick() == 0


def test_rows_whose_reading_fails_are_not_forgotten(host: Host) -> None:
    sink = ScriptedSink()
    held_back(host, *hooks(10))
    host.source("orders", sink)
    host.refuse_row_reads(3, "hook-0004")
    host.advance(6000)
    assert sorted(sink.ids) == [hook.id for hook in hooks(10)]
    assert host.counts() == (0, 0, 0)


def test_a_tenant_whose_rows_cannot_be_read_does_not_stop_the_others(host: Host) -> None:
    sink = ScriptedSink()
    held_back(host, *hooks(5, prefix="bad", tenant_id="bad"), *hooks(5, prefix="good", tenant_id="good"))
    host.source("orders", sink)
    host.refuse_row_reads(1_000_000, "bad-0002")
    host.advance(2500)
    assert sorted(sink.ids) == [hook.id for hook in hooks(5, prefix="good")]
    host.commit([Hook("later", tenant_id="good")])
    assert sink.ids[-1] == "later"
