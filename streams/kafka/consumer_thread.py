"""A consumer and the thread it blocks, for reads that an event loop waits for.

Owns both: the consumer is opened at the first read and closed in the thread that reads with it. Knows no topic, commits
nothing and joins no group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException

from ankusa.store.errors import StoreError

Result = TypeVar("Result")


class ConsumerThread:
    """`opened` makes the consumer, `name` names the thread."""

    def __init__(self, name: str, opened: Callable[[], Consumer]) -> None:
        self._opened = opened
        self._consumer: Consumer | None = None
        self._closing = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def read(self, place: str, read: Callable[[Consumer], Result]) -> Result:
        """What `read` makes of the consumer, once earlier reads have ended. Raises StoreError, which names the place
        where Kafka refused."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, place, read)

    async def close(self) -> None:
        """Once the read that is under way has ended. Those that wait are refused."""
        self._closing = True
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=False)

    # -- in the thread ----------------------------------------------------------

    def check_open(self) -> None:
        """For a read that waits for brokers: raises StoreError when it is to end."""
        if self._closing:
            raise StoreError("the worker stops")

    def _read(self, place: str, read: Callable[[Consumer], Result]) -> Result:
        self.check_open()
        try:
            if self._consumer is None:
                self._consumer = self._opened()
            return read(self._consumer)
        except KafkaException as error:
            raise StoreError(f"{place}: {error.args[0]}") from error

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
