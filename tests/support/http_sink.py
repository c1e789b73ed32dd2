"""A real HTTP/1.1 sink on loopback: answers as told, counts what it gets. For tests, the demo of a kill, benchmarks.

In a test: `with SinkServer() as sink:`; it runs in a thread and loop of its own, so sync tests can use it.
Alone: `python -m tests.support.http_sink --port 0 --log FILE` prints its address and appends one line to
FILE for every delivery it answered 2xx, before the answer goes out: `id arrival-unix-ms replay-id`.
It never retries, stores nothing else and trusts whoever reaches its port.

Control by HTTP: `POST /__control` with the fields of `Behaviour` as JSON (absent ones take their default),
`GET /__counts` (`?ids=1` adds the count of every id).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, Self, cast

import httptools
import msgspec
import uvloop
from msgspec import Struct, field

from ankusa import clock


class Behaviour(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one request is answered.

    Each waits `delay_ms` first. mode `answer`: `status`, `headers`, `body`. `hang`: take the request, never answer.
    `endless`: status and headers, then a body without end. `stall`: status, headers and half of the body, then
    nothing. `close_mid`: the same, then the connection closes. `close_before`: it closes without a word.
    """

    mode: Literal["answer", "hang", "endless", "stall", "close_mid", "close_before"] = "answer"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = "ok"
    delay_ms: int = 0


def redirect(location: str, status: int = 302) -> Behaviour:
    return Behaviour(status=status, headers={"location": location})


class Received(Struct, frozen=True):
    """One request as it came: header names lower-cased, values decoded as latin-1, in the order they came."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first value of a header, by lower-cased name."""
        return next((value for key, value in self.headers if key == name), None)

    def header_all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


class SinkServer:
    """The server and its book. Attributes may be read from any thread; `behave` and `script` too.

    `requests`: everything received (kept only with `keep`). `counts`: 2xx answers by `x-ankusa-id`.
    `statuses`: answers by status. `connections_opened`, `connections_open`, `in_flight`, `in_flight_max`.
    `together`: none of so many requests is answered before all have come, and those behind them as they come.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, keep: bool = True, log: Path | None = None) -> None:
        self.host, self.port, self.keep = host, port, keep
        self.requests: list[Received] = []
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.total = 0
        self.connections_opened = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self.open: set[Connection] = set()
        self.together = 0
        self._gathered: list[Callable[[], None]] = []
        self._default = Behaviour()
        self._script: deque[Behaviour] = deque()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if log else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/hooks"

    @property
    def connections_open(self) -> int:
        return len(self.open)

    def behave(self, **fields: Any) -> None:
        """Answer every request so from now on, once the script is used up."""
        self._default = Behaviour(**fields)

    def script(self, *behaviours: Behaviour) -> None:
        """Answer the next requests so, one each, in order."""
        self._script.extend(behaviours)

    def next_behaviour(self, request: Received) -> Behaviour:
        """How this request is answered: by the script, by the default then."""
        return self._script.popleft() if self._script else self._default

    def gather(self, answer: Callable[[], None]) -> None:
        """Keep the answer of one of `together` until the last of them."""
        self._gathered.append(answer)
        if len(self._gathered) == self.together:
            self.together = 0
            for each in self._gathered:
                each()

    def delivered(self, request: Received) -> None:
        """Book a 2xx before it is sent: a crash between leaves a counted delivery, never an uncounted one."""
        hook_id = request.header("x-ankusa-id")
        if hook_id is None:
            return
        self.counts[hook_id] += 1
        if self._log is not None:
            line = f"{hook_id} {clock.now_ms()} {request.header('x-ankusa-replay-id') or '-'}\n"
            os.write(self._log, line.encode("latin-1"))

    def summary(self, *, ids: bool) -> bytes:
        delivered = self.counts.total()
        book: dict[str, Any] = {
            "total": self.total,
            "delivered": delivered,
            "unique": len(self.counts),
            "duplicates": delivered - len(self.counts),
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "connections_opened": self.connections_opened,
            "connections_open": self.connections_open,
        }
        if ids:
            book["ids"] = dict(self.counts)
        return msgspec.json.encode(book)

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self, loop), self.host, self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.open):
            connection.abort()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def __enter__(self) -> Self:
        loop = self._loop = uvloop.new_event_loop()
        loop.run_until_complete(self.listen())
        self._thread = threading.Thread(target=loop.run_forever, name="sink-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._thread is not None
        asyncio.run_coroutine_threadsafe(self.shut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.run_until_complete(asyncio.sleep(0))  # lost connections are told before the loop goes
        self._loop.close()


class Connection(asyncio.Protocol):
    """One connection: one request at a time, kept alive until the peer or the behaviour ends it."""

    def __init__(self, server: SinkServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server, self._loop = server, loop
        self._parser: Any = None
        self._transport: asyncio.Transport
        self._writable = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._busy = False
        self.on_message_begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by duck typing alone
        self._writable.set()
        self._server.connections_opened += 1
        self._server.open.add(self)
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.discard(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()
        self._done()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    # httptools callbacks
    def on_message_begin(self) -> None:
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method, target = self._parser.get_method().decode(), self._target.decode("latin-1")
        request = Received(method, target, tuple(self._headers), b"".join(self._body))
        if target.startswith("/__"):
            self._control(request)
            return
        server = self._server
        server.total += 1
        if server.keep:
            server.requests.append(request)
        self._busy = True
        server.in_flight += 1
        server.in_flight_max = max(server.in_flight_max, server.in_flight)
        behaviour = server.next_behaviour(request)
        if server.together:
            server.gather(partial(self._answer, request, behaviour))
        elif behaviour.delay_ms:
            self._loop.call_later(behaviour.delay_ms / 1000, self._answer, request, behaviour)
        else:
            self._answer(request, behaviour)

    def _control(self, request: Received) -> None:
        path, _, query = request.target.partition("?")
        if path == "/__counts":
            self._write(200, {}, self._server.summary(ids="ids=1" in query))
            return
        try:
            self._server._default = msgspec.json.decode(request.body, type=Behaviour)
        except msgspec.DecodeError as error:
            self._write(400, {}, str(error).encode())
        else:
            self._write(200, {}, b"{}")

    def _done(self) -> None:
        if self._busy:
            self._busy = False
            self._server.in_flight -= 1

    def _answer(self, request: Received, behaviour: Behaviour) -> None:
        if behaviour.mode == "hang" or self._transport.is_closing():
            return
        if behaviour.mode == "close_before":
            self._transport.close()
            return
        self._server.statuses[behaviour.status] += 1
        if 200 <= behaviour.status < 300:
            self._server.delivered(request)
        self._done()
        body = behaviour.body.encode()
        if behaviour.mode == "answer":
            self._write(behaviour.status, behaviour.headers, body)
        elif behaviour.mode == "endless":
            self._transport.write(_head(behaviour.status, {**behaviour.headers, "transfer-encoding": "chunked"}))
            self._task = self._loop.create_task(self._endless())
        else:
            headers = {**behaviour.headers, "content-length": str(2 * len(body))}
            self._transport.write(_head(behaviour.status, headers) + body)
            if behaviour.mode == "close_mid":
                self._transport.close()

    def _write(self, status: int, headers: dict[str, str], body: bytes) -> None:
        if status >= 200 and status not in (204, 304):
            headers = {**headers, "content-length": str(len(body))}
        else:
            body = b""
        self._transport.write(_head(status, headers) + body)

    async def _endless(self) -> None:
        chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        while not self._transport.is_closing():
            await self._writable.wait()
            self._transport.write(chunk)
            await asyncio.sleep(0)


def _head(status: int, headers: dict[str, str]) -> bytes:
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Odd"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {phrase}\r\n{lines}\r\n".encode("latin-1")


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Poll until it holds; an AssertionError past the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


async def _serve(server: SinkServer) -> None:
    await server.listen()
    print(f"listening on {server.url}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A sink that counts. Loopback only.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep every request in memory")
    args = parser.parse_args()
    uvloop.run(_serve(SinkServer(port=args.port, log=args.log, keep=args.keep)))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
