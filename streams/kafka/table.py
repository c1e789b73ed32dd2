"""Faust's table of the fold: an event in, its batch written, the event acknowledged when the changelog has it.

One table stands for all families of a partition, since they change together. Owns the way from an event to the
partition that folds it. Faust's own writing, a key at a time with one changelog record each, is not used.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import faust
from faust.types import EventT

from schemas.records import Topic
from streams.kafka.in_turn import Record
from streams.kafka.owned import OwnedPartitions
from streams.kafka.partition import Opening, Partition
from streams.kafka.store import FoldStore

log = logging.getLogger("ankusa.kafka")


class FoldTable(faust.Table[bytes, bytes]):
    """The tables of this worker's partitions. Set `opening` and `owned` before the app starts."""

    opening: Opening
    owned: OwnedPartitions

    def _new_store(self) -> FoldStore:
        return FoldStore(
            "rocksdb://",
            self.app,
            self,
            table_name=self.name,
            opening=self.opening,
            owned=self.owned,
            beacon=self.beacon,
            loop=self.loop,
        )

    @property
    def store(self) -> FoldStore:
        return cast(FoldStore, self.data)

    async def apply(self, topic: Topic, event: EventT[Any]) -> None:
        """Fold the event's record, and what waited for it. One whose partition went elsewhere is read again there, and
        neither folded nor acknowledged here. Raises StoreError when the store refuses."""
        message = event.message
        partition = self.store.partitions.get(message.partition)
        if partition is None:
            return
        timestamp_ms = round((message.timestamp or 0) * 1000)  # Faust makes seconds of it; milliseconds survive that
        record = Record(topic, message.offset, timestamp_ms, message.value, event.ack)
        in_turn = self.store.in_turn[partition.number]
        if not in_turn.holds(record):
            await self._fold(partition, record)
        while (waited := in_turn.next()) is not None:
            await self._fold(partition, waited)
            in_turn.done()

    async def _fold(self, partition: Partition, record: Record) -> None:
        folded = await partition.take(*record)
        if folded is not None:
            if folded.takeover == partition.owner and partition.number not in self.owned.folds:
                self.owned.assigned(partition.fold)
            self.owned.folded(record.topic, partition.number, record.offset)
