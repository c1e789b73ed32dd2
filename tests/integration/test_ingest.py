"""The ingest listener over real sockets: the status table of spec 02, and what is stored for each."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket

import pytest

from api import edge_protocol, serving
from api.ingest import SharedProbe
from schemas import config
from schemas.append import Answer, AnswerStatus
from schemas.config import Http
from schemas.records import Envelope, Held
from tests.support.edge import CHUNKED, SECRET, Client, MemoryLog, chunked, connect, request, run, serve, source, until

JSON = "application/json"
LIMIT = 8_000_000


def signature(body: bytes) -> tuple[str, str]:
    return "X-Hub-Signature-256", "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


# -- accepted -------------------------------------------------------------------


def test_a_hook_is_accepted_with_its_bytes_headers_and_id() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            raw = b'{"a":1}\x00\xff'
            answer = await client.post(
                "/webhooks/orders?x=1",
                raw,
                [("Content-Type", JSON), ("X-Twice", "1"), ("X-Twice", "2"), ("Authorization", "no")],
            )
            assert answer.status == 201
            assert answer.headers["content-type"] == JSON
            assert "server" not in answer.headers
            (stored,) = log.stored
            entry = stored.entry
            assert isinstance(entry, Envelope)
            assert answer.json == {"id": entry.id, "status": "accepted"}
            assert stored.body == raw
            assert (entry.source_id, entry.tenant_id, entry.sinks) == ("orders", "acme", ("http", "log"))
            assert entry.headers == (("x-twice", "1"), ("x-twice", "2"))
            assert entry.content_type == JSON
            assert entry.idempotency_key == entry.id
            assert (entry.dedupe_key, entry.dedupe_ttl_ms, entry.flagged) == (None, 0, False)
            assert int(entry.id.replace("-", "")[:12], 16) == entry.received_at
            assert log.deadlines == [entry.received_at + 5000]

    run(body)


@pytest.mark.parametrize(
    "sent", [b"", b"\x00\r\n\xff\xfe", b"x" * 65_537, b"y" * LIMIT], ids=["empty", "binary", "over-a-window", "limit"]
)
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_within_the_limit_is_kept_byte_for_byte(sent: bytes, framing: str) -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            if framing == "length":
                answer = await client.post("/webhooks/open", sent)
            else:
                pieces = [sent[at : at + 100_003] for at in range(0, len(sent), 100_003)]
                answer = await client.ask(request("POST", "/webhooks/open", CHUNKED) + chunked(*pieces))
            assert answer.status == 201
            assert log.stored[0].body == sent
            again = await client.post("/webhooks/open", b"next on the same connection")
            assert again.status == 201
            assert (edge.batcher.hooks, edge.batcher.queued_bytes, edge.batcher.reserved_bytes) == (0, 0, 0)

    run(body)


def test_no_answer_leaves_before_the_log_has_the_hook() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            asking = asyncio.create_task(client.post("/webhooks/open", b"1"))
            await until(lambda: len(log.batches) == 1)
            assert not asking.done()
            assert log.stored == []
            log.gate.set()
            assert (await asking).status == 201

    run(body)


def test_a_duplicate_answers_the_first_hooks_id() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.answer = lambda _: Answer(AnswerStatus.DUPLICATE, "the-first")
        async with serve(log) as edge, connect(edge.port) as client:
            answer = await client.post("/webhooks/events", b"1", [("X-Event", "e1")])
            assert answer.status == 201
            assert answer.json == {"id": "the-first", "status": "accepted", "duplicate": True}

    run(body)


def test_a_dedupe_key_makes_the_idempotency_key() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            await client.post("/webhooks/events", b"1", [("X-Event", "e1")])
            entry = log.stored[0].entry
            assert isinstance(entry, Envelope)
            assert entry.dedupe_key == "e1"
            assert entry.dedupe_ttl_ms == 259_200_000
            assert entry.idempotency_key == "default:events:e1"

    run(body)


def test_an_upgrade_offer_does_not_cost_the_body() -> None:
    async def body() -> None:
        log = MemoryLog()
        offer = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")]
        async with serve(log) as edge, connect(edge.port) as client:
            for number in range(3):  # on one connection, which stays open
                answer = await client.post("/webhooks/open", b"kept %d" % number, offer)
                assert answer.status == 201
            raw = request("POST", "/webhooks/open", [*offer, *CHUNKED])
            for part in (raw[:40], raw[40:], b"3\r\nab", b"c\r\n0\r\n\r\n"):
                client.writer.write(part)
                await asyncio.sleep(0)
            assert (await client.answer()).status == 201
            both = request("POST", "/webhooks/open", offer, b"one") + request("POST", "/webhooks/open", offer, b"two")
            assert (await client.ask(both)).status == 201
            assert (await client.answer()).status == 201
        assert [hook.body for hook in log.stored] == [b"kept 0", b"kept 1", b"kept 2", b"abc", b"one", b"two"]

    run(body)


# -- verification -----------------------------------------------------------------


def test_a_signed_hook_verifies_over_the_raw_body_also_a_large_one() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            for sent in (b"", b"small \xff", b"z" * 2_000_000):  # the last is verified in a thread
                for name in ("strict", "pen", "flag"):
                    answer = await client.post(f"/webhooks/{name}", sent, [signature(sent)])
                    assert answer.status == 201
            assert all(isinstance(hook.entry, Envelope) and not hook.entry.flagged for hook in log.stored)
            assert len(log.stored) == 9

    run(body)


def test_a_rejected_hook_is_answered_with_the_reason_and_not_stored() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            missing = await client.post("/webhooks/strict", b"1")
            assert missing.status == 401
            assert missing.json == {"error": "verification_failed", "reason": "missing_signature"}
            wrong = await client.post("/webhooks/strict", b"1", [signature(b"2")])
            assert wrong.json == {"error": "verification_failed", "reason": "signature_mismatch"}
            large = await client.post("/webhooks/strict", b"q" * 2_000_000, [signature(b"2")])
            assert large.status == 401
            assert log.batches == []
            assert edge.batcher.reserved_bytes == 0

    run(body)


def test_a_quarantined_hook_is_held_with_all_its_headers() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            answer = await client.post("/webhooks/pen?q=1", b"held", [("Authorization", "kept"), signature(b"no")])
            assert answer.status == 202
            assert answer.json == {"status": "quarantined", "reason": "signature_mismatch"}
            (stored,) = log.stored
            entry = stored.entry
            assert isinstance(entry, Held)
            assert stored.body == b"held"
            assert (entry.source_id, entry.tenant_id, entry.method) == ("pen", "default", "POST")
            assert (entry.path, entry.reason, entry.size_bytes) == ("/webhooks/pen", "signature_mismatch", 4)
            assert dict(entry.headers)["authorization"] == "kept"
            assert dict(entry.headers)["host"] == "edge"

    run(body)


def test_a_flagged_hook_has_neither_dedupe_key_nor_anothers_idempotency_key() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            answer = await client.post("/webhooks/flag", b"1", [("X-Event", "e1")])
            assert answer.status == 201
            assert answer.json["status"] == "accepted"
            entry = log.stored[0].entry
            assert isinstance(entry, Envelope)
            assert entry.flagged
            assert (entry.dedupe_key, entry.dedupe_ttl_ms, entry.idempotency_key) == (None, 0, entry.id)

    run(body)


# -- refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "wait_ms", "code", "error", "retry_after"),
    [
        (AnswerStatus.RATE_LIMITED, 1, 429, "rate_limited", "1"),
        (AnswerStatus.RATE_LIMITED, 1001, 429, "rate_limited", "2"),
        (AnswerStatus.QUARANTINE_RATE_LIMITED, 0, 429, "quarantine_rate_limited", "1"),
        (AnswerStatus.QUARANTINE_FULL, 60_000, 503, "quarantine_full", "60"),
        (AnswerStatus.STORE_UNAVAILABLE, 1000, 503, "store_unavailable", "1"),
    ],
)
def test_what_the_log_refuses_is_refused(
    status: AnswerStatus, wait_ms: int, code: int, error: str, retry_after: str
) -> None:
    async def body() -> None:
        log = MemoryLog()
        log.answer = lambda _: Answer(status, retry_after_ms=wait_ms, reason="disk full at /secret/place")
        async with serve(log) as edge, connect(edge.port) as client:
            answer = await client.post("/webhooks/open", b"1")
            assert answer.status == code
            assert answer.json == {"error": error}
            assert answer.headers["retry-after"] == retry_after
            assert answer.headers["content-type"] == JSON

    run(body)


def test_a_full_queue_is_overload() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        settings = config.Batcher(max_queue=3)
        async with serve(log, batcher=settings) as edge, connect(edge.port) as client:
            async with connect(edge.port) as a, connect(edge.port) as b, connect(edge.port) as c:
                waiting = [asyncio.create_task(each.post("/webhooks/open", b"1")) for each in (a, b, c)]
                await until(lambda: edge.batcher.hooks == 3)
                answer = await client.post("/webhooks/open", b"1")
                assert answer.status == 503
                assert answer.json == {"error": "overload"}
                assert answer.headers["retry-after"] == "1"
                log.gate.set()
                assert [(await each).status for each in waiting] == [201, 201, 201]
            assert (await client.post("/webhooks/open", b"1")).status == 201

    run(body)


def test_bodies_being_read_count_against_the_queues_bytes() -> None:
    async def body() -> None:
        log = MemoryLog()
        settings = config.Batcher(max_queue_bytes=1_000_000)
        head = request("POST", "/webhooks/open", [("content-length", "900000")])
        async with serve(log, batcher=settings) as edge, connect(edge.port) as slow, connect(edge.port) as client:
            slow.writer.write(head + b"s" * 800_000)
            await until(lambda: edge.batcher.reserved_bytes == 800_000)
            answer = await client.ask(head + b"c" * 899_999)
            assert answer.status == 503
            assert answer.json == {"error": "overload"}
            assert answer.headers["connection"] == "close"
            assert (await slow.ask(b"s" * 100_000)).status == 201
            assert edge.batcher.reserved_bytes == 0
            assert [len(hook.body) for hook in log.stored] == [900_000]

    run(body)


@pytest.mark.parametrize("framing", ["announced", "continue", "chunked", "late-chunk"])
def test_a_body_over_the_limit_is_refused(framing: str) -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            if framing == "announced":
                raw = request("POST", "/webhooks/open", body=b"x" * (LIMIT + 1))
            elif framing == "continue":  # refused before a byte is sent, and no 100 comes first
                raw = request(
                    "POST", "/webhooks/open", [("content-length", str(LIMIT + 1)), ("expect", "100-continue")]
                )
            elif framing == "chunked":
                raw = request("POST", "/webhooks/open", CHUNKED) + chunked(*[b"x" * 1_000_000] * 20)
            else:
                raw = request("POST", "/webhooks/open", CHUNKED) + chunked(b"x" * (LIMIT + 1))
            answer = await client.ask(raw)
            assert answer.status == 413
            assert answer.json == {"error": "payload_too_large", "limit": LIMIT}
            assert log.batches == []
            await until(lambda: edge.batcher.reserved_bytes == 0)
            async with connect(edge.port) as other:
                assert (await other.post("/webhooks/open", b"fine")).status == 201

    run(body)


def test_an_endless_body_gets_its_answer_and_then_the_end() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log, http=Http(max_body_bytes=1000)) as edge, connect(edge.port) as client:
            answer = await client.ask(request("POST", "/webhooks/open", CHUNKED) + b"400\r\n" + b"e" * 1024 + b"\r\n")
            assert answer.status == 413
            assert answer.headers["connection"] == "close"
            async with asyncio.timeout(10):
                while not client.writer.is_closing():  # the server reads on for two seconds, and no longer
                    client.writer.write(b"400\r\n" + b"e" * 1024 + b"\r\n")
                    await asyncio.sleep(0.001)
            assert log.batches == []

    run(body)


def test_a_slow_body_is_taken_and_a_stalled_one_is_not() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(request("POST", "/webhooks/open", [("content-length", "10")]))
            for _ in range(9):
                client.writer.write(b"s")
                await asyncio.sleep(0.01)
            assert (await client.ask(b"s")).status == 201
            assert log.stored[0].body == b"s" * 10
        async with serve(log, body_timeout_ms=400) as edge, connect(edge.port) as client:
            answer = await client.ask(request("POST", "/webhooks/open", [("content-length", "10")]) + b"stalls")
            assert answer.status == 400
            assert answer.json == {"error": "body_read_failed"}
            assert await client.closed()
            assert len(log.stored) == 1
            assert edge.batcher.reserved_bytes == 0

    run(body)


def test_a_body_that_is_cut_off_is_not_stored() -> None:
    async def body() -> None:
        log = MemoryLog()
        head = request("POST", "/webhooks/open", [("content-length", "10")])
        async with serve(log) as edge:
            async with connect(edge.port) as client:  # hangs up
                client.writer.write(head + b"cut")
                await client.writer.drain()
            async with connect(edge.port) as client:  # sends no more, and listens
                client.writer.write(head + b"cut")
                client.writer.write_eof()
                answer = await client.answer()
                assert answer.status == 400
                assert answer.json == {"error": "body_read_failed"}
            async with connect(edge.port) as client:  # breaks the framing
                answer = await client.ask(request("POST", "/webhooks/open", CHUNKED) + b"3\r\nabc\r\nnonsense\r\n")
                assert answer.status == 400
                assert answer.json == {"error": "body_read_failed"}
                assert await client.closed()
            async with connect(edge.port) as client:
                assert (await client.post("/webhooks/open", b"whole")).status == 201
        assert [hook.body for hook in log.stored] == [b"whole"]
        assert edge.batcher.reserved_bytes == 0

    run(body)


def test_a_client_that_has_closed_its_sending_side_still_gets_its_answer() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(request("POST", "/webhooks/open", body=b"1"))
            client.writer.write_eof()
            await until(lambda: len(log.batches) == 1)
            log.gate.set()
            assert (await client.answer()).status == 201
            assert await client.closed()

    run(body)


def test_a_client_that_goes_away_after_its_body_takes_nothing_back() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge:
            async with connect(edge.port) as client:
                client.writer.write(request("POST", "/webhooks/open", body=b"whole"))
                await until(lambda: len(log.batches) == 1)
            log.gate.set()
            await until(lambda: edge.batcher.hooks == 0)
        assert [hook.body for hook in log.stored] == [b"whole"]

    run(body)


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("X-Utf8", "zürich ✓".encode(), 201),
        ("X-Tab", b"a\tb", 201),
        ("X-Latin1", b"z\xfcrich", 400),
        ("X-Control", b"a\x01b", 400),
        ("X-C1", "a\x85b".encode(), 400),
        ("Bad\tName", b"1", 400),
        ("X-Long", b"l" * 70_000, 400),
        ("X-Longer", b"l" * 900_000, 400),
    ],
)
def test_headers_that_cannot_be_decoded_are_refused(name: str, value: bytes, status: int) -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            answer = await client.post("/webhooks/open", b"1", [(name, value)])
            assert answer.status == status
            assert answer.headers["content-type"] == JSON
            if status == 400:
                assert answer.json == {"error": "invalid_headers"}
                assert log.batches == []
            else:
                entry = log.stored[0].entry
                assert entry.headers == ((name.lower(), value.decode()),)

    run(body)


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"POST / HTTP/9\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n"]
)
def test_what_is_no_http_is_a_400_in_json(raw: bytes) -> None:
    async def body() -> None:
        async with serve(MemoryLog()) as edge, connect(edge.port) as client:
            answer = await client.ask(raw)
            assert answer.status == 400
            assert set(answer.json) == {"error"}
            assert await client.closed()

    run(body)


def test_garbage_behind_a_whole_request_does_not_cost_its_answer() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(request("POST", "/webhooks/open", body=b"1") + b"garbage\r\n\r\n")
            await until(lambda: len(log.batches) == 1)
            log.gate.set()
            assert (await client.answer()).status == 201
            assert await client.closed()

    run(body)


def test_a_head_that_does_not_end_is_hung_up_on_and_an_idle_connection_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_protocol, "HEAD_TIMEOUT_S", 2.0)
    monkeypatch.setattr(serving, "_SWEEP_TICKS", 1)

    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as idle:
            assert (await idle.post("/webhooks/open", b"1")).status == 201
            async with connect(edge.port) as silent, connect(edge.port) as slow, connect(edge.port) as later:
                slow.writer.write(b"POST /webhooks/open HTTP/1.1\r\nhost:")
                assert (await later.post("/webhooks/open", b"2")).status == 201
                later.writer.write(b"POST /webhooks/open HTTP/1.1\r\n")
                assert await silent.closed()
                assert await slow.closed()
                assert await later.closed()
            assert (await idle.post("/webhooks/open", b"3")).status == 201

    run(body)


@pytest.mark.parametrize("line", [b"x: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many", "one that goes on"])
def test_trailers_without_end_are_refused_before_they_fill_the_memory(line: bytes) -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            head = b"POST /webhooks/open HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            client.writer.write(head + b"2\r\nab\r\n0\r\nz: ")
            for _ in range(200):
                client.writer.write(line)
            answer = await client.answer()
            assert (answer.status, answer.json) == (400, {"error": "body_read_failed"})
            assert await client.closed()
            assert log.batches == []

    run(body)


def test_a_second_head_without_end_is_not_read_while_the_first_request_waits() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(request("POST", "/webhooks/open", body=b"1") + b"GET / HTTP/1.1\r\n")
            await until(lambda: len(log.batches) == 1)
            for _ in range(64):
                client.writer.write((b"x: " + b"y" * 65_000 + b"\r\n") * 16)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.writer.drain()
            log.gate.set()

    run(body)


# -- how a request comes ----------------------------------------------------------

MANY_WAYS = [
    (request("POST", "/webhooks/open", [("x-a", "1")], b"whole"), 201),
    (request("POST", "/webhooks/open"), 201),
    (request("POST", "/webhooks/open", CHUNKED) + chunked(b"in", b"chunks"), 201),
    (request("POST", "/webhooks/strict", body=b"unsigned"), 401),
    (request("POST", "/webhooks/strict", [signature(b"signed")], b"signed"), 201),
    (request("POST", "/webhooks/pen", body=b"unsigned"), 202),
    (request("POST", "/webhooks/flag", body=b"unsigned"), 201),
    (request("POST", "/webhooks/open", [("x-a", b"\xff")], b"not text"), 400),
    (request("POST", "/webhooks/nobody", body=b"x"), 404),
    (request("PUT", "/webhooks/open", body=b"x"), 405),
    (request("POST", "/webhooks/open", [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c")], b"x"), 201),
    (request("GET", "/health"), 200),
]


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 100_000])
def test_the_answers_are_the_same_however_the_bytes_are_cut(piece_bytes: int) -> None:
    """A request that came whole is taken another way than one that came in pieces (`api/direct.py`)."""

    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for raw, status in MANY_WAYS:
                for at in range(0, len(raw), piece_bytes):
                    client.writer.write(raw[at : at + piece_bytes])
                    await client.writer.drain()
                    await asyncio.sleep(0)
                assert (await client.answer()).status == status
            assert [stored.body for stored in log.stored] == [
                *(b"whole", b"", b"inchunks", b"signed", b"unsigned", b"unsigned", b"x")
            ]
            assert (edge.batcher.hooks, edge.batcher.queued_bytes, edge.batcher.reserved_bytes) == (0, 0, 0)

    run(body)


def test_requests_sent_behind_each_other_are_answered_in_their_order() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(b"".join(raw for raw, _ in MANY_WAYS) * 3)
            assert [(await client.answer()).status for _ in range(3 * len(MANY_WAYS))] == [
                status for _, status in MANY_WAYS
            ] * 3
            assert len(log.stored) == 3 * 7

    run(body)


def test_a_whole_request_of_a_listener_that_stops_is_answered_and_its_connection_closed() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge, connect(edge.port) as client:
            client.writer.write(request("POST", "/webhooks/open", body=b"1"))
            await until(lambda: len(log.batches) == 1)
            closing = asyncio.ensure_future(edge.listener.close())
            (connection,) = edge.listener._server.server_state.connections
            assert isinstance(connection, edge_protocol.EdgeProtocol)
            await until(lambda: not connection.cycle.keep_alive)
            log.gate.set()
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (201, "close")
            assert await client.closed()
            await closing

    run(body)


# -- paths and methods ------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/webhooks/nobody", "unknown_source"),
        ("/webhooks/acme.orders", "unknown_source"),
        ("/webhooks/acme/orders", "not_found"),
        ("/webhooks/", "not_found"),
        ("/webhooks", "not_found"),
        ("/webhooks//open", "not_found"),
        ("/webhooks/open/", "not_found"),
        ("/webhooks/%6Fpen", "not_found"),
        ("/webhooks/acme%2Forders", "not_found"),
        ("/webhooks/../webhooks/open", "not_found"),
        ("/webhooks/..", "not_found"),
        ("/webhooks/ankusa:lifecycle", "not_found"),
        ("/WEBHOOKS/open", "not_found"),
        ("/other", "not_found"),
        ("/", "not_found"),
    ],
)
def test_paths_that_lead_nowhere(path: str, error: str) -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            answer = await client.post(path, b"1")
            assert answer.status == 404
            assert answer.json == {"error": error}
            assert answer.headers["content-type"] == JSON
            assert log.batches == []
            assert (await client.post("/webhooks/open", b"1")).status == 201

    run(body)


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/in/acme/orders", 201, None),
        ("/in/default/open", 201, None),
        ("/in/default/orders", 404, "unknown_source"),
        ("/in/acme/open", 404, "unknown_source"),
        ("/in/acme%2Forders", 404, "not_found"),
        ("/in/acme/../orders", 404, "not_found"),
        ("/in//orders", 404, "not_found"),
        ("/in/orders", 404, "not_found"),
        ("/webhooks/open", 404, "not_found"),
    ],
)
def test_in_tenant_path_routing_the_tenant_in_the_url_wins(path: str, status: int, error: str | None) -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log, http=Http(routing="tenant_path", prefix="/in")) as edge, connect(edge.port) as client:
            answer = await client.post(path, b"1")
            assert answer.status == status
            assert answer.json.get("error") == error
            assert len(log.stored) == (status == 201)

    run(body)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_on_a_catch_url(method: str) -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            for path in ("/webhooks/open", "/webhooks/nobody"):
                answer = await client.ask(request(method, path), head_only=method == "HEAD")
                assert answer.status == 405
                assert answer.headers["allow"] == "POST"
                assert method == "HEAD" or answer.json == {"error": "method_not_allowed"}
            assert log.batches == []

    run(body)


def test_reloaded_sources_are_served_and_removed_ones_are_not() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            assert (await client.post("/webhooks/open", b"1")).status == 201
            edge.sources.replace([source("fresh")])
            assert (await client.post("/webhooks/fresh", b"1")).status == 201
            assert (await client.post("/webhooks/open", b"1")).json == {"error": "unknown_source"}

    run(body)


# -- the rest of the listener -------------------------------------------------------


def test_health_ready_and_openapi() -> None:
    async def body() -> None:
        log = MemoryLog()
        async with serve(log) as edge, connect(edge.port) as client:
            log.reason = "disk full"
            health = await client.ask(request("GET", "/health"))
            assert (health.status, health.json) == (200, {"status": "ok"})
            ready = await client.ask(request("GET", "/ready"))
            assert ready.status == 503
            assert ready.json == {"status": "unavailable", "store": "disk full"}
            assert ready.headers["retry-after"] == "1"
            log.reason = None
            ready = await client.ask(request("GET", "/ready"))
            assert (ready.status, ready.json) == (200, {"status": "ready"})
            wrong = await client.ask(request("DELETE", "/ready"))
            assert (wrong.status, wrong.json) == (405, {"error": "method_not_allowed"})
            assert wrong.headers["allow"] == "GET"
            document = json.loads((await client.ask(request("GET", "/openapi.json"))).body)
            assert set(document["paths"]) == {"/health", "/ready", "/webhooks/{source}"}
            answers = document["paths"]["/webhooks/{source}"]["post"]["responses"]
            assert set(answers) == {"201", "202", "400", "401", "404", "405", "413", "429", "503"}

    run(body)


def test_who_asks_at_once_whether_it_is_ready_shares_one_probe() -> None:
    async def body() -> None:
        asked = 0
        gate = asyncio.Event()

        async def probe() -> str | None:
            nonlocal asked
            asked += 1
            await gate.wait()
            return f"reason {asked}"

        shared = SharedProbe(probe)
        waiting = [asyncio.create_task(shared()) for _ in range(5)]
        await until(lambda: asked == 1)
        waiting[0].cancel()
        gate.set()
        assert await asyncio.gather(*waiting[1:]) == ["reason 1"] * 4
        assert await shared() == "reason 2"

    run(body)


def test_hooks_that_arrive_together_share_appends() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        async with serve(log) as edge:
            clients = [connect(edge.port) for _ in range(20)]
            opened: list[Client] = [await each.__aenter__() for each in clients]
            asking = [asyncio.create_task(each.post("/webhooks/open", b"1")) for each in opened]
            await until(lambda: edge.batcher.hooks == 20)
            log.gate.set()
            assert {(await each).status for each in asking} == {201}
            assert len(log.batches) <= 3
            for each in clients:
                await each.__aexit__(None, None, None)

    run(body)
