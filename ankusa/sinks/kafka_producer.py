"""One librdkafka producer and the thread that serves it: records in from the event loop, reports back to it.

Owns the producer's configuration and the way between its callbacks and futures. What a report means is the sink's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ankusa.sinks.kafka_options import KafkaOptions

log = logging.getLogger("ankusa.sinks.kafka")

POLL_S = 0.5  # how long the thread waits for reports; also how long a close waits for the thread at most
# What a record may weigh beyond key and value as this project counts it, in the library's own check.
_OVERHEAD_BYTES = 65_536
_MAX_MESSAGE_BYTES = 1_000_000_000  # the library's own bound
_BATCH_BYTES = 1_000_000

Report = KafkaError | None
"""None: every in-sync replica has the record."""


def configuration(options: KafkaOptions, *, alone: bool) -> dict[str, str | int | bool]:
    """The producer's settings. `alone`: one record a batch, so that a broker judges each by itself.

    A batch is no larger than a record may be, or a broker could refuse a batch of records it would take one by one.
    """
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": ",".join(options.brokers),
        "client.id": "ankusa",
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,  # a delivery waits for its report, so what could gather is in flight already
        "partitioner": "murmur2_random",  # as Java producers do, so that a key has one partition whoever produces it
        "message.timeout.ms": options.produce_timeout_ms,
        "message.max.bytes": min(options.max_record_bytes + _OVERHEAD_BYTES, _MAX_MESSAGE_BYTES),
        "batch.size": min(options.max_record_bytes, _BATCH_BYTES),
        "allow.auto.create.topics": False,
        "topic.metadata.propagation.max.ms": 0,  # nobody makes topics here: an unknown one is reported at once
        "topic.metadata.refresh.interval.ms": 30_000,
        "log.connection.close": False,
        "security.protocol": ("SASL_" if options.sasl else "") + ("SSL" if options.ssl else "PLAINTEXT"),
    }
    if alone:
        settings["batch.num.messages"] = 1
    if options.sasl is not None:
        settings |= {
            "sasl.mechanism": options.sasl.mechanism,
            "sasl.username": options.sasl.username,
            "sasl.password": options.sasl.password,
        }
    return settings


class KafkaProducer:
    """A producer for one event loop, the one it is made in. Connects by itself, and again after a loss."""

    def __init__(self, settings: dict[str, str | int | bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer = Producer(settings, logger=log)
        self._settled: list[tuple[asyncio.Future[Report], Report]] = []  # the thread's alone
        self._closing = threading.Event()
        self.fatal = False
        self._thread = threading.Thread(target=self._serve, name="ankusa-kafka", daemon=True)
        self._thread.start()

    async def produce(self, topic: str, key: bytes, value: bytes, headers: Sequence[tuple[str, bytes]]) -> Report:
        """Produce one record and wait for its report. Cancelling drops the report; the record may still be written."""
        future: asyncio.Future[Report] = self._loop.create_future()

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            self._settled.append((future, error))

        try:
            self._producer.produce(topic, value, key, on_delivery=on_delivery, headers=list(headers))
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)
        except KafkaException as error:
            return error.args[0] if isinstance(error.args[0], KafkaError) else KafkaError(KafkaError._FAIL)
        return await future

    async def close(self) -> None:
        """End the thread and let the producer go, with what it still holds. Idempotent."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join)
        self._producer.purge()
        await asyncio.to_thread(self._producer.flush, POLL_S)
        self._hand_over()

    def _serve(self) -> None:
        """The thread: poll, and hand the reports of each poll to the loop together."""
        while not self._closing.is_set():
            self._producer.poll(POLL_S)
            self._hand_over()

    def _hand_over(self) -> None:
        settled, self._settled = self._settled, []
        if settled:
            try:
                self._loop.call_soon_threadsafe(self._settle, settled)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._closing.set()

    def _settle(self, settled: list[tuple[asyncio.Future[Report], Report]]) -> None:
        for future, error in settled:
            if error is not None and error.fatal():
                self.fatal = True
            if not future.done():
                future.set_result(error)
