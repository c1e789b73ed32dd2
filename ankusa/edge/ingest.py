"""Accepting a hook: an ASGI app for catch URLs, in front of the app for everything else (spec 02).

Owns the order: the route guard, find the source, method, headers, body, verification and policy, dedupe key, one
submission, the answer. No 2xx leaves before the log has said that the hook is durable. It is the hot path, so it is an
ASGI app of its own and no route of a framework; it never commits, and knows nothing of rows or sinks but their types.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain

from msgspec import Struct

from ankusa.clock import uuid7
from ankusa.edge import replies
from ankusa.edge.batcher import Batcher
from ankusa.edge.body import BODY_TIMEOUT_MS, Body, BodyWatch, Receive
from ankusa.edge.forward import decode_headers, forwarded
from ankusa.edge.replies import Message, Reply, reply_of
from ankusa.edge.route_guard import RouteGuard
from ankusa.edge.sources import EdgeSource, Sources, ordering_keys
from ankusa.edge.target import Target
from ankusa.verify import Failure
from schemas.append import Answer, Submission
from schemas.records import Envelope, Held

log = logging.getLogger("ankusa.edge")

Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_HEADER_BYTES = 64 << 10
"""Names and values of one request's headers. Providers send one or two kilobytes; a hook's headers are stored, held
and shipped with it, so what a sender may put there needs a bound beside the one of the body."""

OFFLOAD_BYTES = 512 << 10
"""Bodies from this size are verified in a thread. Hashing this much takes a millisecond or two, which everyone else
would wait for; a thread costs a twentieth of a millisecond and hashing releases the GIL."""

LINGER_MS = 2000
"""How long a refused body is still read and dropped after the answer. A connection closed with unread bytes is reset,
and a reset takes the answer away from a sender that was still writing."""

DIRECT_BODY_BYTES = 128 << 10
"""Bodies up to this size may be taken without a task of their own: what comes in with one read of the socket."""

Headers = list[tuple[str, str]]
Judged = tuple[Failure | None, str | None, tuple[str | None, ...]]


class Head(Struct, frozen=True, gc=False):
    """Request headers that may be taken: in order, by name (the first counts), and their size."""

    headers: Headers
    named: dict[str, str]
    size_bytes: int


def judge(source: EdgeSource, headers: Mapping[str, str], body: bytes, at: int) -> Judged:
    """Whether the hook verifies at `at`, the dedupe key of one that does, and its ordering keys. Safe in any thread.

    One that does not has no dedupe key: anybody can send it, and with a key of his choice he could take the place,
    here or at a sink that goes by the idempotency key, of the true hook that has it.
    """
    failure = source.verifier.verify(headers, body, at)
    ordering = ordering_keys(source, headers, body) if source.ordering else ()
    if failure is not None or source.dedupe is None:
        return failure, None, ordering
    return None, source.dedupe.extract(headers, body), ordering


class Ingest:
    """The app. Paths under `prefix` are catch URLs; every other request, and every other scope, is `others`'s."""

    def __init__(
        self,
        *,
        prefix: str,
        max_body_bytes: int,
        sources: Sources,
        batcher: Batcher,
        clock: Callable[[], int],
        others: App,
        body_timeout_ms: int = BODY_TIMEOUT_MS,
        guard: RouteGuard | None = None,
    ) -> None:
        """`clock` gives unix ms. Make it on the event loop that runs it."""
        self._guard = guard
        self._prefix = prefix.encode("ascii") + b"/"
        self._sources = sources
        self._batcher = batcher
        self._clock = clock
        self._others = others
        self._bodies = BodyWatch(batcher, max_body_bytes, body_timeout_ms)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["raw_path"].startswith(self._prefix):
            await self._others(scope, receive, send)
            return
        try:
            reply = await self._take(scope, receive)
        except Exception:
            log.exception("event=ingest_failed")
            reply = replies.INTERNAL_ERROR
        await send(reply.start)
        if reply.lingers:
            await _linger(reply, receive, send)
        else:
            await send(reply.body)

    async def _take(self, scope: Message, receive: Receive) -> Reply:
        refused = None if self._guard is None else self._guard.refuse(scope)
        if refused is not None:
            return refused
        source = self._sources.find(scope["raw_path"])
        if source is None:
            return replies.NOT_FOUND
        if scope["method"] != "POST":
            return replies.METHOD_NOT_ALLOWED
        if type(source) is Target:
            # 404 makes providers give up: not before it is known.
            return replies.UNKNOWN_SOURCE if self._sources.complete else replies.NOT_TOLD_YET
        assert type(source) is EdgeSource
        head = _head(scope["headers"])
        if head is None:
            return replies.INVALID_HEADERS
        if self._is_too_large(head.named.get("content-length")):
            return self._bodies.too_large
        if self._batcher.full:
            return replies.OVERLOAD
        reading = Body(self._bodies)
        try:
            body = await reading.read(receive)
            if type(body) is not bytes:
                assert type(body) is Reply
                return body
            at = self._clock()
            if len(body) < OFFLOAD_BYTES:
                judged = judge(source, head.named, body, at)
            else:
                loop = asyncio.get_running_loop()
                judged = await loop.run_in_executor(None, judge, source, head.named, body, at)
        finally:
            reading.release()
        entry = _entry(source, head, judged, at, scope["raw_path"], len(body))
        if isinstance(entry, Reply):
            return entry
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self._batcher.submit(Submission(entry, body), len(body) + head.size_bytes, _teller(answered)):
            return replies.OVERLOAD
        return reply_of(await answered, "" if judged[0] is None else judged[0].reason)

    # -- the same for a request that is already whole ------------------------

    def direct(self, url: bytes) -> EdgeSource | None:
        """The source of a POST to `url` that `take_whole` may answer; None for whatever needs the app."""
        return self._sources.known(url) if self._guard is None else None

    def take_whole(
        self,
        source: EdgeSource,
        raw_headers: Sequence[tuple[bytes, bytes]],
        url: bytes,
        body: bytes,
        answer: Callable[[Reply], None],
    ) -> bool:
        """Take a request that came whole, and give its reply to `answer` once, now or later. False, and nothing done,
        for a body that is too large to be taken in passing. It spares a hook a task, a future and two messages each
        way, which cost as much as everything else an edge does for it."""
        if len(body) > min(DIRECT_BODY_BYTES, self._bodies.limit_bytes):
            return False
        try:
            reply = self._submit_whole(source, raw_headers, url, body, answer)
        except Exception:
            log.exception("event=ingest_failed")
            reply = replies.INTERNAL_ERROR
        if reply is not None:
            answer(reply)
        return True

    def _submit_whole(
        self,
        source: EdgeSource,
        raw_headers: Sequence[tuple[bytes, bytes]],
        url: bytes,
        body: bytes,
        answer: Callable[[Reply], None],
    ) -> Reply | None:
        """The reply where there is one already, None when `answer` will get it."""
        head = _head(raw_headers)
        if head is None:
            return replies.INVALID_HEADERS
        if self._batcher.full:
            return replies.OVERLOAD
        at = self._clock()
        judged = judge(source, head.named, body, at)
        entry = _entry(source, head, judged, at, url, len(body))
        if isinstance(entry, Reply):
            return entry
        reason = "" if judged[0] is None else judged[0].reason

        def tell(told: Answer) -> None:
            try:
                reply = reply_of(told, reason)
            except Exception:
                log.exception("event=ingest_failed")
                reply = replies.INTERNAL_ERROR
            answer(reply)

        return (
            None
            if self._batcher.submit(Submission(entry, body), len(body) + head.size_bytes, tell)
            else replies.OVERLOAD
        )

    def _is_too_large(self, content_length: str | None) -> bool:
        """Whether the sender announces too much: no byte of it needs to be read then."""
        if content_length is None or not content_length.isdecimal():
            return False
        return len(content_length) > 18 or int(content_length) > self._bodies.limit_bytes

    def close(self) -> None:
        """Stop the timer of bodies: for after the last request."""
        self._bodies.close()


def _head(raw_headers: Sequence[tuple[bytes, bytes]]) -> Head | None:
    """None for headers that cannot be decoded, or are more than a hook may carry."""
    size_bytes = sum(map(len, chain.from_iterable(raw_headers)))
    headers = decode_headers(raw_headers)
    if headers is None or size_bytes > MAX_HEADER_BYTES:
        return None
    return Head(headers, dict(reversed(headers)), size_bytes)


def _entry(
    source: EdgeSource, head: Head, judged: Judged, at: int, raw_path: bytes, size_bytes: int
) -> Envelope | Held | Reply:
    """What is submitted of a hook that was judged, by the source's policy; the reply where nothing is."""
    failure, dedupe_key, ordering = judged
    if failure is None:
        return envelope(source, head.headers, head.named, at, dedupe_key, ordering)
    if source.policy == "reject":
        return replies.verification_failed(failure.reason)
    if source.policy == "accept_flag":
        return envelope(source, head.headers, head.named, at, None, ordering, flagged=True)
    return held(source, raw_path, head.headers, at, failure, size_bytes)


def _teller(answered: asyncio.Future[Answer]) -> Callable[[Answer], None]:
    def tell(answer: Answer) -> None:
        if not answered.done():
            answered.set_result(answer)

    return tell


def envelope(
    source: EdgeSource,
    headers: Headers,
    named: Mapping[str, str],
    at: int,
    dedupe_key: str | None,
    ordering: tuple[str | None, ...] = (),
    *,
    flagged: bool = False,
) -> Envelope:
    """The envelope of a hook received at `at`. `named` are `headers` by name."""
    hook_id = uuid7(at)
    return Envelope(
        hook_id,
        source.source_id,
        source.tenant_id,
        at,
        source.sinks,
        forwarded(headers, source.forward),
        named.get("content-type"),
        hook_id if dedupe_key is None else source.key_prefix + dedupe_key,
        dedupe_key,
        0 if dedupe_key is None else source.dedupe_ttl_ms,
        flagged,
        ordering,
    )


def held(source: EdgeSource, raw_path: bytes, headers: Headers, at: int, failure: Failure, size_bytes: int) -> Held:
    """A hook for the pen, with all its headers: it may be verified again later."""
    return Held(
        uuid7(at),
        source.source_id,
        source.tenant_id,
        at,
        "POST",
        raw_path.decode("ascii"),
        tuple(headers),
        failure.reason,
        size_bytes,
    )


async def _linger(reply: Reply, receive: Receive, send: Send) -> None:
    """Send a reply whose request is still coming in, and drop what comes until its end or `LINGER_MS`."""
    await send({**reply.body, "more_body": True})
    try:
        async with asyncio.timeout(LINGER_MS / 1000):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
    except TimeoutError:
        pass
    await send({**reply.body, "body": b""})
