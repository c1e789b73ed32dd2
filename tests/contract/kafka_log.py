"""The topics under the Kafka host of the contract suite: one broker, one producer and one consumer for the session.

A host tails its partitions from where they end when it begins, so that tests share partitions one after another. Owns
the clients and their threads; a record reaches a host in its own event loop.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ankusa.store.errors import StoreError
from schemas.records import Topic
from streams.kafka.log_producer import Delivered, LogProducer

PREFIX = "contract."
NAMES = {topic: f"{PREFIX}{topic.name.lower()}" for topic in (Topic.HOOKS, Topic.OUTCOMES, Topic.REPLAYS)}
TOPICS = {name: topic for topic, name in NAMES.items()}
PARTITIONS = 4

Took = Callable[[Topic, Message], None]

RECORD_BYTES = 64 << 20
"""The suite commits 256 bodies at once, whatever they weigh."""

POLL_S = 0.1
COMMAND_S = 0.01
"""How long a command waits for the consumer's poll to end."""

REQUEST_S = 20.0


class ContractLog:
    """The clients of one session. `took` hears of each record, in the consumer's thread."""

    def __init__(self, broker: str) -> None:
        settings = {"bootstrap.servers": broker}
        # Records carry the test's virtual time, long past: nothing may be deleted for its age.
        config = {"message.timestamp.type": "CreateTime", "retention.ms": "-1", "max.message.bytes": str(RECORD_BYTES)}
        admin = AdminClient(settings)
        made = admin.create_topics([NewTopic(name, PARTITIONS, 1, config=config) for name in TOPICS])
        for future in made.values():
            future.result(REQUEST_S)
        self.producer = Producer(
            settings | {"enable.idempotence": True, "linger.ms": 0, "message.max.bytes": RECORD_BYTES}
        )
        consumer = settings | {
            "group.id": "contract",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "fetch.queue.backoff.ms": 1,
            "fetch.max.bytes": RECORD_BYTES,
            "message.max.bytes": RECORD_BYTES,
        }
        self._consumer = Consumer(consumer)
        self.took: Took | None = None
        self._ends: dict[tuple[Topic, int], int] = {}
        self._commands: queue.Queue[Callable[[], None]] = queue.Queue()
        self._closing = False
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        while not self._closing:
            self.producer.poll(POLL_S)

    def _consume(self) -> None:
        while not self._closing:
            while not self._commands.empty():
                self._commands.get()()
            message = self._consumer.poll(COMMAND_S)
            took = self.took
            if message is None or took is None:
                continue
            assert message.error() is None, str(message.error())
            took(TOPICS[message.topic() or ""], message)

    def _told(self, command: Callable[[], None]) -> None:
        """Have the consumer's thread do something: the client answers no other while that one polls."""
        done = threading.Event()

        def run() -> None:
            command()
            done.set()

        self._commands.put(run)
        assert done.wait(REQUEST_S)

    def ends(self, numbers: Iterable[int]) -> dict[tuple[Topic, int], int]:
        """The offset of the next record of each topic of these partitions. Nobody else writes to them."""
        assert self.producer.flush(REQUEST_S) == 0
        return {(topic, number): self._ends.get((topic, number), 0) for topic in NAMES for number in numbers}

    def delivered(self, message: Message) -> None:
        """A record is in the log."""
        place = TOPICS[message.topic() or ""], message.partition() or 0
        self._ends[place] = max(self._ends.get(place, 0), (message.offset() or 0) + 1)

    def tail(self, starts: dict[tuple[Topic, int], int], took: Took) -> None:
        """Read from these offsets on."""
        self.took = took
        places = [TopicPartition(NAMES[topic], number, offset) for (topic, number), offset in starts.items()]
        self._told(lambda: self._consumer.assign(places))

    def stop_tail(self) -> None:
        """Nobody listens: what comes is left in the log."""
        self.took = None
        self._told(self._consumer.unassign)

    def close(self) -> None:
        self._closing = True
        for thread in self._threads:
            thread.join()
        self._consumer.close()


class SharedProducer(LogProducer):
    """A host's producer on the session's client, which has a thread already; it can be made to refuse.

    `refuses` raises for each record, `denies` says of each, once the log has it, that it was refused.
    """

    def __init__(self, log: ContractLog) -> None:
        self._log = log
        self.refuses = self.denies = False
        super().__init__(lambda: log.producer)

    def _begin(self) -> None:
        self._producer = self._opened()

    def _report(self, delivered: Delivered, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._log.delivered(message)
        super()._report(delivered, error, message)

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, at: int, delivered: Delivered
    ) -> None:
        if self.refuses:
            raise StoreError("the broker is away")
        if self.denies:
            super().send(topic, partition, value, key, at, lambda offset, reason: delivered(None, "timed out"))
        else:
            super().send(topic, partition, value, key, at, delivered)


@contextmanager
def contract_log(broker: str) -> Iterator[ContractLog]:
    log = ContractLog(broker)
    try:
        yield log
    finally:
        log.close()
