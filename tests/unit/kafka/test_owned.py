"""Who is told which partitions a worker owns, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.records import Topic
from streams.kafka.owned import OwnedPartitions
from tests.unit.kafka.records import PARTITION, Partition


def test_subscribers_hear_of_partitions_while_they_are_owned(tmp_path: Path) -> None:
    owned, heard = OwnedPartitions(), list[Any]()
    partition = Partition(tmp_path / "7")
    owned.folded(Topic.HOOKS, PARTITION, 0)
    owned.assigned(partition.fold)
    owned.on_assigned(lambda fold: heard.append(("assigned", fold.partition, list(owned.tables))))
    owned.on_revoked(lambda number: heard.append(("revoked", number, list(owned.tables))))
    owned.on_folded(lambda *record: heard.append(record))
    owned.folded(Topic.HOOKS, PARTITION, 1)
    owned.revoked(PARTITION)
    owned.revoked(PARTITION)
    owned.folded(Topic.HOOKS, PARTITION, 2)
    partition.tables.close()
    assert heard == [
        ("assigned", PARTITION, [PARTITION]),
        (Topic.HOOKS, PARTITION, 1),
        ("revoked", PARTITION, []),
    ]


def test_subscribers_hear_once_that_a_partition_stalls_and_that_it_goes_on(tmp_path: Path) -> None:
    owned, heard = OwnedPartitions(), list[Any]()
    owned.on_stalled(lambda number, now: heard.append((number, now)))
    partition = Partition(tmp_path / "7")
    owned.stalled(PARTITION, True)  # it is not owned yet
    owned.assigned(partition.fold)
    for now in (False, True, True, False, False, True):
        owned.stalled(PARTITION, now)
    assert heard == [(PARTITION, True), (PARTITION, False), (PARTITION, True)]
    owned.revoked(PARTITION)
    owned.assigned(partition.fold)
    owned.stalled(PARTITION, False)
    owned.stalled(PARTITION, True)
    assert heard[3:] == [(PARTITION, True)]
    partition.tables.close()
