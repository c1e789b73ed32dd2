"""A node with its admin listener on the loopback, on an event loop in a thread, so that tests speak HTTP to it.

Rows are made the way an edge and a dispatcher make them: hooks committed, outcomes published. Time stands still until a
test moves it.
"""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from fastapi import FastAPI
from msgspec import Struct

from ankusa.admission import Admission
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.dispatch.sources import DispatchSource
from ankusa.replay.operator import Operator
from ankusa.sinks.contract import Delivery, Ok, SinkResult
from ankusa.source_store.store import SourceStore, UnreadableSourcesError
from api.admin import build_admin_app
from api.serving import bind, serve
from schemas import records
from schemas.config import AdminToken, Config, ManagedSource, RateLimit, Retry
from schemas.records import Envelope, ErrorClass, Held, Outcome, OutcomeBatch, OutcomeKind
from streams.local.dispatch_host import LocalDispatchHost
from streams.local.health import Health
from streams.local.intake import Intake
from streams.local.log import LocalLog
from streams.local.operations import LocalOperations
from streams.local.replay_host import LocalReplayHost
from streams.local.source_host import LocalSourceHost
from streams.local.sweeper import Sweeper

START = 1_700_000_000_000
TOKENS = {
    "admin": "admin-token",
    "read": "read-token",
    "tenant:acme": "acme-token",
    "tenant:globex": "globex-token",
}

T = TypeVar("T")


class Reply(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body)


class HangingSink:
    """Takes every delivery and never answers, until it is let go."""

    type = "http"
    batching = False
    inline_max_bytes: int | None = None

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def deliver(self, delivery: Delivery) -> SinkResult:
        await self.let_go.wait()
        return Ok("200")

    async def close(self) -> None: ...


class _Sources:
    def __init__(self, parts: Parts) -> None:
        self._parts, self._sink = parts, parts.sink

    def resolve(self, source_id: str) -> DispatchSource | None:
        source = self._parts.config.sources.get(source_id) or self._parts.source_store.source(source_id)
        if source is None:
            return None
        count = len(source.sinks)
        return DispatchSource(source, ("http",) * count, (self._sink,) * count, (Retry(),) * count)


class Parts:
    """What the admin API needs of an engine, without its processes and timers."""

    def __init__(self, path: Path, config: Config, wall: Callable[[], int]) -> None:
        self.config = config
        self.log = LocalLog(path / "store", wall)
        overrides = {
            tenant: RateLimit(rate=limit.rate, burst=limit.burst)
            for tenant, limit in self.log.tables.limits().items()
            if limit.rate is not None and limit.burst is not None
        }
        self.admission = Admission(config.rate_limits, config.quarantine, overrides)
        self.intake = Intake(self.log, self.admission, wall)
        self.health = Health(self.log)
        self.sink = HangingSink()
        self.dispatcher = Dispatcher(
            LocalDispatchHost(self.log), _Sources(self), config.dispatch, self.log.now, lambda: 0.5
        )
        host = LocalReplayHost(self.log, self.dispatcher.pressure, config.node.roles)
        self.replays = Operator(host)
        self.sweeper = Sweeper(self.log)
        source_host = LocalSourceHost(self.log, self.dispatcher)
        self.announced: list[tuple[str, ManagedSource | None]] = []
        try:
            self.source_store = SourceStore(source_host, lambda: self.config, source_host, self._announce)
        except UnreadableSourcesError:
            self.log.close()
            raise

    async def _announce(self, source_id: str, source: ManagedSource | None) -> None:
        self.announced.append((source_id, source))


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of every node. It outlives them: uvicorn takes two tenths of a second to end a listener, which the next
    test need not wait for."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="nodes", daemon=True).start()
    return loop


class Node:
    """One node, from `with` to its end. Methods may be called from the test's thread."""

    def __init__(
        self,
        path: Path,
        *,
        config: Config | None = None,
        tokens: Sequence[AdminToken] = (),
        wrap: Callable[[LocalOperations], Any] = lambda operations: operations,
    ) -> None:
        """`wrap` may put something between the app and the operations."""
        self.wall = START
        self._path, self._config, self._tokens, self._wrap = path, config or Config(), tokens, wrap
        self.parts: Parts
        self.app: FastAPI
        self._made = 0

    def __enter__(self) -> Node:
        self.run(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._stop)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await something on the node's loop."""

        async def awaited() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(awaited(), _loop()).result(30)

    async def _start(self) -> None:
        self.parts = Parts(self._path, self._config, lambda: self.wall)
        self.app = build_admin_app(self._wrap(LocalOperations(self.parts)), self._tokens)
        self._listener = await serve(self.app, bind("127.0.0.1", 0))
        self.port = self._listener.port

    async def _stop(self) -> None:
        self._ending = asyncio.create_task(self._listener.close())
        self.parts.sink.let_go.set()
        await self.parts.dispatcher.stop(1000)
        self.parts.log.close()

    # -- HTTP -------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        scope: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request. `body` is sent as JSON, bytes as they are; `scope` picks the bearer token."""
        sent = dict(headers or {})
        if scope is not None:
            sent["Authorization"] = f"Bearer {TOKENS[scope]}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, *, scope: str | None = None) -> Any:
        """The JSON of a GET that must succeed."""
        reply = self.ask("GET", path, scope=scope)
        assert reply.status == 200, reply
        return reply.json

    # -- things in the store ------------------------------------------------------

    def accept(
        self,
        *,
        tenant: str = "acme",
        source: str = "orders",
        body: bytes = b'{"n":1}',
        sinks: int = 1,
        headers: tuple[tuple[str, str], ...] = (("x-event", "paid"),),
        lane: str | None = None,
    ) -> str:
        """An accepted hook; its id. `lane` is its ordering key at every sink."""
        self._made += 1
        hook_id = f"00000000-0000-7000-8000-{self._made:012x}"
        envelope = Envelope(
            hook_id,
            source,
            tenant,
            self.wall,
            ("http",) * sinks,
            headers,
            "application/json",
            f"key-{self._made}",
            ordering_keys=() if lane is None else (lane,) * sinks,
        )
        self.run(lambda: self.parts.log.commit([(envelope, records.encode(envelope), body)], []))
        return hook_id

    def seq(self, hook_id: str) -> int:
        async def read() -> int | None:
            return self.parts.log.tables.seq_of(hook_id)

        seq = self.run(read)
        assert seq is not None
        return seq

    def settle(
        self,
        hook_id: str,
        kind: OutcomeKind,
        *,
        sink: int = 0,
        error: str | None = "boom",
        error_class: ErrorClass | None = ErrorClass.PERMANENT,
        due_at: int = 0,
    ) -> None:
        """An attempt's outcome."""
        seq = self.seq(hook_id)

        async def publish() -> None:
            row = self.parts.log.tables.row(seq, sink)
            assert row is not None
            failed = kind is not OutcomeKind.DELIVERED
            outcome = Outcome(
                seq,
                sink,
                row.generation,
                kind,
                self.wall,
                self.wall - 5,
                row.attempts + 1,
                due_at,
                error if failed else None,
                error_class if failed else None,
                None if failed else "200",
            )
            self.parts.log.publish(OutcomeBatch((outcome,)))

        self.run(publish)

    def dead(self, *, error: str = "boom", error_class: ErrorClass = ErrorClass.PERMANENT, **hook: Any) -> str:
        """A hook whose first row is dead; its id. Time goes on by a millisecond."""
        hook_id = self.accept(**hook)
        self.wall += 1
        self.settle(hook_id, OutcomeKind.DEAD, error=error, error_class=error_class)
        return hook_id

    def claim(self, count: int) -> None:
        """Let the dispatcher take what is due, until `count` rows are claimed; their attempts hang."""

        async def claimed() -> None:
            dispatcher, loop = self.parts.dispatcher, asyncio.get_running_loop()
            dispatcher.wake()
            deadline = loop.time() + 60
            while len(dispatcher.claims.by_place) < count or not dispatcher.slots.running:
                assert loop.time() < deadline
                await asyncio.sleep(0.001)

        self.run(claimed)

    def hold(self, *, tenant: str = "acme", source: str = "orders", body: bytes = b"held") -> str:
        """A hook in the pen; its id. Time goes on by a millisecond."""
        self._made += 1
        self.wall += 1
        hook_id = f"00000000-0000-7000-8000-{self._made:012x}"
        held = Held(
            hook_id, source, tenant, self.wall, "POST", f"/webhooks/{source}", (("x-a", "1"),), "signature", len(body)
        )
        self.run(lambda: self.parts.log.commit([], [(held, records.encode(held), body)]))
        return hook_id


def tokens() -> tuple[AdminToken, ...]:
    """One token of each scope in `TOKENS`."""
    return tuple(AdminToken(scopes=(scope,), token=token) for scope, token in TOKENS.items())
