"""The Kafka host of the claim check's retention: what a worker's partitions know of packs.

A pack is of one partition, and its owner lets it go. An owner that does not know yet that it is none any more does no
harm: a row that is gone from its tables is settled in the log, whoever folds it. Owns the view over all owned
partitions as one; that a pack is known no longer is a record, and the fold's.
"""

from __future__ import annotations

import heapq
from itertools import islice

from ankusa.claim_check.retention import KnownPack
from ankusa.store import keys
from ankusa.store.errors import StoreError
from schemas import records
from schemas.records import CheckIn, PackExpiry, Topic, decode_check_in
from streams.kafka.fleet_log import FleetLog
from streams.kafka.places import partition_of

PAGE = 10
"""Packs looked at in one go: each is a seek for each of its hooks, up to 128 as a rule. Two or three milliseconds, and
ten for the fold of them."""


class KafkaPackHost:
    """Implements `ankusa.claim_check.retention.PackHost`."""

    def __init__(self, fleet: FleetLog) -> None:
        self._fleet = fleet

    def now(self) -> int:
        return self._fleet.now()

    def packs(self, start: str, end: str) -> list[KnownPack]:
        databases = [partition.tables.database for partition in self._fleet.partitions.values()]
        scans = [database.items("packs", start.encode(), end.encode()) for database in databases]
        try:
            page = [decode_check_in(stored) for _, stored in islice(heapq.merge(*scans), PAGE)]
        finally:
            for scan in scans:
                scan.close()  # type: ignore[attr-defined]
        return [KnownPack(found.pack, found.tenant_id, self._needed(found)) for found in page]

    def _needed(self, found: CheckIn) -> bool:
        database = self._fleet.partitions[partition_of(found.seqs[0])].tables.database
        return bool(database.present("rows", sorted(map(keys.u64, found.seqs))))

    def has_pack(self, pack: str) -> bool:
        return any(partition.tables.has_pack(pack) for partition in self._fleet.partitions.values())

    def forget(self, packs: list[str]) -> None:
        """Those of a partition that has gone meanwhile are its next owner's."""
        for number, partition in self._fleet.partitions.items():
            gone = tuple(pack for pack in packs if partition.tables.has_pack(pack))
            if gone:
                self._fleet.publish(Topic.OUTCOMES, number, records.encode(PackExpiry(gone)), _told)


def _told(error: StoreError | None) -> None:
    """What is known still is found again by the next pass."""
