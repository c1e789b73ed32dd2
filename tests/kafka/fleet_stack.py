"""A whole fleet as processes on this machine: brokers, two edges, workers, a sink, and a load through both edges.

Owns starting them, ending them, and what each event needs of them; decides no event and counts nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from msgspec import Struct

from schemas.config import Egress, Kafka, Sink, Source, Verify
from streams.kafka.topic_admin import ClusterError
from tests.kafka import cluster
from tests.kafka.fleet_sink import STEADY, UNLUCKY, FleetSinkProcess
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.kafka.nodes import Served, serving
from tests.support import brokers
from tests.support.load import Load
from tests.support.node_process import free_port

MODULE = "streams.kafka.worker_process"
EDGES = 2
BODY = b'{"id":"evt_1","type":"charge.succeeded","data":"' + b"x" * 200 + b'"}'
QUIET = {"log_level": 0}
ASK_S = 5.0
START_S = 240.0


class Size(Struct, frozen=True):
    """How large a fleet is. `concurrency` is each worker's, `max_inflight` what each may have claimed; `per_second` is
    what the load offers altogether."""

    brokers: int = 3
    partitions: int = 12
    concurrency: int = 16
    max_inflight: int = 512
    per_second: float = 400.0
    attempt_timeout_ms: int = 30_000


class Stack:
    """The running fleet. `workers` are by name; `ports` are those of their admin APIs."""

    def __init__(self, folder: Path, size: Size, servers: list[brokers.Kafka], sink: FleetSinkProcess) -> None:
        self.folder, self.size, self.servers, self.sink = folder, size, servers, sink
        addresses = cluster.addresses(servers)
        kafka = Kafka(
            brokers=addresses, prefix=cluster.new_prefix(), partitions=size.partitions, replication=len(servers)
        )
        self.fleet = _topics_made(
            lambda: Fleet(
                addresses[0],
                partitions=size.partitions,
                kafka=kafka,
                sources={name: _source(name, sink.url) for name in (STEADY, UNLUCKY)},
                egress=Egress(allow=("127.0.0.0/8",)),
            )
        )
        self.edges: list[Served] = []
        self.workers: dict[str, WorkerProcess] = {}
        self.ports: dict[str, int] = {}
        self._addresses = ",".join(addresses)

    # -- workers ------------------------------------------------------------------

    def add_worker(self, name: str) -> WorkerProcess:
        self.ports[name] = free_port()
        sink: Mapping[str, Any] = {
            "type": "http",
            "url": self.sink.url,
            "timeout_ms": self.size.attempt_timeout_ms,  # one that answers late has been delivered to
        }
        source = {"verify": {"type": "none"}, "sinks": [sink], "retry": _RETRY}
        dispatch = {
            "breaker_failures": 0,  # a sink that is only busy must not be parked
            "concurrency": self.size.concurrency,
            "sink_concurrency": self.size.concurrency,
            "max_inflight": self.size.max_inflight,
            "attempt_timeout_ms": self.size.attempt_timeout_ms,
        }
        self.workers[name] = WorkerProcess(
            self.fleet,
            self.folder / name,
            MODULE,
            sources={STEADY: source, UNLUCKY: source},
            egress={"allow": ["127.0.0.0/8"]},
            dispatch=dispatch,
            admin={"port": self.ports[name]},
        )
        return self.workers[name]

    def owned(self, name: str) -> int:
        """How often a worker has been given a partition, in all its lives."""
        return len(self.workers[name].said("partition_owned"))

    def wait_owned(self, name: str, more: int, before: int = 0) -> None:
        """Wait until a worker has been given so many more than `before`."""

        def given() -> bool:
            worker = self.workers[name]
            assert worker.process.poll() is None, worker.output()[-3000:]
            return self.owned(name) >= before + more

        until(given, f"{name} owns {more} partitions")

    def log_lines(self) -> int:
        """Of the worker that says most, in all its lives."""
        return max(len(worker.output().splitlines()) for worker in self.workers.values())

    def ended(self) -> list[str]:
        """Workers that have ended by themselves, with the end of their log."""
        return [
            f"{name}: {worker.output()[-2000:]}"
            for name, worker in self.workers.items()
            if worker.process.poll() is not None
        ]

    # -- brokers ------------------------------------------------------------------

    def _admin(self) -> AdminClient:
        """A new one for each question: one that lived through an outage may wait for a coordinator that has moved."""
        return AdminClient({**QUIET, "bootstrap.servers": self._addresses})

    def coordinator(self) -> int:
        """Which of the servers coordinates the group of the workers."""
        group = f"{self.fleet.config.kafka.prefix}workers"

        def asked() -> int | None:
            with contextlib.suppress(KafkaException, TimeoutError):
                admin = self._admin()  # kept until it has answered
                described = admin.describe_consumer_groups([group], request_timeout=ASK_S)[group].result(ASK_S)
                return self._server(described.coordinator.port)
            return None

        deadline = time.monotonic() + START_S
        while (found := asked()) is None:
            assert time.monotonic() < deadline, "nobody coordinates the group"
        return found

    def _server(self, port: int) -> int | None:
        return next((place for place, server in enumerate(self.servers) if server.port == port), None)

    def in_sync(self) -> bool:
        """Whether every copy of every partition is in sync: another broker may go."""
        with contextlib.suppress(KafkaException):
            found = self._admin().list_topics(timeout=ASK_S)
            return len(found.brokers) == len(self.servers) and all(
                partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
                for topic in found.topics.values()
                for partition in topic.partitions.values()
            )
        return False

    # -- hooks --------------------------------------------------------------------

    @contextmanager
    def loads(self) -> Iterator[list[Load]]:
        """The load of the steady source, the same through each edge."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    Load(
                        edge.http_port,
                        f"/webhooks/{STEADY}",
                        body=BODY,
                        connections=16,
                        per_second=self.size.per_second / len(self.edges),
                        name=f"edge-{number}",
                    )
                )
                for number, edge in enumerate(self.edges)
            ]

    def post_unlucky(self, count: int) -> set[str]:
        """So many hooks for the source whose sink is told how to answer; their ids."""
        with Load(self.edges[0].http_port, f"/webhooks/{UNLUCKY}", connections=4, most=count, name="unlucky") as load:
            load.wait_accepted(count)
        return load.ids


def _topics_made(make: Callable[[], Fleet]) -> Fleet:
    """A cluster of three that has just started may be asked more than once."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return make()
        except ClusterError as error:
            assert not error.refused and time.monotonic() < deadline, error


_RETRY = {"base_ms": 1000, "max_ms": 4000, "max_attempts": 10_000}


def _source(name: str, url: str) -> Source:
    return Source(name=name, verify=Verify(type="none"), sinks=(Sink(type="http", options={"url": url}),))


@contextmanager
def running(folder: Path, size: Size, workers: tuple[str, ...] = ("one", "two")) -> Iterator[Stack]:
    """A fleet whose workers own all partitions."""
    with ExitStack() as stack:
        servers = stack.enter_context(_brokers(folder, size.brokers))
        sink = stack.enter_context(FleetSinkProcess(folder))
        fleet = Stack(folder, size, servers, sink)
        stack.callback(_end, fleet)
        for number in range(EDGES):
            fleet.edges.append(stack.enter_context(serving(folder / f"edge-{number}", fleet.fleet.config)))
        for name in workers:
            fleet.add_worker(name)
        until(lambda: _all_owned(fleet), "the workers own the partitions", START_S)
        yield fleet


def _all_owned(stack: Stack) -> bool:
    assert not stack.ended(), stack.ended()
    owned: list[int] = [stack.owned(name) for name in stack.workers]
    return all(owned) and sum(owned) >= stack.size.partitions


def _end(stack: Stack) -> None:
    for worker in stack.workers.values():
        if worker.process.poll() is None:
            worker.kill()


@contextmanager
def _brokers(folder: Path, count: int) -> Iterator[list[brokers.Kafka]]:
    if count > 1:
        with cluster.three(folder / "brokers") as servers:
            yield servers
        return
    home = folder / "broker"
    home.mkdir()
    server = brokers.required(lambda: cluster.start(home))
    try:
        yield [server]
    finally:
        server.stop()
