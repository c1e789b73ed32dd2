"""Parts of the Kafka benchmarks: hooks by the thousand in a topic or a store, workers and what they spend, and a drain
of them to a sink. Prints nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from msgspec import Struct
from msgspec.structs import replace

from ankusa.clock import now_ms, uuid7
from schemas import records
from schemas.config import Egress, Source, Verify
from schemas.config import Sink as SinkConfig
from schemas.records import Envelope, Topic
from streams.local.log import LocalLog
from tests.bench.node import BODY, SECRET, Sink
from tests.kafka.cluster import address, start
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.support.brokers import Kafka

PARTITIONS = 4
COMMIT_HOOKS = 128
DELIVERING = "streams.kafka.worker_process"
SOURCE = "bench"
LOOPBACK = ("127.0.0.0/8",)
SINK_LINE_BYTES = 36 + len(" 1700000000000 -\n")
HEADERS = (("user-agent", "GitHub-Hookshot/bench"), ("x-github-event", "push"))
READ_S = 20.0
STALLED_S = 60.0
"""Without a delivery for this long a drain is over: what is missing is counted as lost."""

Hook = tuple[Envelope, bytes, bytes]


class Ids:
    """Hooks as an edge makes them, `COMMIT_HOOKS` to a commit, and their ids. They are of `sources` in turn."""

    def __init__(self, sources: Sequence[str] = (SOURCE,)) -> None:
        self._sources = sources
        self.made: list[str] = []

    def commits(self, count: int) -> Iterator[list[Hook]]:
        for first in range(0, count, COMMIT_HOOKS):
            hooks: list[Hook] = []
            for place in range(first, min(first + COMMIT_HOOKS, count)):
                at = now_ms()
                hook_id, source = uuid7(at), self._sources[place % len(self._sources)]
                envelope = Envelope(hook_id, source, "default", at, ("http",), HEADERS, "application/json", hook_id)
                hooks.append((envelope, records.encode(envelope), BODY))
                self.made.append(hook_id)
            yield hooks


async def fill_store(folder: Path, count: int) -> list[str]:
    """Hooks in the store of an embedded node."""
    ids = Ids()
    log = LocalLog(folder / "data" / "store", now_ms)
    for hooks in ids.commits(count):
        await log.commit(hooks, [])
    log.close()
    return ids.made


def fill_topic(fleet: Fleet, count: int, sources: Sequence[str] = (SOURCE,)) -> list[str]:
    """Hooks in the topic of a fleet, a commit to each partition in turn."""
    ids = Ids(sources)
    fleet.send(
        Topic.HOOKS,
        (
            (place % fleet.partitions, records.encode_commit(now_ms(), [hook[1:] for hook in hooks]))
            for place, hooks in enumerate(ids.commits(count))
        ),
    )
    return ids.made


def read_topic(fleet: Fleet, topic: Topic) -> Iterator[bytes]:
    """Every record of a topic, up to the ends its partitions have now."""
    consumer = Consumer({"bootstrap.servers": fleet.broker, "group.id": "nobody", "auto.offset.reset": "earliest"})
    try:
        places = [TopicPartition(fleet.topic(topic), number, 0) for number in range(fleet.partitions)]
        left = sum(consumer.get_watermark_offsets(place, READ_S)[1] for place in places)
        consumer.assign(places)
        while left:
            found = consumer.consume(min(left, 500), READ_S)
            assert found, f"{left} records of {topic.name} do not come"
            left -= len(found)
            for message in found:
                value = message.value()
                assert message.error() is None and value is not None, message.error()
                yield value
    finally:
        consumer.close()


@contextmanager
def broker(folder: Path) -> Iterator[Kafka]:
    folder.mkdir(parents=True)
    server = start(folder)
    try:
        yield server
    finally:
        server.stop()


def new_fleet(server: Kafka, url: str, partitions: int = PARTITIONS) -> Fleet:
    """Topics of its own on a broker, and an edge's source `bench`."""
    sink = SinkConfig(type="http", options={"url": url})
    source = Source(name=SOURCE, verify=Verify(type="github", secret=SECRET), sinks=(sink,))
    return Fleet(address(server), partitions=partitions, sources={SOURCE: source}, egress=Egress(allow=LOOPBACK))


def worker(
    fleet: Fleet,
    folder: Path,
    url: str,
    dispatch: Mapping[str, Any],
    sources: Sequence[str] = (SOURCE,),
    admin_port: int | None = None,
) -> WorkerProcess:
    """One that delivers `sources` to `url`."""
    source = {"verify": {"type": "none"}, "sinks": [{"type": "http", "url": url}]}
    return WorkerProcess(
        fleet,
        folder,
        DELIVERING,
        sources=dict.fromkeys(sources, source),
        egress={"allow": list(LOOPBACK)},
        dispatch={"sink_concurrency": None, **dispatch},
        admin={"enabled": admin_port is not None, "port": admin_port or 0},
    )


@contextmanager
def workers(
    fleet: Fleet, folder: Path, url: str, count: int, dispatch: Mapping[str, Any]
) -> Iterator[list[WorkerProcess]]:
    """So many, which share the partitions evenly."""
    started: list[WorkerProcess] = []
    try:
        for number in range(count):
            started.append(worker(fleet, folder / str(number), url, dispatch))
            owns(started[-1], fleet.partitions // len(started))  # one after the other: each takes its share
        yield started
    finally:
        for each in started:
            end(each)


def hooks_folded(fleet: Fleet) -> bool:
    """Whether every hook that was sent is in the tables, and in their changelog."""
    hooks = fleet.topic(Topic.HOOKS)
    return all(done == end for (topic, _), (done, end) in fleet.committed().items() if topic == hooks)


def owns(process: WorkerProcess, partitions: int) -> None:
    """Wait until a worker has been given so many partitions."""

    def given() -> bool:
        assert process.process.poll() is None, process.output()[-3000:]
        return len({line.split("partition=")[1].split()[0] for line in process.said("partition_owned")}) >= partitions

    until(given, f"it owns {partitions} partitions")


def end(process: WorkerProcess) -> None:
    """In order if it can, so that the next group need not wait for a session to end."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.stop()
    process.process.kill()
    process.process.wait()


class Drained(Struct, frozen=True):
    """What came to a sink, and what it cost: CPU microseconds a hook by process."""

    rate: float
    lost: int
    duplicates: int
    cpu_us: Mapping[str, float]

    def with_cpu(self, cpu_us: Mapping[str, float]) -> Drained:
        """The same with more processes."""
        return replace(self, cpu_us={**cpu_us, **self.cpu_us})

    def __str__(self) -> str:
        spent = ", ".join(f"{name} {us:.0f}" for name, us in self.cpu_us.items())
        return f"{self.rate:,.0f}/s, lost {self.lost}, duplicates {self.duplicates}, CPU us a hook: {spent}"


class Drain:
    """From its making: what comes to `sink`, and what `pids` spend meanwhile, by name."""

    def __init__(self, sink: Sink, pids: Mapping[str, int]) -> None:
        self._sink = sink
        self._pids = pids
        self._before = {name: cpu_s(pid) for name, pid in pids.items()}
        self._came_before = sink.log_bytes() // SINK_LINE_BYTES

    def wait(self, ids: Sequence[str]) -> Drained:
        """Wait until all of `ids` have come, before or since, or nothing more does. Nothing is read meanwhile: that
        would take of the cores that are measured."""
        seen, since = -1, time.perf_counter()
        while seen < len(ids) * SINK_LINE_BYTES and time.perf_counter() - since < STALLED_S:
            have = self._sink.log_bytes()
            if have != seen:
                seen, since = have, time.perf_counter()
            time.sleep(0.05)
        spent = {name: cpu_s(pid) - self._before[name] for name, pid in self._pids.items()}
        lines = self._sink.lines()
        counts = Counter(line[0] for line in lines)
        arrivals = [int(line[1]) for line in lines[self._came_before :]]
        return Drained(
            len(arrivals) / (max(arrivals) - min(arrivals)) * 1000,
            sum(hook_id not in counts for hook_id in ids),
            counts.total() - len(counts),
            {name: seconds / len(arrivals) * 1e6 for name, seconds in spent.items()},
        )


def cpu_s(pid: int) -> float:
    """CPU time of a process and all its threads, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
