"""The Kafka host of the source store: the topics `sources` and `audit`, and what a source's rows do here.

A change is stored once every in-sync copy has it; edges and workers follow the topic. Two workers that change one
source at the same moment both succeed, and the later record stands. Owns the keys of those records, and nothing of a
source.
"""

from __future__ import annotations

from collections.abc import Mapping

from ankusa.dispatch.dispatcher import Dispatcher
from schemas import records
from schemas.records import Change, SourceChange, Topic
from streams.kafka.fleet_log import FleetLog

ONLY = 0
"""Both topics have one partition: their order is that of the changes."""


class KafkaSourceHost:
    """Implements `ankusa.source_store.store.SourceLog` and `Deliveries`. `kept` is what the topic held at first."""

    def __init__(self, fleet: FleetLog, dispatcher: Dispatcher, kept: Mapping[str, SourceChange | None]) -> None:
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._kept = [change for change in kept.values() if change is not None]

    def now(self) -> int:
        return self._fleet.now()

    def kept_sources(self) -> list[SourceChange]:
        return self._kept

    async def change(self, record: SourceChange, audit: Change | None) -> None:
        """The audit record first: one without its change is a change that failed, and the other way round nobody would
        know who did it."""
        if audit is not None:
            await self._fleet.deliver(Topic.AUDIT, ONLY, records.encode(audit), audit.subject.encode())
        value = None if record.spec is None else records.encode(record)
        await self._fleet.deliver(Topic.SOURCES, ONLY, value, record.source_id.encode())

    def unsettled(self, source_id: str) -> tuple[int, int]:
        """Of this worker's partitions, from kept counts and the window; no row is read."""
        waiting = 0
        for partition in self._fleet.partitions.values():
            live, replayed, _ = partition.tables.counts.of_source(source_id)
            waiting += live + replayed
        claims = self._dispatcher.claims.by_place.values()
        claimed = sum(1 for claim in claims if claim.row.source_id == source_id)
        return max(0, waiting - claimed), claimed

    async def dead_letter_source(self, source_id: str) -> int | None:
        """Those of this worker's partitions; the others' die as they are claimed, for their source is gone."""
        return await self._dispatcher.dead_letter_source(source_id)
