"""The node's HTTP clients: one per scheme, host and port, pinned to an address the egress guard judged good.

Owns resolution in time (how long an answer is used, what a failed connect changes) and connection reuse. The
guard decides; a request's contents and the meaning of its answer are the caller's. One event loop only.

DNS cannot change under a connection: a client knows its host by one judged address and no resolver, and a
new answer means a new client. Connections are kept as many as were in use at once, for `IDLE_CONNECTION_S`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from ankusa.sinks.egress import Destination, Egress, Refusal, Unresolved

log = logging.getLogger("ankusa.sink.http")

USER_AGENT = f"ankusa/{version('ankusa-server')}"
RESOLVE_AGE_S = 30.0  # a moved destination is followed within this; its old address is judged good all the while
REFUSED_AGE_S = 5.0  # a refused host costs one lookup in this time, however many rows fail on it
UNRESOLVED_AGE_S = 1.0  # the same for a name nobody knows; also the least time between a failed connect and a lookup
CONNECT_TIMEOUT = timedelta(seconds=3)  # under the default `timeout_ms`, so a second address still gets its try
IDLE_CONNECTION_S = 60
IDLE_CLIENT_S = 600.0  # a client weighs about 140 KB; one that nobody used this long is let go


class Endpoint:
    """One scheme, host and port. Get it from `HttpClients.endpoint`, give it back with `HttpClients.release`."""

    def __init__(self, destination: Destination, egress: Egress, now: Callable[[], float], built: Callable[[], None]):
        self.users = 0
        self._destination, self._egress, self._now, self._built = destination, egress, now, built
        self._client: Client | None = None
        self._verdict: Refusal | Unresolved = Unresolved("not resolved yet")
        self._addresses: list[str] = []
        self._due = now()  # when to ask again; with a client, it may be used meanwhile
        self._work: asyncio.Task[None] | None = None

    @property
    def address_count(self) -> int:
        return len(self._addresses)

    def ready(self) -> Client | None:
        """The client, if one is at hand; the hot path, about a microsecond. Starts a lookup when its time came."""
        client = self._client
        if client is not None and self._now() >= self._due:
            self._start(self._resolve)
        return client

    async def client(self) -> Client | Refusal | Unresolved:
        """The client, or why there is none. Waits for a lookup only when nothing at hand can answer."""
        if (client := self.ready()) is not None:
            return client
        if self._now() >= self._due:
            await asyncio.shield(self._start(self._resolve))
        return self._client or self._verdict

    async def after_failed_connect(self, failed: Client) -> Client | None:
        """Another client to try at once, or None. Moves on to the host's next address and has it looked up soon.

        Many attempts fail together when an address goes away: the first moves, the rest find it done.
        """
        if failed is self._client:
            self._due = min(self._due, self._now() + UNRESOLVED_AGE_S)
            if len(self._addresses) < 2:
                return None
            await asyncio.shield(self._start(self._rotate))
        return self._client if self._client is not failed else None

    def idle_since(self, horizon: float) -> bool:
        return self._client is not None and self._due < horizon

    def drop(self) -> None:
        """Let the client go: its idle connections close now, requests and lookups under way finish."""
        self._client = None
        self._due = self._now()

    def stop(self) -> None:
        """`drop`, and a lookup under way ends too: whoever waits for it is cancelled with it."""
        self.drop()
        if self._work is not None:
            self._work.cancel()

    def _start(self, step: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """One lookup or move at a time, shared by all who wait for it."""
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(step())
        return self._work

    async def _resolve(self) -> None:
        answer = await self._egress.resolve(self._destination)
        now = self._now()
        if isinstance(answer, Unresolved):  # an old judged address outlives a resolver that is away
            self._verdict, self._due = answer, now + UNRESOLVED_AGE_S
        elif isinstance(answer, Refusal):
            self._client, self._addresses = None, []
            self._verdict, self._due = answer, now + REFUSED_AGE_S
        elif self._client is not None and self._addresses[0] in answer:
            pinned = self._addresses[0]
            self._addresses = [pinned, *(ip for ip in answer if ip != pinned)]
            self._due = now + RESOLVE_AGE_S
        else:
            await self._pin(answer)

    async def _rotate(self) -> None:
        if len(self._addresses) > 1:
            await self._pin([*self._addresses[1:], self._addresses[0]])
            self._due = self._now() + UNRESOLVED_AGE_S

    async def _pin(self, ips: list[str]) -> None:
        """Build the client for the first address. In a thread: reading the TLS roots takes about 10 ms."""
        self._addresses = ips
        try:
            self._client = await asyncio.to_thread(_build, self._destination, ips[0])
        except PyreqwestError as error:
            log.warning("client_failed host=%s error=%s", self._destination.host, type(error).__name__)
            self._client, self._verdict = None, Unresolved(f"cannot build a client: {type(error).__name__}")
            self._due = self._now() + UNRESOLVED_AGE_S
            return
        self._due = self._now() + RESOLVE_AGE_S
        self._built()


class HttpClients:
    """All endpoints of the node. `denied` counts the deliveries the guard refused, for metrics."""

    def __init__(self, egress: Egress, *, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: a monotonic clock in seconds."""
        self.egress = egress
        self.denied = 0
        self._now = now
        self._endpoints: dict[tuple[str, str, int], Endpoint] = {}

    def endpoint(self, destination: Destination) -> Endpoint:
        """The shared endpoint of a destination. Opens nothing; each call is one user until `release`."""
        key = (destination.scheme, destination.host, destination.port)
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            endpoint = self._endpoints[key] = Endpoint(destination, self.egress, self._now, self._drop_idle)
        endpoint.users += 1
        return endpoint

    def release(self, endpoint: Endpoint) -> None:
        """One user fewer; without users the client goes."""
        endpoint.users -= 1
        if endpoint.users <= 0:
            endpoint.drop()
            self._endpoints = {key: kept for key, kept in self._endpoints.items() if kept is not endpoint}

    def close(self) -> None:
        """Let every client go, at the end of the node. Idempotent."""
        for endpoint in self._endpoints.values():
            endpoint.stop()
        self._endpoints = {}

    def _drop_idle(self) -> None:
        """Runs when a client was built, the only moment their number grows."""
        horizon = self._now() - IDLE_CLIENT_S
        for endpoint in self._endpoints.values():
            if endpoint.idle_since(horizon):
                endpoint.drop()


def _build(destination: Destination, ip: str) -> Client:
    builder = (
        ClientBuilder()
        .http1_only()
        .http1_lower_case_headers()
        .user_agent(USER_AGENT)
        .follow_redirects(False)
        .referer(False)
        .default_cookie_store(False)
        .no_proxy()  # a proxy would connect to what it resolves itself
        .gzip(False)  # an answer is counted and dropped, never unpacked
        .brotli(False)
        .zstd(False)
        .deflate(False)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(timedelta(seconds=IDLE_CONNECTION_S))
    )
    if not destination.literal:
        builder = builder.resolve(destination.host, ip, destination.port)
    return builder.build()
