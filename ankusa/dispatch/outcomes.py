"""The outcome buffer: outcomes wait a few milliseconds and are written as one batch (spec 03 "Rows").

A batch is of one partition. It may be in the store when it was published, or later: until then it is in flight, its
rows stay claimed, and other batches may follow it. Losing the buffer means redelivery, never loss. What a store refuses
is kept and tried again every second; the window bounds how much can wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from ankusa.dispatch.breakers import Breakers
from ankusa.dispatch.claims import Claim
from ankusa.dispatch.ports import DispatchHost
from ankusa.store.errors import StoreError
from schemas.records import Outcome, OutcomeBatch

log = logging.getLogger("ankusa.dispatch")

FLUSH_MS = 10
FLUSH_OUTCOMES = 256
"""A batch is written when it is this old or this large: small enough that a crash redelivers little."""

REFUSED_MS = 1000

Item = tuple[Outcome, Claim]


class OutcomeBuffer:
    """Outcomes on their way to the log, each with its claim. `written` hears of each batch that is in the store."""

    def __init__(
        self, host: DispatchHost, breakers: Breakers, clock: Callable[[], int], written: Callable[[list[Claim]], None]
    ) -> None:
        self._host = host
        self._breakers = breakers
        self._clock = clock
        self._written = written
        self._items: list[Item] = []
        # Batches in flight by number, with how many outcomes each has; who waits for which of them.
        self._flights: dict[int, int] = {}
        self._flown = 0
        self._waiters: list[tuple[set[int], asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.refused = 0

    def __len__(self) -> int:
        """Outcomes that are not in the store."""
        return len(self._items) + sum(self._flights.values())

    def add(self, outcome: Outcome, claim: Claim) -> None:
        """Take an outcome; not after `close`, when an attempt that would not end ends all the same."""
        if self._closed:
            return
        self._items.append((outcome, claim))
        if len(self._items) >= FLUSH_OUTCOMES and not self.refused:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_MS / 1000, self.flush)

    def flush(self) -> bool:
        """Publish what waits. False when the store refuses at once: it is kept and tried again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parts = deque(self._parts(self._items))
        self._items = []
        while parts:
            part = parts.popleft()
            try:
                self._publish(part, last=not parts)
            except StoreError as error:
                self._keep([item for kept in (part, *parts) for item in kept], error)
                return False
            except Exception:
                log.exception("event=outcomes_failed count=%d first_seq=%d", len(part), part[0][0].seq)
                if len(part) > 1:  # one by one, so that the one that cannot be written costs its own row alone:
                    parts.extendleft([item] for item in reversed(part))  # claimed, and due again at the next start
        return True

    def _parts(self, items: list[Item]) -> Iterator[list[Item]]:
        """Batches of one partition each."""
        partition_of = self._host.partition_of
        groups = [items]
        if partition_of is not None:
            by_partition: dict[int, list[Item]] = {}
            for item in items:
                by_partition.setdefault(partition_of(item[0].seq), []).append(item)
            groups = list(by_partition.values())
        for group in groups:
            for start in range(0, len(group), FLUSH_OUTCOMES):
                yield group[start : start + FLUSH_OUTCOMES]

    def _publish(self, part: list[Item], *, last: bool) -> None:
        # A refused write may be in the store all the same: what is tried again is judged by the rows as they are.
        claimed = {} if self.refused else {(claim.seq, claim.sink): claim.row for _, claim in part}
        # A breaker goes where rows of its sink key are; what is left of them goes with the last batch.
        moves = self._breakers.take_moves(self._clock(), None if last else {claim.key for _, claim in part})
        batch = OutcomeBatch(tuple(outcome for outcome, _ in part), moves)
        self._flown += 1
        flight = self._flown
        self._flights[flight] = len(part)
        try:
            self._host.publish(batch, claimed, partial(self._ended, flight, part, batch))
        except BaseException:
            self._landed(flight)
            self._breakers.put_back(moves)
            raise

    def _ended(self, flight: int, part: list[Item], batch: OutcomeBatch, error: StoreError | None) -> None:
        """A batch is in the store, or was refused."""
        self._landed(flight)
        if error is None:
            self.refused = 0
            self._written([claim for _, claim in part])
            return
        self._breakers.put_back(batch.breakers)
        kept = [item for item in part if not item[1].gone]
        if kept and not self._closed:
            self._keep(kept, error)

    def _landed(self, flight: int) -> None:
        self._flights.pop(flight, None)
        for awaited, waiter in self._waiters:
            awaited.discard(flight)
            if not awaited and not waiter.done():
                waiter.set_result(None)

    async def settled(self, within_ms: int) -> bool:
        """Publish what waits, and wait until it is in the store. False when the store refuses, or is late."""
        if not self.flush():
            return False
        if not self._flights:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (set(self._flights), waiter)
        self._waiters.append(entry)
        try:
            await asyncio.wait({waiter}, timeout=within_ms / 1000)
        finally:
            self._waiters.remove(entry)
        return waiter.done() and not self.refused

    def forget_gone(self) -> None:
        """Drop what waits of claims that were given up: nothing may be published of them."""
        self._items = [item for item in self._items if not item[1].gone]

    def close(self) -> None:
        """Give up what could not be written: its rows are due again at the next start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closed = True

    def _keep(self, items: list[Item], error: StoreError) -> None:
        self._items = items + self._items
        if not self.refused:
            log.warning("event=outcomes_refused waiting=%d reason=%s", len(self._items), error)
        self.refused += 1
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(REFUSED_MS / 1000, self.flush)
