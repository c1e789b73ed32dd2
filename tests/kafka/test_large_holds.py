"""Hooks larger than a worker's own limit: what the topics take counts, and that alone."""

from __future__ import annotations

import asyncio
import shutil
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from ankusa.demo.ask import ask
from ankusa.supervisor import FATAL_EXIT
from schemas.config import Http
from schemas.records import Topic
from streams.kafka.log_producer import LogProducer, open_producer
from tests.kafka.delivering import MODULE, ending, owns
from tests.kafka.folding import DEADLINE_S, Fleet, WorkerProcess, in_loop, until
from tests.kafka.nodes import serving
from tests.kafka.test_topics import alter
from tests.support.node_process import free_port
from tests.unit.kafka.records import commit
from tests.unit.store.entries import AT, held

SMALL = 1_500_000
"""`http.max_body_bytes` of the worker; edges have the default, 8,000,000."""

SOURCE: dict[str, Any] = {
    "verify": {"type": "github", "secret": "s" * 16},
    "on_verify_failure": "quarantine",
    "sinks": [{"type": "log"}],
}


def small_worker(fleet: Fleet, folder: Path, port: int) -> WorkerProcess:
    sections = {"http": {"max_body_bytes": SMALL}, "sources": {"orders": SOURCE}, "admin": {"port": port}}
    return WorkerProcess(fleet, folder, MODULE, **sections)


def pen(port: int) -> list[tuple[str, int]]:
    """Id and size of what a worker holds; nothing while it cannot say."""
    try:
        status, answer = ask(port, "GET", "/v1/quarantine")
    except OSError:
        return []
    return [(entry["id"], entry["size"]) for entry in answer["entries"]] if status == 200 else []


def hold(port: int, body: bytes) -> None:
    """Post a hook without a signature."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/webhooks/orders", body, {"content-type": "text/plain"})
    answer = connection.getresponse()
    assert answer.status == 202, answer.read()
    connection.close()


def test_a_hook_of_twice_the_limit_of_a_worker_is_in_its_pen(broker: str, tmp_path: Path) -> None:
    """And comes back from the changelog when the disk is lost."""
    fleet = Fleet(broker, partitions=1)
    port = free_port()
    worker = small_worker(fleet, tmp_path / "worker", port)
    with ending([worker]):
        owns(worker, 1)
        with serving(tmp_path / "edge", fleet.config, sources={"orders": SOURCE}) as served:
            hold(served.http_port, b"x" * (2 * SMALL))
        until(fleet.everything_committed, "it is folded")
        assert worker.said("record_set_aside") == []
        kept = pen(port)
        assert [size for _, size in kept] == [2 * SMALL]
        assert worker.stop() == 0, worker.output()
        shutil.rmtree(worker.data)
        worker.start()
        owns(worker, 2)
        until(lambda: pen(port) == kept, "it is there again")
        assert worker.stop() == 0, worker.output()


def test_what_the_changelog_does_not_take_is_told_and_counted(broker: str, tmp_path: Path) -> None:
    """Until it takes more and the worker begins again: then what comes is held."""
    fleet = Fleet(broker, partitions=1, http=Http(max_body_bytes=SMALL))
    names = fleet.names
    worker = small_worker(fleet, tmp_path / "worker", port := free_port())
    with ending([worker]):
        owns(worker, 1)
        larger = {"max.message.bytes": str(4 * SMALL), "message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
        alter(broker, names.quarantine, larger)
        send(fleet, "large-1")
        send(fleet, "small-1", 10)
        until(lambda: pen(port) == [("small-1", 10)], "what comes after it is held")
        (line,) = worker.said("record_set_aside")
        assert "topic=quarantine" in line
        assert "where the changelog takes" in line
        assert set_aside(port) == 1
        assert worker.stop() == 0, worker.output()
        worker.start()
        assert worker.process.wait(DEADLINE_S) == FATAL_EXIT
        (line,) = worker.said("topic_wrong")
        assert f"topic={names.changelog} " in line
        assert f"raise it to {4 * SMALL}" in line
        alter(broker, names.changelog, larger | {"cleanup.policy": "compact", "delete.retention.ms": "604800000"})
        worker.start()
        owns(worker, 2)
        send(fleet, "large-2")
        until(lambda: ("large-2", 2 * SMALL) in pen(port), "it is held now")
        assert len(worker.said("body_limit_below")) == 2  # of `quarantine`, at each start since
        assert worker.stop() == 0, worker.output()


@in_loop
async def test_services_of_a_worker_write_what_a_topic_takes(broker: str) -> None:
    """A hook that is dead has to be copied to `dead`, or its partition of `hooks` is never trimmed."""
    fleet = Fleet(broker, partitions=1, http=Http(max_body_bytes=16_000_000))
    producer = LogProducer(lambda: open_producer(fleet.config.kafka))
    told: asyncio.Future[tuple[int | None, str]] = asyncio.get_running_loop().create_future()
    producer.send(fleet.names.dead, 0, b"x" * 16_000_000, b"1", AT, lambda *report: told.set_result(report))
    assert await asyncio.wait_for(told, DEADLINE_S) == (0, "")
    await producer.close()


def send(fleet: Fleet, hook_id: str, size_bytes: int = 2 * SMALL) -> None:
    """As an edge with a larger limit."""
    producer = Producer({"bootstrap.servers": fleet.broker, "message.max.bytes": 10 * SMALL})
    producer.produce(fleet.topic(Topic.QUARANTINE), commit(held(hook_id, body=b"x" * size_bytes)), b"key", 0)
    assert producer.flush(DEADLINE_S) == 0


def set_aside(port: int) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    (line,) = (line for line in text.splitlines() if line.startswith("ankusa_set_aside_records "))
    return int(float(line.rpartition(" ")[2]))
