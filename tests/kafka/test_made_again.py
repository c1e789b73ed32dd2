"""Topics that are deleted and made again under a fleet that has folded them, on a real broker: it is said, and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from schemas.records import Topic
from streams.kafka.topic_admin import TopicAdmin
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.unit.kafka.records import hooks


@pytest.fixture(autouse=True)
def workers() -> Iterator[None]:
    """None outlives its test."""
    yield
    for worker in WorkerProcess.running:
        if worker.process.poll() is None:
            worker.kill()
    WorkerProcess.running.clear()


def send(fleet: Fleet, *names: str) -> None:
    fleet.send(Topic.HOOKS, [(0, hooks(name)) for name in names])


def make_again(fleet: Fleet, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.broker})
    admin.delete_topics([topic])[topic].result(20)
    until(lambda: topic not in admin.list_topics(timeout=20).topics, "it is gone")
    until(lambda: TopicAdmin(fleet.config).create() != [], "it is made again")


def ended(worker: WorkerProcess, times: int) -> str:
    """What it said as it ended, the `times`th time."""
    until(lambda: worker.process.poll() is not None, "it ends")
    assert worker.process.returncode == 1
    assert len(worker.said("worker_failed")) == times
    return worker.said("worker_failed")[-1]


@pytest.mark.parametrize("count", [2, 8], ids=["ends before its tables", "has grown past its tables"])
def test_hooks_made_again_under_a_worker_end_it(broker: str, tmp_path: Path, count: int) -> None:
    """However far they go by the time that somebody looks; and so they do whoever takes over, on any disk."""
    fleet = Fleet(broker, partitions=1)
    send(fleet, *(f"old-{number}" for number in range(5)))
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(fleet.everything_committed, "five are folded")
    make_again(fleet, fleet.names.hooks)
    send(fleet, *(f"new-{number}" for number in range(count)))
    assert "hooks was made again" in ended(worker, 1)
    ids = worker.tables()[0]["ids"]
    assert {b"old-%d" % number for number in range(5)} <= set(ids)
    assert not {b"new-%d" % number for number in range(5)} & set(ids)
    reason = "hooks ends at offset 2" if count == 2 else "hooks was made again"
    worker.start()
    assert reason in ended(worker, 2)
    without_disk = WorkerProcess(fleet, tmp_path / "other")
    assert reason in ended(without_disk, 1)
