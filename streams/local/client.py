"""The edge's end of the socket: the log as an edge sees it when the engine is another process (spec 08).

Owns the connection, its renewal, and the fate of appends across a break:

- Not connected, a new append is refused at once: nothing of it was sent, so STORE_UNAVAILABLE is true.
- An append in flight when the connection broke is sent again, marked so, as soon as there is a connection: what the
  first sending stored is found by hook id and answered as stored. No connection within `RESEND_GRACE_MS` of its
  deadline, or of the break if that came later: STORE_UNAVAILABLE, **its fate unknown**.
- Connected, an append is waited for past its deadline: an engine that has it will answer, and 503 could be untrue.
  Past `HARD_LIMIT_MS` the engine is taken for broken: STORE_UNAVAILABLE, **its fate unknown**, and the connection is
  dropped.

These two are the only cases in which a hook that was answered 503 may be delivered by an engine that lives; one that is
killed while its disk refuses takes with it what it was to take back (docs/delivery.md).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from schemas.append import Answer, AnswerStatus, Submission, decode_answers
from schemas.edge_update import EdgeUpdate, decode_update
from streams.local.frame_reader import FrameError
from streams.local.frames import Kind, append_payload
from streams.local.link import Link

log = logging.getLogger("ankusa.edge")

BACKOFF_S, BACKOFF_MAX_S = 0.01, 1.0
"""Between attempts to connect: an engine that restarts is found within a second of listening."""

FIRST_BACKOFF_MAX_S = 0.1
"""The same until the first connection: an edge that starts waits for it before it listens."""

LASTING_S = 0.1
"""A connection that held this long was good, and the next attempt starts from the shortest backoff. One that breaks
at once, over and over, does not make the edge send its appends again a hundred times a second."""

HELLO_TIMEOUT_S = 2.0
PROBE_TIMEOUT_S = 2.0

RESEND_GRACE_MS = 2000
"""Past an append's deadline, for an engine that is about to be back: a restart takes about a second."""

HARD_LIMIT_MS = 30_000
"""No fsync takes this long on a disk that works, and no provider waits for longer."""

RETRY_AFTER_MS = 1000

_REQUEST_IDS = 1 << 32


def _refused(count: int, reason: str) -> list[Answer]:
    return [Answer(AnswerStatus.STORE_UNAVAILABLE, retry_after_ms=RETRY_AFTER_MS, reason=reason)] * count


class _Append:
    """An append that has been sent and not answered. Times are the loop's, in seconds."""

    def __init__(self, submissions: Sequence[Submission], deadline_at: int, deadline_s: float, ends_s: float) -> None:
        self.submissions = submissions
        self.deadline_at = deadline_at
        self.deadline_s = deadline_s
        self.ends_s = ends_s
        self.answered: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def payload(self, *, again: bool) -> bytes:
        return append_payload(self.submissions, self.deadline_at, again=again)

    def refuse(self, reason: str) -> None:
        if not self.answered.done():
            self.answered.set_result(_refused(len(self.submissions), reason))


class SocketLog:
    """An `EdgeLog` over the socket at `path`. `clock` gives unix ms. Made, started and used on one event loop."""

    def __init__(
        self, path: Path, clock: Callable[[], int], on_update: Callable[[EdgeUpdate], None] = lambda _: None
    ) -> None:
        """`on_update` takes up what the engine tells its edges; raising, it is told again at the next connection."""
        self._path = path
        self._clock = clock
        self._on_update = on_update
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._next_id = 0
        self._appends: dict[int, _Append] = {}
        self._probes: dict[int, asyncio.Future[str]] = {}
        self._connector: asyncio.Task[None] | None = None
        self._reason = "the engine is not connected"
        self._met = False

    @property
    def connected(self) -> bool:
        return self._link is not None

    def start(self) -> None:
        """Connect, now and whenever the connection is lost. Until there is one, appends are refused."""
        self._connector = self._loop.create_task(self._stay_connected())

    async def close(self) -> None:
        """Disconnect for good. Appends in flight are refused, their fate unknown: drain the batcher first."""
        if self._connector is not None:
            self._connector.cancel()
            await asyncio.gather(self._connector, return_exceptions=True)
        for append in list(self._appends.values()):
            append.refuse("the edge is stopping")

    # -- the port -----------------------------------------------------------

    def append(self, submissions: Sequence[Submission], deadline_at: int) -> Awaitable[list[Answer]]:
        """Sent with the call."""
        now_s = self._loop.time()
        deadline_s = now_s + (deadline_at - self._clock()) / 1000
        append = _Append(submissions, deadline_at, deadline_s, now_s + HARD_LIMIT_MS / 1000)
        if self._link is None:
            append.refuse(self._reason)
            return append.answered
        request_id = self._new_id()
        self._appends[request_id] = append
        self._arm(append, append.ends_s)
        self._link.send(Kind.APPEND, request_id, append.payload(again=False))
        return self._answered(request_id, append)

    async def _answered(self, request_id: int, append: _Append) -> list[Answer]:
        try:
            return await append.answered
        finally:
            del self._appends[request_id]
            if append.timer is not None:
                append.timer.cancel()

    async def probe(self) -> str | None:
        link = self._link
        if link is None:
            return self._reason
        request_id = self._new_id()
        answered: asyncio.Future[str] = self._loop.create_future()
        self._probes[request_id] = answered
        link.send(Kind.PROBE, request_id)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await answered or None
        except TimeoutError:
            return "the engine does not answer"
        finally:
            del self._probes[request_id]

    def _new_id(self) -> int:
        self._next_id = (self._next_id + 1) % _REQUEST_IDS
        return self._next_id

    # -- time ---------------------------------------------------------------

    def _arm(self, append: _Append, at_s: float) -> None:
        if append.timer is not None:
            append.timer.cancel()
        append.timer = self._loop.call_at(min(at_s, append.ends_s), self._give_up, append)

    def _give_up(self, append: _Append) -> None:
        append.timer = None
        if self._link is None:
            append.refuse("the engine went away")
        else:
            log.error("event=engine_silent after_ms=%d", HARD_LIMIT_MS)
            append.refuse("the engine does not answer")
            self._link.abort()

    # -- the connection -----------------------------------------------------

    async def _stay_connected(self) -> None:
        backoff_s = BACKOFF_S
        while True:
            try:
                link = await self._connect()
            except (OSError, FrameError, TimeoutError) as error:
                self._say(f"the engine is not connected: {_words(error)}")
            else:
                began_s = self._loop.time()
                await self._use(link)
                if self._loop.time() - began_s > LASTING_S:
                    backoff_s = BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S if self._met else FIRST_BACKOFF_MAX_S)

    async def _connect(self) -> Link:
        """A connection whose engine has greeted. Raises OSError, FrameError or TimeoutError."""
        if self._path.stat().st_uid != os.geteuid():
            raise FrameError(f"{self._path} is another user's")
        link: Link = Link(lambda kind, request_id, payload: self._on_frame(link, kind, request_id, payload))
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            await self._loop.create_unix_connection(lambda: link, os.fspath(self._path))
            try:
                await link.greeted
            except BaseException:
                link.abort()
                raise
        return link

    async def _use(self, link: Link) -> None:
        """Send again what the last connection left unanswered, and stay until this one is lost."""
        log.info("event=engine_connected resent=%d", len(self._appends))
        self._link, self._met = link, True
        for request_id, append in self._appends.items():
            self._arm(append, append.ends_s)
            link.send(Kind.APPEND, request_id, append.payload(again=True))
        try:
            await link.lost
            self._say(f"the engine is not connected: {link.reason}")
        finally:
            self._link = None
            link.abort()
            now_s = self._loop.time()
            for append in self._appends.values():
                self._arm(append, max(append.deadline_s, now_s) + RESEND_GRACE_MS / 1000)
            for answered in self._probes.values():
                if not answered.done():
                    answered.set_result(self._reason)

    def _say(self, reason: str) -> None:
        """Log why there is no connection when that is news: an engine that stays away is one line. One that never was
        there yet is no trouble: a node's edges mostly start before its engine listens."""
        if reason != self._reason:
            log.log(logging.WARNING if self._met else logging.INFO, "event=engine_unavailable reason=%s", reason)
        self._reason = reason

    def _on_frame(self, link: Link, kind: Kind, request_id: int, payload: bytes) -> None:
        """Raises FrameError or one of DecodeError on what is no answer; one to nobody's question is dropped."""
        if kind is Kind.ANSWERS:
            append = self._appends.get(request_id)
            if append is None or append.answered.done():
                return
            answers = decode_answers(payload)
            if len(answers) != len(append.submissions):
                raise FrameError(f"{len(answers)} answers to {len(append.submissions)} submissions")
            append.answered.set_result(answers)
        elif kind is Kind.PROBED:
            answered = self._probes.get(request_id)
            if answered is not None and not answered.done():
                answered.set_result(payload.decode())
        elif kind is Kind.UPDATE:
            self._update(link, request_id, decode_update(payload))
        else:
            raise FrameError(f"an unexpected {kind.name}")

    def _update(self, link: Link, version: int, update: EdgeUpdate) -> None:
        try:
            self._on_update(update)
        except Exception:
            log.exception("event=update_refused version=%d", version)  # the last one stands
        else:
            link.send(Kind.TAKEN, version)


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not error.strerror:
        return "it does not greet"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
