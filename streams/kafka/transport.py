"""Faust's transport, with a fetch that does not make the fold wait, and without Faust's judgement of who stands still.

aiokafka has one fetch under way to a broker, for the partitions of which nothing is buffered. While some hold records
that are about to be folded, the fetch is for the idle ones, and the broker keeps it as long as it was told to wait:
Faust says 1.5 s, and for so long the busy ones get nothing. Owns that number, how much a fetch waits for, and of which
partitions nothing is fetched for now.

Faust asks every 2.5 s whether streams stand still, of the changelog's partitions too, which no stream reads here: from
the fifth minute on that was fifteen lines for each of them, each time. How far a fold is behind is in the metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from faust.transport.drivers import aiokafka
from faust.types import TP

from streams.kafka.known_brokers import ask_configured
from streams.kafka.membership import Membership, follow

log = logging.getLogger("ankusa.kafka")

FETCH_WAIT_MS = 20
"""How long a broker keeps a fetch that finds nothing: fifty requests a second of an idle worker, to each broker."""

FETCH_LEAST_BYTES = 4 << 10
"""What a broker gathers for a fetch before it answers, within that time. Each costs this process a millisecond of the
lock that its dispatcher needs too: outcomes that come by the hundred a second are fetched fifty times a second, and a
hook that comes alone waits up to 20 ms."""


class FoldConsumerThread(aiokafka.AIOKafkaConsumerThread):
    """The thread that fetches and beats for the group."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        consumer._fetch_min_bytes = FETCH_LEAST_BYTES
        return consumer

    async def on_start(self) -> None:
        await super().on_start()
        assert self._consumer is not None and isinstance(self.transport, FoldTransport)
        follow(self._consumer._coordinator, self.transport.membership)
        ask_configured(self._consumer._client)


class FoldConsumer(aiokafka.Consumer):
    """The consumer of that thread."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._stopped_at: set[TP] = set()

    def stop_reading(self, number: int) -> None:
        """Fetch nothing more of a partition of any topic. What was fetched still comes: a megabyte of each at most, or
        one larger record."""
        for tp in self.assignment():
            if tp.partition == number and not self._is_changelog_tp(tp):
                self._stopped_at.add(tp)
                self.on_buffer_full(tp)  # as a stream that is full: unlike a pause it drops nothing

    def read_on(self, number: int) -> None:
        """Fetch of a partition again."""
        for tp in [tp for tp in self._stopped_at if tp.partition == number]:
            self._stopped_at.discard(tp)
            self.on_buffer_drop(tp)

    def on_buffer_drop(self, tp: TP) -> None:
        """A stream has room again, which is not all that a partition may wait for."""
        if tp not in self._stopped_at:
            super().on_buffer_drop(tp)

    def _new_consumer_thread(self) -> FoldConsumerThread:
        return FoldConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        await super().perform_seek()
        fresh = [tp for tp in self.assignment() if self._committed_offset[tp] is None and not self._is_changelog_tp(tp)]
        if fresh:
            earliest = await self.earliest_offsets(*fresh)
            await self.seek_wait({tp: offset or 0 for tp, offset in earliest.items()})

        ahead = {}
        for tp in self.assignment():
            committed, following = self._committed_offset[tp], self._fold_transport.following(tp.topic, tp.partition)
            if committed is not None and following is not None and following < committed:
                ahead[tp] = following
        if ahead:
            log.warning("event=committed_ahead partitions=%d", len(ahead))
            await self.seek_wait(ahead)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """A jump in the offsets. Faust would commit past it; of a topic without holes it is read again instead
        (`unbroken.py`)."""
        if tp.topic not in self._fold_transport.whole:
            await super()._add_gap(tp, offset_from, offset_to)

    async def gone(self, tp: TP, offset: int) -> None:
        """The topic begins at `offset` by now: nothing before it waits for being acknowledged."""
        await super()._add_gap(tp, 0, offset - 1)

    async def passed(self, tp: TP, first: int, following: int) -> None:
        """Nothing from `first` to before `following` waits for being acknowledged: it is a hole, or folded with what
        comes next."""
        await super()._add_gap(tp, first, following - 1)

    @property
    def _fold_transport(self) -> FoldTransport:
        assert isinstance(self.transport, FoldTransport)
        return self.transport

    async def verify_all_partitions_active(self) -> None:
        """Judge nobody."""


class FoldTransport(aiokafka.Transport):
    """Faust's transport with that consumer."""

    Consumer = FoldConsumer
    membership: Membership
    """It hears what the group answers. Set before the app starts, as the others are."""
    whole: Collection[str]
    """Topics without holes."""
    following: Callable[[str, int], int | None]
    """The offset after the last record folded of a topic's partition; None while that is not open."""
