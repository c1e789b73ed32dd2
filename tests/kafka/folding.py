"""Workers that fold, for tests on a real broker: as processes to kill, or in this one to look into."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from kafka.consumer.fetcher import ConsumerRecord
from kafka.protocol.group import LeaveGroupRequest

from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas.config import Config
from schemas.records import Row, Topic, decode_row
from streams.kafka.folding import PartitionFold
from streams.kafka.log_producer import LogProducer, open_producer
from streams.kafka.topic_admin import TopicAdmin
from streams.kafka.topics import TopicNames
from streams.kafka.worker import Worker
from tests.kafka import cluster
from tests.property.refold import FOLDED, content

DEADLINE_S = 180.0
FOLDED_TOPICS = (Topic.HOOKS, Topic.OUTCOMES, Topic.REPLAYS, Topic.QUARANTINE)
IN_THE_CHANGELOG = sorted(set(FOLDED) - {"hooks"})


class Fleet:
    """The topics of one test, a producer for them, and what the group has folded."""

    def __init__(self, broker: str, *, partitions: int = 2, **changes: Any) -> None:
        self.broker = broker
        self.config = cluster.configuration(broker, partitions=partitions, **changes)
        self.names = TopicNames(self.config.kafka.prefix)
        self.partitions = partitions
        TopicAdmin(self.config).create()
        quiet = {"bootstrap.servers": broker, "log_level": 0}
        self.producer = Producer({**quiet, "linger.ms": 1})
        self.group = f"{self.config.kafka.prefix}workers"
        self._asking = Consumer({**quiet, "group.id": self.group})

    def topic(self, topic: Topic) -> str:
        return self.names.folded[topic]

    def send(self, topic: Topic, records: Iterable[tuple[int, bytes | None]]) -> None:
        """`(partition, value)` each, and wait until the log has them."""
        for partition, value in records:
            while True:
                try:
                    self.producer.produce(self.topic(topic), value, b"key", partition)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        assert self.producer.flush(DEADLINE_S) == 0

    def committed(self) -> dict[tuple[str, int], tuple[int, int]]:
        """By topic and partition, what the group has committed and where the log ends."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self._committed()
            except KafkaException as error:  # a coordinator that is being found, a broker that stands still
                assert time.monotonic() < deadline, error

    def _committed(self) -> dict[tuple[str, int], tuple[int, int]]:
        wanted = [
            TopicPartition(self.topic(topic), number) for topic in FOLDED_TOPICS for number in range(self.partitions)
        ]
        found = {(tp.topic, tp.partition): max(tp.offset, 0) for tp in self._asking.committed(wanted, 20)}
        return {
            place: (offset, self._asking.get_watermark_offsets(TopicPartition(*place), 20)[1])
            for place, offset in found.items()
        }

    def everything_committed(self) -> bool:
        return all(offset == end for offset, end in self.committed().values())

    def rewind(self) -> None:
        """Have the group begin at the first record of everything, as if it had never committed. No worker may run."""
        self.commit(dict.fromkeys(self.committed(), 0))

    def commit(self, places: Mapping[tuple[str, int], int]) -> None:
        """Have the group begin at an offset in each of `places`. No worker may run."""
        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": self.group})
        offsets = [TopicPartition(*place, offset) for place, offset in places.items()]
        try:
            until(lambda: _commits(consumer, offsets), "the group is empty")
        finally:
            consumer.close()

    def end_sessions(self) -> None:
        """Have the group do at once what it does with killed members when their sessions end. No worker may run."""
        admin = KafkaAdminClient(bootstrap_servers=self.broker)
        try:
            (group,) = admin.describe_consumer_groups([self.group])
            for member in group.members:
                answer = admin.send_request(LeaveGroupRequest[0](self.group, member.member_id))
                assert answer.error_code == 0, answer
        finally:
            admin.close()

    def make_again(self, topic: str) -> None:
        """Delete a topic and make it anew."""
        admin = AdminClient({"bootstrap.servers": self.broker})
        admin.delete_topics([topic])[topic].result(20)
        until(lambda: topic not in admin.list_topics(timeout=20).topics, "it is gone")
        until(lambda: TopicAdmin(self.config).create() != [], "it is made again")

    def refolded(self, folder: Path) -> dict[int, dict[str, dict[bytes, bytes]]]:
        """What the topics make of empty tables, by partition: every record in the order of its time in the log."""
        records = [(topic, record) for topic in FOLDED_TOPICS for record in self.read(self.topic(topic))]
        records.sort(key=lambda entry: (entry[1].timestamp, entry[0], entry[1].offset))
        found = {}
        for number in range(self.partitions):
            tables = Tables(folder / str(number))
            fold = PartitionFold(number, tables)
            for topic, record in records:
                if record.partition == number:
                    fold.fold(topic, record.offset, record.timestamp, record.value)
            found[number] = content(tables)
            tables.close()
        return found

    def read(self, topic: str) -> list[ConsumerRecord]:
        return cluster.read_all(self.broker, topic)


def _commits(consumer: Consumer, offsets: Sequence[TopicPartition]) -> bool:
    with contextlib.suppress(Exception):  # a member that died is still one until its session ends
        consumer.commit(offsets=list(offsets), asynchronous=False)
        return True
    return False


class WorkerProcess:
    """A worker with a data directory of its own: one that folds, or another `module`, with `sections` of its file.
    `running` are all that were started and whose test goes on."""

    running: ClassVar[list[WorkerProcess]] = []

    def __init__(
        self, fleet: Fleet, folder: Path, module: str = "streams.kafka.worker", **sections: Mapping[str, Any]
    ) -> None:
        self._module = module
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self._log = folder / "log"
        self._config = folder / "ankusa.yaml"
        kafka = fleet.config.kafka
        document = {
            "node": {"roles": ["worker"], "data_dir": str(self.data)},
            "log": {"type": "kafka"},
            "kafka": {
                "brokers": list(kafka.brokers),
                "prefix": kafka.prefix,
                "partitions": kafka.partitions,
                "replication": kafka.replication,
            },
            "sources": {"orders": {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}},
        }
        self._config.write_text(yaml.safe_dump(document | sections))
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", self._module, "--config", str(self._config)]
        self.running.append(self)
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def said(self, event: str) -> list[str]:
        """Its log lines of an event, in order, of all its lives."""
        return [line for line in self._log.read_text().splitlines() if f"event={event}" in line]

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """As a machine that goes away."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, and its exit status."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def failed(self, times: int = 1) -> str:
        """What it says as it ends of itself, for the `times`th time."""
        until(lambda: self.process.poll() is not None, "it ends")
        assert self.process.returncode == 1, self.output()
        assert len(self.said("worker_failed")) == times
        return self.said("worker_failed")[-1]

    def output(self) -> str:
        return self._log.read_text()

    def tables(self) -> dict[int, dict[str, dict[bytes, bytes]]]:
        """What its stores hold, by partition, once it has ended."""
        found = {}
        for path in sorted((self.data / "partitions").iterdir()):
            tables = Tables(path)
            found[int(path.name)] = content(tables)
            tables.close()
        return found


def same(found: Mapping[str, Mapping[bytes, bytes]], wanted: Mapping[str, Mapping[bytes, bytes]]) -> None:
    """Fails with the family in which two partitions' tables differ. Bodies are in the topic, not in the changelog; of
    places in lanes the order counts, since their numbers are turns, which depend on the topic that was read first."""
    for family in sorted(set(IN_THE_CHANGELOG) - {"rows", "members"}):
        assert found[family] == wanted[family], family
    assert _placeless(found["rows"]) == _placeless(wanted["rows"])
    assert _in_order(found["members"]) == _in_order(wanted["members"])


def _placeless(rows: Mapping[bytes, bytes]) -> dict[bytes, Row]:
    return {key: msgspec.structs.replace(decode_row(value), place=0) for key, value in rows.items()}


def _in_order(members: Mapping[bytes, bytes]) -> list[tuple[str, int]]:
    return [(keys.member_lane(key), keys.split_member_key(key)[1]) for key in sorted(members)]


@contextlib.asynccontextmanager
async def worker(fleet: Fleet, folder: Path) -> AsyncIterator[Worker]:
    """A worker in this process."""
    config: Config = msgspec.structs.replace(
        fleet.config, node=msgspec.structs.replace(fleet.config.node, data_dir=str(folder), roles=("worker",))
    )
    folder.mkdir(parents=True, exist_ok=True)
    producer = LogProducer(lambda: open_producer(config.kafka))
    running = Worker(config, producer)
    running.start()
    try:
        yield running
    finally:
        await running.stop()
        await producer.close()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


def until(holds: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """Poll until `holds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.1)


async def until_async(holds: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """Poll until `holds`, with the loop running."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        await asyncio.sleep(0.05)
