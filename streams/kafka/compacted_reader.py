"""The records of a compacted topic, read in order some megabytes at a time: of partitions that are this worker's.

Owns one consumer, opened at the first read, and the thread it blocks. What whoever reads could make nothing of is
passed over. Commits nothing and joins no group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ankusa.store.errors import StoreError
from schemas.config import Config
from schemas.records import DecodeError
from streams.kafka.clients import client_log, client_settings
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
        self._opened = opened
        self._consumer: Consumer | None = None
        self._place = (-1, -1)
        self._closing = False
        self.passed = PassedOver(topic)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ankusa-compacted")

    @classmethod
    def of(cls, config: Config, topic: str, check: Check) -> CompactedReader:
        return cls(topic, check, lambda: open_consumer(config))

    async def __call__(self, number: int, start: int) -> tuple[Sequence[tuple[bytes, bytes | None]], int, bool]:
        """Records of partition `number` from `start` on, the offset after them, and whether that is its end. Raises
        StoreError."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, number, start)

    async def close(self) -> None:
        self._closing = True
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=False)

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    # -- in the thread ----------------------------------------------------------

    def _read(self, number: int, start: int) -> tuple[Sequence[tuple[bytes, bytes | None]], int, bool]:
        try:
            if self._consumer is None:
                self._consumer = self._opened()
            if self._place != (number, start):
                self._consumer.assign([TopicPartition(self._topic, number, start)])
            self._place = (-1, -1)
            found, following, ended = self._batch(self._consumer, number, start)
            self._place = (-1, -1) if ended else (number, following)
            return found, following, ended
        except KafkaException as error:
            raise StoreError(f"{self._topic}[{number}]: {error.args[0]}") from error

    def _batch(self, consumer: Consumer, number: int, start: int) -> tuple[list[tuple[bytes, bytes | None]], int, bool]:
        found: list[tuple[bytes, bytes | None]] = []
        following, size_bytes, deadline_s = start, 0, time.monotonic() + ANSWER_S
        there: list[Message] = []
        while there or (len(found) < BATCH_RECORDS and size_bytes < BATCH_BYTES):
            # One call for what is there already, which spares a fifth of the time.
            there = there or [*reversed(consumer.consume(BATCH_RECORDS - len(found), 0))]
            message = there.pop() if there else consumer.poll(POLL_S)
            if self._closing:
                raise StoreError("the worker stops")
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
