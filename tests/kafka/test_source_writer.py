"""One writer of sources in a fleet, on a real broker: of two that judge at once one is refused, and tries again."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from ankusa.changing import ContendedError
from ankusa.source_store.answers import Exists
from ankusa.source_store.store import SourceStore
from ankusa.store.errors import StoreError
from schemas.config import Config, Kafka, ManagedSource
from schemas.config import SourceStore as Settings
from schemas.records import ChangeAction, decode_change
from streams.kafka.set_up_log import SetUpLog
from streams.kafka.source_feed import SourceFeed
from streams.kafka.source_host import KafkaSourceHost
from streams.kafka.source_writer import SourceWriter
from streams.kafka.topics import TopicNames
from tests.kafka import cluster
from tests.kafka.folding import DEADLINE_S, Fleet, in_loop, until, until_async
from tests.kafka.test_topics import alter
from tests.support import brokers
from tests.support.tcp_proxy import TcpProxy

SPEC: dict[str, Any] = {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}
AT = 1_700_000_000_000


class Rows:
    """Nothing is owed to any source."""

    async def unsettled(self, source_id: str) -> tuple[int, int]:
        return 0, 0

    async def dead_letter(self, source_id: str) -> int:
        return 0


class Node:
    """A worker's source store and its feed."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.store: SourceStore | None = None
        self.feed = SourceFeed(config, lambda update: None, lambda limits: None, self._stored)

    def _stored(self, changes: Any) -> None:
        if self.store is not None:
            self.store.follow(changes)
            return
        names = TopicNames(self.config.kafka.prefix)
        rows: Any = Rows()
        kept_in = SetUpLog(names, SourceWriter(self.config), self.feed.end.reached)
        host = KafkaSourceHost(kept_in, rows, lambda: AT, changes)
        self.store = SourceStore(host, lambda: self.config, host, _announce)

    async def ready(self) -> SourceStore:
        await until_async(lambda: self.store is not None, "the topic is read")
        assert self.store is not None
        return self.store


async def _announce(source_id: str, source: ManagedSource | None) -> None:
    """Nobody delivers here."""


def configured(broker: str) -> tuple[Fleet, Config]:
    fleet = Fleet(broker, partitions=1)
    return fleet, msgspec.structs.replace(fleet.config, source_store=Settings(type="persistent", max_sources=4))


@in_loop
async def test_of_those_who_create_one_source_at_once_one_does(broker: str, tmp_path: Path) -> None:
    fleet, config = configured(broker)
    nodes = [Node(config) for _ in range(3)]
    stores = [await node.ready() for node in nodes]
    answers = await asyncio.gather(*(store.create("acme", "orders", SPEC) for store in stores))
    assert sorted(type(answer).__name__ for answer in answers) == ["Exists", "Exists", "dict"]
    audit = await asyncio.to_thread(fleet.read, fleet.names.audit)
    assert [decode_change(record.value).action for record in audit] == [ChangeAction.CREATED]
    # Each knows at once what another did, and its bounds are the fleet's.
    assert isinstance(await stores[0].create("acme", "orders", SPEC), Exists)
    assert isinstance(await stores[1].replace("acme", "orders", SPEC), dict)
    many = await asyncio.gather(*(stores[number % 3].create("acme", f"s{number}", SPEC) for number in range(6)))
    assert sorted(type(answer).__name__ for answer in many) == ["TooMany"] * 3 + ["dict"] * 3
    assert await stores[2].delete("acme", "orders", dead_letter=False) is None
    await until_async(lambda: all(store.source("acme.orders") is None for store in stores), "it is gone everywhere")
    for node in nodes:
        await node.feed.close()


@in_loop
async def test_one_made_elsewhere_a_moment_ago_is_found_and_deleted(broker: str, tmp_path: Path) -> None:
    _, config = configured(broker)
    nodes = [Node(config) for _ in range(2)]
    first, second = [await node.ready() for node in nodes]
    for number in range(3):
        assert isinstance(await first.create("acme", f"s{number}", SPEC), dict)
        assert await second.delete("acme", f"s{number}", dead_letter=False) is None
    for node in nodes:
        await node.feed.close()


@in_loop
async def test_a_writer_that_another_came_after_stores_nothing(broker: str, tmp_path: Path) -> None:
    fleet, config = configured(broker)
    first, second = SourceWriter(config), SourceWriter(config)
    names = fleet.names
    await asyncio.to_thread(first.begin)
    ends = await asyncio.to_thread(second.begin)
    assert ends == 0
    with pytest.raises(ContendedError, match="another worker"):
        await asyncio.to_thread(first.commit, [(names.sources, b"a", b"first"), (names.audit, b"a", b"first")])
    await asyncio.to_thread(second.commit, [(names.sources, b"a", b"second"), (names.audit, b"a", b"second")])
    with pytest.raises(ContendedError, match="nothing has begun"):
        await asyncio.to_thread(second.commit, [])
    ends = await asyncio.to_thread(first.begin)
    assert ends > 0
    node = Node(config)
    await asyncio.wait_for(node.feed.end.reached(ends), DEADLINE_S)
    await node.feed.close()
    for topic in (names.sources, names.audit):
        found = await asyncio.to_thread(fleet.read, topic)
        assert [record.value for record in found] == [b"second"]


LONG_MS = 600_000
"""A transaction that nobody ends stays open for longer than any test runs."""


def stable(admin: AdminClient, topic: str) -> bool:
    """Whether readers of what is committed can read all that there is."""
    place = TopicPartition(topic, 0)
    ends = []
    for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        (future,) = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=isolation).values()
        ends.append(future.result(DEADLINE_S).offset)
    return ends[0] == ends[1] > 0


def test_a_change_that_brokers_refuse_holds_up_no_reader(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.kafka.source_writer.TRANSACTION_TIMEOUT_MS", LONG_MS)
    fleet, config = configured(broker)
    names = fleet.names
    alter(broker, names.audit, {"max.message.bytes": "1000"})
    writer = SourceWriter(config)
    writer.begin()
    with pytest.raises(StoreError, match=r"sources: .*(large|size)"):
        writer.commit([(names.sources, b"a", b"refused"), (names.audit, b"a", b"x" * 5000)])
    admin = AdminClient({"bootstrap.servers": broker})
    until(lambda: stable(admin, names.sources), "readers read on")
    writer.begin()
    writer.commit([(names.sources, b"a", b"taken"), (names.audit, b"a", b"short")])
    assert [record.value for record in fleet.read(names.audit)] == [b"short"]


class Cut:
    """A writer's client whose brokers go away when what it wrote is in the log, and is not committed."""

    def __init__(self, producer: Producer, proxy: TcpProxy) -> None:
        self._producer = producer
        self._proxy = proxy
        self.begin_transaction = producer.begin_transaction
        self.produce = producer.produce

    def commit_transaction(self, timeout_s: float) -> None:
        assert self._producer.flush(DEADLINE_S) == 0
        self._proxy.shut()
        self._producer.commit_transaction(timeout_s)


@pytest.mark.fault
def test_a_change_whose_brokers_go_away_holds_up_no_reader_once_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streams.kafka.source_writer.TRANSACTION_TIMEOUT_MS", LONG_MS)
    monkeypatch.setattr("streams.kafka.source_writer.COMMIT_S", 1.0)
    (port,) = brokers.free_ports(1)
    with TcpProxy(port) as proxy, ThreadPoolExecutor(1) as executor:
        server = brokers.required(lambda: brokers.Kafka(tmp_path, port, proxy.port, cluster.SETTINGS))
        try:
            fleet, config = configured(f"127.0.0.1:{proxy.port}")
            writer, topic = SourceWriter(config), fleet.names.sources
            writer.begin()
            assert writer._producer is not None
            writer._producer = cast(Producer, Cut(writer._producer, proxy))
            reason = executor.submit(_refusal, partial(writer.commit, [(topic, b"a", b"b")]))
            until(lambda: reason.done() or "event=change_unsettled" in caplog.text, "the commit was not answered")
            proxy.reopen()
            assert reason.result(DEADLINE_S).startswith(f"{topic}: ")
            admin = AdminClient({"bootstrap.servers": fleet.broker})
            until(lambda: stable(admin, topic), "readers read on")
        finally:
            server.stop()


def _refusal(work: Callable[[], None]) -> str:
    """Why it is refused; nothing else is left of the try."""
    try:
        work()
    except StoreError as error:
        return str(error)
    raise AssertionError("it was not refused")


@in_loop
async def test_brokers_that_are_away_refuse_a_change_with_the_reason(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.kafka.source_writer.BEGIN_S", 0.5)
    writer = SourceWriter(Config(kafka=Kafka(brokers=("127.0.0.1:1",))))
    with pytest.raises(StoreError, match="sources"):
        await asyncio.to_thread(writer.begin)
    rows: Any = Rows()
    monkeypatch.setattr("streams.kafka.set_up_log.FOLLOW_S", 0.05)
    host = KafkaSourceHost(SetUpLog(TopicNames("t."), Begins(), _never), rows, lambda: AT, {})
    with pytest.raises(StoreError, match=r"t\.sources is not read to its end"):
        await host.begin()


class Begins:
    """A writer whose brokers answer."""

    def begin(self) -> int:
        return 1

    def commit(self, records: list[tuple[str, bytes, bytes | None]]) -> None:
        raise AssertionError("what was not judged is not stored")


async def _never(offset: int) -> None:
    await asyncio.Event().wait()


@in_loop
async def test_a_source_is_sealed_anew_with_a_new_key(broker: str, tmp_path: Path) -> None:
    old, new = (base64.b64encode(bytes([byte]) * 32).decode() for byte in (1, 2))
    _, config = configured(broker)
    first = Node(msgspec.structs.replace(config, source_store=Settings(type="persistent", secret_key=old)))
    secret = {**SPEC, "verify": {"type": "github", "secret": "secret-0123456789"}}
    assert isinstance(await (await first.ready()).create("acme", "orders", secret), dict)
    await first.feed.close()
    keys = Settings(type="persistent", secret_key=(new, old))
    nodes = [Node(msgspec.structs.replace(config, source_store=keys)) for _ in range(2)]
    stores = [await node.ready() for node in nodes]
    await asyncio.gather(*(store.reseal() for store in stores))
    for node in nodes:
        await node.feed.close()
    last = Node(msgspec.structs.replace(config, source_store=Settings(type="persistent", secret_key=new)))
    assert (await last.ready()).source("acme.orders") is not None
    await last.feed.close()
