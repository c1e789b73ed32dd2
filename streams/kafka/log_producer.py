"""The producer of a worker's services: a record to a partition, and whether the log has it, told in the event loop.

Owns one idempotent producer, the thread that takes its delivery reports, and its replacement when librdkafka calls it
broken. A record that is refused may be in the log all the same: whoever sends it again must bear that. Knows nothing of
what records mean.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ankusa.store.errors import StoreError
from schemas.config import Kafka
from streams.kafka.clients import LARGEST_BYTES, client_log, client_settings

log = logging.getLogger("ankusa.kafka")

Delivered = Callable[[int | None, str], None]
"""The record's offset, or None and why it was refused."""

QUEUE_BYTES = 256 << 20
"""Records that wait for a broker: the windows bound what services hold, and this what they may hold here."""

POLL_S = 0.2
"""How long the thread waits for a report in one go, and so a close for the thread."""

FLUSH_S = 5.0
"""How long a close waits for what is on its way. What is not sent then is redelivered."""


def open_producer(kafka: Kafka) -> Producer:
    """A producer for a worker's services, of whatever the topics take."""
    settings = client_settings(kafka, "worker") | {
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 1,
        "queue.buffering.max.kbytes": QUEUE_BYTES >> 10,
        "message.max.bytes": LARGEST_BYTES,
        "compression.type": "none",  # the group's consumer reads nothing but gzip without more libraries
    }
    return Producer(settings, logger=client_log)


class LogProducer:
    """One producer, in the event loop that makes it. `opened` makes the client, again when it is broken."""

    def __init__(self, opened: Callable[[], Producer]) -> None:
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._reports: deque[tuple[Delivered, int | None, str]] = deque()
        self._woken = False
        self._closing = threading.Event()
        self.unreported = 0
        """Records whose delivery nobody has been told of."""
        self._begin()

    def _begin(self) -> None:
        self._producer = self._opened()
        self._thread = threading.Thread(target=self._poll, args=(self._producer,), name="ankusa-producer", daemon=True)
        self._thread.start()

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, at: int, delivered: Delivered
    ) -> None:
        """Send a record with time `at` (unix ms); `delivered` hears of it later, in the event loop. Raises StoreError
        when there is no room for it now."""
        if self._closing.is_set():
            raise StoreError("the producer is closed")
        try:
            self._produce(topic, partition, value, key, at, delivered)
        except BufferError as error:
            raise StoreError(f"{topic}: too much waits for a broker") from error
        except KafkaException as error:
            if not _fatal(error):
                raise StoreError(f"{topic}: {error.args[0]}") from error
            log.error("event=producer_renewed reason=%s", error.args[0])
            self._begin()  # what the broken one had is refused in its reports; its thread ends with them
            self._produce(topic, partition, value, key, at, delivered)
        self.unreported += 1

    def _produce(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, at: int, delivered: Delivered
    ) -> None:
        reported = partial(self._report, delivered)
        self._producer.produce(topic, value, key, partition, on_delivery=reported, timestamp=at)

    # -- in the thread ----------------------------------------------------------

    def _poll(self, producer: Producer) -> None:
        while not self._closing.is_set() and (producer is self._producer or len(producer)):
            producer.poll(POLL_S)
        producer.flush(FLUSH_S)

    def _report(self, delivered: Delivered, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._reports.append((delivered, message.offset(), ""))
        else:
            self._reports.append((delivered, None, f"{message.topic()}: {error.str()}"))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop has ended: nobody is left to hear it
                log.debug("event=report_unheard")

    # -- in the loop --------------------------------------------------------------

    def _drain(self) -> None:
        self._woken = False
        while self._reports:
            delivered, offset, reason = self._reports.popleft()
            self.unreported -= 1
            delivered(offset, reason)

    async def close(self) -> None:
        """Send what waits, as far as a broker takes it at once, and tell of it."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join, POLL_S + FLUSH_S + 1)
        self._drain()


def _fatal(error: KafkaException) -> bool:
    reason = error.args[0]
    return isinstance(reason, KafkaError) and (reason.fatal() or reason.code() == KafkaError._FATAL)
