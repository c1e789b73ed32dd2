"""`ankusa serve` with role edge on a real broker: what it checks, accepts, takes up, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaProducer

from ankusa.config.managed import managed_source
from ankusa.demo.ask import ask
from ankusa.seal import Seal
from ankusa.source_store import spec as specs
from ankusa.source_store.spec import Entry
from ankusa.supervisor import FATAL_EXIT
from schemas.config import Config, Kafka, Node, Retry, SourceStore
from schemas.records import encode
from streams.kafka.partitioning import partition_of_key
from streams.kafka.topic_admin import TopicAdmin
from streams.kafka.topics import TopicNames
from tests.kafka import cluster
from tests.kafka.edge_log import stored_hooks
from tests.kafka.nodes import STOP_S, serving
from tests.support.node_process import children, free_port, is_running, poll

ENDS_S = 120.0
"""The longest that a process takes to start, look at its topics and end."""

KEY = "kRk2n5oB0h0wKq5r8Jm1v1l3Q4t2a8ZkzYw6o1b7c9A="


@pytest.fixture
def config(broker: str) -> Config:
    config = cluster.configuration(broker)
    TopicAdmin(config).create()
    return config


def put_source(broker: str, config: Config, name: str, seal: Seal, *, gone: bool = False) -> None:
    """What the API writes when a source is set up, or deleted."""
    spec = {
        "sinks": [
            {"type": "log", "ordered": True, "ordering_key": {"json": "a"}},
            {"type": "log", "ordered": True, "ordering_key": {"json": "b"}},
        ]
    }
    entry = Entry(managed_source("acme", name, spec, Retry(), None), 1, 1)
    change = specs.keep(entry, seal)
    change = msgspec.structs.replace(change, spec=None) if gone else change
    producer = KafkaProducer(bootstrap_servers=broker, acks="all")
    topic = TopicNames(config.kafka.prefix).sources
    producer.send(topic, value=encode(change), key=change.source_id.encode()).get(30)
    producer.close()


def test_accepts_reloads_and_ends(config: Config, broker: str, tmp_path: Path) -> None:
    with serving(tmp_path, config) as node:
        assert len(children(node.process.pid)) == 1  # one edge, and no engine
        hook_id = node.accepted("orders", {"n": 1})
        assert node.post("other")[0] == 404
        file = tmp_path / "ankusa.yaml"
        document = json.loads(file.read_text())
        document["sources"]["other"] = document["sources"]["orders"]
        file.write_text(json.dumps(document))
        poll("the new source", lambda: node.post("other", {"n": 2})[0] == 201)
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(STOP_S) == 0
    stored = {found.entry.id: found for found in stored_hooks(broker, TopicNames(config.kafka.prefix).hooks)}
    assert json.loads(stored[hook_id].body) == {"n": 1}
    assert {found.entry.source_id for found in stored.values()} == {"orders", "other"}


def test_two_edge_processes_share_a_port(config: Config, tmp_path: Path) -> None:
    with serving(tmp_path, msgspec.structs.replace(config, node=Node(roles=("edge",), edges=2))) as node:
        assert len(children(node.process.pid)) == 2
        # Each answers for itself, and one may be open before the other.
        poll("both to take hooks", lambda: all(node.post("orders", {"n": n})[0] == 201 for n in range(20)))


def test_wrong_topics_end_it_with_the_way_out(broker: str, tmp_path: Path) -> None:
    with serving(tmp_path, cluster.configuration(broker), ready=False) as node:
        assert node.process.wait(ENDS_S) == FATAL_EXIT
        assert "hooks reason=is missing; run `ankusa topics create`" in node.log()


def test_without_a_cluster_it_listens_and_refuses(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        config = cluster.configuration(f"127.0.0.1:{nobody.getsockname()[1]}")
        with serving(tmp_path, config, ready=False) as node:
            poll("an answer", lambda: node.post("orders")[0] == 503)
            assert node.post("orders")[1] == {"error": "store_unavailable"}
            assert not node.ready()
            assert is_running(node.process.pid)


class TestManagedSources:
    """Sources of the topic `sources`."""

    @pytest.fixture
    def managed(self, config: Config) -> Config:
        return msgspec.structs.replace(config, source_store=SourceStore(type="persistent", secret_key=KEY))

    def test_are_taken_up_as_they_come_and_go(self, managed: Config, broker: str, tmp_path: Path) -> None:
        seal = Seal(KEY)
        put_source(broker, managed, "before", seal)
        put_source(broker, managed, "gone", seal)
        put_source(broker, managed, "gone", seal, gone=True)
        with serving(tmp_path, managed) as node:
            poll("the source there was", lambda: node.post("acme.before")[0] == 201)
            assert node.post("acme.gone")[0] == 404
            put_source(broker, managed, "new", seal)
            status, answer = poll("the new source", lambda: (found := node.post("acme.new"))[0] == 201 and found)
            assert status == 201
            put_source(broker, managed, "new", seal, gone=True)
            poll("its end", lambda: node.post("acme.new")[0] == 404)
            node.accepted("orders")
        # Its ordered sinks do not agree on a key: all of it is in the source's partition.
        (found,) = [
            found
            for found in stored_hooks(broker, TopicNames(managed.kafka.prefix).hooks)
            if found.entry.id == answer["id"]
        ]
        assert found.partition == partition_of_key("acme/acme.new", 4)

    def test_one_sealed_with_another_key_ends_it(self, managed: Config, broker: str, tmp_path: Path) -> None:
        put_source(broker, managed, "sealed", Seal(KEY[::-1].replace("=", "") + "="))
        with serving(tmp_path, managed, ready=False) as node:
            assert node.process.wait(ENDS_S) == FATAL_EXIT
            assert "event=sources_unreadable reason=stored sources cannot be read: acme.sealed" in node.log()
        lenient = SourceStore(type="persistent", secret_key=KEY, ignore_unreadable=True)
        with serving(tmp_path / "lenient", msgspec.structs.replace(managed, source_store=lenient)) as node:
            poll("a known end of the list", lambda: node.post("acme.sealed")[0] == 404)
            node.accepted("orders")

    def test_until_they_are_read_no_source_is_unknown(self, tmp_path: Path) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            config = cluster.configuration(
                "127.0.0.1:1",
                kafka=Kafka(brokers=(f"127.0.0.1:{nobody.getsockname()[1]}",)),
                source_store=SourceStore(type="persistent", secret_key=KEY),
            )
            with serving(tmp_path, config, ready=False) as node:
                poll("an answer", lambda: node.post("acme.orders")[0] == 503)


def test_one_node_may_be_edge_and_worker(config: Config, tmp_path: Path) -> None:
    both = msgspec.structs.replace(config, node=Node(roles=("edge", "worker")))
    admin = free_port()
    with serving(tmp_path, both, admin={"port": admin}) as node:
        assert len(children(node.process.pid)) == 2
        hook_id = node.accepted("orders", {"n": 1})
        poll("a logged delivery", lambda: hook_id in node.log(), 120.0)
        assert ask(admin, "GET", "/health")[0] == 200
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(STOP_S) == 0
