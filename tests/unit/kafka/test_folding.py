"""A partition's fold: what it does once, what it refuses, and what it tells the changelog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ankusa.store import keys
from ankusa.store.errors import StoreError
from schemas import records
from schemas.records import (
    Breaker,
    BreakerMove,
    Change,
    ChangeAction,
    ChangeKind,
    LimitChange,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    Page,
    PenEntry,
    Purge,
    Revival,
    RowState,
    Takeover,
    Topic,
)
from streams.kafka import places
from streams.kafka.changelog import FAMILY_OF
from streams.kafka.folding import PartitionFold
from streams.kafka.record_fold import epoch_of
from streams.kafka.set_aside import KEPT
from tests.unit.kafka.records import PARTITION, Partition, commit, holds, hooks, job_start
from tests.unit.store.entries import AT, held, hook


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    opened = Partition(tmp_path / "7")
    yield opened
    opened.tables.close()


def outcome(seq: int, kind: OutcomeKind, generation: int = 0) -> bytes:
    return records.encode(OutcomeBatch((Outcome(seq, 0, generation, kind, AT, AT, 1, AT + 5),)))


def page(seq: int, generation: int, epoch: int = 0) -> bytes:
    return records.encode(Page("job-1", AT, b"cursor", 1, 0, (Revival(seq, 0, generation),), epoch=epoch))


def test_a_commit_makes_rows_whose_seqs_say_where_it_is(partition: Partition) -> None:
    partition.add(Topic.HOOKS, hooks("a", "b"))
    folded = partition.add(Topic.HOOKS, hooks("c"))
    assert [partition.seq(name) for name in "abc"] == [
        records.seq_of(places.log_offset(PARTITION, offset), index) for offset, index in ((0, 0), (0, 1), (1, 0))
    ]
    assert folded.turn == 2
    assert partition.tables.live.next_due_at() == AT
    assert partition.tables.counts.total() == (3, 0, 0)


def test_what_is_at_or_below_the_marker_is_skipped(partition: Partition) -> None:
    partition.add(Topic.HOOKS, hooks("a"))
    partition.add(Topic.OUTCOMES, outcome(partition.seq("a"), OutcomeKind.DELIVERED))
    partition.reopen()
    again = partition.fold.fold(Topic.HOOKS, 0, AT, hooks("a"))
    assert (again.skipped, again.turn, list(again.entries)) == (True, 2, [])
    assert partition.tables.counts.total() == (0, 0, 0)
    assert partition.fold.figures.skipped == 1


def test_log_time_never_runs_backwards_in_a_topic_and_outlives_a_restart(partition: Partition) -> None:
    partition.add(Topic.HOOKS, hooks("a"), at=AT + 50)
    partition.reopen()
    partition.add(Topic.HOOKS, hooks("b"), at=AT)
    row = partition.tables.row(partition.seq("b"), 0)
    assert row is not None
    assert (row.at, partition.fold.at) == (AT + 50, AT + 50)
    partition.add(Topic.OUTCOMES, outcome(partition.seq("b"), OutcomeKind.DEAD), at=AT + 20)
    row = partition.tables.row(partition.seq("b"), 0)
    assert row is not None
    assert (row.at, partition.fold.at) == (AT + 20, AT + 50)


def test_a_row_that_its_last_owner_has_attempted_is_claimed_as_that_left_it(partition: Partition) -> None:
    """Its outcome is folded here behind its commit, which is still in memory, and no claim came between."""
    partition.add(Topic.HOOKS, hooks("a"))
    seq = partition.seq("a")
    partition.add(Topic.OUTCOMES, outcome(seq, OutcomeKind.RETRY))
    (row,) = partition.tables.claim_rows([(seq, 0)])
    assert row is not None
    assert (row.generation, row.attempts, row.at) == (1, 1, AT + 5)


def test_a_revived_row_joins_its_lane_behind_hooks_of_a_greater_offset(partition: Partition) -> None:
    """The offsets of two topics say nothing of each other: the turn does."""
    for name in ("a", "b"):
        partition.add(Topic.HOOKS, hooks(name, lane="k"))
    partition.add(Topic.OUTCOMES, outcome(partition.seq("a"), OutcomeKind.DEAD))
    partition.add(Topic.HOOKS, hooks("c", lane="k"))
    partition.add(Topic.REPLAYS, job_start())
    partition.add(Topic.OUTCOMES, page(partition.seq("a"), 1))
    partition.add(Topic.HOOKS, hooks("d", lane="k"))
    members = [seq for _, seq in partition.tables.members("acme/orders/0/http/k")]
    assert members == [partition.seq(name) for name in "cad"]


def test_entries_hold_what_nothing_else_tells(partition: Partition) -> None:
    folded = partition.add(Topic.HOOKS, commit(hook("a", dedupe="evt"), hook("b", dedupe="evt")))
    by_family = {FAMILY_OF[key[:1]]: value for key, value in folded.entries}
    assert sorted(by_family) == ["dedupe", "ids", "meta", "rows"]
    seq = partition.seq("a")
    assert (b"r" + keys.row_key(seq, 0), partition.tables.database.get("rows", keys.row_key(seq, 0))) in folded.entries
    settled = partition.add(Topic.OUTCOMES, outcome(seq, OutcomeKind.DELIVERED))
    assert (b"r" + keys.row_key(seq, 0), None) in settled.entries
    assert sorted(FAMILY_OF[key[:1]] for key, _ in settled.entries) == ["attempts", "meta", "rows"]


def test_entries_are_kept_until_they_are_sent(partition: Partition) -> None:
    folded = [partition.add(Topic.HOOKS, hooks(name)) for name in "abc"]
    assert partition.fold.unsent_records == 3
    partition.fold.sent(1, 2, 100, AT)
    assert partition.fold.unsent_records == 1
    partition.reopen()
    assert partition.fold.unsent_records == 1
    assert list(partition.fold.unsent()) == [(3, list(folded[2].entries))]


ODD_BREAKER = records.encode(OutcomeBatch((), (BreakerMove("nobody's", Breaker(failures=1, at=AT)),)))
POISON = {
    Topic.HOOKS: [b"", b"\x01", b"\x02" + b"\0" * 20, hooks("x")[:-1], None],
    Topic.OUTCOMES: [b"", b"\xc1", records.encode(["outcomes", "x"]), None, outcome(-1, OutcomeKind.DEAD), ODD_BREAKER],
    Topic.REPLAYS: [b"", b"\xff\xff", records.encode({"type": "start"}), job_start("")],
    Topic.QUARANTINE: [b"", b"\x01\0", records.encode(["purge", 1]), None],
    Topic.LIMITS: [b"", records.encode([1, 2, 3, 4])],
    Topic.AUDIT: [b"", records.encode([99])],
    Topic.SOURCES: [records.encode([])],
}


@pytest.mark.parametrize(
    ("topic", "value"), [pytest.param(topic, value, id=topic.name) for topic in POISON for value in POISON[topic]]
)
def test_poison_is_set_aside_and_stops_nothing(partition: Partition, topic: Topic, value: bytes | None) -> None:
    partition.add(Topic.HOOKS, hooks("a"))
    offset = partition.offsets[topic]
    partition.add(topic, value, at=AT + 1)
    partition.reopen()
    (aside,) = partition.fold.set_asides.kept()
    assert (aside.topic, aside.offset, aside.at) == (topic, offset, AT + 1)
    assert aside.reason
    assert partition.fold.fold(topic, offset, AT, value).skipped
    partition.add(Topic.HOOKS, hooks("b"))
    assert partition.tables.counts.total() == (2, 0, 0)
    assert partition.fold.set_asides.count == 1


def test_what_the_changelog_would_not_take_is_set_aside(partition: Partition) -> None:
    """It would be sent again and again, and the partition would stand still for ever."""
    bound = len(hooks("a")) + 500
    partition.fold = PartitionFold(PARTITION, partition.tables, entry_bytes=bound)
    partition.add(Topic.QUARANTINE, commit(held("large", body=b"x" * bound)))
    partition.add(Topic.QUARANTINE, commit(held("small")))
    assert partition.tables.pen_size()[0] == 1
    (aside,) = partition.fold.set_asides.kept()
    assert aside.reason.startswith("ValueError: an entry of ")
    assert all(len(key) + len(value or b"") <= bound for _, sent in partition.fold.unsent() for key, value in sent)


@pytest.mark.parametrize(
    "changes",
    [{"tenant_id": "a/b"}, {"tenant_id": "a\0b"}, {"source_id": "a/b"}, {"ordering_keys": ("k", "k")}],
    ids=str,
)
def test_a_hook_whose_keys_could_not_be_read_again_is_set_aside(partition: Partition, changes: dict[str, Any]) -> None:
    odd = records.encode(msgspec.structs.replace(hook("odd")[0], **changes))
    partition.add(Topic.HOOKS, records.encode_commit(AT, [(odd, b"{}"), (hook("b")[1], b"{}")]))
    assert partition.fold.set_asides.count == 1
    assert partition.tables.counts.total() == (1, 0, 0)


def test_a_hook_that_cannot_be_read_leaves_the_others_of_its_commit(partition: Partition) -> None:
    framed = [(hook(name)[1], b"{}") for name in ("a", "b", "c")]
    framed[1] = (b"\xc1", b"{}")
    partition.add(Topic.HOOKS, records.encode_commit(AT, framed))
    assert places.index_of(partition.seq("c")) == 2
    assert partition.tables.seq_of("b") is None
    (aside,) = partition.fold.set_asides.kept()
    assert aside.reason.startswith("hook 1: ")


def test_what_is_set_aside_is_bounded_and_counted(partition: Partition) -> None:
    for _ in range(KEPT + 5):
        partition.add(Topic.OUTCOMES, b"\xc1")
    partition.reopen()
    assert partition.fold.set_asides.count == KEPT + 5
    assert [aside.offset for aside in partition.fold.set_asides.kept()] == list(range(5, KEPT + 5))


def test_a_compacted_key_that_is_gone_is_no_poison(partition: Partition) -> None:
    partition.add(Topic.REPLAYS, None)
    assert partition.fold.set_asides.count == 0


def test_a_store_that_refuses_is_no_poison(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(partition.tables.database, "write", refuse)
        with pytest.raises(StoreError):
            partition.add(Topic.HOOKS, hooks("a"))
    assert partition.fold.offset(Topic.HOOKS) == -1
    assert partition.tables.counts.total() == (0, 0, 0)
    partition.add(Topic.HOOKS, hooks("a"))
    assert partition.tables.counts.total() == (1, 0, 0)


def test_a_fault_behind_the_write_is_no_poison(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is in the store: it must neither be set aside nor lose its entries of the changelog."""

    def fail(*_: object, **__: object) -> None:
        raise TypeError("a fault of ours")

    monkeypatch.setattr(partition.tables.recent, "keep", fail)
    with pytest.raises(TypeError):
        partition.add(Topic.HOOKS, hooks("a"))
    assert partition.fold.set_asides.count == 0
    ((_, entries),) = partition.fold.unsent()
    assert any(key.startswith(b"r") for key, _ in entries)
    partition.reopen()
    assert partition.fold.offset(Topic.HOOKS) == 0
    assert partition.tables.counts.total()[0] == 1


def test_a_page_of_an_owner_of_before_is_refused_whole(partition: Partition) -> None:
    partition.add(Topic.HOOKS, hooks("a"))
    seq = partition.seq("a")
    partition.add(Topic.OUTCOMES, outcome(seq, OutcomeKind.DEAD))
    partition.add(Topic.REPLAYS, job_start())
    takeover = partition.offsets[Topic.OUTCOMES]
    partition.add(Topic.OUTCOMES, records.encode(Takeover("worker-2", AT)))
    assert partition.fold.epoch == epoch_of(takeover)
    partition.add(Topic.OUTCOMES, page(seq, 1, epoch=epoch_of(takeover) - 1))
    made = partition.tables.job("job-1")
    assert made is not None
    assert (made.cursor, made.scanned, partition.fold.figures.refused_pages) == (None, 0, 1)
    partition.reopen()
    partition.add(Topic.OUTCOMES, page(seq, 1, epoch=epoch_of(takeover)))
    made, row = partition.tables.job("job-1"), partition.tables.row(seq, 0)
    assert made is not None
    assert row is not None
    assert (made.moved, row.state) == (1, RowState.PENDING)


def test_an_outcome_of_an_owner_of_before_counts_while_its_generation_does(partition: Partition) -> None:
    partition.add(Topic.HOOKS, hooks("a"))
    seq = partition.seq("a")
    partition.add(Topic.OUTCOMES, records.encode(Takeover("worker-2", AT)))
    partition.add(Topic.OUTCOMES, outcome(seq, OutcomeKind.RETRY))
    partition.add(Topic.OUTCOMES, outcome(seq, OutcomeKind.DELIVERED))
    row = partition.tables.row(seq, 0)
    assert row is not None
    assert (row.generation, row.attempts) == (1, 1)


def test_held_hooks_and_purges_count_once_however_often_they_are_said(partition: Partition) -> None:
    value, entries = holds("a", "b")
    for _ in range(2):
        partition.add(Topic.QUARANTINE, value)
    held_bytes = partition.tables.pen_size()[1]
    assert partition.tables.pen_size()[0] == 2
    gone = records.encode(Purge(AT, (PenEntry(entries[0].received_at, "a", held_bytes // 2),)))
    for _ in range(2):
        partition.add(Topic.QUARANTINE, gone)
    assert partition.tables.pen_size() == (1, held_bytes - held_bytes // 2)


def test_limits_and_the_audit_trail_are_read(partition: Partition) -> None:
    partition.add(Topic.LIMITS, records.encode(LimitChange("acme", AT, 5.0, 10)))
    change = Change(ChangeKind.SOURCE, "orders", ChangeAction.CREATED, AT, b"{}")
    audited = partition.add(Topic.AUDIT, records.encode(change))
    assert partition.tables.limits()["acme"].rate == 5.0
    assert [key[:1] for key, _ in audited.entries] == [b"m"]


def test_a_hook_just_folded_is_read_from_memory(partition: Partition) -> None:
    partition.add(Topic.HOOKS, hooks("a", body=b"one"))
    kept = partition.tables.hook(partition.seq("a"))
    assert kept is not None
    partition.reopen()
    assert partition.tables.hook(partition.seq("a")) == kept
