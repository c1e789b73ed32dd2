"""A claim's way: queued at its sink key, begun when it has a slot, attempted under a deadline, settled by an outcome.

Owns the running of attempts and what their results lead to, as the core decides it; options are always those of the
source as it is now. Nothing a sink does gets past here. Never claims a row and never writes one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from ankusa.claim_check.check_ins import CheckInError, CheckIns
from ankusa.core import retry
from ankusa.core.binding import bind
from ankusa.core.breaker import Phase, Verdict
from ankusa.core.retry import Decision
from ankusa.core.slots import Slots
from ankusa.dispatch.breakers import Breakers
from ankusa.dispatch.claims import Claim
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

FAULT_MS = 1000
"""How long a row waits whose hook cannot be read, or whose source store cannot answer."""


class Attempts:
    """Runs the attempts of claimed rows. `condemned` takes a claim whose source's rows are being killed."""

    def __init__(
        self,
        host: DispatchHost,
        sources: Sources,
        settings: Dispatch,
        clock: Callable[[], int],
        draw: Callable[[], float],
        *,
        breakers: Breakers,
        slots: Slots[Claim],
        stats: DispatchStats,
        buffer: OutcomeBuffer,
        check_ins: CheckIns | None,
    ) -> None:
        self._host = host
        self._sources = sources
        self._settings = settings
        self._clock = clock
        self._draw = draw
        self._breakers = breakers
        self._slots = slots
        self._stats = stats
        self._buffer = buffer
        self._check_ins = check_ins
        self._loop = asyncio.get_running_loop()
        self.condemned: Callable[[Claim, int], bool] = lambda claim, at: False
        self.stopped = False

    def reconfigure(self, settings: Dispatch) -> None:
        self._settings = settings

    def queue(self, claim: Claim, at: int) -> None:
        """Bring a claim on its way: to its sink key's queue, to its sink, or back into the store."""
        try:
            self._queue(claim, at)
        except Exception:
            self._failed(claim)

    def _failed(self, claim: Claim) -> None:
        """A fault of ours, or a sink that is not one: the row comes back a second later, and stops nobody else."""
        log.exception("event=claim_failed seq=%d sink=%d", claim.seq, claim.sink)
        if claim.probe:
            self._breakers.probe_lost(claim.key)
        if not claim.settled:
            self._release(claim)
            self._defer(claim, self._clock())

    def _queue(self, claim: Claim, at: int) -> None:
        row = claim.row
        if self.condemned(claim, at):
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
        if self._breakers.phase(claim.key, at) is Phase.OPEN:
            self._park(claim, source.policies[index], at)
            return
        if self._host.fetches(claim.seq, partial(self.again, claim)) or self._holds(claim, source):
            return
        if source.sinks[index].batching:
            self._launch(claim, at)
        else:
            self._slots.offer(row.tenant_id, claim.key, claim, replayed=claim.replayed)

    def _holds(self, claim: Claim, source: DispatchSource) -> bool:
        """Whether the row waits for its hook's body to be checked in. It does so once: then it runs in any case."""
        if self._check_ins is None or claim.held:
            return False
        row, over_bytes = claim.row, source.inline_max_bytes
        if over_bytes is None or row.size_bytes <= over_bytes:
            return False
        claim.held = True
        return self._check_ins.hold(claim.seq, row.tenant_id, row.size_bytes, over_bytes, partial(self.again, claim))

    def start(self, at: int | None = None) -> None:
        """Begin what has a slot. `at` is the time if the caller has just asked for it."""
        while not self.stopped and self._host.may_begin() and (claim := self._slots.next()) is not None:
            claim.slotted = True
            self._launch(claim, self._clock() if at is None else at)

    def _launch(self, claim: Claim, at: int) -> None:
        """Begin an attempt; a batching sink's takes no slot, for the sink bounds its own queue and requests."""
        if not self._host.may_begin():
            self._loop.call_later(FAULT_MS / 1000, self.again, claim)
            return
        try:
            self._begin(claim, at)
        except StoreError as error:
            log.warning("event=hook_unreadable seq=%d reason=%s", claim.seq, error)
            self._release(claim)
            self._loop.call_later(FAULT_MS / 1000, self.again, claim)
        except Exception:
            self._failed(claim)

    def again(self, claim: Claim) -> None:
        """Queue a claim once more whose hook could not be read, or was being checked in. It stayed claimed: only its
        own row has waited."""
        if not self.stopped and not claim.settled:
            self.queue(claim, self._clock())
            self.start()

    def _begin(self, claim: Claim, at: int) -> None:
        """Start the attempt of a claim that has a slot. Options are those of the source as it is now."""
        claim.started_at = at
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
        verdict = self._breakers.verdict(claim.key, at)
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
            if claim.settled or self.stopped:
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
        self._stats.attempted("ok" if isinstance(result, Ok) else result.error_class, at - claim.started_at)
        outcome = Outcome(
            *_head(claim),
            decision.kind,
            at,
            claim.started_at,
            row.attempts + 1,
            *_rest(decision),
            detail,
        )
        self.settle(claim, outcome)
        if claim.checking_in:  # the sink was never asked, so it says nothing of it
            if claim.probe:
                self._breakers.probe_lost(claim.key)
            self.start(at)
            return
        alive = isinstance(result, Ok) or result.error_class == "permanent"
        if self._breakers.resulted(claim.key, at, alive=alive, probe=claim.probe):
            log.warning("event=breaker_opened key=%s reason=%s", claim.key, decision.error)
            for queued in self._slots.take(claim.key):
                self._park(queued, source.policies[index], at)
        self.start(at)

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
        self.settle(claim, outcome)

    def _park(self, claim: Claim, policy: Retry, at: int) -> None:
        """Put a row back until its breaker closes, its attempts unchanged."""
        decision = retry.parked(claim.row, self._breakers.parked_until(claim.key, at), at, policy)
        self.settle(claim, Outcome(*_head(claim), decision.kind, at, 0, 0, *_rest(decision)))

    def _release(self, claim: Claim) -> None:
        if claim.slotted:
            claim.slotted = False
            self._slots.done(claim.row.tenant_id, claim.key, replayed=claim.replayed)

    def abandon(self, claim: Claim) -> None:
        """Give a claim up, wherever it is: nothing comes of it any more, and its slot is free."""
        if claim.settled:
            return
        claim.settled = True
        if claim.timer is not None:
            claim.timer.cancel()
        self._release(claim)
        if claim.probe:
            self._breakers.probe_lost(claim.key)
        if claim.task is not None:
            claim.task.cancel()

    def _bury(self, claim: Claim, reason: str, at: int) -> None:
        """Dead without an attempt: there is nothing, or nobody, to deliver."""
        outcome = Outcome(*_head(claim), OutcomeKind.DEAD, at, error=reason, error_class=ErrorClass.PERMANENT)
        self.settle(claim, outcome)

    def settle(self, claim: Claim, outcome: Outcome) -> None:
        claim.settled = True
        self._stats.outcomes[outcome.kind] += 1
        self._buffer.add(outcome, claim)


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
