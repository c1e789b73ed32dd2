"""The `kafka` sink: one delivery is one record, acknowledged by every in-sync replica (spec 04).

Owns the attempt and what its end means. The producer is `kafka_producer.py`. It creates no topic and never retries.

Decisions:
- What counts against `max_record_bytes` is key, value and headers; a larger record is never produced.
- A batch that a broker finds too large is refused with all its records, though most may be small enough. So a record
  refused that way is produced once more by a producer that sends records one by one, and only then is it permanent.
- A record whose attempt ended before its report may still be written; its next attempt is then a duplicate, which
  consumers drop by the idempotency key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException

from ankusa.sinks.connections import Connection, Destinations, Share
from ankusa.sinks.contract import Delivery, Failed, Ok, SinkResult
from ankusa.sinks.kafka_options import KafkaOptions, parse_options
from ankusa.sinks.kafka_producer import KafkaProducer, Report, configuration
from ankusa.sinks.reasons import reason
from schemas.message import encode, metadata

_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._BAD_MSG})
_PERMANENT = _TOO_LARGE | {KafkaError.INVALID_RECORD}
_TIMED_OUT = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT})
_UNKNOWN_TOPIC = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
_GRACE_S = 1.0  # the producer ends a record by its own timeout; this much later it is not waited for any more


class KafkaDestination:
    """The brokers of one sink's options: the producer, and the one for records that have to go alone."""

    def __init__(self, options: KafkaOptions) -> None:
        self.together = _producer(options, alone=False)
        self.alone = _producer(options, alone=True)

    async def close(self) -> None:
        await self.together.close()
        await self.alone.close()


def _producer(options: KafkaOptions, *, alone: bool) -> Connection[KafkaProducer]:
    async def open_() -> KafkaProducer:
        return KafkaProducer(configuration(options, alone=alone))

    # One that met a fatal error, such as a lost producer id, takes no record any more.
    return Connection(open_, KafkaProducer.close, lambda producer: not producer.fatal, options.idle_timeout_ms)


class KafkaSink:
    """A built `kafka` sink. Many deliveries may run at once; records of one key keep the order of their attempts."""

    type = "kafka"
    batching = False

    def __init__(self, options: KafkaOptions, destinations: Destinations) -> None:
        self.inline_max_bytes: int | None = options.inline_max_bytes
        self._options = options
        key = (
            *("kafka", options.brokers, options.ssl, options.sasl, options.produce_timeout_ms),
            *(options.max_record_bytes, options.idle_timeout_ms),
        )
        self._share = Share(destinations, key, lambda: KafkaDestination(options))

    @classmethod
    def build(cls, options: Mapping[str, Any], destinations: Destinations) -> Self:
        """Check the options and take the destination. OptionError names a wrong option. Opens nothing."""
        return cls(parse_options(options), destinations)

    async def deliver(self, delivery: Delivery) -> SinkResult:
        """One attempt, bounded by `produce_timeout_ms`, connecting included."""
        destination = self._share.destination
        if destination is None:
            return Failed("transient", "the sink is closed")
        options = self._options
        key = (options.key or f"{delivery.tenant_id}/{delivery.source_id}").encode()
        value = encode(delivery, delivery.claim)
        headers = [(name, text.encode()) for name, text in metadata(delivery)]
        size = len(key) + len(value) + sum(len(name) + len(text) for name, text in headers)
        if size > options.max_record_bytes:
            return Failed("permanent", f"too_large: {size} bytes, max_record_bytes is {options.max_record_bytes}")
        try:
            async with asyncio.timeout(options.produce_timeout_ms / 1000 + _GRACE_S):
                report = await self._produce(destination.together, key, value, headers)
                if report is not None and report.code() in _TOO_LARGE:
                    report = await self._produce(destination.alone, key, value, headers)
        except TimeoutError:
            return Failed("timeout", f"no acknowledgement within {options.produce_timeout_ms} ms")
        except (KafkaException, OSError) as error:
            return Failed("transient", reason("no producer", error, options.secrets))
        return self._result(report)

    async def close(self) -> None:
        """Give the destination back. Idempotent."""
        await self._share.end()

    async def _produce(
        self, connection: Connection[KafkaProducer], key: bytes, value: bytes, headers: list[tuple[str, bytes]]
    ) -> Report:
        async with connection.use() as producer:
            return await producer.produce(self._options.topic, key, value, headers)

    def _result(self, report: Report) -> SinkResult:
        if report is None:
            return Ok("acknowledged")
        code = report.code()
        if code in _TIMED_OUT:
            return Failed("timeout", f"no acknowledgement within {self._options.produce_timeout_ms} ms")
        if code in _UNKNOWN_TOPIC:
            return Failed("transient", "no_topic: the topic does not exist")
        if code == KafkaError._QUEUE_FULL:
            return Failed("transient", "busy: the producer's queue is full")
        failed = reason(report.name(), report.str(), self._options.secrets)
        return Failed("permanent" if code in _PERMANENT else "transient", failed)
