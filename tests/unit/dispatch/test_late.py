"""Outcomes that are folded later than they were published, and rows that are another node's from now on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.records import OutcomeKind, RowState
from tests.contract.host import Hook, hooks
from tests.contract.sinks import OK, TRANSIENT, ScriptedSink, hang, slow
from tests.unit.dispatch.late import LateHost, late


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LateHost]:
    with late(tmp_path, max_inflight=8, concurrency=4) as host:
        yield host


def test_a_row_stays_claimed_until_its_outcome_is_folded(host: LateHost) -> None:
    sink = ScriptedSink(OK)
    host.source("orders", sink)
    host.commit([Hook("a")])
    host.advance(60_000)
    assert sink.ids == ["a"]
    assert len(host.dispatcher.claims.by_place) == 1
    host.land()
    assert host.dispatcher.claims.by_place == {}
    assert host.rows("a") == {}
    host.advance(60_000)
    assert sink.ids == ["a"]


def test_what_is_in_flight_is_bounded_by_the_window(host: LateHost) -> None:
    sink = ScriptedSink(OK)
    host.source("orders", sink)
    host.commit(hooks(40))
    host.advance(60_000)
    assert len(sink.got) == 8
    while host.published:
        host.land()
        host.settle()
    assert len(sink.got) == 40
    assert host.counts() == (0, 0, 0)


def test_several_batches_are_in_flight_and_land_in_any_order(host: LateHost) -> None:
    sink = ScriptedSink(OK)
    host.source("orders", sink)
    for number in range(3):
        host.commit([Hook(f"h{number}")])
        host.settle()
    assert [published.batch.items[0].seq for published in host.published] == [host._seq(f"h{n}") for n in range(3)]
    for _ in range(3):
        host.land(-1)
    assert host.counts() == (0, 0, 0)
    assert sorted(sink.ids) == ["h0", "h1", "h2"]


def test_a_refused_batch_is_published_again_with_what_came_meanwhile(host: LateHost) -> None:
    sink = ScriptedSink(OK)
    host.source("orders", sink)
    host.commit([Hook("a")])
    host.settle()
    host.refuse()
    host.commit([Hook("b")])
    host.advance(999)
    assert host.published == []
    host.advance(1)
    (published,) = host.published
    assert [outcome.seq for outcome in published.batch.items] == [host._seq("a"), host._seq("b")]
    assert published.claimed == {}  # the first may have reached the log all the same
    host.land()
    host.advance(60_000)
    assert sink.ids == ["a", "b"]
    assert host.counts() == (0, 0, 0)


def test_a_breaker_move_that_was_refused_is_published_again(tmp_path: Path) -> None:
    with late(tmp_path, breaker_failures=1) as host:
        host.source("orders", ScriptedSink(TRANSIENT))
        host.commit([Hook("a")])
        host.settle()
        (move,) = host.published[0].batch.breakers
        host.refuse()
        host.advance(1000)
        assert host.published[0].batch.breakers == (move,)
        host.land()
        assert host.dispatch_host.breakers() == {move.key: move.breaker}


def test_a_retry_is_made_when_it_is_due_although_it_was_folded_late(host: LateHost) -> None:
    sink = ScriptedSink(TRANSIENT, OK)
    host.source("orders", sink)
    host.commit([Hook("a")])
    host.advance(5000)
    assert len(sink.got) == 1
    host.land()
    host.settle()
    assert sink.attempts_of("a") == [1, 2]


def test_a_batch_is_of_one_partition(tmp_path: Path) -> None:
    with late(tmp_path) as host:
        host.partitions = 2
        host.source("orders", ScriptedSink(OK))
        for number in range(4):
            host.commit([Hook(f"h{number}")])
        host.settle()
        for published in host.published:
            assert len({host.partition_of(outcome.seq) for outcome in published.batch.items}) == 1
        assert sum(len(published.batch.items) for published in host.published) == 4


def test_killing_a_source_waits_until_its_rows_are_dead_in_the_store(host: LateHost) -> None:
    sink = ScriptedSink(TRANSIENT)
    host.source("orders", sink)
    host.commit(hooks(3))
    host.settle()
    host.land()
    task = host.loop.create_task(host.dispatcher.dead_letter_source("orders", 20_000))
    host.loop.advance(3000)  # past the rows' due time: nobody may take them meanwhile
    assert len(sink.got) == 3
    assert not task.done()
    host.land()
    host.settle()
    assert task.result() == 3
    assert {host.rows(f"hook-000{n}")[0].state for n in range(3)} == {RowState.DEAD}
    assert host.dispatcher.stats.outcomes[OutcomeKind.DEAD] == 3


def test_a_kill_that_is_refused_later_leaves_the_rows_due(host: LateHost) -> None:
    sink = ScriptedSink(TRANSIENT, TRANSIENT, TRANSIENT, OK)
    host.source("orders", sink)
    host.commit(hooks(3))
    host.settle()
    host.land()
    task = host.loop.create_task(host.dispatcher.dead_letter_source("orders", 20_000))
    host.settle()
    host.refuse()
    host.settle()
    assert task.result() is None
    host.advance(2000)
    assert len(sink.got) == 6
    assert host.dispatcher.stats.outcomes[OutcomeKind.DEAD] == 0


def _two(host: LateHost) -> None:
    """Hooks a and b, of two partitions, each with a row behind it in its sink's queue."""
    host.partitions = 2
    host.commit([Hook("a"), Hook("a2")])
    host.commit([Hook("b"), Hook("b2")])
    assert host.partition("a") != host.partition("b")


def test_a_revoked_row_that_is_queued_is_given_up_and_others_go_on(tmp_path: Path) -> None:
    with late(tmp_path, concurrency=1) as host:
        sink = ScriptedSink(slow(100), OK)
        host.source("orders", sink)
        _two(host)
        host.loop.run(host.revoke(host.partition("b")))
        host.advance(1000)
        assert sorted(sink.ids) == ["a", "a2"]
        assert {place[0] for place in host.dispatcher.claims.by_place} == {host._seq("a"), host._seq("a2")}


def test_a_running_attempt_of_a_revoked_row_may_end_and_is_published(host: LateHost) -> None:
    sink = ScriptedSink(slow(500))
    host.source("orders", sink)
    _two(host)
    task = host.revoke(host.partition("a"))
    host.advance(600)
    assert not task.done()  # it waits for what it has published to be folded
    while host.published:
        host.land()
    host.settle()
    assert task.done()
    assert host.rows("a") == host.rows("a2") == {}
    assert host.dispatcher.claims.by_place == {}


def test_an_attempt_that_does_not_end_in_its_grace_is_abandoned(host: LateHost) -> None:
    sink = ScriptedSink(hang)
    host.source("orders", sink)
    _two(host)
    assert sink.running == 4
    began = host.at
    host.loop.run(host.revoke(host.partition("a"), grace_ms=700))
    assert host.at - began == 700
    assert sink.running == 2
    assert len(host.dispatcher.claims.by_place) == 2
    assert host.dispatcher.slots.running == 2
    host.advance(60_000)  # the others time out; of the abandoned nothing is told
    seqs = {outcome.seq for published in host.published for outcome in published.batch.items}
    assert seqs == {host._seq("b"), host._seq("b2")}


def test_what_is_refused_after_its_partition_has_gone_is_not_published_again(host: LateHost) -> None:
    host.source("orders", ScriptedSink(OK))
    _two(host)
    host.settle()
    host.loop.run(host.revoke(host.partition("a")))
    mine = [n for n, p in enumerate(host.published) if host.partition_of(p.batch.items[0].seq) == host.partition("a")]
    for place in reversed(mine):
        host.refuse(place)
    before = len(host.published)
    host.advance(5000)
    assert len(host.published) == before
    assert len(host.dispatcher.claims.by_place) == 2


def test_an_abandoned_probe_leaves_its_breaker_to_the_next(tmp_path: Path) -> None:
    with late(tmp_path, concurrency=1, breaker_failures=1, breaker_open_ms=1000) as host:
        sink = ScriptedSink(TRANSIENT, hang, OK)
        host.source("orders", sink)
        _two(host)
        host.settle()
        while host.published:
            host.land()
        host.advance(4000)  # open, then one probe, which hangs
        while host.published:
            host.land()
        running = [seq for (seq, _), claim in host.dispatcher.claims.by_place.items() if claim.task is not None]
        assert len(running) == 1
        host.loop.run(host.revoke(host.partition_of(running[0])))
        for _ in range(20):
            host.advance(1000)
            while host.published:
                host.land()
        left = {host.partition_of(seq) for (seq, _) in host.dispatcher.claims.by_place}
        assert left == set()
        others = [hook for hook in ("a", "a2", "b", "b2") if host.partition(hook) != host.partition_of(running[0])]
        assert all(host.rows(hook) == {} for hook in others)


@pytest.mark.parametrize("batching", [False, True])
def test_no_attempt_begins_while_rows_may_be_anothers(host: LateHost, batching: bool) -> None:
    """Those that run end and are told; what is claimed and waits for its turn begins when it is certain again."""
    sink = ScriptedSink(slow(100), batching=batching)
    host.source("orders", sink)
    host.commit(hooks(4))
    host.settle()
    assert len(sink.got) == 4
    host.heard = False
    host.commit(hooks(4, prefix="later"))
    host.advance(30_000)
    assert len(sink.got) == 4
    assert host.published
    host.heard = True
    host.advance(5000)
    assert len(sink.got) == 8


def test_rows_that_turn_out_to_be_anothers_never_begin(host: LateHost) -> None:
    sink = ScriptedSink(slow(100))
    host.source("orders", sink)
    host.commit(hooks(4))
    host.settle()
    host.heard = False
    host.commit(hooks(4, prefix="later"))
    host.advance(1000)
    for partition in range(host.partitions):
        host.revoke(partition)
    host.heard = True
    host.advance(30_000)
    assert len(sink.got) == 4
