"""The dispatcher: one per node, schedules the rows of the partitions it owns (spec 03).

It never polls: a commit or an outcome wakes it, and otherwise it sleeps until the earliest due time. A turn is scan,
claim, start. Owns when that happens, and what others ask of a node's dispatch; how an attempt runs is `attempts`, which
rows are claimed is `claims`. Never writes a table, never decides what an outcome does to a row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from ankusa.claim_check.check_ins import CheckIns
from ankusa.core.pressure import Pressure
from ankusa.core.slots import Caps, Slots
from ankusa.dispatch.attempts import FAULT_MS, Attempts
from ankusa.dispatch.breakers import Breakers
from ankusa.dispatch.claims import Claim, Claims
from ankusa.dispatch.kills import WITHIN_MS, Kills
from ankusa.dispatch.outcomes import OutcomeBuffer
from ankusa.dispatch.ports import DispatchHost, Sources
from ankusa.dispatch.stats import DispatchStats
from ankusa.store.errors import StoreError
from schemas.config import Dispatch

log = logging.getLogger("ankusa.dispatch")

MAX_SLEEP_MS = 5000
"""The longest sleep while a row waits: a wall clock that steps must not leave a due row asleep for longer."""

WRITE_MS = 5000
"""How long a stop waits for the last outcomes to be in the store. What is not costs another delivery."""

CANCEL_MS = 1000
"""How long a stop waits for attempts that it cancelled: one that will not end must not keep the process."""


class Dispatcher:
    """Runs attempts for one host. `clock` gives log time in unix ms, `draw` is uniform in [0, 1).

    Without `check_ins` every body is sent inline.
    """

    def __init__(
        self,
        host: DispatchHost,
        sources: Sources,
        settings: Dispatch,
        clock: Callable[[], int],
        draw: Callable[[], float],
        check_ins: CheckIns | None = None,
    ) -> None:
        self._host = host
        self._clock = clock
        self.check_ins = check_ins
        self._loop = asyncio.get_running_loop()
        self.claims = Claims(host, settings)
        self.slots: Slots[Claim] = Slots(_caps(settings))
        self.stats = DispatchStats.empty()
        self.breakers = Breakers(host.breakers(), settings)
        self._buffer = OutcomeBuffer(host, self.breakers, clock, self._written)
        self.attempts = Attempts(
            host,
            sources,
            settings,
            clock,
            draw,
            breakers=self.breakers,
            slots=self.slots,
            stats=self.stats,
            buffer=self._buffer,
            check_ins=check_ins,
        )
        self._kills = Kills(host, self.claims, self.slots, self.stats, self.attempts.settle, clock)
        self.attempts.condemned = self._kills.takes
        # The next turn: ready to run, or asleep. Two names, since no class tells a timer in every event loop.
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._refused: str | None = None
        self._changed = asyncio.Event()
        self.settled = 0

    # -- waking ---------------------------------------------------------------

    def wake(self) -> None:
        """Something may have come due: take a turn as soon as the loop gets to it."""
        if self._stopped or self._turn is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._turn = self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._turn = self._timer = None
        if self._stopped:
            return
        try:
            more = self._scan()
        except StoreError as error:
            if str(error) != self._refused:
                log.warning("event=scan_refused reason=%s", error)
            self._refused = str(error)
            self.attempts.start()  # what was claimed before it
            self._sleep(FAULT_MS)
            return
        self._refused = None
        self.attempts.start()
        if more:
            self.wake()
        elif not self._host.may_begin():
            self._sleep(FAULT_MS)
        else:
            self._arm()
        if not self.claims.by_place:
            self._changed.set()

    def _scan(self) -> bool:
        """Claim one batch. True when there is more to claim at once."""
        if self._host.unavailable is not None:
            raise StoreError(self._host.unavailable)
        at = self._clock()
        for claim in self.claims.scan(at):
            self.attempts.queue(claim, at)
        return self.claims.more(at)

    def _arm(self) -> None:
        """Sleep until the earliest due time; without one, until woken."""
        times = [due_at for due_at in (self._host.live.next_due_at(), self._host.replayed.next_due_at()) if due_at]
        if times and self.claims.window.room(replayed=False):
            self._sleep(min(MAX_SLEEP_MS, max(1, min(times) - self._clock())))

    def _sleep(self, delay_ms: int) -> None:
        if self._turn is None and self._timer is None and not self._stopped:
            self._timer = self._loop.call_later(delay_ms / 1000, self._run)

    def _written(self, claims: list[Claim]) -> None:
        """Outcomes are in the store: their rows are free, and so is their room."""
        for claim in claims:
            if not claim.gone:
                self.claims.finish(claim)
        self.settled += len(claims)
        self._changed.set()
        self.wake()

    # -- asked of it by others ----------------------------------------------------

    def pressure(self) -> Pressure | None:
        """What a replay asks before a page; None while it cannot say."""
        if self._stopped or self._host.unavailable is not None:
            return None
        at = self._clock()
        oldest = self._host.live.oldest_due_at(at)
        window_full = not self.claims.window.room(replayed=True)
        return Pressure(0 if oldest is None else max(0, at - oldest), window_full)

    def reconfigure(self, settings: Dispatch) -> None:
        """Take `concurrency`, `sink_concurrency`, windows and `tenants` from the current config, without a restart."""
        self.attempts.reconfigure(settings)
        self.breakers.reconfigure(settings)
        self.claims.reconfigure(settings)
        self.slots.reconfigure(_caps(settings))
        self.wake()

    async def dead_letter_source(self, source_id: str, within_ms: int = WITHIN_MS) -> int | None:
        """Kill every row of a source that waits: due, backed off, claimed and queued, member of a lane. How many died.

        Rows of running attempts settle on their own. A row whose hook is gone is dropped and not counted. None
        (`unavailable`) while stopped, while the store refuses, or when it is not through within `within_ms`: what has
        died is dead, and another call goes on with the rest.
        """
        if self._stopped or not await self._buffer.settled(within_ms):
            return None
        try:
            count = await self._kills.run(source_id, within_ms, lambda: self._stopped)
        except StoreError as error:
            log.warning("event=dead_letter_source_refused source=%s reason=%s", source_id, error)
            return None
        return count if await self._buffer.settled(within_ms) else None

    async def tick(self) -> int:
        """Run until nothing is claimed, running or due; the count of rows settled meanwhile. A row in backoff is not
        due. For tests and drains."""
        before = self.settled
        while True:
            self._changed.clear()
            self._buffer.flush()
            at = self._clock()
            due = self._host.live.turn(at) or self._host.replayed.turn(at)
            if self._stopped or not (due or self.claims.by_place):
                return self.settled - before
            self.wake()
            await self._changed.wait()

    def revoke(self, revoked: Callable[[int], bool], grace_ms: int) -> Coroutine[None, None, None]:
        """Give up the rows whose seq `revoked` names: they are another node's, and due there. To be awaited.

        The host hands out none of them any more. Queued ones are given up before this returns; running attempts have
        `grace_ms`, and what comes of them is still published; then they are cancelled, and nothing more is.
        """
        self.slots.withdraw(lambda claim: revoked(claim.seq))
        held = [claim for claim in self.claims.by_place.values() if revoked(claim.seq)]
        idle = [claim for claim in held if claim.task is None and not claim.settled]
        self._give_up(idle)
        return self._end(held, len(idle), grace_ms)

    async def _end(self, held: list[Claim], idle: int, grace_ms: int) -> None:
        tasks = {claim.task for claim in held if claim.task and not claim.settled}
        if tasks:
            await asyncio.wait(tasks, timeout=grace_ms / 1000)
        late = [claim for claim in held if not claim.settled]
        self._give_up(late)
        await self._buffer.settled(WRITE_MS)
        self._give_up([claim for claim in held if self.claims.by_place.get((claim.seq, claim.sink)) is claim])
        self._buffer.forget_gone()
        self.breakers.tell_again()
        log.info("event=rows_revoked queued=%d finished=%d given_up=%d", idle, len(tasks) - len(late), len(late))

    def _give_up(self, claims: list[Claim]) -> None:
        for claim in claims:
            self.attempts.abandon(claim)
            self.claims.give_up(claim)
        self._changed.set()
        self.wake()

    async def stop(self, grace_ms: int) -> None:
        """Drain: no new claims, `grace_ms` for running attempts; the rest are due at the next start."""
        self._stopped = self.attempts.stopped = True
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        for claim in self.slots.drain():
            self.claims.give_back(claim)
        running = {claim.task for claim in self.claims.by_place.values() if claim.task and not claim.task.done()}
        if running:
            _, late = await asyncio.wait(running, timeout=grace_ms / 1000)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_MS / 1000)
            log.info("event=drained finished=%d given_back=%d", len(running) - len(late), len(late))
        if self.check_ins is not None:
            await self.check_ins.close()
        for claim in self.claims.by_place.values():
            if claim.timer is not None:
                claim.timer.cancel()
        await self._buffer.settled(WRITE_MS)
        self._buffer.close()
        self._changed.set()


def _caps(settings: Dispatch) -> Caps:
    tenants = {name: limit.concurrency or settings.concurrency for name, limit in settings.tenants.items()}
    default = tenants.pop("default", settings.concurrency)
    return Caps(settings.concurrency, settings.sink_concurrency, tenants, default)
