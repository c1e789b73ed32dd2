"""The producer of one partition's changelog: transactions that only the partition's owner can commit.

The transactional id is the partition's: when the next owner begins, the brokers refuse this producer for good, whatever
it still had in its queue when it was paused. Everything here blocks, and runs in a thread; `close` may be called from
any, and so may `release`. Owns what to do when a broker is away (try again), when another owner has begun (say so),
and the end of the client's threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.changelog import Entry
from streams.kafka.clients import LARGEST_BYTES, Seldom, Settings, client_log, client_settings
from streams.kafka.topics import TopicNames

log = logging.getLogger("ankusa.kafka")

TRANSACTION_TIMEOUT_MS = 600_000
"""When the brokers end a transaction that nobody ends. Long, so that one survives brokers that are away for minutes;
the next owner ends it at once."""

CALL_S = 10.0
"""One attempt of a call that waits for a broker; it is tried again for as long as the partition is owned. A process
that ends waits for one that is under way."""

RETRY_S = 0.2


class ChangelogLostError(StoreError):
    """The changelog takes nothing more from this process: another one owns the partition, or nobody can write."""


def transaction_settings(config: Config, partition: int) -> Settings:
    """For librdkafka. The transactional id is the partition's alone, in the whole fleet."""
    prefix = config.kafka.prefix
    return client_settings(config.kafka, f"changelog-{partition}") | {
        "transactional.id": f"{prefix}changelog-{partition}",
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "linger.ms": 0,  # a transaction has gathered already, and is flushed
        "batch.size": 1_000_000,
        # The group's consumer may be handed records of the changelog amid a rebalance; it drops them, but one that it
        # cannot decompress ends the worker, and without more libraries it knows gzip alone.
        "compression.type": "none",
        "message.max.bytes": LARGEST_BYTES,
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": 1 << 20,
        "statistics.interval.ms": 0,
    }


class Transactions:
    """Of one partition. `fence` first, then one `commit` at a time."""

    def __init__(self, config: Config, partition: int) -> None:
        self._topic = TopicNames(config.kafka.prefix).changelog
        self._partition = partition
        self._producer: Producer | None = Producer(transaction_settings(config, partition), logger=client_log)
        self._closing = False
        self._offset = -1

    def fence(self, cancelled: Callable[[], bool]) -> bool:
        """Refuse every owner of before, in the brokers. Blocks until one answers; False when it is `cancelled` before.
        Raises ChangelogLostError when that will never be."""
        producer, told = self._opened(), Seldom()
        while not cancelled():
            try:
                producer.init_transactions(CALL_S)
            except KafkaException as error:
                if cancelled():
                    break  # somebody else has begun, as he may
                if not _retriable(error):
                    raise self._lost(error.args[0]) from error
                if told.due():
                    log.warning("event=changelog_waits partition=%d reason=%s", self._partition, error.args[0])
                time.sleep(RETRY_S)
            else:
                return True
        return False

    def commit(self, entries: Sequence[Entry]) -> int:
        """Commit `entries` as one transaction, however often it takes; the offset after them. Raises
        ChangelogLostError; and ValueError for none, which no broker would hear of, nor refuse."""
        if not entries:
            raise ValueError("a transaction without entries")
        producer = self._opened()
        while not self._closing:
            try:
                self._attempt(producer, entries)
            except (KafkaException, SystemError) as error:
                self._undo(producer, _kafka_error(error))
                time.sleep(RETRY_S)
            else:
                return self._offset + 1
        raise self._lost("closed")

    def _attempt(self, producer: Producer, entries: Sequence[Entry]) -> None:
        topic, partition = self._topic, self._partition
        producer.begin_transaction()
        last = len(entries) - 1
        for place, (key, value) in enumerate(entries):
            if place == last:
                producer.produce(topic, value, key, partition, on_delivery=self._delivered)
            else:
                producer.produce(topic, value, key, partition)
        while producer.flush(CALL_S):
            if self._closing:
                raise self._lost("closed")
        while True:
            try:
                producer.commit_transaction(CALL_S)
            except KafkaException as error:
                if self._closing or not _retriable(error):
                    raise
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            assert offset is not None
            self._offset = offset

    def _undo(self, producer: Producer, error: KafkaException) -> None:
        """Give an attempt up, so that it can be made again. Raises ChangelogLostError when it cannot."""
        reason = error.args[0]
        if not isinstance(reason, KafkaError) or reason.fatal():
            raise self._lost(reason) from error
        log.warning("event=changelog_again partition=%d reason=%s", self._partition, reason)
        while not self._closing:
            try:
                producer.abort_transaction(CALL_S)
            except KafkaException as refused:
                if not _retriable(refused):
                    raise self._lost(refused.args[0]) from refused
            else:
                return

    def _opened(self) -> Producer:
        producer = self._producer
        if producer is None:
            raise self._lost("closed")
        return producer

    def _lost(self, reason: object) -> ChangelogLostError:
        words = reason.str() if isinstance(reason, KafkaError) else reason
        return ChangelogLostError(f"{self._topic}[{self._partition}]: {words}")

    def close(self) -> None:
        """Try nothing again: what is under way ends within `CALL_S`."""
        self._closing = True

    def release(self) -> None:
        """End the client and its threads: now, or with the call that is under way, which has the other reference to it.
        May block while a thread of it looks a broker's name up: for a thread. `close` first."""
        self._producer = None


def _kafka_error(error: KafkaException | SystemError) -> KafkaException:
    """A flush that meets a fatal error goes on into the delivery callback, which Python then calls a SystemError; what
    happened is its cause. The binding never lets go of such an error, nor so of the frames in its traceback, which
    have the producer."""
    if isinstance(error, KafkaException):
        return error
    if not isinstance(error.__cause__, KafkaException):
        raise error
    error.__traceback__ = None
    return error.__cause__


def _retriable(error: KafkaException) -> bool:
    reason = error.args[0]
    return isinstance(reason, KafkaError) and reason.retriable() and not reason.fatal()
