"""The edge's log over a producer that answers when the test says so: silence, one silent partition, and their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import NamedTuple, cast

import msgspec
import pytest

from ankusa.store.errors import StoreError
from schemas.append import Answer, AnswerStatus, Submission
from schemas.config import Config, Kafka
from schemas.records import Envelope, decode_commit
from streams.kafka import edge_log as edge_logs
from streams.kafka import flow
from streams.kafka.commits import COMMIT_ROWS
from streams.kafka.edge_log import KafkaEdgeLog
from streams.kafka.log_producer import Delivered
from streams.kafka.partitioning import partition_of_key
from streams.kafka.producer import EdgeProducer
from tests.support.edge import run, until

AT = 1_700_000_000_000
DEADLINE = AT + 5000
STALL_S = 0.25
"""Longer than a busy machine keeps a process from running: a stall of the test must not look like one of brokers."""
ACCEPTED, REFUSED = AnswerStatus.ACCEPTED, AnswerStatus.STORE_UNAVAILABLE


class Sent(NamedTuple):
    topic: str
    partition: int
    hooks: int
    delivered: Delivered


class FakeProducer:
    """Keeps what it is given. `away` are partitions that answer nothing, None for all."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.waiting: list[Sent] = []
        self.away: set[int] | None = set()
        self.full = False
        self.taken_back = 0

    def send(self, topic: str, partition: int, value: bytes, key: bytes | None, at: int, delivered: Delivered) -> None:
        if self.full:
            raise StoreError("too much waits")
        sent = Sent(topic, partition, len(decode_commit(value)[1]), delivered)
        self.sent.append(sent)
        if self.away is None or partition in self.away:
            self.waiting.append(sent)
        else:
            asyncio.get_running_loop().call_soon(delivered, len(self.sent), "")

    def take_back(self) -> None:
        self.taken_back += 1
        self.settle(None, "taken back")

    def settle(self, offset: int | None, reason: str) -> None:
        waiting, self.waiting = self.waiting, []
        for sent in waiting:
            sent.delivered(offset, reason)

    def writable(self, topic: str, timeout_s: float) -> list[int] | str:
        return "the brokers do not answer" if self.away is None else [n for n in range(4) if n not in self.away]

    async def close(self) -> None:
        self.settle(None, "closed")


def hook(key: str | None = None) -> Submission:
    return Submission(Envelope("id", "orders", "t", AT, ("log",), (), None, "id", key), b"{}")


def key_of(partition: int) -> str:
    """A dedupe key whose hooks go to `partition`."""
    return next(key for key in map(str, range(1000)) if partition_of_key(f"t/orders/{key}", 4) == partition)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "STALL_S", STALL_S)
    monkeypatch.setattr(edge_logs, "STALL_S", STALL_S)


def check(body: Callable[[FakeProducer, KafkaEdgeLog], object]) -> None:
    async def opened() -> None:
        producer = FakeProducer()
        config = Config(kafka=Kafka(partitions=4))
        edge_log = KafkaEdgeLog(config, cast(EdgeProducer, producer), lambda _: True, lambda: AT, 0)
        await edge_log.open()
        producer.sent.clear()
        await body(producer, edge_log)  # type: ignore[misc]
        await edge_log.close()

    run(opened)


def begun(tries: list[asyncio.Task[bool]], one: Callable[[], Coroutine[None, None, bool]]) -> bool:
    """Begin another try."""
    tries.append(asyncio.create_task(one()))
    return True


async def append(edge_log: KafkaEdgeLog, *submissions: Submission) -> list[AnswerStatus]:
    answers: list[Answer] = await edge_log.append(submissions, DEADLINE)
    return [answer.status for answer in answers]


def test_silence_takes_back_what_waits_and_refuses_what_comes() -> None:
    async def body(producer: FakeProducer, edge_log: KafkaEdgeLog) -> None:
        producer.away = None
        waiting = asyncio.create_task(append(edge_log, hook(), hook(key_of(2))))
        assert await waiting == [REFUSED, REFUSED]
        assert producer.taken_back == 1
        # One is let in to try; while it is on its way every other is refused without being sent.
        trying = asyncio.create_task(append(edge_log, hook()))
        await until(lambda: len(producer.waiting) == 1)
        sent = len(producer.sent)
        for _ in range(3):
            assert await append(edge_log, hook(), hook(key_of(1))) == [REFUSED, REFUSED]
        assert len(producer.sent) == sent
        assert await edge_log.probe() == "the brokers do not answer"
        # Its acknowledgement lets all in again.
        producer.away = set()
        producer.settle(7, "")
        assert await trying == [ACCEPTED]
        assert await append(edge_log, hook(), hook(key_of(1)), hook(key_of(3))) == [ACCEPTED] * 3
        assert await edge_log.probe() is None

    check(body)


def test_one_silent_partition_costs_its_own_keys_alone() -> None:
    async def body(producer: FakeProducer, edge_log: KafkaEdgeLog) -> None:
        producer.away = {2}
        stuck = asyncio.create_task(append(edge_log, hook(key_of(2))))
        await until(lambda: len(producer.waiting) == 1)

        async def others() -> bool:
            """Appends while the others answer; whether the silent one is refused by now."""
            statuses = await append(edge_log, hook(), hook(key_of(1)), hook(key_of(2)))
            assert statuses[1] is ACCEPTED
            return statuses[2] is REFUSED

        tries: list[asyncio.Task[bool]] = []  # those of before the refusal wait behind the first
        await until(lambda: begun(tries, others) and any(one.done() for one in tries))
        assert producer.taken_back == 0  # the cluster lives
        sent = len(producer.sent)
        for _ in range(8):
            assert await append(edge_log, hook(), hook(key_of(2))) == [ACCEPTED, REFUSED]
        assert {each.partition for each in producer.sent[sent:]} == {0, 1, 3}
        # Given up by the producer, the next of its keys tries, and frees it.
        producer.settle(None, "timed out")
        assert await stuck == [REFUSED]
        producer.away = set()
        await asyncio.gather(*tries)
        assert await append(edge_log, hook(key_of(2))) == [ACCEPTED]
        assert await append(edge_log, hook(key_of(2)), hook(key_of(2))) == [ACCEPTED, ACCEPTED]

    check(body)


def test_a_probe_writes_where_a_leader_is() -> None:
    async def body(producer: FakeProducer, edge_log: KafkaEdgeLog) -> None:
        edge_log._acked_s = 0.0  # long ago
        producer.away = {0, 1, 2}
        assert await edge_log.probe() is None
        assert [(sent.partition, sent.hooks) for sent in producer.sent] == [(3, 0)]
        edge_log._acked_s = 0.0
        producer.away = {0, 1, 2, 3}
        assert await edge_log.probe() == "no partition of ankusa.hooks has a leader and enough copies in sync"

    check(body)


def test_a_full_queue_refuses() -> None:
    async def body(producer: FakeProducer, edge_log: KafkaEdgeLog) -> None:
        producer.full = True
        assert await append(edge_log, hook(), hook(key_of(1))) == [REFUSED, REFUSED]
        producer.full = False
        assert await append(edge_log, hook()) == [ACCEPTED]

    check(body)


def test_a_refusal_of_one_record_stops_no_other() -> None:
    async def body(producer: FakeProducer, edge_log: KafkaEdgeLog) -> None:
        producer.away = {1}
        waiting = asyncio.create_task(append(edge_log, hook(key_of(1)), hook(key_of(3))))
        await until(lambda: len(producer.waiting) == 1)
        producer.settle(None, "record too large")
        assert await waiting == [REFUSED, ACCEPTED]
        producer.away = set()
        assert await append(edge_log, hook(key_of(1)), hook(key_of(1))) == [ACCEPTED, ACCEPTED]

    check(body)


def test_hooks_of_very_many_sinks_are_written_a_few_at_a_time() -> None:
    """A record is folded in one go, and each row of it takes its time."""
    many = hook(key_of(1))
    many = Submission(msgspec.structs.replace(many.entry, sinks=("log",) * (COMMIT_ROWS // 3)), many.body)
    more = Submission(msgspec.structs.replace(many.entry, sinks=("log",) * (2 * COMMIT_ROWS)), many.body)

    async def body(producer: FakeProducer, edge_log: KafkaEdgeLog) -> None:
        assert await append(edge_log, *[many] * 8, more, many) == [ACCEPTED] * 10
        assert [sent.hooks for sent in producer.sent] == [3, 3, 2, 1, 1]

    check(body)
