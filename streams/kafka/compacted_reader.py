"""The records of a compacted topic, read in order some megabytes at a time: of partitions that are this worker's.

Owns one consumer and its thread. What whoever reads could make nothing of is
passed over. Commits nothing and joins no group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ankusa.store.errors import StoreError
from schemas.config import Config
from schemas.records import DecodeError
from streams.kafka.clients import client_log, client_settings
from streams.kafka.consumer_thread import ConsumerThread
from streams.kafka.set_aside import PassedOver, reason_of

ANSWER_S = 10.0
"""Without an answer for this long the broker is away: whoever asked asks again."""

POLL_S = 0.5

BATCH_RECORDS = 250
BATCH_BYTES = 4 << 20
"""What one read gives. It is written to the tables in one go, in some ten milliseconds."""


def open_consumer(config: Config) -> Consumer:
    settings = client_settings(config.kafka, "compacted") | {
        "group.id": f"{config.kafka.prefix}compacted",  # asked for, and never joined
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "queued.max.messages.kbytes": 16 << 10,
    }
    return Consumer(settings, logger=client_log)


Check = Callable[[int, bytes | None, bytes | None], None]
"""Of a partition, a key and a value: raises ValueError, or one of `records.DecodeError`, where they are passed over."""


class CompactedReader:
    """Call it to read; implements `streams.kafka.dead_hooks.Read`. `opened` makes the consumer."""

    def __init__(self, topic: str, check: Check, opened: Callable[[], Consumer]) -> None:
        self._topic = topic
        self._check = check
        self._place = (-1, -1)
        self.passed = PassedOver(topic)
        self._thread = ConsumerThread("ankusa-compacted", opened)

    @classmethod
    def of(cls, config: Config, topic: str, check: Check) -> CompactedReader:
        return cls(topic, check, lambda: open_consumer(config))

    async def __call__(self, number: int, start: int) -> tuple[Sequence[tuple[bytes, bytes | None]], int, bool]:
        """Records of partition `number` from `start` on, the offset after them, and whether that is its end. Raises
        StoreError."""
        return await self._thread.read(f"{self._topic}[{number}]", lambda consumer: self._read(consumer, number, start))

    async def close(self) -> None:
        await self._thread.close()

    # -- in the thread ----------------------------------------------------------

    def _read(self, consumer: Consumer, number: int, start: int) -> tuple[list[tuple[bytes, bytes | None]], int, bool]:
        if self._place != (number, start):
            consumer.assign([TopicPartition(self._topic, number, start)])
        self._place = (-1, -1)
        found, following, ended = self._batch(consumer, number, start)
        self._place = (-1, -1) if ended else (number, following)
        return found, following, ended

    def _batch(self, consumer: Consumer, number: int, start: int) -> tuple[list[tuple[bytes, bytes | None]], int, bool]:
        found: list[tuple[bytes, bytes | None]] = []
        following, size_bytes, deadline_s = start, 0, time.monotonic() + ANSWER_S
        there: list[Message] = []
        while there or (len(found) < BATCH_RECORDS and size_bytes < BATCH_BYTES):
            # One call for what is there already, which spares a fifth of the time.
            there = there or [*reversed(consumer.consume(BATCH_RECORDS - len(found), 0))]
            message = there.pop() if there else consumer.poll(POLL_S)
            self._thread.check_open()
            if time.monotonic() > deadline_s:
                raise StoreError(f"{self._topic}[{number}]: no broker has answered for {ANSWER_S:.0f} s")
            if message is None or message.partition() != number:
                continue
            error, offset = message.error(), message.offset()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found, max(following, offset or 0), True
                continue  # of all else it tries again by itself
            assert offset is not None
            key, value = message.key(), message.value()
            try:
                self._check(number, key, value)
            except (*DecodeError, ValueError) as unread:
                self.passed.add(number, offset, reason_of(unread))
            else:
                found.append((key or b"", value))
            following, size_bytes = offset + 1, size_bytes + len(value or b"")
            deadline_s = time.monotonic() + ANSWER_S
        return found, following, False
