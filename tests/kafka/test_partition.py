"""A partition that is opened and closed again leaves nothing of its clients behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.config import Config
from schemas.records import Topic
from streams.kafka import id_reader, transactions
from streams.kafka.changelog_reader import RestoreCancelledError
from streams.kafka.id_reader import IdReader
from streams.kafka.partition import Opening, Partition
from streams.kafka.topic_admin import TopicAdmin
from tests.kafka import cluster
from tests.kafka.folding import in_loop, until_async
from tests.unit.kafka.records import hooks
from tests.unit.store.entries import AT

NOBODY = "127.0.0.1:9"
TIMES = 4


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Nothing is freed but by the last reference to it: the collector may come minutes later."""
    gc.disable()
    yield
    gc.enable()


def _client_threads() -> set[str]:
    """Of librdkafka, in this process: those of earlier tests' clients too, which may end, or begin, at any time."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (task / "comm").read_text().startswith("rdk:"):
                found.add(task.name)
    return found


def _opening(config: Config, folder: Path, executor: ThreadPoolExecutor, ids: IdReader) -> Opening:
    node = msgspec.structs.replace(config.node, data_dir=str(folder))
    return Opening(msgspec.structs.replace(config, node=node), "owner", Tables, executor, ids)


def _reader(config: Config) -> IdReader:
    """The worker's, which has all its threads by now."""
    ids = IdReader(config)
    ids.read()
    return ids


def _topics(broker: str) -> Config:
    """Of one partition, and no client of them is left."""
    config = cluster.configuration(broker, partitions=1)
    TopicAdmin(config).create()
    return config


@in_loop
async def test_the_producer_of_a_closed_partition_ends(
    broker: str, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    config = _topics(broker)
    ids = _reader(config)
    before = _client_threads()
    for offset in range(TIMES):
        partition = await Partition.open(_opening(config, tmp_path, executor, ids), 0, lambda: False)
        assert _client_threads() - before
        assert partition.take(Topic.HOOKS, offset, AT, hooks(f"hook-{offset}"), lambda: None) is not None
        assert await partition.still_owned()
        await partition.close()
    await until_async(lambda: len(_client_threads()) <= len(before), "the producers have ended", 20)


@in_loop
async def test_the_producer_of_a_partition_that_another_took_ends(
    broker: str, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    config = _topics(broker)
    ids = _reader(config)
    before = _client_threads()
    partition = await Partition.open(_opening(config, tmp_path / "0", executor, ids), 0, lambda: False)
    for number in range(1, TIMES):
        heir = await Partition.open(_opening(config, tmp_path / str(number), executor, ids), 0, lambda: False)
        assert not await partition.still_owned()
        await partition.close()
        partition = heir
    await partition.close()
    await until_async(lambda: len(_client_threads()) <= len(before), "the producers have ended", 20)


@in_loop
async def test_the_producer_of_a_partition_that_was_not_opened_ends(
    tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went elsewhere while no broker answered."""
    monkeypatch.setattr(transactions, "CALL_S", 0.2)
    monkeypatch.setattr(id_reader, "REQUEST_S", 0.2)
    config = cluster.configuration(NOBODY)
    ids = IdReader(config)
    with pytest.raises(StoreError, match="the ids of topics cannot be read"):
        ids.read()  # all its threads are there by now
    opening = _opening(config, tmp_path, executor, ids)
    before = _client_threads()
    for _ in range(TIMES):
        gone = asyncio.Event()
        opens = asyncio.ensure_future(Partition.open(opening, 0, gone.is_set))
        await until_async(lambda: bool(_client_threads() - before), "the client has begun", 20)
        gone.set()
        with pytest.raises(RestoreCancelledError):
            await opens
        del opens
    await until_async(lambda: len(_client_threads()) <= len(before), "the producers have ended", 20)
