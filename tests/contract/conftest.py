"""Hosts under the contract suite. A test takes `start`, and starts the host it wants with its dispatch settings.

The Kafka host needs a broker, one for the session: a real one, as in `tests/kafka`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.contract.embedded import embedded
from tests.contract.guarded import EmbeddedGuarded, Guarded, KafkaGuarded
from tests.contract.host import Host
from tests.contract.kafka import kafka
from tests.contract.kafka_log import ContractLog, contract_log
from tests.kafka import cluster
from tests.kafka.folding import Fleet

HOSTS = ("embedded", "kafka")

PARTITIONS = 2
"""On Kafka rows are in two: whatever holds of one store has to hold over several."""

Start = Callable[..., Host]
MakeGuarded = Callable[..., Guarded]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster.running(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture(scope="session")
def topics(broker: str) -> Iterator[ContractLog]:
    with contract_log(broker) as log:
        yield log


@pytest.fixture(params=HOSTS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """`start(**dispatch)`: a running host; closed when the test ends."""
    opened: Any = embedded
    if request.param != "embedded":
        log: ContractLog = request.getfixturevalue("topics")
        opened = partial(kafka, log=log, partitions=PARTITIONS)
    with ExitStack() as stack:
        yield lambda **dispatch: stack.enter_context(opened(tmp_path, **dispatch))


@pytest.fixture
def host(start: Start) -> Host:
    """A host with the default settings and no cap per sink."""
    return start()


@pytest.fixture(params=HOSTS)
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> MakeGuarded:
    """`guarded(**routes)`: a node with its route guard on."""
    if request.param == "embedded":
        return partial(EmbeddedGuarded, tmp_path)
    return partial(KafkaGuarded, Fleet(request.getfixturevalue("broker"), partitions=1))
