"""Records of the topic `hooks` by offset: for tables that were restored without their hooks.

Owns one consumer and its thread. Offsets are read in order in one go where they
lie close together. Commits nothing and joins no group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.clients import client_log, client_settings
from streams.kafka.consumer_thread import ConsumerThread
from streams.kafka.topics import TopicNames

ANSWER_S = 10.0
"""Without a record for this long the broker does not answer: whoever asked waits and asks again."""

POLL_S = 0.5
FETCH_WAIT_MS = 5
NEAR_RECORDS = 64
"""Records that are read over rather than sought past: a seek gives up what was fetched ahead."""

_ENDS = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""Of all other errors the client tries again by itself."""


def open_consumer(config: Config) -> Consumer:
    settings = client_settings(config.kafka, "hooks") | {
        "group.id": f"{config.kafka.prefix}hooks",  # asked for, and never joined
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        # A read that begins waits for the fetch of the one before, which may find nothing more to bring.
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.queue.backoff.ms": FETCH_WAIT_MS,
        "queued.max.messages.kbytes": 16 << 10,
    }
    return Consumer(settings, logger=client_log)


class HookReader:
    """Implements `streams.kafka.bodies.HookReader`. `opened` makes the consumer."""

    def __init__(self, topic: str, opened: Callable[[], Consumer]) -> None:
        self._topic = topic
        self._thread = ConsumerThread("ankusa-hooks", opened)

    @classmethod
    def of(cls, config: Config) -> HookReader:
        return cls(TopicNames(config.kafka.prefix).hooks, lambda: open_consumer(config))

    async def read(self, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        """The records at these ascending offsets; those that the topic has no more are left out. Raises StoreError."""
        place = f"{self._topic}[{partition}]"
        return await self._thread.read(place, lambda consumer: self._found(consumer, partition, offsets))

    async def close(self) -> None:
        await self._thread.close()

    # -- in the thread ----------------------------------------------------------

    def _found(self, consumer: Consumer, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        """What is before the topic's beginning is gone, by the broker's word; a row dies of that. All else that does
        not come is asked for again: behind its end too, since a broker that has just begun to lead may know an older
        one."""
        place = TopicPartition(self._topic, partition)
        ends = consumer.get_watermark_offsets(place, timeout=ANSWER_S, cached=False)
        if ends is None:
            raise StoreError(f"{self._topic}[{partition}]: no broker answers")
        left = [offset for offset in reversed(offsets) if ends[0] <= offset]
        if left and left[0] >= ends[1]:
            raise StoreError(f"{self._topic}[{partition}]: ends at {ends[1]}, before record {left[0]}")
        found: dict[int, bytes] = {}
        following = -1
        while left:
            if not following <= left[-1] <= following + NEAR_RECORDS or following < 0:
                following = left[-1]
                consumer.assign([TopicPartition(self._topic, partition, following)])
            message = self._next(consumer, partition)
            offset = message.offset()
            if message.error() is not None or offset is None or offset > left[-1]:
                raise StoreError(f"{self._topic}[{partition}]: record {left[-1]} does not come")
            following = max(following, offset + 1)
            value = message.value()
            if offset == left[-1]:
                left.pop()
                if isinstance(value, bytes):
                    found[offset] = value
        consumer.unassign()
        return found

    def _next(self, consumer: Consumer, partition: int) -> Message:
        """The next record or event. Raises StoreError when there is none in time."""
        for _ in range(round(ANSWER_S / POLL_S)):
            message = consumer.poll(POLL_S)
            self._thread.check_open()
            if message is None:
                continue
            error = message.error()
            ours = message.topic() == self._topic and message.partition() == partition
            if ours and (error is None or error.code() in _ENDS):
                return message
        raise StoreError(f"{self._topic}[{partition}]: no broker has answered for {ANSWER_S:.0f} s")
