"""Reading one partition's changelog to its end, in bulk: what a restore is fed with.

Reads what was committed, with a consumer of its own, so that the group's goes on beating while a million entries are
read. Owns when the end is reached; never decides what entries do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.clients import Seldom, client_log, client_settings
from streams.kafka.restoring import Restore
from streams.kafka.topics import TopicNames

log = logging.getLogger("ankusa.kafka")

ENTRIES = 5000
"""Read and applied in one go: some 50 ms of work, and a few megabytes."""

POLL_S = 0.2
"""How long one read waits, and so how soon a restore that is not wanted any more ends."""


ANSWER_S = 5.0
AGAIN_S = 0.2


class RestoreCancelledError(Exception):
    """The partition went to somebody else before it was restored."""


class ChangelogReader:
    """Of `partition`. Blocks: for a thread. Close it."""

    def __init__(self, config: Config, partition: int, cancelled: Callable[[], bool]) -> None:
        """Whatever it does ends with RestoreCancelledError, soon after `cancelled` says so."""
        self._topic = TopicNames(config.kafka.prefix).changelog
        self._partition = partition
        self._cancelled = cancelled
        self.name = f"{self._topic}[{partition}]"
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
        self._consumer = Consumer(settings, logger=client_log)

    def close(self) -> None:
        self._consumer.close()

    def begins(self) -> int:
        """The offset of the first entry that there is, by the brokers' word."""
        place, told = TopicPartition(self._topic, self._partition), Seldom()
        while not self._cancelled():
            try:
                if (ends := self._consumer.get_watermark_offsets(place, ANSWER_S, cached=False)) is not None:
                    return ends[0]
            except KafkaException as error:
                if told.due():
                    log.warning("event=restore_waits partition=%d reason=%s", self._partition, error.args[0])
                time.sleep(AGAIN_S)
        raise RestoreCancelledError(self.name)

    def feed(self, restore: Restore) -> None:
        """Feed `restore` up to the end that the changelog has now. Raises StoreError for what cannot be read or
        written."""
        self._seek(restore)
        while not self._cancelled():
            if self._take(self._consumer.consume(ENTRIES, POLL_S), restore):
                return
        raise RestoreCancelledError(self.name)

    def _seek(self, restore: Restore) -> None:
        """Never to a beginning that the client finds: it would begin behind what was cut meanwhile."""
        self._consumer.assign([TopicPartition(self._topic, self._partition, restore.start)])

    def _take(self, messages: list[Message], restore: Restore) -> bool:
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
                restore.out_of_range(self.begins())
                self._seek(restore)
                return False
            elif not error.retriable():
                raise StoreError(f"{message.topic()}: the changelog cannot be read: {error.str()}")
        if entries and not restore.take(entries, following):
            self._seek(restore)
            return False
        return ended
