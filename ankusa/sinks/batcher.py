"""One batcher per destination: attempts wait here together, go out in requests, and settle each on its own result.

Owns when a request starts, what is in it and who gets which answer. What waits is `batch_queue.py`; the request itself
and what its answer means are the sink's. It retries nothing and knows no row, no breaker and no lane.

- A request starts when a full one waits (by count or by bytes), or when what waits has lingered `linger_ms`, as long as
  fewer than `sink_concurrency` are in flight. While none may start, entries gather.
- Each attempt gets its own entry's result. A cancelled one, be it by its own timeout, takes its entry out if it was not
  sent yet; if it was, the others in the request never notice and the answer for it is dropped.
- The queue is bounded, and fair between tenants (`batch_queue.py`). Who has no place gets a transient failure.
- When a request is refused as a whole because of something in it, it is sent again in halves, sorted by tenant, down
  to single entries: the one that is at fault settles alone, and soon its tenant is by itself.
- A tenant whose breaker is open has no entry in another tenant's request: the dispatcher parks a row before it becomes
  an attempt, so none of its rows gets here while the breaker is open. Entries that were here before it opened are the
  attempts under way, which settle on their own like those of any sink, at most a timeout later; and a half-open
  breaker lets one probe through, which is one entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from ankusa.sinks.batch_queue import QUEUE_LIMITS, BatchQueue, QueueLimits
from ankusa.sinks.contract import Failed, SinkResult

log = logging.getLogger("ankusa.sinks.batcher")

T = TypeVar("T")


class Limits(Struct, frozen=True):
    """One request: at most so many entries, at most so many bytes of them; how long an entry waits for others."""

    entries: int
    size_bytes: int
    linger_ms: int


class Refused(Struct, frozen=True):
    """Nothing of the request was taken, because of something in it. A single entry settles as `failed`."""

    failed: Failed


Send = Callable[[Sequence[T]], Awaitable[Sequence[SinkResult] | Refused]]
"""Send payloads in one request; the results in their order. Bounded by its own timeout."""

_BUSY = Failed("transient", "busy: too many deliveries wait for this destination")
_CLOSED = Failed("transient", "the sink is closed")


class _Entry(Generic[T]):
    __slots__ = ("payload", "result", "size_bytes", "tenant")

    def __init__(self, tenant: str, size_bytes: int, payload: T, result: asyncio.Future[SinkResult]):
        self.tenant, self.size_bytes, self.payload, self.result = tenant, size_bytes, payload, result


class Batcher(Generic[T]):
    """The batcher of one destination. `requests` counts those started, for metrics."""

    def __init__(
        self, send: Send[T], limits: Limits, concurrency: Callable[[], int | None], queue: QueueLimits = QUEUE_LIMITS
    ) -> None:
        """`concurrency` is asked before every request: the most in flight, None for no limit."""
        self.requests = 0
        self._send, self._limits, self._concurrency = send, limits, concurrency
        self._queue: BatchQueue[_Entry[T]] = BatchQueue(queue)
        self._in_flight: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Entries that wait, for metrics."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Requests in flight, for metrics."""
        return len(self._in_flight)

    async def submit(self, tenant: str, size_bytes: int, payload: T) -> SinkResult:
        """Wait for one's turn and for the answer. Cancel it to give up."""
        if self._closed:
            return _CLOSED
        entry = _Entry(tenant, size_bytes, payload, asyncio.get_running_loop().create_future())
        displaced = self._queue.add(entry)
        if displaced is not None:
            _settle(displaced, _BUSY)
        self._start(partial=False)
        try:
            return await entry.result
        except asyncio.CancelledError:
            if self._queue.discard(entry) and not self._queue:
                self._stop_timer()
            raise

    async def close(self) -> None:
        """Answer whoever still waits, end what is in flight. Idempotent."""
        self._closed = True
        self._stop_timer()
        for entry in self._queue.drain():
            _settle(entry, _CLOSED)
        for task in (tasks := list(self._in_flight)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, *, partial: bool) -> None:
        """Start every full request that may start now, with `partial` one of the rest; the rest lingers.

        Who comes starts full ones only: a burst is a single turn of the loop, however long it takes, and ends up in as
        few requests as it fits in.
        """
        limits, loop = self._limits, asyncio.get_running_loop()
        while self._queue and self._has_room():
            full = len(self._queue) >= limits.entries or self._queue.size_bytes >= limits.size_bytes
            if not full and not partial:
                if self._timer is None:
                    self._timer = loop.call_later(limits.linger_ms / 1000, self._lingered)
                return
            self._stop_timer()
            task = asyncio.create_task(self._request(self._queue.take(limits.entries, limits.size_bytes)))
            self._in_flight.add(task)
            task.add_done_callback(self._finished)

    def _has_room(self) -> bool:
        concurrency = self._concurrency()
        return not self._closed and (concurrency is None or len(self._in_flight) < concurrency)

    def _lingered(self) -> None:
        self._timer = None
        self._start(partial=True)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finished(self, task: asyncio.Task[None]) -> None:
        """What waits now came while no request could start, and has lingered enough."""
        self._in_flight.discard(task)
        self._start(partial=self._timer is None)

    async def _request(self, batch: list[_Entry[T]]) -> None:
        """Send a batch and settle its entries, whatever happens; in halves as long as it is refused as a whole."""
        pending = [batch]
        try:
            while pending:
                entries = [entry for entry in pending.pop() if not entry.result.done()]  # whoever gave up meanwhile
                if entries:
                    pending += await self._once(entries)
        finally:
            for entry in batch:
                _settle(entry, _CLOSED)  # only what a cancelled request left

    async def _once(self, entries: list[_Entry[T]]) -> list[list[_Entry[T]]]:
        """One request; what has to be sent again, in parts."""
        self.requests += 1
        try:
            results = await self._send([entry.payload for entry in entries])
            if not isinstance(results, Refused) and len(results) != len(entries):
                raise ValueError(f"{len(results)} results")
        except Exception as error:
            log.warning("event=batch_failed entries=%d error=%s", len(entries), type(error).__name__)
            results = [Failed("transient", f"the request failed: {type(error).__name__}")] * len(entries)
        if isinstance(results, Refused):
            if len(entries) > 1:
                entries.sort(key=lambda entry: entry.tenant)
                middle = len(entries) // 2
                return [entries[middle:], entries[:middle]]
            results = [results.failed]
        for entry, result in zip(entries, results, strict=True):
            _settle(entry, result)
        return []


def _settle(entry: _Entry[T], result: SinkResult) -> None:
    if not entry.result.done():
        entry.result.set_result(result)
