"""Faust's table of the fold: an event in, its batch written, the event acknowledged when the changelog has it.

One table stands for all families of a partition, since they change together. Owns the way from an event to the
partition that folds it, and that nothing more is fetched of one whose changelog is too far behind: the others, which
come through the same streams, wait for nobody. Faust's own writing, a key at a time with one changelog record each, is
not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import faust
from aiokafka.errors import KafkaError  # type: ignore[import-untyped]
from faust.types import TP, EventT, Message

from schemas.records import Topic
from streams.kafka.gap import read_gap
from streams.kafka.in_turn import Record
from streams.kafka.owned import OwnedPartitions
from streams.kafka.partition import Opening, Partition
from streams.kafka.store import FoldStore
from streams.kafka.transport import FoldConsumer
from streams.kafka.unbroken import COMPACTED, Unbroken

log = logging.getLogger("ankusa.kafka")


class FoldTable(faust.Table[bytes, bytes]):
    """The tables of this worker's partitions. Set `opening`, `owned` and `failed` before the app starts."""

    opening: Opening
    owned: OwnedPartitions
    failed: Callable[[str], None]
    """Told why nothing may be folded any more, where no event is at hand whose agent could tell it."""

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
        missed: Sequence[Record] | None = ()
        if topic in COMPACTED:
            missed = await self._missed(topic, message)
        elif await self._skips(topic, message):
            missed = None
        if missed is None:
            return
        timestamp_ms = round((message.timestamp or 0) * 1000)  # Faust makes seconds of it; milliseconds survive that
        in_turn = self.store.in_turn[partition.number]
        for record in (*missed, Record(topic, message.offset, timestamp_ms, message.value, event.ack)):
            in_turn.add(record)
        self._fold(partition)

    async def _missed(self, topic: Topic, message: Message) -> Sequence[Record] | None:
        """What a compacted topic has between the last record taken and this one, which nobody has handed on. None when
        the partition went elsewhere meanwhile."""
        number, offset, found = message.partition, message.offset, list[Record]()
        unbroken = self.store.unbroken[number]
        missing = unbroken.missing(topic, offset)
        if missing is not None:

            def cancelled() -> bool:
                return self.store.unbroken.get(number) is not unbroken

            executor, config, gap = self.opening.executor, self.opening.config, range(missing, offset)
            read = await self.loop.run_in_executor(executor, read_gap, config, topic, number, gap, cancelled)
            if read is None or cancelled():
                return None
            found = read
            told = topic.name.lower(), number, missing, offset, len(found)
            log.info("event=gap_read topic=%s partition=%d from=%d at=%d records=%d", *told)
            assert isinstance(self.app.consumer, FoldConsumer)
            await self.app.consumer.passed(TP(message.topic, number), missing, offset)
        unbroken.taken(topic, offset)
        return found

    async def _skips(self, topic: Topic, message: Message) -> bool:
        """Whether records that come before this one have not been taken: they are read first, and it after them."""
        unbroken = self.store.unbroken[message.partition]
        missing = unbroken.missing(topic, message.offset)
        if missing is not None:
            if unbroken.asks(topic, missing):
                await self._reread(topic, TP(message.topic, message.partition), unbroken, missing, message.offset)
            moved = self.store.unbroken.get(message.partition) is not unbroken
            if moved or unbroken.missing(topic, message.offset) is not None:
                return True
        unbroken.taken(topic, message.offset)
        return False

    async def _reread(self, topic: Topic, place: TP, unbroken: Unbroken, missing: int, offset: int) -> None:
        """Read on from `missing`, or from where the topic begins by now: what was before that is gone."""
        consumer, told = self.app.consumer, (topic.name.lower(), place.partition)
        assert isinstance(consumer, FoldConsumer)
        try:
            begins = (await consumer.earliest_offsets(place)).get(place, 0)
            if begins > missing:
                log.warning("event=records_gone topic=%s partition=%d from=%d to=%d", *told, missing, begins)
                await consumer.gone(place, begins)
                unbroken.taken(topic, begins - 1)
                unbroken.asks(topic, begins)
            if begins < offset:
                log.info("event=records_read_again topic=%s partition=%d from=%d at=%d", *told, missing, offset)
                await consumer.seek_wait({place: max(missing, begins)})
        except (KafkaError, TimeoutError) as error:  # it is another worker's by now, or asked for again soon
            log.warning("event=reread_waits topic=%s partition=%d reason=%s", *told, error)

    def room(self, partition: Partition) -> None:
        """Fold what waited for the changelog of a partition."""
        if self.store.partitions.get(partition.number) is not partition:
            return
        try:
            self._fold(partition)
        except Exception as error:
            self.failed(f"partition {partition.number}: {error}")

    def _fold(self, partition: Partition) -> None:
        """Fold what was read and whose turn has come, as far as there is room. Raises StoreError."""
        consumer, number, in_turn = self.app.consumer, partition.number, self.store.in_turn[partition.number]
        assert isinstance(consumer, FoldConsumer)
        while partition.may_take and (record := in_turn.next()) is not None:
            folded = partition.take(*record)
            if folded is not None:
                if folded.takeover == partition.owner and number not in self.owned.folds:
                    self.owned.assigned(partition.fold)
                self.owned.folded(record.topic, number, record.offset)
        if partition.may_take:
            consumer.read_on(number)
        else:
            consumer.stop_reading(number)
