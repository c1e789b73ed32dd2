"""Faust's table of the fold: an event in, its batch written, the event acknowledged when the changelog has it.

One table stands for all families of a partition, since they change together. Owns the way from an event to the
partition that folds it, and that nothing more is fetched of one whose changelog is too far behind: the others, which
come through the same streams, wait for nobody. Faust's own writing, a key at a time with one changelog record each, is
not used.
"""

from __future__ import annotations

import asyncio
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
from streams.kafka.unbroken import AGAIN_S, COMPACTED, Asks, Unbroken

log = logging.getLogger("ankusa.kafka")


class FoldTable(faust.Table[bytes, bytes]):
    """The tables of this worker's partitions. Set `opening`, `owned` and `failed` before the app starts."""

    opening: Opening
    owned: OwnedPartitions
    failed: Callable[[str], None]
    """Told why nothing may be folded any more, where no event is at hand whose agent could tell it."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._watches: set[asyncio.Task[None]] = set()

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
            read = await self._read_gap(topic, number, unbroken, range(missing, offset))
            if read is None:
                return None
            found = read
            told = topic.name.lower(), number, missing, offset, len(found)
            log.info("event=gap_read topic=%s partition=%d from=%d at=%d records=%d", *told)
            assert isinstance(self.app.consumer, FoldConsumer)
            await self.app.consumer.passed(TP(message.topic, number), missing, offset)
            if self.store.unbroken.get(number) is not unbroken:
                return None
        unbroken.taken(topic, offset)
        return found

    async def _skips(self, topic: Topic, message: Message) -> bool:
        """Whether records that come before this one have not been taken: they are read first, and it after them."""
        place, offset = TP(message.topic, message.partition), message.offset
        unbroken = self.store.unbroken[place.partition]
        missing = unbroken.missing(topic, offset)
        if missing is not None:
            asks = unbroken.asks(topic, missing, offset)
            if asks is not Asks.NOTHING:
                look = range(missing, offset) if asks is Asks.LOOK else range(0)
                first = await self._first(topic, place, unbroken, missing, look)
                if first < offset:
                    if first > missing:
                        unbroken.asks(topic, first, offset)
                    await self._read_from(topic, place, first)
                self._watch(topic, place, unbroken)
            moved = self.store.unbroken.get(place.partition) is not unbroken
            if moved or unbroken.missing(topic, offset) is not None:
                return True
        unbroken.taken(topic, offset)
        return False

    async def _first(self, topic: Topic, place: TP, unbroken: Unbroken, missing: int, look: range) -> int:
        """Where to read on from: `missing`, or the first record that there is by now, since what was before that is
        gone. In `look` there may never have been one. Raises StoreError."""
        consumer, told = self.app.consumer, (topic.name.lower(), place.partition)
        assert isinstance(consumer, FoldConsumer)
        try:
            first = (await consumer.earliest_offsets(place)).get(place, 0)
        except (KafkaError, TimeoutError) as error:  # it is another worker's by now, or asked for again soon
            log.warning("event=reread_waits topic=%s partition=%d reason=%s", *told, error)
            return missing
        if first > missing:
            log.warning("event=records_gone topic=%s partition=%d from=%d to=%d", *told, missing, first)
        elif look and (found := await self._read_gap(topic, place.partition, unbroken, look, 1)) is not None:
            first = found[0].offset if found else look.stop
            if first > missing:
                log.error("event=hole_in_topic topic=%s partition=%d from=%d to=%d", *told, missing, first)
        if first > missing:
            await consumer.gone(place, first)
            unbroken.taken(topic, first - 1)
        return max(first, missing)

    async def _read_from(self, topic: Topic, place: TP, first: int) -> None:
        told = topic.name.lower(), place.partition
        log.info("event=records_read_again topic=%s partition=%d from=%d", *told, first)
        assert isinstance(self.app.consumer, FoldConsumer)
        try:
            await self.app.consumer.seek_wait({place: first})
        except (KafkaError, TimeoutError) as error:
            log.warning("event=reread_waits topic=%s partition=%d reason=%s", *told, error)

    def _watch(self, topic: Topic, place: TP, unbroken: Unbroken) -> None:
        """See to it that what is missing comes: a seek amid a fetch may come to nothing, and no other record may ever
        come that would ask again."""
        if topic not in unbroken.watched:
            unbroken.watched.add(topic)
            task = self.loop.create_task(self._watching(topic, place, unbroken))
            self._watches.add(task)
            task.add_done_callback(self._watched)

    def _watched(self, task: asyncio.Task[None]) -> None:
        self._watches.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(str(error) or type(error).__name__)

    async def _watching(self, topic: Topic, place: TP, unbroken: Unbroken) -> None:
        waited = unbroken.waits_for(topic)
        while waited is not None:
            await asyncio.sleep(AGAIN_S)
            waits = unbroken.waits_for(topic)
            if self.store.unbroken.get(place.partition) is not unbroken:
                return
            if waits is not None and waits.start == waited.start:
                first = await self._first(topic, place, unbroken, waits.start, waits)
                await self._read_from(topic, place, first)
            waited = waits
        unbroken.watched.discard(topic)

    async def _read_gap(
        self, topic: Topic, number: int, unbroken: Unbroken, gap: range, most: int | None = None
    ) -> list[Record] | None:
        """What a topic has in `gap`, by its own word. None when the partition went elsewhere meanwhile."""

        def cancelled() -> bool:
            return self.store.unbroken.get(number) is not unbroken

        executor, config = self.opening.executor, self.opening.config
        read = await self.loop.run_in_executor(executor, read_gap, config, topic, number, gap, cancelled, most)
        return None if cancelled() else read

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
        self.owned.stalled(number, not partition.may_take)
        if partition.may_take:
            consumer.read_on(number)
        else:
            consumer.stop_reading(number)
