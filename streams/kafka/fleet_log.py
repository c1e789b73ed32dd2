"""What a worker's services publish to the partitions they own, and when it is folded.

A record is in the tables when its partition's fold has passed its offset; until then it is on its way, and whoever sent
it is told once, in the event loop. Owns which partitions there are, log time, and who waits for what. Folds nothing
and writes no table.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from ankusa.clock import SteadyClock
from ankusa.dispatch.ports import Written
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.records import Topic
from streams.kafka.log_producer import LogProducer

log = logging.getLogger("ankusa.kafka")

AHEAD_MS = 60_000
"""A record that is this far ahead of the node's clock is told of: a fifth of what receivers of signed webhooks allow,
and more than clocks are apart that anybody keeps."""

COMPLAIN_S = 600.0
"""One line in ten minutes while it is so."""


ANSWER_S = 10.0
"""How long an operator's command waits. A partition whose leader crashed has another one in about that time; librdkafka
itself would keep a caller for five minutes."""


class UnansweredError(StoreError):
    """Nobody has said in time what became of a record: the log may have it, or may yet take it."""


class Partition(Protocol):
    """An owned partition, as services see it (`folding.PartitionFold`)."""

    @property
    def partition(self) -> int: ...
    @property
    def tables(self) -> Tables: ...
    @property
    def at(self) -> int:
        """Log time of the last record, unix ms."""

    @property
    def turn(self) -> int:
        """How many records its tables are made of."""

    @property
    def epoch(self) -> int: ...
    def offset(self, topic: Topic) -> int:
        """The offset of the last record folded of `topic`, -1 when none is."""


class FleetLog:
    """The log of a fleet's partitions, of which this node owns `partitions`. `wall` gives unix ms, `monotonic`
    seconds."""

    def __init__(
        self,
        producer: LogProducer,
        topics: Mapping[Topic, str],
        wall: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._wall = wall
        self._monotonic = monotonic
        self._clock = SteadyClock(0, wall, monotonic)
        self._complained_s: float | None = None
        self.partitions: dict[int, Partition] = {}
        self._leaving: set[int] = set()
        # Delivered and not folded, by partition and topic, in the order of their offsets.
        self._flying: dict[tuple[int, Topic], deque[tuple[int, Written]]] = {}

    def now(self) -> int:
        """Log time, unix ms: the clock's, but never before the last record of any partition, and never standing still:
        where a record is ahead of the clock, it goes on from there as a `SteadyClock` does. Asked for at every attempt,
        so records are remembered at every fold."""
        return self._clock()

    def _reached(self, partition: Partition) -> None:
        """A partition's log time counts for all, whatever it is: its rows are due by it. One that is far ahead is told
        of, since whoever checks signatures goes by the true time."""
        if not self._clock.reached(partition.at):
            return
        ahead_ms, now_s = partition.at - self._wall(), self._monotonic()
        if ahead_ms >= AHEAD_MS and (self._complained_s is None or now_s - self._complained_s >= COMPLAIN_S):
            self._complained_s = now_s
            log.warning("event=log_time_ahead partition=%d ahead_ms=%d", partition.partition, ahead_ms)

    def tables(self, number: int) -> Tables | None:
        """The tables of an owned partition."""
        partition = self.partitions.get(number)
        return None if partition is None else partition.tables

    @property
    def owed(self) -> int:
        """Records of which nobody has heard yet that they are folded, or refused."""
        return self._producer.unreported + sum(map(len, self._flying.values()))

    # -- partitions come and go ---------------------------------------------------

    def add(self, partition: Partition) -> None:
        """A partition is this node's from now on."""
        self.partitions[partition.partition] = partition
        self._reached(partition)
        self._leaving.discard(partition.partition)

    def leave(self, number: int) -> None:
        """A partition's tables are not this node's any more; what its attempts come to is still published, for a
        while. Who owns it next folds what is in its log, so that counts as folded."""
        self.partitions.pop(number, None)
        self._leaving.add(number)
        for topic in Topic:
            for _, written in self._flying.pop((number, topic), ()):
                written(None)

    def gone(self, number: int) -> None:
        """Nothing more is published to a partition that left, unless it came back meanwhile."""
        self._leaving.discard(number)

    # -- publishing -----------------------------------------------------------------

    def publish(
        self, topic: Topic, number: int, value: bytes | None, written: Written, key: bytes | None = None
    ) -> None:
        """Append a record; `written` is told when this node has folded it, or why it is refused. Raises StoreError
        when it is refused at once."""
        if number not in self.partitions and number not in self._leaving:
            raise StoreError(f"partition {number} is not this node's")
        delivered = partial(self._delivered, topic, number, written)
        self._producer.send(self._topics[topic], number, value, key, self.now(), delivered)

    def send(self, topic: Topic, number: int, value: bytes | None, written: Written, key: bytes | None = None) -> None:
        """Append a record to any partition; `written` is told when the log has it, whoever folds it."""
        delivered = partial(_told, written)
        self._producer.send(self._topics[topic], number, value, key, self.now(), delivered)

    def _delivered(self, topic: Topic, number: int, written: Written, offset: int | None, reason: str) -> None:
        if offset is None:
            written(StoreError(reason))
            return
        partition = self.partitions.get(number)
        if partition is None or partition.offset(topic) >= offset:
            written(None)
        else:
            self._flying.setdefault((number, topic), deque()).append((offset, written))

    def folded(self, number: int, topic: Topic) -> None:
        """A partition's fold has gone on."""
        flying = self._flying.get((number, topic))
        partition = self.partitions.get(number)
        if partition is None:
            return
        self._reached(partition)
        if flying is None:
            return
        passed = partition.offset(topic)
        while flying and flying[0][0] <= passed:
            flying.popleft()[1](None)
        if not flying:
            self._flying.pop((number, topic), None)

    async def append(
        self, topic: Topic, number: int, value: bytes, key: bytes | None = None, within_s: float | None = None
    ) -> None:
        """Append a record to an owned partition, and wait until it is folded. Raises StoreError; UnansweredError where
        that takes longer than `within_s`."""
        future: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.publish(topic, number, value, partial(_resolve, future), key)
        await self._answered(future, topic, number, within_s)

    async def deliver(
        self, topic: Topic, number: int, value: bytes | None, key: bytes | None = None, within_s: float | None = None
    ) -> None:
        """Append a record to any partition, and wait until the log has it. Raises StoreError; UnansweredError where
        that takes longer than `within_s`."""
        future: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.send(topic, number, value, partial(_resolve, future), key)
        await self._answered(future, topic, number, within_s)

    async def _answered(
        self, future: asyncio.Future[StoreError | None], topic: Topic, number: int, within_s: float | None
    ) -> None:
        try:
            async with asyncio.timeout(within_s):
                error = await future
        except TimeoutError:
            place = f"{self._topics[topic]}[{number}]"
            reason = f"{place} has not answered within {within_s:g} s; it may still arrive: send it again"
            raise UnansweredError(reason) from None
        if error is not None:
            raise error


def _told(written: Written, offset: int | None, reason: str) -> None:
    written(StoreError(reason) if offset is None else None)


def _resolve(future: asyncio.Future[StoreError | None], error: StoreError | None) -> None:
    if not future.done():
        future.set_result(error)
