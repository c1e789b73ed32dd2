"""The sender of a changelog: which records share a transaction, and who is told when. Here a transaction is no work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

import pytest

from streams.kafka import sender as module
from streams.kafka.changelog import Entry
from streams.kafka.sender import TRANSACTION_BYTES, Sender
from streams.kafka.transactions import ChangelogLostError, Transactions
from tests.kafka.cluster import configuration
from tests.kafka.folding import in_loop

OPENING: Entry = (b"owner", b"me")
NOBODY = "127.0.0.1:9"


class Committed:
    """Transactions that nobody refuses: how many entries each has."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def commit(self, entries: Sequence[Entry]) -> int:
        self.sizes.append(len(entries))
        return sum(self.sizes)

    def close(self) -> None:
        """Nothing is open."""

    def release(self) -> None:
        """Nor held."""


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def started(executor: ThreadPoolExecutor, committed: Committed) -> Sender:
    sender = Sender(configuration(NOBODY), 0, executor)
    sender._transactions = cast(Transactions, committed)
    sender.start(0, OPENING, lambda first, last, following: None)
    return sender


@in_loop
async def test_records_that_come_one_by_one_share_a_transaction(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHER_S", 3.0)  # twenty come in that time on any machine
    committed, acknowledged = Committed(), list[int]()
    sender = started(executor, committed)
    sender.add(1, [(b"key", b"first")], partial(acknowledged.append, 1))
    assert await sender.drained(30)
    for turn in range(2, 22):
        sender.add(turn, [(b"key", b"more")], partial(acknowledged.append, turn))
        await asyncio.get_running_loop().run_in_executor(executor, int)  # as long as a transaction takes
    assert acknowledged == [1]
    assert await sender.drained(30)
    await sender.close(10)
    assert committed.sizes == [2, 20]
    assert acknowledged == list(range(1, 22))


@in_loop
async def test_what_fills_a_transaction_is_not_kept_waiting(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHER_S", 30.0)
    committed, large = Committed(), bytes(TRANSACTION_BYTES)
    sender = started(executor, committed)
    for turn in range(1, 6):
        sender.add(turn, [(b"key", large)], lambda: None)
    assert await sender.drained(10)
    await sender.close(10)
    assert committed.sizes == [2, 1, 1, 1, 1]


class Held(Committed):
    """The first transaction takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def commit(self, entries: Sequence[Entry]) -> int:
        self.begun.set()
        assert self.go_on.wait(20)
        return super().commit(entries)


@in_loop
async def test_a_probe_while_a_transaction_is_under_way_asks_the_brokers(executor: ThreadPoolExecutor) -> None:
    """By an entry: of a transaction without any, no broker hears."""
    held = Held()
    sender = started(executor, held)
    sender.add(1, [(b"key", b"value")], lambda: None)
    assert await asyncio.to_thread(held.begun.wait, 20)
    probe = asyncio.ensure_future(sender.probe(OPENING))
    await asyncio.sleep(0)  # it has begun, amid the transaction
    held.go_on.set()
    assert await probe
    assert held.sizes == [2, 1]
    await sender.close(1)


@in_loop
async def test_it_is_told_when_there_is_room_again(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 1000)
    held, told = Held(), asyncio.Event()
    sender = started(executor, held)
    sender.on_room = told.set
    for turn in range(1, 3):
        assert sender.has_room
        sender.add(turn, [(b"key", bytes(700))], lambda: None)
    assert not sender.has_room
    held.go_on.set()
    await asyncio.wait_for(told.wait(), 20)
    assert sender.has_room
    await sender.close(10)


class Refused(Held):
    """Another owner has begun."""

    def commit(self, entries: Sequence[Entry]) -> int:
        super().commit(entries)
        raise ChangelogLostError("fenced")


@in_loop
async def test_one_that_has_failed_keeps_nobody_waiting(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 0)
    refused, told = Refused(), asyncio.Event()
    sender = started(executor, refused)
    sender.on_room = told.set
    sender.add(1, [(b"key", b"value")], lambda: None)
    assert not sender.has_room
    refused.go_on.set()
    await asyncio.wait_for(told.wait(), 20)
    assert sender.has_room
    assert sender.failed == "fenced"
    await sender.close(10)


def test_a_transaction_without_entries_is_refused() -> None:
    with pytest.raises(ValueError, match="without entries"):
        Transactions(configuration(NOBODY), 0).commit([])
