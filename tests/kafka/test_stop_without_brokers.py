"""A worker that is told to stop while no broker answers: it ends by itself before a supervisor would kill it."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ankusa.supervisor import STOP_S
from schemas.records import Topic
from tests.kafka import cluster
from tests.kafka.delivering import delivering_fleet, ending, owns, worker
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.support import brokers
from tests.unit.kafka.records import hooks

PARTITIONS = 4

pytestmark = [pytest.mark.fault, pytest.mark.soak]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[brokers.Kafka]:
    home = tmp_path / "broker"
    home.mkdir()
    server = brokers.required(lambda: cluster.start(home))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A destination that takes requests and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        yield listening


def _started(fleet: Fleet, folder: Path, silent: socket.socket) -> WorkerProcess:
    return worker(fleet, folder, f"http://127.0.0.1:{silent.getsockname()[1]}/")


def _ends(workers: list[WorkerProcess]) -> None:
    told = time.monotonic()
    for each in workers:
        each.signal(signal.SIGTERM)
    for each in workers:
        until(lambda each=each: each.process.poll() is not None, "it has ended", STOP_S)  # type: ignore[misc]
        print(f"\nended {time.monotonic() - told:.1f} s after it was told to")
        assert each.process.returncode == 0, each.output()


def test_an_idle_one(server: brokers.Kafka, tmp_path: Path, silent: socket.socket) -> None:
    fleet = delivering_fleet(cluster.address(server), PARTITIONS)
    workers = [_started(fleet, tmp_path / "worker", silent)]
    with ending(workers):
        owns(workers[0], PARTITIONS)
        server.kill()
        _ends(workers)


def test_one_whose_attempts_run(server: brokers.Kafka, tmp_path: Path, silent: socket.socket) -> None:
    fleet = delivering_fleet(cluster.address(server), PARTITIONS)
    workers = [_started(fleet, tmp_path / "worker", silent)]
    with ending(workers):
        owns(workers[0], PARTITIONS)
        fleet.send(Topic.HOOKS, [(number, hooks(f"hook-{number}", tenant="default")) for number in range(PARTITIONS)])
        silent.accept()[0].close()
        with silent.accept()[0]:
            server.kill()
            _ends(workers)


def test_those_whose_partitions_are_being_shared(server: brokers.Kafka, tmp_path: Path, silent: socket.socket) -> None:
    """Another has just joined: the first asks the brokers about what it keeps, the other restores what it is given."""
    fleet = delivering_fleet(cluster.address(server), PARTITIONS)
    workers = [_started(fleet, tmp_path / "first", silent)]
    with ending(workers):
        owns(workers[0], PARTITIONS)
        workers.append(_started(fleet, tmp_path / "second", silent))
        until(lambda: bool(workers[0].said("partition_revoked") or workers[1].said("partition_restored")), "shared")
        server.kill()
        _ends(workers)


def test_one_whose_partitions_came_from_another(server: brokers.Kafka, tmp_path: Path, silent: socket.socket) -> None:
    """Which has just left."""
    fleet = delivering_fleet(cluster.address(server), PARTITIONS)
    workers = [_started(fleet, tmp_path / name, silent) for name in ("first", "second")]
    with ending(workers):
        for each in workers:
            owns(each, PARTITIONS // 2)
        restored = len(workers[1].said("partition_restored"))
        assert workers.pop(0).stop() == 0
        until(lambda: len(workers[0].said("partition_restored")) > restored, "another's is being restored")
        server.kill()
        _ends(workers)
