"""Connections of the ingest listener: how long they live, what may wait on one, and what ends it."""

from __future__ import annotations

import asyncio
import struct
from socket import SO_LINGER, SOL_SOCKET

import pytest

from ankusa.edge import ingest
from api import edge_protocol
from api.edge_protocol import EdgeProtocol
from schemas.append import Answer, AnswerStatus
from schemas.records import Envelope
from tests.integration.test_ingest import signature
from tests.support.edge import CHUNKED, MemoryLog, RunningEdge, connect, durable, request, run, serve, until

OPEN = "/webhooks/open"

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
            stuck = False
            while not (stuck and protocol.flow.write_paused):  # until the server reads no more
                client.writer.write(one * 2000)
                stuck = False
                try:
                    async with asyncio.timeout(0.5):
                        await client.writer.drain()
                except TimeoutError:  # or the machine stands still, if the server can still write
                    stuck = True
                largest = max(largest, protocol.transport.get_write_buffer_size())
                cycles = max(cycles, len(protocol.pipeline))
            client.writer.transport.abort()
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
