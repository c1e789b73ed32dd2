"""What rows of a source a fleet has: summed over every partition's owner, or nobody's to say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ankusa.store.errors import StoreError
from schemas.records import Topic, encode
from streams.kafka.places import first_seq
from streams.kafka.source_rows import OPEN_MS, Ask, SourceRows, Told

AT = 1_700_000_000_000


class TopicOfAll:
    """The topic `sources`: every worker hears every record."""

    def __init__(self) -> None:
        self.workers: list[Node] = []
        self.records: dict[str, bytes | None] = {}
        self.at = AT
        self.answers: asyncio.Future[None] | None = None
        """Where it is set, no broker answers until it is done; what is sent is appended then."""

    def append(self, key: str, value: bytes | None) -> None:
        self.records[key] = value
        for worker in self.workers:
            asyncio.get_running_loop().call_soon(worker.rows.hear, key, value)

    @property
    def compacted(self) -> set[str]:
        return {key for key, value in self.records.items() if value is not None}


class Node:
    """A worker: its fleet log and its dispatcher. `counts` are `(waiting, claimed)` by partition."""

    def __init__(self, topic: TopicOfAll, partitions: int, counts: dict[int, tuple[int, int]]) -> None:
        self.topic = topic
        self.kills: list[str] = []
        self.died: int | None = 5
        self.partitions: dict[int, Any] = {}
        self.claims = SimpleNamespace(by_place={})
        self.rows = SourceRows(cast(Any, self), cast(Any, self), partitions)
        topic.workers.append(self)
        for number, (waiting, claimed) in counts.items():
            self.own(number, waiting, claimed)

    def own(self, number: int, waiting: int, claimed: int) -> None:
        counts = SimpleNamespace(of_source=lambda source_id: (waiting, claimed, 7))
        self.partitions[number] = SimpleNamespace(tables=SimpleNamespace(counts=counts))
        for index in range(claimed):
            row = SimpleNamespace(source_id="acme.orders")
            self.claims.by_place[first_seq(number) + index, 0] = SimpleNamespace(row=row)
        other = SimpleNamespace(row=SimpleNamespace(source_id="other"))
        self.claims.by_place[first_seq(number) + 99, 0] = other

    def now(self) -> int:
        return self.topic.at

    async def deliver(self, topic: Topic, number: int, value: bytes | None, key: bytes) -> None:
        await asyncio.sleep(0)
        self.send(topic, number, value, lambda error: None, key)
        if self.topic.answers is not None:
            await asyncio.shield(self.topic.answers)

    def send(self, topic: Topic, number: int, value: bytes | None, written: Any, key: bytes) -> None:
        assert (topic, number) == (Topic.SOURCES, 0)
        if self.topic.answers is None:
            self.topic.append(key.decode(), value)
        else:
            self.topic.answers.add_done_callback(lambda _: self.topic.append(key.decode(), value))

    async def dead_letter_source(self, source_id: str) -> int | None:
        self.kills.append(source_id)
        return self.died


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_every_partition_counts_once_and_the_question_is_taken_back() -> None:
    async def body() -> None:
        topic = TopicOfAll()
        first = Node(topic, 3, {0: (10, 2)})
        Node(topic, 3, {1: (20, 0), 2: (0, 1)})
        assert await first.rows.unsettled("acme.orders") == (30, 3)
        assert topic.compacted == set()
        assert len(topic.records) == 4

    run(body)


def test_a_kill_is_every_worker_s_and_counted_once_a_worker() -> None:
    async def body() -> None:
        topic = TopicOfAll()
        first, second = Node(topic, 3, {0: (1, 0)}), Node(topic, 3, {1: (1, 0), 2: (1, 0)})
        assert await first.rows.dead_letter("acme.orders") == 10
        assert first.kills == second.kills == ["acme.orders"]

    run(body)


def test_a_partition_without_an_owner_is_named_and_nothing_is_left() -> None:
    async def body() -> None:
        topic = TopicOfAll()
        first = Node(topic, 3, {0: (1, 0)})
        first.rows.answer_s = 0.05
        with pytest.raises(StoreError, match="partitions 1, 2 of the source's rows"):
            await first.rows.unsettled("acme.orders")
        assert topic.compacted == set()

    run(body)


def test_brokers_that_are_away_are_waited_for_no_longer_than_workers_and_what_is_sent_later_kills_nothing() -> None:
    async def body() -> None:
        topic = TopicOfAll()
        first, second = Node(topic, 2, {0: (1, 0)}), Node(topic, 2, {1: (1, 0)})
        topic.answers = asyncio.get_running_loop().create_future()
        first.rows.answer_s = 0.05
        for ask in (first.rows.unsettled, first.rows.dead_letter):
            with pytest.raises(StoreError, match="no broker takes the question"):
                await asyncio.wait_for(ask("acme.orders"), 30)
        topic.answers.set_result(None)
        topic.answers = None
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(topic.records) == 2
        assert topic.compacted == set()
        assert first.kills == second.kills == []

    run(body)


def test_a_worker_that_cannot_kill_is_silent() -> None:
    async def body() -> None:
        topic = TopicOfAll()
        first, second = Node(topic, 2, {0: (1, 0)}), Node(topic, 2, {1: (1, 0)})
        second.died, first.rows.answer_s = None, 0.05
        with pytest.raises(StoreError, match="partitions 1 of"):
            await first.rows.dead_letter("acme.orders")

    run(body)


def test_a_partition_that_comes_answers_what_is_open() -> None:
    async def body() -> None:
        topic = TopicOfAll()
        first, second = Node(topic, 2, {0: (1, 0)}), Node(topic, 2, {})
        asked = asyncio.create_task(first.rows.unsettled("acme.orders"))
        while not any(key.startswith("told/") for key in topic.records):
            await asyncio.sleep(0)
        assert not asked.done()
        second.own(1, 4, 1)
        second.rows.add(1)
        assert await asked == (5, 1)

    run(body)


def test_what_a_killed_worker_left_is_taken_back_later_and_damage_stops_nothing() -> None:
    async def body() -> None:
        topic = TopicOfAll()
        first = Node(topic, 1, {0: (1, 0)})
        topic.append("ask/old", encode(Ask("old", "acme.orders", True, AT - OPEN_MS - 1)))
        topic.append("told/old/0", encode(Told(1, 1, 1, AT - OPEN_MS - 1)))
        topic.append("told/young/0", encode(Told(1, 1, 1, AT)))
        topic.append("ask/damaged", b"damaged")
        for _ in range(5):
            await asyncio.sleep(0)
        assert topic.compacted == {"told/young/0", "ask/damaged"}
        assert first.kills == []
        assert await first.rows.unsettled("acme.orders") == (1, 0)

    run(body)


def test_a_kill_that_a_killed_worker_left_is_not_run_days_later() -> None:
    """Its source may have been set up again since."""

    async def body() -> None:
        topic = TopicOfAll()
        node = Node(topic, 2, {0: (1, 0)})
        topic.append("ask/left", encode(Ask("left", "acme.orders", True, AT)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert node.kills == ["acme.orders"]
        topic.at = AT + 100 * OPEN_MS
        node.own(1, 4, 0)
        node.rows.add(1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert node.kills == ["acme.orders"]

    asyncio.run(body())
