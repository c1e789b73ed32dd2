"""How far a partition's topics go, as it is taken over, and whether that can be.

A topic that ends before what the tables have of it gives what is written next the offsets of what is folded already.
Owns that question, and asking the brokers; opens no partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from schemas.config import Config
from schemas.records import Topic
from streams.kafka.clients import Seldom
from streams.kafka.folding import PartitionFold
from streams.kafka.hook_reader import open_consumer
from streams.kafka.topics import TopicNames

log = logging.getLogger("ankusa.kafka")

ANSWER_S = 5.0
AGAIN_S = 0.2


class Ends(NamedTuple):
    """How far a partition's topics go: the offset after the last record of each that is folded, and that of the last
    record of `hooks`, -1 when it has none."""

    following: Mapping[Topic, int]
    last_hooks: int


def read_ends(config: Config, partition: int, cancelled: Callable[[], bool]) -> Ends | None:
    """None when it is `cancelled`. Blocks until a broker answers: for a thread."""
    by_topic = TopicNames(config.kafka.prefix).folded
    consumer, told = open_consumer(config), Seldom()
    try:
        found: dict[Topic, tuple[int, int]] = {}
        while not cancelled():
            try:
                for topic, name in by_topic.items():
                    if (ends := consumer.get_watermark_offsets(TopicPartition(name, partition), ANSWER_S)) is not None:
                        found[topic] = ends
            except KafkaException as error:
                if told.due():
                    log.warning("event=ends_wait partition=%d reason=%s", partition, error.args[0])
                time.sleep(AGAIN_S)
                continue
            if found.keys() == by_topic.keys():
                begin, end = found[Topic.HOOKS]
                return Ends({topic: ends[1] for topic, ends in found.items()}, end - 1 if end > begin else -1)
        return None
    finally:
        consumer.close()


def too_early(fold: PartitionFold, ends: Ends) -> str | None:
    """Which topic ends before what the tables have of it, and the way out; None where none does."""
    for topic, following in ends.following.items():
        folded = fold.offset(topic)
        if folded >= following:
            return (
                f"partition {fold.partition} of {topic.name.lower()} ends at offset {following}, and its tables hold "
                f"what it had up to {folded}: brokers have lost acknowledged records, or the topic was made again "
                '(see "A topic that ends too early" in docs/kafka.md)'
            )
    return None
