"""Killing the rows of a source (spec 03 `dead_letter_source`): every one that waits dies, by outcomes, now.

While a source is being killed no row of it starts an attempt: what is claimed meanwhile dies too, so that no claim
races the kill. Rows are found in slices, and the loop goes on between them. Owns the kills under way and what becomes
of each row; never touches a running attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ankusa.core.slots import Slots
from ankusa.dispatch.claims import Claim, Claims
from ankusa.dispatch.ports import DispatchHost, Place, Waiting
from ankusa.dispatch.stats import DispatchStats
from ankusa.store.errors import StoreError
from schemas.records import ErrorClass, Outcome, OutcomeBatch, OutcomeKind, Row, RowState

REASON = "dead_lettered"
"""What a row says that died this way."""

WITHIN_MS = 20_000
"""How long one call may take. On 2 cores some 10,000 rows die in a second."""


class Kill:
    """One source's kill. `count` is the rows that died, `calls` how many callers wait for it."""

    __slots__ = ("calls", "count")

    def __init__(self) -> None:
        self.count = 0
        self.calls = 0

    def outcome(self, place: Place, row: Row, at: int, *, hook_stored: bool) -> Outcome:
        """A row without its hook is dropped and not counted; any other dies, whatever its attempts."""
        if not hook_stored:
            return Outcome(*place, row.generation, OutcomeKind.DROPPED, at)
        self.count += 1
        return Outcome(*place, row.generation, OutcomeKind.DEAD, at, error=REASON, error_class=ErrorClass.PERMANENT)


class Kills:
    """The kills of one dispatcher. `settle` takes the outcome of a claim, as the dispatcher's own do."""

    def __init__(
        self,
        host: DispatchHost,
        claims: Claims,
        slots: Slots[Claim],
        stats: DispatchStats,
        settle: Callable[[Claim, Outcome], None],
        clock: Callable[[], int],
    ) -> None:
        self._host = host
        self._claims = claims
        self._slots = slots
        self._stats = stats
        self._settle = settle
        self._clock = clock
        self._by_source: dict[str, Kill] = {}

    async def run(self, source_id: str, within_ms: int, stopped: Callable[[], bool]) -> int | None:
        """Kill a source's rows; how many died, None when that is not done within `within_ms` or before a stop. Callers
        at the same time share a kill, and each hears its whole count. Raises StoreError."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + within_ms / 1000
        kill = self._by_source.setdefault(source_id, Kill())
        kill.calls += 1
        try:
            self._kill_queued(source_id, kill)
            for waiting in self._host.waiting(source_id):
                written = self._kill_waiting(waiting, kill)
                await asyncio.sleep(0)
                if written is not None and not written.done():
                    await asyncio.wait({written}, timeout=max(0, ends_s - loop.time()))
                if stopped() or loop.time() >= ends_s:
                    return None
                if written is not None and (error := written.result()) is not None:
                    raise error
            return kill.count
        finally:
            kill.calls -= 1
            if not kill.calls:
                del self._by_source[source_id]

    def takes(self, claim: Claim, at: int) -> bool:
        """Kill a row that was just claimed, when its source is being killed."""
        kill = self._by_source.get(claim.row.source_id)
        if kill is not None:
            self._kill(claim, kill, at)
        return kill is not None

    def _kill_queued(self, source_id: str, kill: Kill) -> None:
        """Claims without an attempt: those in the slots' queues, and those that wait for their hook to be readable."""
        at = self._clock()
        claims = [claim for claim in self._claims.by_place.values() if claim.row.source_id == source_id]
        idle = [claim for claim in claims if claim.task is None and not claim.settled]
        for key in {claim.key for claim in idle}:
            self._slots.take(key)
        for claim in idle:
            self._kill(claim, kill, at)

    def _kill_waiting(self, waiting: list[Waiting], kill: Kill) -> asyncio.Future[StoreError | None] | None:
        """Rows that nobody has claimed. They are claimed until they are dead in the store, which the answer tells of:
        between the host's reading and that nobody else may take one."""
        at = self._clock()
        found = [one for one in waiting if one.place not in self._claims.by_place]
        if not found:
            return None
        outcomes = tuple(kill.outcome(place, row, at, hook_stored=stored) for place, row, stored in found)
        claims = [self._claims.take(*one.place, one.row) for one in found]
        written: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        ended = partial(self._ended, claims, outcomes, written)
        for claim in claims:
            claim.settled = True
        try:
            self._host.publish(OutcomeBatch(outcomes), {one.place: one.row for one in found}, ended)
        except StoreError as error:
            ended(error)
            raise
        return written

    def _ended(
        self,
        claims: Sequence[Claim],
        outcomes: Sequence[Outcome],
        written: asyncio.Future[StoreError | None],
        error: StoreError | None,
    ) -> None:
        """The rows of a slice are dead in the store, or are not, and due as before."""
        for claim in claims:
            if claim.gone:
                continue
            if error is None or claim.row.state is not RowState.PENDING:
                self._claims.finish(claim)
            else:
                self._claims.give_back(claim)
        if error is None:
            for outcome in outcomes:
                self._stats.outcomes[outcome.kind] += 1
        if not written.done():
            written.set_result(error)

    def _kill(self, claim: Claim, kill: Kill, at: int) -> None:
        try:
            stored = self._host.hook_stored(claim.seq)
        except StoreError:
            stored = True  # nobody knows: dead, where it can be looked at
        self._settle(claim, kill.outcome((claim.seq, claim.sink), claim.row, at, hook_stored=stored))
