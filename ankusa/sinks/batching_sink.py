"""What sinks have in common that gather their deliveries for a guarded API: the guard's word, the size, the wait.

Owns one attempt from the guard to the batcher's answer. What an entry holds is the sink's, when a request goes is
`batcher.py`'s.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

from ankusa.sinks.batcher import Batcher
from ankusa.sinks.clients import HttpClients
from ankusa.sinks.connections import Destinations, Share
from ankusa.sinks.contract import Delivery, Failed, SinkResult
from ankusa.sinks.egress import Destination, Refusal

E = TypeVar("E")


class Options(Protocol):
    """What every such sink is told."""

    @property
    def inline_max_bytes(self) -> int | None: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def timeout_ms(self) -> int: ...


class BatchedDestination(Protocol[E]):
    """What sinks of one destination share: a batcher of its entries."""

    @property
    def batcher(self) -> Batcher[E]: ...
    async def close(self) -> None: ...


class Sized(NamedTuple, Generic[E]):
    """An entry with its sizes: `size_bytes` as the API counts it, `request_bytes` what it adds to a request."""

    entry: E
    size_bytes: int
    request_bytes: int


class BatchingSink(ABC, Generic[E]):
    """A built sink whose deliveries are sent several in a request."""

    batching = True

    def __init__(
        self,
        options: Options,
        judged: Destination | Refusal,
        clients: HttpClients,
        shared: Destinations,
        key: Hashable,
        build: Callable[[Destination], BatchedDestination[E]],
    ) -> None:
        """`judged` is the guard's word on the endpoint; a Refusal makes every delivery a permanent failure. Sinks of
        one `key` share the destination that `build` makes."""
        self.inline_max_bytes: int | None = options.inline_max_bytes
        self._limits, self._clients = options, clients
        self._refusal = judged if isinstance(judged, Refusal) else None
        self._share: Share[BatchedDestination[E]] | None = None
        if isinstance(judged, Destination):
            self._share = Share(shared, key, lambda: build(judged))

    @abstractmethod
    def entry(self, delivery: Delivery) -> Sized[E]:
        """A delivery as the API takes it."""

    async def deliver(self, delivery: Delivery) -> SinkResult:
        """One attempt, bounded by `timeout_ms`, its wait in the batcher included."""
        if self._refusal is not None:
            return self._counted(Failed("permanent", str(self._refusal)))
        destination = self._share.destination if self._share else None
        if destination is None:
            return Failed("transient", "the sink is closed")
        sized, limits = self.entry(delivery), self._limits
        if sized.size_bytes > limits.max_message_bytes:
            too_large = f"too_large: {sized.size_bytes} bytes, max_message_bytes is {limits.max_message_bytes}"
            return Failed("permanent", too_large)
        try:
            async with asyncio.timeout(limits.timeout_ms / 1000):
                result = await destination.batcher.submit(delivery.tenant_id, sized.request_bytes, sized.entry)
        except TimeoutError:
            return Failed("timeout", f"no answer within {limits.timeout_ms} ms")
        return self._counted(result)

    async def close(self) -> None:
        """Give the destination back. Idempotent."""
        if self._share is not None:
            await self._share.end()

    def _counted(self, result: SinkResult) -> SinkResult:
        if isinstance(result, Failed) and result.reason.startswith(Refusal.WORD):
            self._clients.denied += 1
        return result
