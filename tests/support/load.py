"""A load that outlives the node it is sent to: every request marked, and what each was answered kept.

Connections that break are made again, so the load goes on through a kill and a restart. A mark is a header, which the
node forwards: a sink that keeps marks tells which requests were delivered, those without an answer too. Runs in a
thread with a loop of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Self

import uvloop
from msgspec import Struct

from ankusa import clock
from tests.support.node_process import poll

MARK_HEADER = "x-mark"
RECONNECT_S = 0.02


class Accepted(Struct, frozen=True):
    """A request answered 201. Times in unix ms."""

    id: str
    sent_at: int
    answered_at: int


class Load:
    """Requests over `connections` connections, each sending as soon as it is answered, or `per_second` altogether."""

    def __init__(
        self,
        port: int,
        path: str,
        *,
        body: bytes = b"{}",
        headers: Mapping[str, str] | None = None,
        connections: int = 32,
        per_second: float | None = None,
        vary: Callable[[int], Mapping[str, str]] | None = None,
        most: int | None = None,
        name: str = "load",
    ) -> None:
        """`vary`: more headers for request number n, from 1. `most`: send nothing more once so many are accepted."""
        lines = [f"POST {path} HTTP/1.1", f"host: 127.0.0.1:{port}", f"content-length: {len(body)}"]
        lines += [f"{key}: {value}" for key, value in (headers or {"content-type": "application/json"}).items()]
        self._head = "\r\n".join([*lines, f"{MARK_HEADER}: "]).encode()
        self._tail = b"\r\n\r\n" + body
        self._port, self._name = port, name
        self._connections = connections
        self._per_second = per_second
        self._vary, self._most = vary, most
        self._sent = 0
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._stopping = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.accepted: dict[str, Accepted] = {}
        self.refused: dict[str, int] = {}
        self.unanswered: set[str] = set()
        self.answers: Counter[int] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send nothing more and wait for the answers that are due; what has none after 15 s is unanswered."""
        self._stopping = True
        self._thread.join(30)
        assert not self._thread.is_alive(), "the load did not end"
        if self._failed is not None:
            raise self._failed

    def wait_accepted(self, more: int, within_s: float = 180) -> None:
        """Wait until so many more hooks got a 201."""
        wanted = len(self.accepted) + more
        poll(f"{more} more hooks accepted", lambda: len(self.accepted) >= wanted, within_s)

    def wait_refused(self, more: int, within_s: float = 180) -> None:
        """Wait until so many more were answered anything else."""
        wanted = len(self.refused) + more
        poll(f"{more} more hooks refused", lambda: len(self.refused) >= wanted, within_s)

    @property
    def ids(self) -> set[str]:
        """Every hook id that got a 201."""
        return {accepted.id for accepted in list(self.accepted.values())}

    # -- on its loop --------------------------------------------------------------

    def _run(self) -> None:
        try:
            uvloop.run(self._work())
        except BaseException as error:
            self._failed = error

    async def _work(self) -> None:
        keepers = [asyncio.create_task(self._keep()) for _ in range(self._connections)]
        if self._per_second is not None:
            await self._pace(self._per_second)
        else:
            while not self._stopping:
                await asyncio.sleep(0.01)
        deadline = time.monotonic() + 15
        while any(connection.mark for connection in self._open) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self) -> None:
        """One connection, made again whenever it is lost."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, connection = await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(RECONNECT_S)
                continue
            try:
                await connection.lost
            finally:
                connection.end()
            await asyncio.sleep(RECONNECT_S)

    async def _pace(self, per_second: float) -> None:
        """Send on schedule; what finds no idle connection waits for one, and the schedule does not."""
        began, owed = time.monotonic(), 0
        while not self._stopping:
            due = int((time.monotonic() - began) * per_second)
            while owed < due and self._idle:
                self._send(self._idle.pop())
                owed += 1
            await asyncio.sleep(0.001)

    def _send(self, connection: _Connection) -> None:
        self._sent += 1
        mark = f"{self._name}-{self._sent}"
        more = (
            ""
            if self._vary is None
            else "".join(f"\r\n{key}: {value}" for key, value in self._vary(self._sent).items())
        )
        connection.send(mark, self._head + (mark + more).encode() + self._tail)

    def ready(self, connection: _Connection) -> None:
        """A connection that may send."""
        if self._stopping:
            return
        if self._per_second is None and not self._is_enough():
            self._send(connection)
        else:
            self._idle.append(connection)

    def _is_enough(self) -> bool:
        """Whether `most` are accepted, or will be if those under way are: one that is not is followed by another."""
        under_way = sum(1 for connection in self._open if connection.mark)
        return self._most is not None and len(self.accepted) + under_way >= self._most

    def answered(self, connection: _Connection, status: int, body: bytes) -> None:
        mark = connection.mark
        self.answers[status] += 1
        if status == 201:
            self.accepted[mark] = Accepted(body[7:43].decode(), connection.sent_at, clock.now_ms())
        else:
            self.refused[mark] = status

    def opened(self, connection: _Connection) -> None:
        self._open.add(connection)
        self.ready(connection)

    def closed(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if connection.mark:
            self.unanswered.add(connection.mark)
            connection.mark = ""


class _Connection(asyncio.Protocol):
    """One keep-alive connection with one request under way at most."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self.mark = ""
        self.sent_at = 0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._load.opened(self)

    def send(self, mark: str, request: bytes) -> None:
        assert self._transport is not None
        self.mark, self.sent_at = mark, clock.now_ms()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        _, _, rest = head.partition(b"content-length:")
        whole = end + 4 + int(rest.partition(b"\r\n")[0] or b"0")
        if len(self._buffer) < whole:
            return
        status, body = int(head[9:12]), self._buffer[end + 4 : whole]
        self._buffer = self._buffer[whole:]
        self._load.answered(self, status, body)
        self.mark = ""
        if b"connection: close" in head:
            self.end()
        elif status == 503:  # a refused load must not turn into a busy loop
            asyncio.get_running_loop().call_later(RECONNECT_S, self._again)
        else:
            self._load.ready(self)

    def _again(self) -> None:
        if not self.lost.done():
            self._load.ready(self)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.closed(self)
        if not self.lost.done():
            self.lost.set_result(None)
