"""Brokers that go away under a worker that folds: it keeps what it holds and goes on by itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from schemas.records import Topic
from tests.kafka import cluster
from tests.kafka.folding import Fleet, WorkerProcess, same, until
from tests.support import brokers
from tests.unit.kafka.records import hooks

RESUMES_S = 30.0
LONG_S = 120.0
COMMITS = 300


@pytest.mark.fault
@pytest.mark.parametrize("away_s", [2.0, pytest.param(LONG_S, marks=pytest.mark.soak)])
def test_a_worker_resumes_by_itself(server: brokers.Kafka, tmp_path: Path, away_s: float) -> None:
    """Killed while the worker folds and commits, and away for `away_s`: the same process goes on."""
    fleet = Fleet(cluster.address(server))
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(lambda: len(worker.said("partition_owned")) == fleet.partitions, "it owns the partitions")
    fleet.send(Topic.HOOKS, ((number % 2, hooks(f"first-{number}")) for number in range(COMMITS)))
    pid = worker.process.pid
    server.kill()
    gone = time.monotonic()
    until(lambda: time.monotonic() - gone > away_s, "the outage", away_s + 60)
    server.start_again()
    back = time.monotonic()
    fleet.send(Topic.HOOKS, ((number % 2, hooks(f"second-{number}")) for number in range(COMMITS)))
    until(fleet.everything_committed, "everything is folded", 3 * RESUMES_S)
    resumed_s = time.monotonic() - back
    print(f"\nall folded {resumed_s:.1f} s after the broker was back, which had been away for {away_s:.0f} s")
    assert worker.process.poll() is None, worker.output()
    assert worker.process.pid == pid
    assert resumed_s < RESUMES_S
    assert worker.stop() == 0, worker.output()
    lines = worker.output().splitlines()
    assert len(lines) < 200, "\n".join(lines[-50:])
    found, wanted = worker.tables(), fleet.refolded(tmp_path / "refolded")
    for number in range(fleet.partitions):
        same(found[number], wanted[number])


@pytest.mark.fault
@pytest.mark.soak
def test_a_worker_ends_when_it_is_told_to_although_no_broker_answers(server: brokers.Kafka, tmp_path: Path) -> None:
    fleet = Fleet(cluster.address(server))
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(lambda: len(worker.said("partition_owned")) == fleet.partitions, "it owns the partitions")
    server.kill()
    worker.signal(signal.SIGTERM)
    told = time.monotonic()
    until(lambda: worker.process.poll() is not None, "it has ended")
    print(f"\nended {time.monotonic() - told:.1f} s after it was told to")
    assert len(list((worker.data / "partitions").iterdir())) == fleet.partitions
    assert worker.tables()
