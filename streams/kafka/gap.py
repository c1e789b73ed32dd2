"""A jump in the offsets of a topic, read by itself: a hole of the log, or what the client has dropped.

Faust drops what it had no time for amid a rebalance, and its next record is then behind a jump as after a hole that
compaction has left. Reading the group's consumer on from before the jump would show which, but for what it has fetched
already, which comes in between and cannot be told from it. A consumer of its own shows it at once: a hole costs one
read, and nothing is asked for twice. Owns that reading; folds nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, TopicPartition

from ankusa.store.errors import StoreError
from schemas.config import Config
from schemas.records import Topic
from streams.kafka.clients import client_log, client_settings
from streams.kafka.in_turn import Record
from streams.kafka.topics import TopicNames

log = logging.getLogger("ankusa.kafka")

POLL_S = 0.2
"""How long one read waits, and so how soon one that is not wanted any more ends."""

SILENT_S = 10.0
"""Between two lines of a broker that does not answer."""


def read_gap(
    config: Config, topic: Topic, partition: int, gap: range, cancelled: Callable[[], bool], most: int | None = None
) -> list[Record] | None:
    """The records that `topic` has at the offsets of `gap`, behind which it has one, the first `most` of them; None
    when it is `cancelled`. Blocks until a broker answers: for a thread. Raises StoreError when it refuses."""
    name = TopicNames(config.kafka.prefix).folded[topic]
    settings = client_settings(config.kafka, f"gap-{partition}") | {
        "group.id": f"{config.kafka.prefix}gaps",  # asked for, and never joined
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",  # what was before that is gone
        "isolation.level": "read_uncommitted",  # as the group reads it
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        "queued.max.messages.kbytes": 4 << 10,
    }
    consumer = Consumer(settings, logger=client_log)
    found: list[Record] = []
    heard_s = time.monotonic()
    try:
        consumer.assign([TopicPartition(name, partition, gap.start)])
        while not cancelled():
            message = consumer.poll(POLL_S)
            if message is None:
                if time.monotonic() - heard_s > SILENT_S:
                    heard_s = time.monotonic()
                    log.warning(
                        "event=gap_waits topic=%s partition=%d from=%d", topic.name.lower(), partition, gap.start
                    )
                continue
            error, offset, value = message.error(), message.offset(), message.value()
            if error is None:
                assert offset is not None
                if offset >= gap.stop:
                    return found
                assert value is None or isinstance(value, bytes)
                found.append(Record(topic, offset, message.timestamp()[1], value, _nobody))
                if len(found) == most:
                    return found
            elif error.code() == KafkaError._PARTITION_EOF:
                # What was behind the gap has gone since; a broker that has just begun to lead may know an older end.
                if offset is not None and offset >= gap.stop:
                    return found
            elif not error.retriable():
                raise StoreError(f"{name}[{partition}] cannot be read from {gap.start} on: {error.str()}")
        return None
    finally:
        consumer.close()


def _nobody() -> None:
    """Waits for a record to be acknowledged that the client has not handed on."""
