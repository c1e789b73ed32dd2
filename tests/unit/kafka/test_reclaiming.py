"""What a worker deletes of its partitions' tables: bodies nobody needs, dedupe keys past their time, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ankusa.dispatch.ports import Written
from schemas import records
from schemas.records import Expiry, Outcome, OutcomeBatch, OutcomeKind, Topic
from streams.kafka.fleet_log import FleetLog
from streams.kafka.reclaiming import SETTLED_KEEP_MS, PartitionReclaiming
from streams.kafka.topics import HISTORY_KEEP_MS
from tests.unit.kafka.records import PARTITION, Partition, hooks
from tests.unit.store.entries import AT


class FoldingFleet:
    """Folds at once what is published."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.at = AT

    def publish(self, topic: Topic, number: int, value: bytes, written: Written) -> None:
        assert number == PARTITION
        self.partition.add(topic, value, self.at)
        written(None)


class World:
    def __init__(self, path: Path) -> None:
        self.partition = Partition(path)
        self.fleet = FoldingFleet(self.partition)
        self.reclaiming = PartitionReclaiming(cast(FleetLog, self.fleet), cast(Any, self.partition.fold))

    def sweep(self, at: int) -> None:
        for _ in self.reclaiming.run(at):
            pass

    def settle(self, *names: str, kind: OutcomeKind = OutcomeKind.DELIVERED) -> None:
        items = tuple(Outcome(self.partition.seq(name), 0, 0, kind, AT, AT, 1, error="gone") for name in names)
        self.partition.add(Topic.OUTCOMES, records.encode(OutcomeBatch(items)))

    def stored(self, name: str) -> bool:
        seq = self.partition.seq(name)
        self.partition.tables.recent.forget(seq)
        return self.partition.tables.hook(seq) is not None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    world.partition.tables.close()


def test_bodies_of_settled_hooks_go_after_a_minute_and_those_of_rows_stay(world: World) -> None:
    world.partition.add(Topic.HOOKS, hooks("delivered", "dead", "pending"))
    world.settle("delivered")
    world.settle("dead", kind=OutcomeKind.DEAD)
    world.sweep(AT)
    world.sweep(AT + SETTLED_KEEP_MS - 1)
    assert world.stored("delivered")
    world.partition.add(Topic.HOOKS, hooks("later"))
    world.settle("later")
    world.sweep(AT + SETTLED_KEEP_MS)
    assert not world.stored("delivered")
    assert world.stored("dead")
    assert world.stored("pending")
    assert world.stored("later")  # it came after the pass that is a minute old now
    assert world.reclaiming.counts["hooks"] == 1
    world.settle("pending")
    world.sweep(AT + 2 * SETTLED_KEEP_MS)
    assert not world.stored("pending")
    assert not world.stored("later")
    assert world.stored("dead")


def test_dedupe_keys_go_when_they_expire_and_are_gone_from_the_changelog_too(world: World) -> None:
    world.partition.add(Topic.HOOKS, hooks("a", dedupe="k"))
    tables = world.partition.tables
    scope = "acme\0orders\0k"
    world.sweep(AT + 59_000)
    assert tables.dedupe(scope) is not None
    world.sweep(AT + 61_000)
    assert tables.dedupe(scope) is None
    assert list(tables.database.keys("expiry", b"", b"\xff")) == []
    entries = [entry for _, unsent in world.partition.fold.unsent() for entry in unsent]
    assert (b"d" + scope.encode(), None) in entries
    assert world.reclaiming.counts["dedupe"] == 1


def test_a_key_that_was_claimed_again_stays(world: World) -> None:
    world.partition.add(Topic.HOOKS, hooks("a", dedupe="k"))
    world.partition.add(Topic.HOOKS, hooks("b", dedupe="k"), AT + 61_000)
    stale = Expiry((("acme\0orders\0k", AT + 60_000),))
    world.partition.add(Topic.OUTCOMES, records.encode(stale), AT + 62_000)
    assert world.partition.tables.dedupe("acme\0orders\0k") == ("b", AT + 121_000)


def test_ids_and_attempts_go_after_a_week_record_by_record(world: World) -> None:
    week = HISTORY_KEEP_MS
    world.partition.add(Topic.HOOKS, hooks("a", "dead"))
    world.settle("a")
    world.settle("dead", kind=OutcomeKind.DEAD)
    world.partition.add(Topic.HOOKS, hooks("b"), AT + 1)
    tables = world.partition.tables
    world.sweep(AT + week)
    assert tables.seq_of("a") is not None
    outcomes = world.partition.offsets[Topic.OUTCOMES]
    world.fleet.at = AT + week + 1
    world.sweep(AT + week + 1)
    assert tables.seq_of("a") is None
    assert len(tables.attempts_of(world.partition.seq("dead"))) == 1
    assert tables.seq_of("b") is not None
    world.sweep(AT + week + 1)
    assert world.partition.offsets[Topic.OUTCOMES] == outcomes + 1  # a pass that finds nothing writes nothing
    assert world.partition.fold.figures.gone == {"ids": 1, "attempts": 1}


def test_a_log_that_does_not_answer_ends_the_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.partition.add(Topic.HOOKS, hooks("a"))
    published: list[bytes] = []
    monkeypatch.setattr(world.fleet, "publish", lambda topic, number, value, written: published.append(value))
    world.sweep(AT + HISTORY_KEEP_MS + 1)
    assert len(published) == 1
