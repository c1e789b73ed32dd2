"""Load: a closed loop (N connections, each sends when answered) and an open loop (a fixed rate, whatever is answered).

One prepared request is sent again and again, so that the generator costs as little as can be of the cores it shares
with what it measures. Latencies are from the intended send, in ms; ids of answers 201 are kept for the loss count.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque

from msgspec import Struct


class Result(Struct):
    """What one load saw. `ids` of every hook answered 201."""

    seconds: float
    answers: Counter[int]
    latencies_ms: list[float]
    ids: list[str]

    @property
    def rate(self) -> float:
        """Answers 2xx per second."""
        return sum(count for status, count in self.answers.items() if 200 <= status < 300) / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests go out in order and answers come back in order."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self.sent: deque[float] = deque()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def send(self, intended: float) -> None:
        assert self.transport is not None
        self.sent.append(intended)
        self.transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            head = buffer[:end].lower()
            at = head.find(b"content-length:")
            stop = head.find(b"\r\n", at)
            length = int(head[at + 15 : stop if stop >= 0 else None]) if at >= 0 else 0
            whole = end + 4 + length
            if len(buffer) < whole:
                break
            self._load.answered(self, int(buffer[9:12]), buffer[end + 4 : whole])
            buffer = buffer[whole:]
        self._buffer = buffer

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost(self)


class Load:
    """One run against one address."""

    def __init__(self, host: str, port: int, request: bytes, connections: int) -> None:
        self._host, self._port, self.request = host, port, request
        self._count = connections
        self._connections: list[Connection] = []
        self._answers: Counter[int] = Counter()
        self._latencies: list[float] = []
        self._ids: list[str] = []
        self._closed_until: float | None = None
        self._idle: deque[Connection] = deque()
        self._left = 0
        self._broken = 0

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._count):
            _, connection = await loop.create_connection(lambda: Connection(self), self._host, self._port)
            self._connections.append(connection)

    def answered(self, connection: Connection, status: int, body: bytes) -> None:
        now = time.perf_counter()
        self._answers[status] += 1
        self._latencies.append((now - connection.sent.popleft()) * 1000)
        if status == 201 and body.startswith(b'{"id":"'):
            self._ids.append(body[7:43].decode())
        if self._closed_until is None:
            self._idle.append(connection)
        elif now < self._closed_until:
            connection.send(now)
        else:
            self._left -= 1

    def lost(self, connection: Connection) -> None:
        if connection.sent:
            self._broken += 1
            self._left -= 1

    async def closed(self, seconds: float) -> Result:
        """Every connection sends as soon as it is answered, for `seconds`."""
        await self._connect()
        began = time.perf_counter()
        self._closed_until = began + seconds
        self._left = self._count
        for connection in self._connections:
            connection.send(time.perf_counter())
        while self._left > 0:
            await asyncio.sleep(0.02)
        return self._result(time.perf_counter() - began)

    async def open(self, rate: float, seconds: float) -> Result:
        """`rate` requests a second on their schedule, on whichever connection is idle, else queued on one in turn."""
        await self._connect()
        self._idle.extend(self._connections)
        began = time.perf_counter()
        total, sent, turn = int(rate * seconds), 0, 0
        while sent < total:
            due = min(total, int((time.perf_counter() - began) * rate) + 1)
            while sent < due:
                if self._idle:
                    connection = self._idle.popleft()
                else:
                    connection = self._connections[turn % self._count]
                    turn += 1
                connection.send(began + sent / rate)
                sent += 1
            await asyncio.sleep(0.0005)
        deadline = time.perf_counter() + 30
        while sum(self._answers.values()) + self._broken < total and time.perf_counter() < deadline:
            await asyncio.sleep(0.01)
        return self._result(time.perf_counter() - began)

    def _result(self, seconds: float) -> Result:
        for connection in self._connections:
            if connection.transport is not None:
                connection.transport.close()
        if self._broken:
            self._answers[0] = self._broken
        return Result(seconds, self._answers, self._latencies, self._ids)


def request_bytes(host: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
