"""Records of the topic `hooks` by offset: for tables that were restored without their hooks.

Owns one consumer, opened at the first read, and the thread it blocks. Offsets are read in order in one go where they
lie close together. Commits nothing and joins no group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.clients import client_log, client_settings
from streams.kafka.topics import TopicNames

ANSWER_S = 10.0
"""Without a record for this long the broker does not answer: whoever asked waits and asks again."""

POLL_S = 0.5
NEAR_RECORDS = 64
"""Records that are read over rather than sought past: a seek gives up what was fetched ahead."""

_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def open_consumer(config: Config) -> Consumer:
    settings = client_settings(config.kafka, "hooks") | {
        "group.id": f"{config.kafka.prefix}hooks",  # asked for, and never joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "queued.max.messages.kbytes": 16 << 10,
    }
    return Consumer(settings, logger=client_log)


class HookReader:
    """Implements `streams.kafka.bodies.HookReader`. `opened` makes the consumer."""

    def __init__(self, topic: str, opened: Callable[[], Consumer]) -> None:
        self._topic = topic
        self._opened = opened
        self._consumer: Consumer | None = None
        self._closing = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ankusa-hooks")

    @classmethod
    def of(cls, config: Config) -> HookReader:
        return cls(TopicNames(config.kafka.prefix).hooks, lambda: open_consumer(config))

    async def read(self, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        """The records at these ascending offsets; those that the topic has no more are left out. Raises StoreError."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, partition, offsets)

    async def close(self) -> None:
        self._closing = True
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=False)

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    # -- in the thread ----------------------------------------------------------

    def _read(self, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        try:
            if self._consumer is None:
                self._consumer = self._opened()
            return self._found(self._consumer, partition, offsets)
        except KafkaException as error:
            raise StoreError(f"{self._topic}[{partition}]: {error.args[0]}") from error

    def _found(self, consumer: Consumer, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        left = list(reversed(offsets))
        place: int | None = None
        while left:
            if place is None or not place <= left[-1] <= place + NEAR_RECORDS:
                place = left[-1]
                consumer.assign([TopicPartition(self._topic, partition, place)])
            message = self._next(consumer, partition)
            error = message.error()
            if error is None:
                offset, value = message.offset() or 0, message.value()
                place = offset + 1
                while left and left[-1] < offset:  # the topic goes on behind it: it has been deleted
                    left.pop()
                if left and left[-1] == offset:
                    left.pop()
                    if isinstance(value, bytes):
                        found[offset] = value
            elif error.code() in _GONE:
                low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=ANSWER_S)
                left = [offset for offset in left if low <= offset < high]
                place = None
            elif error.code() == KafkaError._PARTITION_EOF:
                left.clear()
        consumer.unassign()
        return found

    def _next(self, consumer: Consumer, partition: int) -> Message:
        """The next record or event. Raises StoreError when there is none in time."""
        for _ in range(round(ANSWER_S / POLL_S)):
            message = consumer.poll(POLL_S)
            if self._closing:
                raise StoreError("the worker stops")
            if message is None:
                continue
            error = message.error()
            known = error is None or error.code() in (*_GONE, KafkaError._PARTITION_EOF)
            if known and message.topic() == self._topic and message.partition() == partition:
                return message
        raise StoreError(f"{self._topic}[{partition}]: no broker has answered for {ANSWER_S:.0f} s")
