"""One broker for all tests of the Kafka host; each has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka import cluster
from tests.kafka.folding import WorkerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that nobody stops."""
    with cluster.running(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture(autouse=True)
def workers() -> Iterator[None]:
    """No worker process outlives the test that started it. Those that its module started go on."""
    before = set(WorkerProcess.running)
    yield
    for worker in set(WorkerProcess.running) - before:
        if worker.process.poll() is None:
            worker.kill()
    WorkerProcess.running[:] = before
