"""A real broker for the tests of the Kafka host, and what they share: a configuration on it, and an independent reader.

The broker is a container where a Docker daemon answers and can run one, else the jars that
`tests/support/install_brokers.sh` fetched. Tests that kill a broker need one of their own: `brokers.Kafka`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from schemas.config import Config, Http, Kafka, LogSettings, Node, Sink, Source, Verify
from tests.kafka import container
from tests.support import brokers

READ_S = 60.0
FRAME_BYTES = 64 << 20
"""What the independent reader takes in one answer: its default is less than a fetch may have of one partition."""

SETTINGS = {"auto.create.topics.enable": "false", "log.cleaner.backoff.ms": "500"}

SOON_BACK = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
"""For a broker that is killed. Its own controller takes it for alive until its session has ended, and lets it come back
only then: nine seconds later, if nothing else is said."""

_numbers = itertools.count()


@contextmanager
def running(home: Path) -> Iterator[str]:
    """A broker; its address."""
    in_container = container.start() if container.answers() else None
    if in_container is not None:
        started, where = in_container
        try:
            yield where
        finally:
            started.stop()
        return
    server = brokers.required(lambda: start(home))
    try:
        yield address(server)
    finally:
        server.stop()


def start(home: Path, settings: Mapping[str, str] | None = None) -> brokers.Kafka:
    """A broker of the jars, whose data is in `home`. Raises BrokerUnavailableError."""
    (port,) = brokers.free_ports(1)
    return brokers.Kafka(home, port, port, {**SETTINGS, **(settings or {})})


@contextmanager
def three(home: Path) -> Iterator[list[brokers.Kafka]]:
    """Three brokers that are each other's controllers, each with its own data."""
    servers = brokers.required(lambda: start_three(home))
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()


def start_three(home: Path) -> list[brokers.Kafka]:
    """The same for who stops them. Raises BrokerUnavailableError; then none is left."""
    ports = brokers.free_ports(6)
    ports, controllers = ports[:3], ports[3:]
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))

    def one(number: int) -> brokers.Kafka:
        place = home / str(number)
        place.mkdir(parents=True)
        port = ports[number - 1]
        settings = {
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[number - 1]}",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
        }
        return brokers.Kafka(place, port, port, {**SETTINGS, **settings})

    with ThreadPoolExecutor() as together:  # none is ready before most are there
        starting = [together.submit(one, number) for number in (1, 2, 3)]
    started = [each.result() for each in starting if each.exception() is None]
    try:
        for each in starting:
            each.result()
    except BaseException:
        for server in started:
            server.stop()
        raise
    return started


def addresses(servers: Sequence[brokers.Kafka]) -> tuple[str, ...]:
    return tuple(map(address, servers))


def address(server: brokers.Kafka) -> str:
    return f"127.0.0.1:{server.port}"


def configuration(broker: str, *, partitions: int = 4, **changes: Any) -> Config:
    """One source, `orders`, on the broker under a prefix that nobody else has. `changes` are sections."""
    kafka = Kafka(brokers=(broker,), prefix=new_prefix(), partitions=partitions, replication=1)
    source = Source(name="orders", verify=Verify(type="none"), sinks=(Sink(type="log"),))
    config = Config(
        node=Node(roles=("edge",)),
        log=LogSettings(type="kafka"),
        kafka=kafka,
        http=Http(port=0),
        sources={"orders": source},
    )
    return msgspec.structs.replace(config, **changes)


def new_prefix() -> str:
    """For the topics of one test."""
    return f"t{os.getpid()}-{next(_numbers)}."


def read_all(broker: str, topic: str) -> list[ConsumerRecord]:
    """Every record of a topic, read by kafka-python up to the ends the partitions have now."""
    consumer = KafkaConsumer(
        bootstrap_servers=broker,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        receive_message_max_bytes=FRAME_BYTES,
    )
    try:
        partitions = [TopicPartition(topic, number) for number in sorted(_partitions(consumer, topic))]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        deadline = time.monotonic() + READ_S
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for some in consumer.poll(timeout_ms=500).values():
                records += some
            assert time.monotonic() < deadline, f"{topic} was not read to its end within {READ_S:.0f} s"
        return records
    finally:
        consumer.close()


def _partitions(consumer: KafkaConsumer, topic: str) -> Sequence[int]:
    deadline = time.monotonic() + READ_S
    while not (found := consumer.partitions_for_topic(topic)):
        assert time.monotonic() < deadline, f"{topic} is not there"
    return sorted(found)
