"""Tenants that are set aside while partitions come."""

from __future__ import annotations

from pathlib import Path

from ankusa.store import keys
from ankusa.store.database import Database
from ankusa.store.due import DueIndex
from schemas.records import seq_of
from streams.kafka.due import FleetDue
from streams.kafka.places import log_offset


def test_a_tenant_that_is_set_aside_is_so_in_a_partition_that_comes(tmp_path: Path) -> None:
    database = Database(tmp_path / "store", ("due",), blobs="", churning=("due",))
    try:
        fleet, index, seq = FleetDue(), DueIndex(database, keys.LIVE), seq_of(log_offset(1, 5), 0)
        fleet.set_aside("a")
        fleet.add(1, index)
        key = keys.due_key(keys.LIVE, "a", 1000, seq, 0)
        batch = database.batch()
        batch.put(key, b"", database.handles["due"])
        database.write(batch)
        index.added("a", 1000, key)
        assert not fleet.turn(1000)
        assert fleet.take_back("a")
        assert list(fleet.turn(1000)) == ["a"]
        assert fleet.page("a", 1000, 8, lambda *_: True) == [(1000, seq, 0)]
    finally:
        database.close()
