"""The dispatcher: one per node, schedules the rows of the partitions it owns (spec 03).

It never polls: a commit or an outcome wakes it, and otherwise it sleeps until the earliest due time. A turn is scan,
claim, start; an attempt is a task with a deadline; what it leads to is decided by the core and buffered. Owns the
running of attempts; never writes a table, never decides what an outcome does to a row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from ankusa.claim_check.check_ins import CheckInError, CheckIns
from ankusa.core import retry
from ankusa.core.binding import bind
from ankusa.core.breaker import Phase, Verdict
from ankusa.core.pressure import Pressure
from ankusa.core.retry import Decision
from ankusa.core.slots import Caps, Slots
from ankusa.dispatch.breakers import Breakers
from ankusa.dispatch.claims import Claim, Claims
from ankusa.dispatch.kills import WITHIN_MS, Kills
from ankusa.dispatch.outcomes import OutcomeBuffer
from ankusa.dispatch.ports import DispatchHost, Sources, SourcesUnavailableError
from ankusa.dispatch.results import ERROR_CLASSES, answered, raised
from ankusa.dispatch.sources import DispatchSource
from ankusa.dispatch.stats import DispatchStats
from ankusa.sinks.contract import Delivery, Failed, Ok, SinkResult
from ankusa.store.errors import StoreError
from schemas.config import Dispatch, Retry
from schemas.records import (
    SOURCE_UNAVAILABLE,
    DecodeError,
    Envelope,
    ErrorClass,
    Outcome,
    OutcomeKind,
    Row,
    sink_key,
)

log = logging.getLogger("ankusa.dispatch")

MAX_SLEEP_MS = 5000
"""The longest sleep while a row waits: a wall clock that steps must not leave a due row asleep for longer."""

FAULT_MS = 1000
"""The pause after a turn that failed on the store, and of a row whose source store cannot answer."""

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
        check_ins: CheckIns[Claim] | None = None,
    ) -> None:
        self._host = host
        self._sources = sources
        self._settings = settings
        self._clock = clock
        self._draw = draw
        self._check_ins = check_ins
        self._loop = asyncio.get_running_loop()
        self.claims = Claims(host, settings)
        self.slots: Slots[Claim] = Slots(_caps(settings))
        self.stats = DispatchStats.empty()
        self.breakers = Breakers(host.breakers(), settings)
        self._buffer = OutcomeBuffer(host, self.breakers, clock, self._written)
        self._kills = Kills(host, self.claims, self.slots, self.stats, self._settle, clock)
        # The next turn: ready to run, or asleep. Two names, since no class tells a timer in every event loop.
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
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
            log.warning("event=scan_refused reason=%s", error)
            self._start()  # what was claimed before it
            self._sleep(FAULT_MS)
            return
        self._start()
        if more:
            self.wake()
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
            self._queue(claim, at)
        if self._check_ins is not None:
            self._check_ins.start(self._again)
        return self.claims.more(at)

    def _arm(self) -> None:
        """Sleep until the earliest due time; without one, until woken."""
        times = [due_at for due_at in (self._host.live.next_due_at(), self._host.replayed.next_due_at()) if due_at]
        if times and self.claims.window.room(replayed=False):
            self._sleep(min(MAX_SLEEP_MS, max(1, min(times) - self._clock())))

    def _sleep(self, delay_ms: int) -> None:
        if self._turn is None and self._timer is None and not self._stopped:
            self._timer = self._loop.call_later(delay_ms / 1000, self._run)

    # -- a claim's way ----------------------------------------------------------

    def _queue(self, claim: Claim, at: int) -> None:
        row = claim.row
        if self._kills.takes(claim, at):
            return
        try:
            source = self._resolve(row.source_id)
        except SourcesUnavailableError:
            self._defer(claim, at)
            return
        index = None if source is None else bind(claim.sink, row.sink_type, source.sink_types)
        if source is None or index is None:
            self._bury(claim, "source_gone" if source is None else "sink_gone", at)
            return
        claim.key = sink_key(row.tenant_id, row.source_id, index, row.sink_type)
        if self.breakers.phase(claim.key, at) is Phase.OPEN:
            self._park(claim, source.policies[index], at)
            return
        if self._holds(claim, source):
            return
        if source.sinks[index].batching:
            self._launch(claim)
        else:
            self.slots.offer(row.tenant_id, claim.key, claim, replayed=claim.replayed)

    def _holds(self, claim: Claim, source: DispatchSource) -> bool:
        """Whether the row waits for its hook's body to be checked in. It does so once: then it runs in any case."""
        if self._check_ins is None or claim.held:
            return False
        row, over_bytes = claim.row, source.inline_max_bytes
        if over_bytes is None or row.size_bytes <= over_bytes:
            return False
        claim.held = True
        return self._check_ins.hold(claim.seq, row.tenant_id, row.size_bytes, over_bytes, claim)

    def _start(self) -> None:
        while not self._stopped and (claim := self.slots.next()) is not None:
            claim.slotted = True
            self._launch(claim)

    def _launch(self, claim: Claim) -> None:
        """Begin an attempt; a batching sink's takes no slot, for the sink bounds its own queue and requests."""
        try:
            self._begin(claim)
        except StoreError as error:
            log.warning("event=hook_unreadable seq=%d reason=%s", claim.seq, error)
            self._release(claim)
            self._loop.call_later(FAULT_MS / 1000, self._again, claim)

    def _again(self, claim: Claim) -> None:
        """Queue a claim once more whose hook could not be read, or was being checked in. It stayed claimed: only its
        own row has waited."""
        if not self._stopped and not claim.settled:
            self._queue(claim, self._clock())
            self._start()

    def _begin(self, claim: Claim) -> None:
        """Start the attempt of a claim that has a slot. Options are those of the source as it is now."""
        at = claim.started_at = self._clock()
        row = claim.row
        try:
            hook = self._host.hook(claim.seq)
            source = self._resolve(row.source_id)
        except DecodeError as error:
            self._release(claim)
            log.warning("event=hook_undecodable seq=%d sink=%d reason=%s", claim.seq, claim.sink, error)
            self._bury(claim, "undecodable", at)
            return
        except SourcesUnavailableError:
            self._release(claim)
            self._defer(claim, at)
            return
        index = None if source is None else bind(claim.sink, row.sink_type, source.sink_types)
        if hook is None or source is None or index is None:
            self._release(claim)
            self._bury(claim, "hook_missing" if hook is None else "source_gone" if source is None else "sink_gone", at)
            return
        verdict = self.breakers.verdict(claim.key, at)
        if verdict is Verdict.PARK:
            self._release(claim)
            self._park(claim, source.policies[index], at)
            return
        claim.probe = verdict is Verdict.PROBE
        delivery = _delivery(claim, row, *hook)
        inline_max_bytes = source.sinks[index].inline_max_bytes
        large = inline_max_bytes is not None and len(delivery.body) > inline_max_bytes
        claim.checking_in = large and self._check_ins is not None
        claim.task = self._loop.create_task(self._attempt(claim, source, index, delivery))
        claim.timer = self._loop.call_later(
            self._settings.attempt_timeout_ms / 1000, self._expire, claim, source, index
        )

    async def _attempt(self, claim: Claim, source: DispatchSource, index: int, delivery: Delivery) -> None:
        """Nothing a sink does gets past here."""
        try:
            if claim.checking_in and self._check_ins is not None:
                reference = await self._check_ins.reference(claim.seq, delivery.tenant_id, delivery.body)
                delivery, claim.checking_in = replace(delivery, claim=reference), False
            result = answered(await source.sinks[index].deliver(delivery))
        except asyncio.CancelledError:
            if claim.settled or self._stopped:
                raise
            result = Failed("transient", "the sink cancelled its own attempt")
        except CheckInError as error:
            result = Failed("transient", f"claim_check: {error}"[: retry.ERROR_LIMIT])
        except Exception as error:
            result = raised(error)
            log.warning("event=sink_raised key=%s error=%s", claim.key, type(error).__name__)
        self._finish(claim, source, index, result)

    def _expire(self, claim: Claim, source: DispatchSource, index: int) -> None:
        """The attempt's deadline: it counts as failed and its slot is free, whatever its task still does."""
        if claim.settled:
            return
        timeout_ms = self._settings.attempt_timeout_ms
        if claim.task is not None:
            claim.task.cancel()  # first, so that it has ended when its slot's next attempt begins
        self._finish(claim, source, index, Failed("timeout", f"attempt_timeout: no result within {timeout_ms} ms"))

    def _finish(self, claim: Claim, source: DispatchSource, index: int, result: SinkResult) -> None:
        if claim.settled:
            return
        claim.settled = True
        if claim.timer is not None:
            claim.timer.cancel()
        self._release(claim)
        at = self._clock()
        row = claim.row
        if isinstance(result, Ok):
            decision, detail = retry.delivered(), result.detail
        else:
            policy, error_class = source.policies[index], ERROR_CLASSES[result.error_class]
            decision = retry.after_failure(
                row, claim.started_at, at, result.reason, error_class, result.retry_after_ms, policy, self._draw()
            )
            detail = None
        self.stats.attempted("ok" if isinstance(result, Ok) else result.error_class, at - claim.started_at)
        outcome = Outcome(
            *_head(claim),
            decision.kind,
            at,
            claim.started_at,
            row.attempts + 1,
            *_rest(decision),
            detail,
        )
        self._settle(claim, outcome)
        if claim.checking_in:  # the sink was never asked, so it says nothing of it
            if claim.probe:
                self.breakers.probe_lost(claim.key)
            self._start()
            return
        alive = isinstance(result, Ok) or result.error_class == "permanent"
        if self.breakers.resulted(claim.key, at, alive=alive, probe=claim.probe):
            log.warning("event=breaker_opened key=%s reason=%s", claim.key, decision.error)
            for queued in self.slots.take(claim.key):
                self._park(queued, source.policies[index], at)
        self._start()

    def _resolve(self, source_id: str) -> DispatchSource | None:
        """A source as it is now. Raises SourcesUnavailableError, whatever is wrong: it must stop nobody else."""
        try:
            return self._sources.resolve(source_id)
        except SourcesUnavailableError:
            raise
        except Exception as error:
            log.error("event=source_failed source=%s error=%s", source_id, type(error).__name__)
            raise SourcesUnavailableError("the source cannot be built") from error

    def _defer(self, claim: Claim, at: int) -> None:
        """Put a row back for a second, unspent and without a trace: nobody knows its source now."""
        outcome = Outcome(*_head(claim), OutcomeKind.PARKED, at, due_at=at + FAULT_MS, detail=SOURCE_UNAVAILABLE)
        self._settle(claim, outcome)

    def _park(self, claim: Claim, policy: Retry, at: int) -> None:
        """Put a row back until its breaker closes, its attempts unchanged."""
        decision = retry.parked(claim.row, self.breakers.parked_until(claim.key, at), at, policy)
        self._settle(claim, Outcome(*_head(claim), decision.kind, at, 0, 0, *_rest(decision)))

    def _release(self, claim: Claim) -> None:
        if claim.slotted:
            claim.slotted = False
            self.slots.done(claim.row.tenant_id, claim.key, replayed=claim.replayed)

    def _bury(self, claim: Claim, reason: str, at: int) -> None:
        """Dead without an attempt: there is nothing, or nobody, to deliver."""
        outcome = Outcome(*_head(claim), OutcomeKind.DEAD, at, error=reason, error_class=ErrorClass.PERMANENT)
        self._settle(claim, outcome)

    def _settle(self, claim: Claim, outcome: Outcome) -> None:
        claim.settled = True
        self.stats.outcomes[outcome.kind] += 1
        self._buffer.add(outcome, claim)

    def _written(self, claims: list[Claim]) -> None:
        """Outcomes are in the store: their rows are free, and so is their room."""
        for claim in claims:
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
        self._settings = settings
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
        if self._stopped or not self._buffer.flush():
            return None
        try:
            count = await self._kills.run(source_id, within_ms, lambda: self._stopped)
        except StoreError as error:
            log.warning("event=dead_letter_source_refused source=%s reason=%s", source_id, error)
            return None
        return count if self._buffer.flush() else None

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

    async def stop(self, grace_ms: int) -> None:
        """Drain: no new claims, `grace_ms` for running attempts; the rest are due at the next start."""
        self._stopped = True
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
        if self._check_ins is not None:
            await self._check_ins.close()
        for claim in self.claims.by_place.values():
            if claim.timer is not None:
                claim.timer.cancel()
        self._buffer.flush()
        self._buffer.close()
        self._changed.set()


def _head(claim: Claim) -> tuple[int, int, int]:
    return claim.seq, claim.sink, claim.row.generation


def _rest(decision: Decision) -> tuple[int, str | None, ErrorClass | None]:
    return decision.due_at, decision.error, decision.error_class


def _delivery(claim: Claim, row: Row, envelope: Envelope, body: bytes) -> Delivery:
    return Delivery(
        envelope.id,
        envelope.source_id,
        envelope.tenant_id,
        envelope.received_at,
        envelope.headers,
        envelope.content_type,
        body,
        envelope.idempotency_key,
        envelope.dedupe_key,
        row.replay_id,
        row.attempts + 1,
        claim.started_at,
    )


def _caps(settings: Dispatch) -> Caps:
    tenants = {name: limit.concurrency or settings.concurrency for name, limit in settings.tenants.items()}
    default = tenants.pop("default", settings.concurrency)
    return Caps(settings.concurrency, settings.sink_concurrency, tenants, default)
