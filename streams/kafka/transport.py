"""Faust's transport, with a fetch that does not make the fold wait, and without Faust's judgement of who stands still.

aiokafka has one fetch under way to a broker, for the partitions of which nothing is buffered. While some hold records
that are about to be folded, the fetch is for the idle ones, and the broker keeps it as long as it was told to wait:
Faust says 1.5 s, and for so long the busy ones get nothing. Owns that number, and how much a fetch waits for.

Faust asks every 2.5 s whether streams stand still, of the changelog's partitions too, which no stream reads here: from
the fifth minute on that was fifteen lines for each of them, each time. How far a fold is behind is in the metrics.
"""

from __future__ import annotations

from typing import Any

from faust.transport.drivers import aiokafka

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


class FoldConsumer(aiokafka.Consumer):
    """The consumer of that thread."""

    def _new_consumer_thread(self) -> FoldConsumerThread:
        return FoldConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        await super().perform_seek()
        fresh = [tp for tp in self.assignment() if self._committed_offset[tp] is None and not self._is_changelog_tp(tp)]
        if fresh:
            earliest = await self.earliest_offsets(*fresh)
            await self.seek_wait({tp: offset or 0 for tp, offset in earliest.items()})

    async def verify_all_partitions_active(self) -> None:
        """Judge nobody."""


class FoldTransport(aiokafka.Transport):
    """Faust's transport with that consumer."""

    Consumer = FoldConsumer
