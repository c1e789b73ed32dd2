"""One server of each kind for all of these tests, started when the first test asks for it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.support import brokers
from tests.support.brokers import Server, free_ports, required
from tests.support.tcp_proxy import TcpProxy


def _started(start: Callable[[], Server]) -> Iterator[Server]:
    server = required(start)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(lambda: brokers.redis(tmp_path_factory.mktemp("redis")))


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(lambda: brokers.nats(tmp_path_factory.mktemp("nats")))


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(lambda: brokers.RabbitMQ(tmp_path_factory.mktemp("rabbitmq")))


class KafkaBehindProxy(NamedTuple):
    """A broker that tells its clients to come through the proxy."""

    server: Server
    proxy: TcpProxy


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBehindProxy]:
    (port,) = free_ports(1)
    with TcpProxy(port) as proxy:
        home = tmp_path_factory.mktemp("kafka")
        for server in _started(lambda: brokers.Kafka(home, port, proxy.port)):
            yield KafkaBehindProxy(server, proxy)


@pytest.fixture
def redis_proxy(redis_server: Server) -> Iterator[TcpProxy]:
    with TcpProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def nats_proxy(nats_server: Server) -> Iterator[TcpProxy]:
    with TcpProxy(nats_server.port) as proxy:
        yield proxy


@pytest.fixture
def rabbitmq_proxy(rabbitmq_server: Server) -> Iterator[TcpProxy]:
    with TcpProxy(rabbitmq_server.port) as proxy:
        yield proxy
