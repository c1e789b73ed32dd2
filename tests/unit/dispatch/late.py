"""An embedded host whose log answers later: a test says when what was published is folded, or that it is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ankusa.dispatch.ports import Place, Written
from ankusa.store.errors import StoreError
from schemas.records import INDEX_BITS, OutcomeBatch, Row
from streams.local.dispatch_host import LocalDispatchHost
from tests.contract.embedded import EmbeddedHost


class Published(NamedTuple):
    """A batch in flight."""

    batch: OutcomeBatch
    claimed: Mapping[Place, Row]
    written: Written


class LateHost(EmbeddedHost):
    """`published` are the batches in flight, in order. The partition of a row is its offset modulo `partitions`."""

    partitions = 1
    gone: frozenset[int] = frozenset()
    heard = True

    async def _start(self) -> None:
        await super()._start()
        self.published: list[Published] = []
        self.dispatch_host.publish = self._publish  # type: ignore[method-assign]
        self.dispatch_host.partition_of = self.partition_of  # type: ignore[assignment]
        self.dispatch_host.claimable = self._claimable  # type: ignore[method-assign]
        self.dispatch_host.may_begin = lambda: self.heard  # type: ignore[method-assign]

    def partition_of(self, seq: int) -> int:
        return (seq >> INDEX_BITS) % self.partitions

    def partition(self, hook_id: str) -> int:
        return self.partition_of(self._seq(hook_id))

    def _claimable(self, seq: int) -> bool:
        return self.partition_of(seq) not in self.gone and LocalDispatchHost.claimable(self.dispatch_host, seq)

    def _publish(self, batch: OutcomeBatch, claimed: Mapping[Place, Row], written: Written) -> None:
        self.published.append(Published(batch, claimed, written))

    def land(self, place: int = 0) -> None:
        """Fold a batch and say so."""
        published = self.published.pop(place)

        async def land() -> None:
            LocalDispatchHost.publish(self.dispatch_host, *published)

        self.loop.run(land())

    def refuse(self, place: int = 0) -> None:
        """Refuse a batch."""
        published = self.published.pop(place)

        async def refuse() -> None:
            published.written(StoreError("the broker is away"))

        self.loop.run(refuse())

    def revoke(self, partition: int, grace_ms: int = 1000) -> asyncio.Task[None]:
        """Give a partition up, its batches in flight left to what `land` and `refuse` make of them."""
        self.gone |= {partition}

        async def revoke() -> None:
            await self.dispatcher.revoke(lambda seq: self.partition_of(seq) == partition, grace_ms)

        return self.loop.create_task(revoke())


@contextlib.contextmanager
def late(folder: Path, **dispatch: Any) -> Iterator[LateHost]:
    host = LateHost(folder, **dispatch)
    try:
        yield host
    finally:
        host.close()
