"""One writer of sources and routes at a time in a whole fleet, and its change with the audit record in one transaction.

A change, in order: (1) `begin`: the brokers refuse every other writer's change that is not committed yet, and say where
the topic `sources` ends, (2) whoever calls reads up to there and judges, (3) `commit`. Another writer that begins in
between has this one refused: its judgement was of what is not so any more. A commit that fails has the brokers end what
is left of it, since all who follow the topic read no further. Owns the producer, which lives for one change. It blocks:
for a thread, and one at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from ankusa.changing import ContendedError
from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.clients import client_log, client_settings
from streams.kafka.topics import SMALL_BYTES, TopicNames

BEGIN_S = 10.0
COMMIT_S = 10.0
"""How long somebody who waits for a change waits for brokers, at each of its two ends."""

END_S = 5.0
"""How long a change that failed waits for brokers to end what is left of it."""

TRANSACTION_TIMEOUT_MS = 20_000
"""When the brokers end the transaction of a worker that was killed in it, or could not reach them, some 10 s later at
worst: twice what a commit may take. The next writer ends it at once."""

ONLY = 0
"""Topics of operators' records have one partition."""

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_FENCED_IN_COMMIT = _FENCED | {KafkaError.UNKNOWN}
"""Brokers (3.9) have answered a commit so when another writer began at that moment. What came of it is in the topic,
by which the change is judged anew."""

log = logging.getLogger("ankusa.sources")


class SourceWriter:
    """A writer of one worker, for one change at a time."""

    def __init__(self, config: Config) -> None:
        names = TopicNames(config.kafka.prefix)
        self._topic = names.sources
        self._plain: dict[str, Any] = dict(client_settings(config.kafka, "sources"))
        self._settings = self._plain | {
            "transactional.id": names.sources,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "compression.type": "none",
            "message.max.bytes": SMALL_BYTES,
        }
        self._producer: Producer | None = None

    def begin(self) -> int:
        """Step 1; the offset at which the topic ends. Raises StoreError."""
        self._producer = None
        deadline_s = time.monotonic() + BEGIN_S
        try:
            producer = Producer(self._settings, logger=client_log)
            producer.init_transactions(BEGIN_S)
            place = TopicPartition(self._topic, ONLY)
            admin = AdminClient(self._plain, logger=client_log)
            left_s = max(1.0, deadline_s - time.monotonic())
            (future,) = admin.list_offsets({place: OffsetSpec.latest()}, request_timeout=left_s).values()  # type: ignore[no-untyped-call]
            ends: int = future.result().offset
        except KafkaException as error:
            raise self._error(error) from error
        self._producer = producer
        return ends

    def commit(self, records: Sequence[tuple[str, bytes, bytes | None]]) -> None:
        """Step 3: `(topic, key, value)` each, all of them or none. Raises ContendedError when another writer has begun
        meanwhile, and StoreError when brokers do not say in time that it is done: then nobody knows yet."""
        producer, self._producer = self._producer, None
        if producer is None:
            raise ContendedError(f"{self._topic}: nothing has begun")
        try:
            producer.begin_transaction()
            for topic, key, value in records:
                producer.produce(topic, value, key, ONLY)
            producer.commit_transaction(COMMIT_S)
        except KafkaException as error:
            refusal = self._error(error, _FENCED_IN_COMMIT)
            if not isinstance(refusal, ContendedError):  # of another writer's, the brokers have ended this one
                self._end(refusal)
            raise refusal from error

    def _end(self, refusal: StoreError) -> None:
        """As the next change would: a commit without an answer cannot be aborted by the producer that has begun it."""
        log.warning("event=change_unsettled reason=%s", refusal)
        try:
            Producer(self._settings, logger=client_log).init_transactions(END_S)
        except KafkaException as error:
            seconds = TRANSACTION_TIMEOUT_MS // 1000
            log.warning(
                "event=change_left_open topic=%s seconds=%d reason=%s", self._topic, seconds, error.args[0].str()
            )

    def _error(self, error: KafkaException, fenced: Collection[int] = _FENCED) -> StoreError:
        cause: KafkaError = error.args[0]
        if cause.code() in fenced:
            return ContendedError("another worker changes sources or routes at this moment")
        return StoreError(f"{self._topic}: {cause.str()}")
