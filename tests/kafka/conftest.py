"""One broker for all tests of the Kafka host; each has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka import cluster


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that nobody stops."""
    with cluster.running(tmp_path_factory.mktemp("kafka")) as address:
        yield address
