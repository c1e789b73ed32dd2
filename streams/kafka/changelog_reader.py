"""Reading one partition's changelog to its end, in bulk: what a restore is fed with.

Reads what was committed, with a consumer of its own, so that the group's goes on beating while a million entries are
read. Owns when the end is reached; never decides what entries do.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.clients import client_log, client_settings
from streams.kafka.restoring import Restore
from streams.kafka.topics import TopicNames

ENTRIES = 5000
"""Read and applied in one go: some 50 ms of work, and a few megabytes."""

POLL_S = 0.2
"""How long one read waits, and so how soon a restore that is not wanted any more ends."""


class RestoreCancelledError(Exception):
    """The partition went to somebody else before it was restored."""


def read_changelog(config: Config, partition: int, restore: Restore, cancelled: Callable[[], bool]) -> None:
    """Feed `restore` up to the end that the changelog has now. Blocks: for a thread. Raises RestoreCancelledError, and
    StoreError for what cannot be read or written."""
    topic = TopicNames(config.kafka.prefix).changelog
    settings = client_settings(config.kafka, f"restore-{partition}") | {
        "group.id": f"{config.kafka.prefix}restore",  # asked for; nothing is ever committed under it
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        "queued.max.messages.kbytes": 16 << 10,
    }
    consumer = Consumer(settings, logger=client_log)

    def seek() -> None:
        start = restore.start
        consumer.assign([TopicPartition(topic, partition, start if start > 0 else OFFSET_BEGINNING)])

    try:
        seek()
        while not cancelled():
            if _take(consumer.consume(ENTRIES, POLL_S), restore, seek):
                return
        raise RestoreCancelledError(f"{topic}[{partition}]")
    finally:
        consumer.close()


def _take(messages: list[Message], restore: Restore, seek: Callable[[], None]) -> bool:
    """Give the restore what was read. Whether that was the end."""
    entries: list[tuple[bytes, bytes | None]] = []
    following = restore.start
    ended = False
    for message in messages:
        error = message.error()
        if error is None:
            key, offset = message.key(), message.offset()
            assert isinstance(key, bytes)
            assert offset is not None
            value = message.value()
            assert value is None or isinstance(value, bytes)
            entries.append((key, value))
            following = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            ended = True
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            # The store is of a changelog that is not this one: one that was deleted and made again.
            restore.empty()
            seek()
            return False
        elif not error.retriable():
            raise StoreError(f"{message.topic()}: the changelog cannot be read: {error.str()}")
    if entries and not restore.take(entries, following):
        seek()
        return False
    return ended
