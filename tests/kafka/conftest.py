"""One broker for all tests of the Kafka host, each with topics of its own, and one for a test that kills it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka import cluster
from tests.kafka.folding import WorkerProcess
from tests.support import brokers


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that nobody stops."""
    with cluster.running(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture
def server(tmp_path: Path) -> Iterator[brokers.Kafka]:
    """A broker of the test's own, which it may kill and start again."""
    home = tmp_path / "broker"
    home.mkdir()
    server = brokers.required(lambda: cluster.start(home, cluster.SOON_BACK))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def workers() -> Iterator[None]:
    """No worker process outlives the test that started it. Those that its module started go on."""
    before = set(WorkerProcess.running)
    yield
    for worker in set(WorkerProcess.running) - before:
        if worker.process.poll() is None:
            worker.kill()
    WorkerProcess.running[:] = before
