"""The thread of a consumer: reads take turns, and none begins once it is being closed."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from ankusa.store.errors import StoreError
from streams.kafka.consumer_thread import ConsumerThread


class Opened:
    """How often it was opened and closed; the thing itself is no client."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def open(self) -> Consumer:
        self.opened += 1
        return cast(Consumer, self)

    def close(self) -> None:
        self.closed += 1


def test_one_consumer_serves_all_reads_and_is_closed() -> None:
    async def scenario() -> None:
        kept = Opened()
        thread = ConsumerThread("test", kept.open)
        assert [await thread.read("topic[0]", lambda consumer: consumer is kept) for _ in range(3)] == [True] * 3
        await thread.close()
        assert (kept.opened, kept.closed) == (1, 1)

    asyncio.run(scenario())


def test_what_kafka_refuses_names_the_place() -> None:
    def refused(consumer: Consumer) -> None:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    async def scenario() -> None:
        thread = ConsumerThread("test", Opened().open)
        with pytest.raises(StoreError, match=r"^topic\[3\]: .*TOPIC_AUTHORIZATION_FAILED"):
            await thread.read("topic[3]", refused)
        await thread.close()

    asyncio.run(scenario())


def test_a_read_that_comes_as_it_is_closed_opens_no_consumer_again() -> None:
    """Nobody would close it: it would keep its connections for as long as the process lives."""

    async def scenario() -> None:
        kept, begun, go_on = Opened(), threading.Event(), threading.Event()
        thread = ConsumerThread("test", kept.open)

        def held(consumer: Consumer) -> bool:
            begun.set()
            return go_on.wait(20)

        first = asyncio.ensure_future(thread.read("topic[0]", held))
        assert await asyncio.to_thread(begun.wait, 20)
        closing = asyncio.ensure_future(thread.close())
        late = asyncio.ensure_future(thread.read("topic[0]", lambda consumer: True))
        await asyncio.sleep(0)  # both are in the queue, the close first
        go_on.set()
        assert await first
        await closing
        with pytest.raises(StoreError, match="the worker stops"):
            await late
        assert (kept.opened, kept.closed) == (1, 1)

    asyncio.run(scenario())
