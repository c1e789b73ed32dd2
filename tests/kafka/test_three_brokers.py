"""Three brokers, of which one is killed: until the others have given it up (`broker.session.timeout.ms`) nobody can
acknowledge for all in-sync copies, so hooks are refused quickly; then all goes on with two."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from schemas.config import Dedupe, Sink, Source, Verify
from streams.kafka.topic_admin import TopicAdmin
from streams.kafka.topics import TopicNames
from tests.kafka import cluster
from tests.kafka.edge_log import ids, stored_hooks
from tests.kafka.nodes import serving
from tests.support import brokers
from tests.support.load import Load
from tests.support.node_process import poll

RESUMES_S = 30.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[brokers.Kafka]]:
    with cluster.three(tmp_path_factory.mktemp("three")) as servers:
        yield servers


@pytest.mark.soak
@pytest.mark.fault
def test_one_of_three_is_killed_and_comes_back(servers: list[brokers.Kafka], tmp_path: Path) -> None:
    config = cluster.configuration(cluster.address(servers[0]), partitions=6)
    kafka = msgspec.structs.replace(config.kafka, brokers=cluster.addresses(servers), replication=3)
    keyed = Source(name="keyed", verify=Verify(type="none"), dedupe=Dedupe(header="x-mark"), sinks=(Sink(type="log"),))
    config = msgspec.structs.replace(config, kafka=kafka, sources={**config.sources, "keyed": keyed})
    TopicAdmin(config).create()
    assert TopicAdmin(config).check() == []
    with (
        serving(tmp_path / "node", config) as node,
        Load(node.http_port, "/webhooks/orders", connections=8, name="any") as load,
        Load(node.http_port, "/webhooks/keyed", connections=8, name="key") as keyed_load,
    ):
        load.wait_accepted(200)
        keyed_load.wait_accepted(200)
        servers[0].kill()
        killed_s = time.monotonic()
        load.wait_accepted(200, RESUMES_S)
        on_s = time.monotonic() - killed_s
        ready = poll("a ready edge", node.ready)

        # All partitions are led again.
        def all_led() -> bool:
            before = keyed_load.answers.copy()
            keyed_load.wait_accepted(100)
            return keyed_load.answers[503] == before[503]

        poll("no keyed hook refused any more", all_led, RESUMES_S)
        led_s = time.monotonic() - killed_s
        servers[0].start_again()
        load.wait_accepted(200)
        load.stop()
        keyed_load.stop()
        refused = (load.answers[503], keyed_load.answers[503])
    stored = Counter(ids(stored_hooks(cluster.address(servers[1]), TopicNames(config.kafka.prefix).hooks)))
    acknowledged = load.ids | keyed_load.ids
    print(
        f"200 more accepted {on_s:.2f} s after the kill, every partition led after {led_s:.1f} s, ready {ready}; "
        f"refused {refused[0]} of any and {refused[1]} of keyed; {len(acknowledged)} acknowledged, "
        f"{len(stored) - len(acknowledged)} there that were not"
    )
    assert {stored[hook_id] for hook_id in acknowledged} == {1}
