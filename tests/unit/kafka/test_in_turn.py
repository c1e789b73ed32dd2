"""Outcomes that were read before their hooks: they wait for them, in order, and for no longer than there is a need."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import records
from schemas.records import Outcome, OutcomeBatch, OutcomeKind, Takeover, Topic
from streams.kafka import in_turn
from streams.kafka.in_turn import InTurn, Record
from streams.kafka.places import log_offset
from tests.unit.kafka.records import PARTITION, Partition, hooks
from tests.unit.store.entries import AT


def batch(hook_offset: int) -> bytes:
    """The outcome of the first hook of a commit."""
    seq = records.seq_of(log_offset(PARTITION, hook_offset), 0)
    return records.encode(OutcomeBatch((Outcome(seq, 0, 0, OutcomeKind.DELIVERED, AT, AT, 1),)))


def outcome(offset: int, value: bytes | None) -> Record:
    return Record(Topic.OUTCOMES, offset, AT, value, lambda: None)


class Hooks:
    """How far `hooks` is folded."""

    def __init__(self, last: int, folded: int = -1) -> None:
        self.folded = folded
        self.turns = InTurn(PARTITION, last, lambda: self.folded)

    def waits(self, record: Record) -> bool:
        """Whether a record that is read now has to wait."""
        self.turns.add(record)
        return self.turns.next() is not record

    def released(self) -> list[int]:
        offsets = []
        while (record := self.turns.next()) is not None:
            offsets.append(record.offset)
        return offsets


def test_outcomes_wait_for_their_hooks_and_all_after_them_in_order() -> None:
    there = Hooks(last=5, folded=1)
    takeover = records.encode(Takeover("owner", AT))
    assert not there.waits(outcome(0, batch(1)))
    assert there.waits(outcome(1, batch(3)))
    assert there.waits(outcome(2, batch(2)))
    assert there.waits(outcome(3, takeover)), "an owner begins behind what the one before it has said"
    assert not there.waits(Record(Topic.HOOKS, 2, AT, hooks("x"), lambda: None))
    there.folded = 2
    assert there.released() == []
    there.folded = 3
    assert there.released() == [1, 2, 3]
    assert not there.waits(outcome(4, batch(3)))


def test_nothing_waits_for_hooks_that_were_not_there_when_the_partition_was_opened() -> None:
    there = Hooks(last=2, folded=2)
    assert not there.waits(outcome(0, batch(9)))
    there = Hooks(last=2, folded=1)
    assert there.waits(outcome(0, batch(9)))
    there.folded = 2
    assert there.released() == [0]
    assert not Hooks(last=-1).waits(outcome(0, batch(9)))


def test_what_cannot_be_read_or_names_nothing_waits_for_nothing() -> None:
    there = Hooks(last=5)
    assert not there.waits(outcome(0, None))
    assert not there.waits(outcome(1, b"\xc1"))


def test_what_was_read_is_given_in_its_order_as_soon_as_somebody_asks() -> None:
    """Of all topics together, and once, although it was read twice before that."""
    there = Hooks(last=1, folded=1)
    read = [outcome(0, batch(0)), Record(Topic.HOOKS, 2, AT, hooks("x"), lambda: None), outcome(1, batch(1))]
    for record in [*read, *read[:2]]:
        there.turns.add(record)
    assert there.turns.waiting == 3
    assert [there.turns.next() for _ in range(4)] == [*read, None]
    assert there.turns.waiting == 0
    there.turns.add(read[0])
    assert there.turns.next() is read[0], "it does not wait any more, and is skipped by its marker"


def test_a_record_that_is_read_again_as_it_waits_is_acknowledged_to_who_handed_it_on_last() -> None:
    """Nobody waits for the first, where it was read as part of a gap."""
    there, told = Hooks(last=1, folded=1), list[int]()
    there.turns.add(Record(Topic.REPLAYS, 5, AT, b"x", lambda: None))
    there.turns.add(Record(Topic.REPLAYS, 5, AT, b"x", lambda: told.append(5)))
    record = there.turns.next()
    assert record is not None
    record.acknowledge()
    assert told == [5]
    assert there.turns.next() is None


def test_more_than_may_wait_is_folded_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_turn, "HELD_BYTES", 2 * len(batch(0)))
    there = Hooks(last=9)
    assert [there.waits(outcome(offset, batch(7))) for offset in range(3)] == [True, True, True]
    assert there.released() == [0, 1, 2]
    assert not there.waits(outcome(3, batch(7)))


def test_a_hook_that_was_delivered_is_not_due_again_whatever_topic_comes_first(tmp_path: Path) -> None:
    """With `InTurn`, and what becomes of it without."""
    for name, waits in (("with", True), ("without", False)):
        partition = Partition(tmp_path / name)
        turns = InTurn(PARTITION, 0, lambda partition=partition: partition.fold.offset(Topic.HOOKS))  # type: ignore[misc]
        turns.add(outcome(0, batch(0)))
        assert turns.next() is None
        if not waits:
            partition.fold.fold(Topic.OUTCOMES, 0, AT, batch(0))
        partition.add(Topic.HOOKS, hooks("one"))
        while waits and (record := turns.next()) is not None:
            partition.fold.fold(record.topic, record.offset, record.timestamp_ms, record.value)
        assert partition.tables.counts.total()[0] == (0 if waits else 1)
        partition.tables.close()
