"""A request that came whole against the same bytes taken by the app: nobody can tell which way it went."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded
import re
from collections.abc import Iterable
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest

from ankusa.edge import ingest, sources
from ankusa.verify import Failure
from api.edge_protocol import EdgeProtocol
from schemas import config
from schemas.config import Http
from schemas.records import Envelope
from tests.integration.test_ingest import MANY_WAYS, signature
from tests.support.edge import (
    CHUNKED,
    SOURCES,
    MemoryLog,
    chunked,
    connect,
    request,
    run,
    serve,
    signed,
    until,
)

LIMIT = 300_000
"""`max_body_bytes` of these tests: above what is taken whole, and small enough to send."""

OPEN = "/webhooks/open"
ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
GOODBYE = request("GET", "/health", [("connection", "close")])
BYE = b'connection: close\r\n\r\n{"status":"ok"}'
DATE = re.compile(rb"date: [^\r]*")


def bare(raw: str) -> bytes:
    return raw.replace("\n", "\r\n").encode()


CASES = {
    **{f"way-{number}": raw for number, (raw, _) in enumerate(MANY_WAYS)},
    "at the limit of a direct body": request("POST", OPEN, body=b"d" * ingest.DIRECT_BODY_BYTES),
    "over the limit of a direct body": request("POST", OPEN, body=b"d" * (ingest.DIRECT_BODY_BYTES + 1)),
    "at the limit": request("POST", OPEN, body=b"l" * LIMIT),
    "many chunks": request("POST", OPEN, CHUNKED) + chunked(*[b"c"] * 3000),
    "http/1.0": bare("POST /webhooks/open HTTP/1.0\ncontent-length: 2\n\nok"),
    "http/1.0 kept alive": bare("POST /webhooks/open HTTP/1.0\nconnection: keep-alive\ncontent-length: 2\n\nok"),
    "connection: close": request("POST", OPEN, [("connection", "close")], b"last"),
    "connection: keep-alive": request("POST", OPEN, [("connection", "keep-alive")], b"on"),
    "expect": request("POST", OPEN, [("expect", "100-continue")], b"sent all the same"),
    "expect something": request("POST", OPEN, [("expect", "tea")], b"1"),
    "trailers": request("POST", OPEN, CHUNKED) + b"2\r\nab\r\n0\r\nx-late: 1\r\n\r\n",
    "trailers that sign": request("POST", "/webhooks/strict", CHUNKED)
    + b"2\r\nab\r\n0\r\n%s: %s\r\n\r\n" % tuple(part.encode() for part in signature(b"ab")),
    "trailers that frame": request("POST", OPEN, CHUNKED) + b"2\r\nab\r\n0\r\ncontent-length: 9\r\n\r\n",
    "trailers that expect": request("POST", OPEN, CHUNKED) + b"2\r\nab\r\n0\r\nexpect: 100-continue\r\n\r\n",
    "absolute target": request("POST", "http://edge/webhooks/open", body=b"1"),
    "absolute target elsewhere": request("POST", "http://other:9/webhooks/nobody", body=b"1"),
    "query": request("POST", OPEN + "?a=b&c", body=b"1"),
    "empty query": request("POST", OPEN + "?", body=b"1"),
    "fragment": request("POST", OPEN + "#f", body=b"1"),
    "double slash": request("POST", "//webhooks/open", body=b"1"),
    "encoded": request("POST", "/webhooks/%6fpen", body=b"1"),
    "head": request("HEAD", "/health"),
    "head of a catch url": request("HEAD", OPEN),
    "put": request("PUT", OPEN, body=b"1"),
    "upgrade": request("POST", OPEN, [("connection", "upgrade"), ("upgrade", "h2c")], b"kept"),
    "repeated headers": request("POST", "/webhooks/events", [("x-event", "1"), ("x-event", "2")], b"1"),
    "empty header": request("POST", "/webhooks/events", [("x-event", "")], b"1"),
    "headers at the limit": request("POST", OPEN, [("x-long", b"h" * (64_000))], b"1"),
    "headers over the limit": request("POST", OPEN, [("x-long", b"h" * (66_000))], b"1"),
    "latin-1": request("POST", OPEN, [("x", b"\xe9")], b"1"),
    "white space": bare("POST /webhooks/open HTTP/1.1\nHost:edge\nX-A: \t a b \t \nContent-Length:  1 \n\nz"),
    "blank lines first": b"\r\n\r\n" + request("POST", OPEN, body=b"1"),
    "no host": bare("POST /webhooks/open HTTP/1.1\ncontent-length: 1\n\nz"),
    "a fault of ours": request("POST", "/webhooks/broken", body=b"1"),
}

LAST = {
    "two lengths": bare("POST /webhooks/open HTTP/1.1\ncontent-length: 1\ncontent-length: 1\n\nz"),
    "two other lengths": bare("POST /webhooks/open HTTP/1.1\ncontent-length: 1\ncontent-length: 2\n\nzz"),
    "length and chunks": bare(
        "POST /webhooks/open HTTP/1.1\ncontent-length: 1\ntransfer-encoding: chunked\n\n1\nz\n0\n\n"
    ),
    "signed length": bare("POST /webhooks/open HTTP/1.1\ncontent-length: +1\n\nz"),
    "over the limit": request("POST", OPEN, body=b"l" * (LIMIT + 1)),
    "over the limit in chunks": request("POST", OPEN, CHUNKED) + chunked(b"l" * (LIMIT + 1)),
    "chunks that break": request("POST", OPEN, CHUNKED) + b"2\r\nab\r\nnonsense\r\n",
    "folded header": bare("POST /webhooks/open HTTP/1.1\nx: a\n b\ncontent-length: 1\n\nz"),
    "bare return": b"POST /webhooks/open HTTP/1.1\r\nx: a\rb\r\ncontent-length: 1\r\n\r\nz",
    "nul": b"POST /webhooks/open HTTP/1.1\r\nx: a\x00b\r\ncontent-length: 1\r\n\r\nz",
    "connect": bare("CONNECT edge:80 HTTP/1.1\nhost: edge\n\n"),
    "unfinished": request("POST", OPEN, [("content-length", "9")], b"cut"),
    "star": request("POST", "*", body=b"1"),
    "not ascii": request("POST", "/webhooks/\xff".encode("latin-1"), body=b"1"),
    "http/1.2": bare("POST /webhooks/open HTTP/1.2\ncontent-length: 1\n\nz"),
}
"""What ends its connection, one way or the other."""


class Broken:
    """A verifier with a mistake."""

    def verify(self, headers: object, body: bytes, at: int) -> Failure | None:
        raise KeyError("a mistake of ours")


async def transcript(port: int, *parts: bytes) -> bytes:
    """All that is answered to `parts`, sent one after the other, and to a last request that ends the connection; ids
    and dates blanked."""
    found = bytearray()
    async with connect(port) as client, asyncio.timeout(20):
        try:
            for part in (*parts, GOODBYE):
                client.writer.write(part)
                await client.writer.drain()
                await asyncio.sleep(0)
            while chunk := await client.reader.read(1 << 16):
                found += chunk
        except ConnectionError:
            pass  # it ended with something unread
    return DATE.sub(b"date: -", ID.sub(b"an-id", bytes(found)))


def stored_of(log: MemoryLog) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for submission in log.stored:
        entry = submission.entry
        if isinstance(entry, Envelope):
            key = entry.dedupe_key
            found.append((entry.source_id, entry.headers, entry.content_type, key, entry.flagged, submission.body))
        else:
            found.append((entry.source_id, entry.method, entry.path, entry.headers, entry.reason, submission.body))
    return found


async def serve_both(stack: AsyncExitStack, logs: Iterable[MemoryLog], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports of an edge that takes whole requests directly and of one that never does."""
    compile_source = sources.compile_source

    def compiled(source: config.Source) -> sources.EdgeSource:
        made = compile_source(source)
        if source.name != "broken":
            return made
        return sources.EdgeSource(
            **{**{name: getattr(made, name) for name in made.__struct_fields__}, "verifier": Broken()}
        )

    monkeypatch.setattr(sources, "compile_source", compiled)
    ports = []
    for log in logs:
        http = Http(max_body_bytes=LIMIT)
        edge = await stack.enter_async_context(serve(log, sources=[*SOURCES, signed("broken", "reject")], http=http))
        ports.append(edge.port)
    return ports


def never(monkeypatch: pytest.MonkeyPatch, ports: list[int]) -> None:
    """Let connections to the second port have no short cut."""
    made = EdgeProtocol.connection_made

    def connection_made(self: EdgeProtocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        assert self.server is not None
        if self.server[1] == ports[1]:
            self._direct = None

    monkeypatch.setattr(EdgeProtocol, "connection_made", connection_made)


def test_each_request_is_answered_and_stored_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        direct, app = MemoryLog(), MemoryLog()
        async with AsyncExitStack() as stack:
            ports = await serve_both(stack, (direct, app), monkeypatch)
            never(monkeypatch, ports)
            for name, raw in {**CASES, **LAST}.items():
                one, other = [await transcript(port, raw) for port in ports]
                assert one == other, name
                assert stored_of(direct) == stored_of(app), name
                assert one.startswith(b"HTTP/1.1 "), name

    run(body)


@pytest.mark.parametrize("seed", range(4))
def test_mixes_of_requests_in_any_pieces_are_answered_and_stored_the_same_either_way(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)

    async def body() -> None:
        direct, app = MemoryLog(), MemoryLog()
        async with AsyncExitStack() as stack:
            ports = await serve_both(stack, (direct, app), monkeypatch)
            never(monkeypatch, ports)
            small = [
                raw for raw in CASES.values() if len(raw) < 5000 and (await transcript(ports[1], raw)).endswith(BYE)
            ]
            assert len(small) > 30
            assert not direct.stored
            app.stored.clear()
            for _ in range(40):
                mix = chance.choices(small, k=chance.randint(1, 12))
                raw = b"".join(mix)
                cuts = sorted({0, *(chance.randrange(len(raw)) for _ in range(chance.randint(0, 4))), len(raw)})
                parts = [raw[start:end] for start, end in pairwise(cuts)]
                one, other = [await transcript(port, *parts) for port in ports]
                assert one == other, parts
                assert stored_of(direct) == stored_of(app), parts

    run(body)


PIECES = [
    *(b"\r\n", b"\n", b"\0", b"0\r\n\r\n", b"POST ", b"HTTP/1.0", b"Expect: 100-continue\r\n"),
    *(b"Connection: upgrade\r\nUpgrade: x\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n"),
]


def damaged(chance: random.Random) -> bytes:
    """Some requests, with a few bytes changed, left out or put in."""
    small = [raw for raw in {**CASES, **LAST}.values() if len(raw) < 3000 and b"/broken" not in raw]
    raw = bytearray(b"".join(chance.choices(small, k=chance.randint(1, 5))))
    for _ in range(chance.randint(0, 4)):
        at, kind = chance.randrange(len(raw)), chance.random()
        if kind < 0.4:
            raw[at] = chance.randrange(256)
        elif kind < 0.7:
            del raw[at : at + chance.randint(1, 10)]
        else:
            raw[at:at] = chance.choice(PIECES)
    return bytes(raw)


@pytest.mark.parametrize("seed", range(2))
def test_damaged_requests_end_and_leave_nothing_behind(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed)

    async def ask(port: int) -> None:
        raw = damaged(chance)
        cut = chance.randrange(len(raw) + 1)
        try:
            async with connect(port) as client, asyncio.timeout(20):
                client.writer.write(raw[:cut])
                await asyncio.sleep(0)
                client.writer.write(raw[cut:])
                if chance.random() < 0.1:
                    client.writer.transport.abort()
                    return
                client.writer.write_eof()
                await client.reader.read(-1)
        except TimeoutError as error:
            raise AssertionError(raw) from error
        except OSError:
            pass  # it ended before all was sent

    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge:
            for _ in range(25):
                await asyncio.gather(*(ask(edge.port) for _ in range(20)))
            await until(lambda: not edge.listener._server.server_state.connections)
            assert (edge.batcher.hooks, edge.batcher.queued_bytes, edge.batcher.reserved_bytes) == (0, 0, 0)
            assert log.stored

    run(body)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
