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
