"""A request that came whole against the same bytes taken by the app: nobody can tell which way it went."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded
import re
import struct
from collections.abc import Iterable
from contextlib import AsyncExitStack
from itertools import pairwise
from socket import SO_LINGER, SOL_SOCKET

import pytest

from ankusa.edge import ingest, sources
from ankusa.verify import Failure
from api import edge_protocol
from api.edge_protocol import EdgeProtocol
from schemas import config
from schemas.append import Answer, AnswerStatus
from schemas.config import Http
from schemas.records import Envelope
from tests.integration.test_ingest import MANY_WAYS, signature
from tests.support.edge import (
    CHUNKED,
    SOURCES,
    MemoryLog,
    RunningEdge,
    chunked,
    connect,
    durable,
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


# -- trailers ---------------------------------------------------------------------


@pytest.mark.parametrize("cut", [False, True])
def test_trailers_are_no_headers(cut: bool) -> None:
    """They come behind what was verified and are told apart from headers by nobody later: they count for nothing."""

    async def body() -> None:
        log = MemoryLog()
        late = b"0\r\nx-late: 1\r\nexpect: 100-continue\r\n%s: %s\r\n\r\n"
        late %= tuple(part.encode() for part in signature(b"ab"))
        async with serve(log) as edge, connect(edge.port) as client:
            for path, status in (("/webhooks/strict", 401), (OPEN, 201)):
                client.writer.write(request("POST", path, CHUNKED) + b"2\r\nab\r\n" + (b"" if cut else late))
                if cut:
                    await until(lambda: connection(edge).cycle is not None and connection(edge).cycle.more_body)
                    client.writer.write(late)
                assert (await client.answer()).status == status
            (stored,) = log.stored
            assert isinstance(stored.entry, Envelope)
            assert stored.entry.headers == ()

    run(body)


def test_headers_of_a_connection_that_offers_an_upgrade_travel_no_further() -> None:
    async def body() -> None:
        log = MemoryLog()
        named = [("connection", "X-Hop, upgrade"), ("connection", "HTTP2-Settings"), ("x-hop", "1"), ("x-kept", "2")]
        offer = [("upgrade", "h2c"), ("http2-settings", "AAMA")]
        async with serve(log) as edge, connect(edge.port) as client:
            assert (await client.post(OPEN, b"1", named)).status == 201
            assert (await client.post(OPEN, b"1", [*named, *offer])).status == 201
            last = await client.post(OPEN, b"1", [*named, *offer, ("connection", "close")])
            assert (last.status, last.headers["connection"]) == (201, "close")
        for stored in log.stored:
            assert isinstance(stored.entry, Envelope)
            assert stored.entry.headers == (("x-kept", "2"),)

    run(body)


# -- connections ------------------------------------------------------------------


def connection(edge: RunningEdge) -> EdgeProtocol:
    """The only connection of an edge."""
    (found,) = edge.listener._server.server_state.connections
    assert isinstance(found, EdgeProtocol)
    return found


def idle_since(edge: RunningEdge, seconds: float) -> bool:
    """Whether the connection of an edge is closed when `seconds` have passed without anything."""
    one = connection(edge)
    one.close_if_stalled(one.loop.time() + seconds)
    return one.transport.is_closing()


@pytest.mark.parametrize(
    "raw",
    [request("POST", OPEN, body=b"1"), request("POST", "/webhooks/strict", body=b"1"), request("GET", "/health")],
    ids=["direct", "direct, at once", "app"],
)
def test_a_connection_may_be_idle_for_75_seconds(raw: bytes) -> None:
    async def body() -> None:
        async with serve(MemoryLog()) as edge, connect(edge.port) as client:
            for _ in range(3):
                await client.ask(raw)
                assert not idle_since(edge, 74)
            assert idle_since(edge, 76)
            assert await client.closed()

    run(body)


def test_a_connection_answered_before_its_body_came_is_idle_afterwards() -> None:
    async def body() -> None:
        async with serve(MemoryLog()) as edge, connect(edge.port) as client:
            early = request("POST", "/webhooks/nobody", [("content-length", "5")])
            assert (await client.ask(early)).status == 404
            client.writer.write(b"12345\r\n")
            assert (await client.ask(early)).status == 404  # so the body has been read
            client.writer.write(b"12345\r\n\r\n\r\n")
            await until(lambda: connection(edge)._body_came)
            assert not idle_since(edge, 74)
            assert idle_since(edge, 76)

    run(body)


def test_blank_lines_are_no_use_of_a_connection() -> None:
    async def body() -> None:
        async with serve(MemoryLog()) as edge, connect(edge.port) as client:
            assert (await client.post(OPEN, b"1")).status == 201
            client.writer.write(b"\r\n")
            await until(lambda: connection(edge)._head_bytes == 2)
            assert idle_since(edge, 76)

    run(body)


def test_a_request_that_waits_for_its_answer_is_not_idle() -> None:
    """Also behind one that was answered at once, and before a head that has begun."""

    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            refused = request("POST", "/webhooks/strict", body=b"1")
            assert (await client.ask(refused + request("POST", OPEN, body=b"1"))).status == 401
            await until(lambda: len(log.batches) == 1)
            assert not idle_since(edge, 1000)
            log.gate.set()
            assert (await client.answer()).status == 201
            log.gate.clear()
            whole = request("POST", OPEN, [("x-a", "1")], b"2")
            client.writer.write(request("POST", OPEN, body=b"1") + whole[:20])
            await until(lambda: len(log.batches) == 2)
            log.gate.set()
            assert (await client.answer()).status == 201
            log.gate.clear()
            client.writer.write(whole[20:])
            await until(lambda: len(log.batches) == 3)
            assert not idle_since(edge, 1000)
            log.gate.set()
            assert (await client.answer()).status == 201
            assert idle_since(edge, 76)

    run(body)


@pytest.mark.parametrize("head", [b"POST", b"\r\n\r\nPOST"])
def test_a_head_has_its_own_time_on_a_connection_that_was_idle(head: bytes) -> None:
    async def body() -> None:
        async with serve(MemoryLog()) as edge, connect(edge.port) as client:
            assert (await client.post(OPEN, b"1")).status == 201
            one = connection(edge)
            one._idle_since = one.loop.time() - 74
            client.writer.write(head)
            await until(lambda: one._head_bytes == len(head))
            assert not idle_since(edge, 29)
            assert idle_since(edge, 31)

    run(body)


@pytest.mark.parametrize("behind", [b"", request("POST", OPEN, body=b"2"), request("GET", "/health"), b"POST /web"])
def test_clients_that_vanish_before_their_answers_leave_no_trace(
    behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge:
            async with connect(edge.port) as client:
                client.writer.write(request("POST", OPEN, body=b"1") + behind)
                await until(lambda: len(log.batches) == 1)
                sock = client.writer.get_extra_info("socket")
                sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            # What is pipelined stops the reading, so that nobody notices: then the answer meets the reset.
            for _ in range(5):
                await asyncio.sleep(0)
            log.gate.set()
            await until(lambda: edge.batcher.hooks == 0 and not edge.listener._server.server_state.connections)
            assert not edge.listener._server.server_state.tasks
            assert log.stored[0].body == b"1"

    run(body)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("ends", ["half closed", "listener closes"])
def test_what_waits_when_no_more_can_come_is_answered_in_order_and_then_the_connection_ends(ends: str) -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            behind = [request("POST", OPEN, body=b"2"), request("GET", "/health"), request("POST", OPEN, body=b"3")]
            client.writer.write(b"".join([request("POST", OPEN, body=b"1"), *behind]))
            await until(lambda: len(log.batches) == 1)
            one, closing = connection(edge), asyncio.get_running_loop().create_future()
            last = one.cycle
            if ends == "half closed":
                client.writer.write_eof()
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not one.transport.is_closing()
                closing.set_result(None)
            else:
                closing = asyncio.ensure_future(edge.listener.close())
                await until(lambda: not last.keep_alive)
            log.gate.set()
            answers = [await client.answer() for _ in range(4)]
            assert [answer.status for answer in answers] == [201, 201, 200, 201]
            assert await client.closed()
            assert [stored.body for stored in log.stored] == [b"1", b"2", b"3"]
            await closing

    run(body)


@pytest.mark.parametrize("waits", [True, False])
def test_an_answer_to_a_connection_that_was_closed_meanwhile_is_dropped(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(request("POST", OPEN, body=b"1") + request("POST", OPEN, body=b"2") + b"POST /web")
            await until(lambda: len(log.batches) == 1)
            one = connection(edge)
            one.close_if_stalled(one.loop.time() + 31)  # the third head does not end
            assert await client.closed()
            if waits:
                await until(lambda: not edge.listener._server.server_state.connections)
            log.gate.set()
            await until(lambda: edge.batcher.hooks == 0)

    run(body)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_many_whole_requests_in_one_read_are_all_answered() -> None:
    """More than a head may be, which ends in the middle of one."""

    async def body() -> None:
        log = MemoryLog()
        for one in (request("POST", OPEN, body=b"b" * 500), request("POST", "/webhooks/strict")):
            count = (edge_protocol.MAX_HEAD_BYTES + 10_000) // len(one)
            async with serve(log) as edge, connect(edge.port) as client:
                assert (await client.post(OPEN)).status == 201
                protocol = connection(edge)
                protocol.data_received(one * count + one[:-10])
                status = 401 if b"strict" in one else 201
                assert {(await client.answer()).status for _ in range(count)} == {status}
                assert (await client.ask(one[-10:])).status == status

    run(body)


def test_more_than_may_wait_behind_a_request_ends_the_connection_after_their_answers() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(request("POST", OPEN, body=b"1") * (edge_protocol.MAX_PIPELINED + 100))
            await until(lambda: len(log.batches) == 1)
            assert len(connection(edge).pipeline) == edge_protocol.MAX_PIPELINED
            log.gate.set()
            for number in range(edge_protocol.MAX_PIPELINED + 1):
                answer = await client.answer()
                assert answer.status == 201
                assert ("connection" in answer.headers) == (number == edge_protocol.MAX_PIPELINED)
            assert await client.closed()
            assert len(log.stored) == edge_protocol.MAX_PIPELINED + 1

    run(body)


@pytest.mark.parametrize("path", ["/health", OPEN])
def test_a_client_that_stops_sending_as_its_answer_goes_out_gets_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    completed = EdgeProtocol.on_response_complete

    def on_response_complete(self: EdgeProtocol) -> None:
        """Its end is read before this turn of the loop is over, and what asyncio does then."""
        completed(self)
        if not self.eof_received():
            self._joined._transport.close()

    monkeypatch.setattr(EdgeProtocol, "on_response_complete", on_response_complete)

    async def body() -> None:
        async with serve(MemoryLog()) as edge, connect(edge.port) as client:
            assert (await client.ask(request("GET", path))).status == (200 if path == "/health" else 405)
            assert await client.closed()

    run(body)


def test_who_reads_no_answers_takes_a_bounded_amount_of_memory() -> None:
    async def body() -> None:
        log = MemoryLog()
        one = request("POST", "/webhooks/strict")
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(one)
            await until(lambda: bool(edge.listener._server.server_state.connections))
            protocol = connection(edge)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            largest = cycles = 0
            try:
                async with asyncio.timeout(3):
                    while True:
                        client.writer.write(one * 2000)
                        await client.writer.drain()
                        await asyncio.sleep(0.001)
                        largest = max(largest, protocol.transport.get_write_buffer_size())
                        cycles = max(cycles, len(protocol.pipeline))
            except TimeoutError:
                pass
            client.writer.transport.abort()
            assert protocol.flow.write_paused
            assert largest < 2 << 20
            assert cycles <= edge_protocol.MAX_PIPELINED

    run(body)


@pytest.mark.parametrize("size_bytes", [1, ingest.DIRECT_BODY_BYTES + 1])
def test_an_answer_that_cannot_be_put_in_words_is_a_fault_of_ours(size_bytes: int) -> None:
    async def body() -> None:
        log = MemoryLog()
        log.answer = lambda _: Answer(AnswerStatus.ACCEPTED, None)  # type: ignore[arg-type]
        async with serve(log) as edge, connect(edge.port) as client:
            answer = await client.post(OPEN, b"1" * size_bytes)
            assert (answer.status, answer.json) == (500, {"error": "internal_error"})
            log.answer = durable
            assert (await client.post(OPEN, b"1")).status == 201

    run(body)
