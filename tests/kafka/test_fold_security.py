"""A worker at a broker that asks for TLS and a log-in: the group's consumer has to be told as the other clients are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from confluent_kafka import Producer

from schemas.config import KafkaSasl, KafkaSecurity
from streams.kafka.app import build_app
from streams.kafka.clients import client_settings
from streams.kafka.membership import Membership
from streams.kafka.topic_admin import TopicAdmin
from streams.kafka.topics import TopicNames
from tests.kafka import cluster
from tests.kafka.folding import Fleet, in_loop, until_async, worker
from tests.kafka.test_security import PASSWORD, Secured, config_of, secured
from tests.unit.kafka.records import hooks

__all__ = ["secured"]  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@in_loop
async def test_a_worker_has_the_way_in(secured: Secured, tmp_path: Path) -> None:
    config = config_of(secured)
    TopicAdmin(config).create()
    producer = Producer(client_settings(config.kafka, "test"))
    producer.produce(TopicNames(config.kafka.prefix).hooks, hooks("a"), None, 0)
    assert producer.flush(30) == 0
    async with worker(cast(Fleet, SimpleNamespace(config=config)), tmp_path) as running:
        partitions = config.kafka.partitions
        await until_async(lambda: len(running.owned.tables) == partitions, "it owns the partitions")
        await until_async(lambda: running.owned.tables[0].counts.total() == (1, 0, 0), "the hook is folded")


@pytest.mark.parametrize(
    ("tls", "mechanism", "protocol"),
    [
        (True, None, "SSL"),
        (False, "plain", "SASL_PLAINTEXT"),
        (True, "scram_sha_256", "SASL_SSL"),
        (True, "scram_sha_512", "SASL_SSL"),
    ],
)
def test_what_the_group_is_told(tls: bool, mechanism: Any, protocol: str) -> None:
    sasl = None if mechanism is None else KafkaSasl(mechanism=mechanism, username="a", password=PASSWORD)
    config = cluster.configuration("127.0.0.1:1")
    security = KafkaSecurity(tls=tls, sasl=sasl)
    secured = msgspec.structs.replace(config, kafka=msgspec.structs.replace(config.kafka, security=security))
    app = build_app(secured, Membership(), lambda topic, number: None)
    told = app.conf.broker_credentials
    assert told is not None
    assert told.protocol.value == protocol
    assert PASSWORD not in repr(told)
    if mechanism is not None:
        assert told.mechanism.value == mechanism.upper().replace("_", "-")
