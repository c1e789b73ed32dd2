"""Group commit: hooks that arrive together share one append to the log (spec 02).

Owns the queue between the requests and the log, its bounds and its deadlines. One append is in flight at a time, two
under load; the next takes everything that waits, so a slow log makes larger batches and never more of them. It makes
no task and no future per hook, and a request that goes away takes nothing back: its hook is stored with its batch or
refused with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ankusa.edge.log import EdgeLog
from schemas import config
from schemas.append import Answer, AnswerStatus, Submission

log = logging.getLogger("ankusa.edge")

APPEND_DEADLINE_MS = 5000
"""From a hook's receipt to the start of its commit, beside `max_delay_ms`. Providers give up after 5 to 30 s: a
commit that starts later would be answered to nobody. At worst a provider waits this long for a 503."""

BATCH_BYTES = 16 << 20
"""Bodies and headers in one append. Two bodies of the largest default size; more would hold up the small ones behind
them for longer than an fsync. A single larger hook goes alone."""

OVERLAP_HOOKS = 16
"""With this many waiting a second append begins while the first is in flight, so that the edge and the log work at
the same time. Fewer wait for the first to end: a commit of a hook or two costs as much as one of sixteen."""

MAX_APPENDS = 2

RETRY_AFTER_MS = 1000

_EXPIRED = Answer(AnswerStatus.STORE_UNAVAILABLE, retry_after_ms=RETRY_AFTER_MS, reason="no commit within the deadline")
_BROKEN = Answer(AnswerStatus.STORE_UNAVAILABLE, retry_after_ms=RETRY_AFTER_MS, reason="internal error")


class _Queued(NamedTuple):
    submission: Submission
    size_bytes: int
    deadline_at: int
    answered: Callable[[Answer], None]


class Batcher:
    """The queue of one edge process. `clock` gives unix ms. All methods run on one event loop."""

    def __init__(
        self,
        edge_log: EdgeLog,
        settings: config.Batcher,
        clock: Callable[[], int],
        slow_append_ms: int | None = None,
    ) -> None:
        """An append that takes longer than `slow_append_ms` holds up no other: for a log of many parts, of which one
        may be away. None: every append does, for a log that is one thing."""
        self._log = edge_log
        self._slow_append_ms = slow_append_ms
        self._settings = settings
        self._delay_ms = settings.max_delay_ms
        self._deadline_ms = APPEND_DEADLINE_MS + settings.max_delay_ms
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Queued] = deque()
        self._appends: set[asyncio.Task[None]] = set()
        self._slow: set[asyncio.Task[None]] = set()
        self._start: asyncio.Handle | None = None
        self._delayed = False
        self._expiry: asyncio.TimerHandle | None = None
        self.hooks = 0
        self.queued_bytes = 0
        self.reserved_bytes = 0

    # -- bounds -------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether no hook, however small, would be taken."""
        held = self.queued_bytes + self.reserved_bytes
        return self.hooks >= self._settings.max_queue or held >= self._settings.max_queue_bytes

    def reserve(self, size_bytes: int) -> bool:
        """Count bytes of a body that is being read; False, and nothing counted, when they do not fit."""
        if self.queued_bytes + self.reserved_bytes + size_bytes > self._settings.max_queue_bytes:
            return False
        self.reserved_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Take back what was reserved: before the submission it was for, or when there will be none."""
        self.reserved_bytes -= size_bytes

    # -- queueing -----------------------------------------------------------

    def submit(self, submission: Submission, size_bytes: int, answered: Callable[[Answer], None]) -> bool:
        """Queue a submission of `size_bytes` (body and headers). False when the queue is full: overload.

        `answered` gets the log's answer, once, from the event loop. It must not raise.
        """
        settings = self._settings
        if self.hooks >= settings.max_queue:
            return False
        if self.queued_bytes + self.reserved_bytes + size_bytes > settings.max_queue_bytes:
            return False
        self.hooks += 1
        self.queued_bytes += size_bytes
        deadline_at = submission.entry.received_at + self._deadline_ms
        self._waiting.append(_Queued(submission, size_bytes, deadline_at, answered))
        if self._may_begin():
            self._schedule()
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._deadline_ms / 1000, self._expire)
        return True

    def _may_begin(self) -> bool:
        """Whether the next append need not wait for one in flight."""
        if not self._appends:
            return True
        return len(self._appends) < MAX_APPENDS and len(self._waiting) >= OVERLAP_HOOKS

    def _schedule(self) -> None:
        """Start the next append: after what is ready on the loop has submitted too, or after `max_delay_ms`."""
        if self._delay_ms == 0 or len(self._waiting) >= self._settings.max_batch:
            if self._delayed:
                self._unschedule()
            if self._start is None:
                self._start = self._loop.call_soon(self._begin)
        elif self._start is None:
            self._start = self._loop.call_later(self._delay_ms / 1000, self._begin)
            self._delayed = True

    def _unschedule(self) -> None:
        if self._start is not None:
            self._start.cancel()
            self._start = None
            self._delayed = False

    def _begin(self) -> None:
        self._start = None
        self._delayed = False
        self._refuse_expired()
        batch = self._take()
        if batch:
            task = self._loop.create_task(self._run(batch, self._append(batch)))
            self._appends.add(task)
            task.add_done_callback(self._ended)
            if self._slow_append_ms is not None:
                self._loop.call_later(self._slow_append_ms / 1000, self._set_aside, task)

    def _set_aside(self, task: asyncio.Task[None]) -> None:
        """Let others begin beside an append that is slow."""
        if task in self._appends:
            self._appends.discard(task)
            self._slow.add(task)
            if self._waiting and self._may_begin():
                self._schedule()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._appends.discard(task)
        self._slow.discard(task)
        if self._waiting and self._may_begin():
            self._schedule()

    def _take(self) -> list[_Queued]:
        waiting, batch, size_bytes = self._waiting, list[_Queued](), 0
        while waiting and len(batch) < self._settings.max_batch:
            size_bytes += waiting[0].size_bytes
            if batch and size_bytes > BATCH_BYTES:
                break
            batch.append(waiting.popleft())
        return batch

    def _append(self, batch: list[_Queued]) -> Awaitable[list[Answer]] | None:
        """Hand a batch to the log before its task begins: a socket has sent it by the end of this turn of the loop."""
        try:
            return self._log.append([queued.submission for queued in batch], batch[0].deadline_at)
        except Exception:
            log.exception("event=append_raised hooks=%d", len(batch))
            return None

    # -- answering ----------------------------------------------------------

    async def _run(self, batch: list[_Queued], answers: Awaitable[list[Answer]] | None) -> None:
        paired = [(queued, _BROKEN) for queued in batch]
        if answers is not None:
            try:
                paired = list(zip(batch, await answers, strict=True))
            except Exception:
                # The port never raises; whoever broke that leaves the batch's fate unknown.
                log.exception("event=append_raised hooks=%d", len(batch))
        for queued, answer in paired:
            self._settle(queued, answer)

    def _settle(self, queued: _Queued, answer: Answer) -> None:
        self.hooks -= 1
        self.queued_bytes -= queued.size_bytes
        try:
            queued.answered(answer)
        except Exception:
            log.exception("event=answer_failed")  # the others of its batch are answered all the same

    def _refuse_expired(self) -> int:
        """Refuse what has waited past its deadline, before it makes the log refuse a batch. Returns the time."""
        at = self._clock()
        while self._waiting and self._waiting[0].deadline_at < at:
            self._settle(self._waiting.popleft(), _EXPIRED)
        return at

    def _expire(self) -> None:
        """The timer of hooks that wait behind an append that does not end."""
        self._expiry = None
        at = self._refuse_expired()
        if self._waiting:
            left_ms = self._waiting[0].deadline_at - at + 1
            # A clock that steps back must not leave them waiting for the length of the step.
            self._expiry = self._loop.call_later(min(left_ms, self._deadline_ms) / 1000, self._expire)

    def hurry(self) -> None:
        """Delay nothing any more: the edge is about to stop, and requests wait for what is queued."""
        self._delay_ms = 0
        if self._waiting and self._may_begin():
            self._schedule()

    async def drain(self) -> None:
        """Wait until nothing is queued or in flight, in a hurry. Waits for new submissions too."""
        self.hurry()
        while self._appends or self._slow or self._waiting:
            running = self._appends | self._slow
            if running:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # the next is about to begin

    def close(self) -> None:
        """Stop the timers. For after `drain`, or when the process ends anyway."""
        self._unschedule()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
