"""The http sink against a real server on loopback: the wire, the status table, every way an answer can go wrong."""

import asyncio
import base64
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pyreqwest.exceptions import ConnectError
from standardwebhooks import Webhook

from ankusa import clock
from ankusa.sinks.clients import RESOLVE_AGE_S, USER_AGENT, HttpClients
from ankusa.sinks.contract import Failed, Ok, SinkResult
from ankusa.sinks.egress import Egress
from ankusa.sinks.http import HttpSink, _reason
from tests.support.http_sink import Behaviour, SinkServer, redirect, wait_until
from tests.support.queue_sinks import PATIENT_MS
from tests.unit.sinks.deliveries import delivery

LOOPBACK = Egress(["127.0.0.1"])


@pytest.fixture
def server() -> Iterator[SinkServer]:
    with SinkServer() as started:
        yield started


def with_sink(
    options: dict[str, Any], use: Callable[[HttpSink], Coroutine[Any, Any, Any]], egress: Egress = LOOPBACK
) -> Any:
    """Run `use` with a built sink in a loop of its own."""

    async def main() -> Any:
        clients = HttpClients(egress)
        sink = HttpSink.build(options, "github", egress, clients)
        try:
            return await use(sink)
        finally:
            await sink.close()
            clients.close()

    return asyncio.run(main())


def send(url: str, egress: Egress = LOOPBACK, *, options: dict[str, Any] | None = None, **changes: Any) -> SinkResult:
    """One delivery by a new sink."""
    return with_sink(
        {"url": url, "timeout_ms": PATIENT_MS, **(options or {})},
        lambda sink: sink.deliver(delivery(**changes)),
        egress,
    )


def send_many(url: str, count: int, egress: Egress = LOOPBACK, **options: Any) -> list[SinkResult]:
    """Deliveries one after the other by one sink."""

    async def use(sink: HttpSink) -> list[SinkResult]:
        return [await sink.deliver(delivery()) for _ in range(count)]

    return with_sink({"url": url, "timeout_ms": PATIENT_MS, **options}, use, egress)


def failed(result: SinkResult) -> Failed:
    assert isinstance(result, Failed), result
    return result


# The wire


def test_what_arrives(server: SinkServer) -> None:
    body = bytes(range(256))
    result = send(
        f"{server.url}/a%2Fb?x=1&y=%20",
        options={"headers": {"X-Team": "red"}},
        body=body,
        replay_id="job-1",
        headers=(("x-github-event", "push"), ("x-twice", "1"), ("x-twice", "2"), ("x-utf8", "né"), ("host", "evil")),
    )
    assert result == Ok("200")
    (request,) = server.requests
    assert (request.method, request.target, request.body) == ("POST", "/hooks/a%2Fb?x=1&y=%20", body)
    assert dict(request.headers) == {
        "x-github-event": "push",
        "x-twice": "2",
        "x-utf8": "né".encode().decode("latin-1"),
        "content-type": "application/json",
        "x-ankusa-id": "01890a5d-ac96-774b-bcce-b302099a8057",
        "x-ankusa-source": "github",
        "x-ankusa-tenant": "acme",
        "x-ankusa-idempotency-key": "acme:github:evt_1",
        "x-ankusa-dedupe-key": "evt_1",
        "x-ankusa-replay-id": "job-1",
        "x-team": "red",
        "accept": "*/*",
        "user-agent": USER_AGENT,
        "host": f"127.0.0.1:{server.port}",
        "content-length": "256",
    }
    assert request.header_all("x-twice") == ["1", "2"]


@pytest.mark.parametrize("method", ["post", "put", "patch"])
def test_the_method(server: SinkServer, method: str) -> None:
    send(server.url, options={"method": method})
    assert server.requests[0].method == method.upper()


@pytest.mark.parametrize("size", [0, 1, 65_537, 8_000_000])
def test_a_body_of_any_size_is_verbatim(server: SinkServer, size: int) -> None:
    body = bytes(i % 251 for i in range(min(size, 251))) * (size // 251 + 1)
    assert send(server.url, body=body[:size]) == Ok("200")
    assert server.requests[0].body == body[:size]
    assert server.requests[0].header_all("content-length") == [str(size)]


@pytest.mark.parametrize("key", ["é", "日本", "a\r\nx-evil: 1", "\x00", " padded ", "%41", "\udcff", "x" * 4000])
def test_an_odd_key_arrives_and_breaks_nothing(server: SinkServer, key: str) -> None:
    assert send(server.url, idempotency_key=key, dedupe_key=key) == Ok("200")
    (request,) = server.requests
    assert request.header("x-evil") is None
    assert request.header("x-ankusa-dedupe-key") == request.header("x-ankusa-idempotency-key")
    assert (request.header("x-ankusa-dedupe-key") or "").isascii()


def test_a_forwarded_header_that_http_cannot_carry_is_escaped(server: SinkServer) -> None:
    assert send(server.url, headers=(("x-a", "1\n2"),)) == Ok("200")
    assert server.requests[0].header("x-a") == "1%0A2"


def test_a_forwarded_name_that_is_no_header_name_fails_for_good(server: SinkServer) -> None:
    assert failed(send(server.url, headers=(("x a", "1"),))).error_class == "permanent"
    assert server.requests == []


@pytest.mark.parametrize(
    "secrets", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "plain", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "plain"]]
)
def test_the_reference_library_verifies_a_delivery(server: SinkServer, secrets: str | list[str]) -> None:
    forwarded = (("webhook-id", "theirs"), ("webhook-timestamp", "1"), ("webhook-signature", "v1,theirs"))
    send(server.url, options={"secret": secrets}, headers=forwarded, at=clock.now_ms())
    (request,) = server.requests
    for secret in [secrets] if isinstance(secrets, str) else secrets:
        theirs = secret if secret.startswith("whsec_") else base64.b64encode(secret.encode()).decode()
        Webhook(theirs).verify(request.body, dict(request.headers))
    assert request.header_all("webhook-id") == ["01890a5d-ac96-774b-bcce-b302099a8057"]
    assert len(request.header_all("webhook-signature")) == 1


def test_without_a_secret_nothing_is_signed(server: SinkServer) -> None:
    send(server.url)
    assert not [name for name, _ in server.requests[0].headers if name.startswith("webhook-")]


# The status table


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {}, "ok"),
        (201, {}, "ok"),
        (202, {"retry-after": "5"}, "ok"),
        (204, {}, "ok"),
        (299, {}, "ok"),
        *((status, {"retry-after": "5"}, "permanent") for status in (400, 401, 403, 404, 410, 413, 422)),
        *((status, {"retry-after": "5"}, "retry_after") for status in (408, 429, 500, 502, 503, 504, 599)),
        *((status, {}, "transient") for status in (408, 429, 500, 502, 503, 504, 599)),
        (503, {"retry-after": "soon"}, "transient"),
        (503, {"retry-after": "-5"}, "transient"),
        (503, {"retry-after": "caf\xe9"}, "transient"),
        *((status, {"location": "/elsewhere"}, "transient") for status in (300, 301, 302, 303, 304, 307, 308)),
        *((status, {"retry-after": "5"}, "transient") for status in (402, 405, 409, 415, 418, 425, 451)),
        (600, {}, "transient"),
        (999, {}, "transient"),
    ],
)
def test_the_status_table(server: SinkServer, status: int, headers: dict[str, str], expected: str) -> None:
    server.behave(status=status, headers=headers)
    result = send(server.url)
    if expected == "ok":
        assert result == Ok(str(status))
        return
    assert failed(result).error_class == expected
    assert str(status) in failed(result).reason
    assert failed(result).retry_after_ms == (5000 if expected == "retry_after" else 0)
    assert len(server.requests) == 1


def test_retry_after_as_a_date(server: SinkServer) -> None:
    server.behave(status=503, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})
    result = failed(send(server.url, at=1_445_412_450_000))
    assert (result.error_class, result.retry_after_ms) == ("retry_after", 30_000)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(server: SinkServer, status: int) -> None:
    with SinkServer() as other:
        server.script(redirect("http://169.254.169.254/latest/meta-data/", status), redirect(other.url, status))
        results = send_many(server.url, 2)
        assert [failed(result).error_class for result in results] == ["transient", "transient"]
        assert (len(server.requests), other.connections_opened) == (2, 0)


# Answers that go wrong


def test_a_hang_is_a_timeout_and_closes_its_connection(server: SinkServer) -> None:
    server.behave(mode="hang")
    started = time.monotonic()
    result = failed(send(server.url, options={"timeout_ms": 200}))
    assert (result.error_class, result.reason) == ("timeout", "no answer within 200 ms")
    assert time.monotonic() - started > 0.15
    wait_until(lambda: server.connections_open == 0)


@pytest.mark.parametrize("status", [200, 410, 500])
def test_an_endless_body_is_cut_off_and_its_connection_dropped(server: SinkServer, status: int) -> None:
    server.behave(mode="endless", status=status)

    async def use(sink: HttpSink) -> None:
        for number in range(3):
            result = await sink.deliver(delivery())
            if status == 200:
                assert result == Ok("200")
            else:
                assert failed(result).error_class == ("permanent" if status == 410 else "transient")
            await asyncio.to_thread(wait_until, lambda: server.connections_open == 0)
            assert server.connections_opened == number + 1

    with_sink({"url": server.url, "timeout_ms": 20_000}, use)


@pytest.mark.parametrize(("mode", "tail"), [("close_mid", "transient"), ("stall", "timeout")])
def test_a_body_that_breaks_off_does_not_undo_the_status(server: SinkServer, mode: str, tail: str) -> None:
    server.behave(mode=mode)
    assert send(server.url, options={"timeout_ms": 300}) == Ok("200")
    server.behave(mode=mode, status=410)
    assert failed(send(server.url, options={"timeout_ms": 300})).error_class == "permanent"
    # A sink that had whole bodies until now costs one more attempt, then the status counts again.
    server.behave(mode=mode)
    server.script(Behaviour(), Behaviour())
    results = send_many(server.url, 5, timeout_ms=300)
    assert results[:2] == [Ok("200"), Ok("200")]
    assert failed(results[2]).error_class == tail
    assert results[3:] == [Ok("200"), Ok("200")]


def test_a_connection_closed_without_an_answer_is_transient_and_sent_once(server: SinkServer) -> None:
    server.behave(mode="close_before")
    result = failed(send(f"{server.url}?token=hush"))
    assert result.error_class == "transient"
    assert len(server.requests) == 1
    assert "hush" not in result.reason and "connection" in result.reason


def test_a_refused_connection_is_transient_and_shows_no_secret() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else takes the port
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/path-hush?token=hush"
        result = failed(send(url))
    assert result.error_class == "transient"
    assert "refused" in result.reason and "hush" not in result.reason


def test_a_reason_leaves_out_the_cause_that_quotes_the_url() -> None:
    outermost: Any = {"message": "error sending request for url (http://e.test/?token=hush)"}
    assert _reason(ConnectError("connection error", {"causes": [outermost]})) == "connection error"
    assert _reason(ConnectError("connection error", {"causes": None})) == "connection error"


def test_tls_to_a_server_that_speaks_none_is_transient_and_shows_no_secret(server: SinkServer) -> None:
    result = failed(send(server.url.replace("http://", "https://") + "?token=hush", options={"timeout_ms": 3000}))
    assert result.error_class in ("transient", "timeout")
    assert "hush" not in result.reason
    assert server.requests == []


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200\x00 OK\r\n\r\n", b"HTTP/1.1 999999 X\r\n\r\n", b"\r\n" * 99]
)
def test_an_answer_that_is_not_http_is_transient(answer: bytes) -> None:
    with raw_server(answer) as url:
        assert failed(send(url, options={"timeout_ms": 1000})).error_class in ("transient", "timeout")


def test_a_gzip_answer_is_not_unpacked() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n"
    with raw_server(head + b"\x1f\x8bno") as url:  # unpacking it would be an error
        assert send_many(url, 3) == [Ok("200")] * 3


def test_an_answer_with_a_head_without_end_is_bounded() -> None:
    with raw_server(b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"a" * 4_000_000) as url:
        assert failed(send(url, options={"timeout_ms": 2000})).error_class == "transient"


@contextmanager
def raw_server(answer: bytes) -> Iterator[str]:
    """Answers every request head with these bytes and keeps the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(65_536):
                    connection.sendall(answer)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


# Connections
#
# The client opens a second one when a request comes before the last answer's connection is back in its pool. That
# happens seldom and not twice, as both then wait in the pool; so one user has one connection, at most two.


def test_a_hundred_in_a_row_use_one_connection(server: SinkServer) -> None:
    assert send_many(server.url, 100) == [Ok("200")] * 100
    assert server.connections_opened <= 2


@pytest.mark.parametrize("body", ["", "x" * 60_000])
@pytest.mark.parametrize("status", [200, 204, 503])
def test_whatever_is_answered_the_connection_is_used_again(server: SinkServer, body: str, status: int) -> None:
    server.behave(status=status, body=body)
    send_many(server.url, 10)
    assert len(server.requests) == 10
    assert server.connections_opened <= 2


def test_thirty_two_at_once_reuse_thirty_two_connections(server: SinkServer) -> None:
    server.together = 32

    async def use(sink: HttpSink) -> None:
        for _ in range(10):
            assert await asyncio.gather(*[sink.deliver(delivery()) for _ in range(32)]) == [Ok("200")] * 32

    with_sink({"url": server.url, "timeout_ms": PATIENT_MS}, use)
    assert server.in_flight_max == 32
    assert 32 <= server.connections_opened <= 64
    assert server.counts == {delivery().id: 320}


def test_two_sinks_of_one_destination_share_a_connection_and_the_last_one_closes_it(server: SinkServer) -> None:
    async def main() -> None:
        clients = HttpClients(LOOPBACK)
        sinks = [HttpSink.build({"url": f"{server.url}/{n}"}, "s", LOOPBACK, clients) for n in range(2)]
        for sink in sinks * 3:
            assert await sink.deliver(delivery()) == Ok("200")
        assert server.connections_opened <= 2
        await sinks[0].close()
        await sinks[0].close()
        assert await sinks[1].deliver(delivery()) == Ok("200")
        await sinks[1].close()
        await asyncio.to_thread(wait_until, lambda: server.connections_open == 0)
        assert failed(await sinks[1].deliver(delivery())).error_class == "transient"

    asyncio.run(main())


def test_closing_lets_a_running_delivery_finish(server: SinkServer) -> None:
    server.behave(delay_ms=100)

    async def use(sink: HttpSink) -> None:
        running = asyncio.create_task(sink.deliver(delivery()))
        await asyncio.to_thread(wait_until, lambda: server.in_flight == 1)
        await sink.close()
        assert await running == Ok("200")

    with_sink({"url": server.url}, use)


def test_a_cancelled_delivery_returns_at_once_and_its_connection_ends_with_the_timeout(server: SinkServer) -> None:
    server.behave(mode="hang")

    async def use(sink: HttpSink) -> None:
        running = asyncio.create_task(sink.deliver(delivery()))
        await asyncio.to_thread(wait_until, lambda: server.in_flight == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.to_thread(wait_until, lambda: server.connections_open == 0)

    with_sink({"url": server.url, "timeout_ms": 500}, use)


# The guard


def resolver(*answers: list[str]) -> tuple[Callable[[str, int], Coroutine[Any, Any, list[str]]], list[str]]:
    """A resolver that gives these answers in turn, the last one for ever, and the hosts it was asked for."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    return resolve, asked


@pytest.mark.parametrize("host", ["sink.test", "SINK.test", "sink.test.", "b\u00fccher.test", "a_b.test"])
def test_a_name_is_looked_up_once_by_the_guard_and_never_by_the_client(server: SinkServer, host: str) -> None:
    resolve, asked = resolver(["127.0.0.1"], ["10.0.0.1"])
    url = f"http://{host}:{server.port}/"  # no resolver of this machine knows the host
    assert send_many(url, 20, Egress(["127.0.0.1"], resolve)) == [Ok("200")] * 20
    assert len(asked) == 1
    assert server.connections_opened <= 2
    assert server.requests[0].header("host") == f"{host.encode('idna').decode().lower()}:{server.port}"


def test_a_rebound_name_is_refused_and_nothing_is_sent_to_its_new_address(server: SinkServer) -> None:
    resolve, asked = resolver(["127.0.0.1"], ["127.0.0.2"])
    egress = Egress(["127.0.0.1"], resolve)
    now_s = [0.0]

    async def main() -> None:
        clients = HttpClients(egress, now=lambda: now_s[0])
        sink = HttpSink.build({"url": f"http://rebind.test:{server.port}/"}, "s", egress, clients)
        assert await sink.deliver(delivery()) == Ok("200")
        now_s[0] += RESOLVE_AGE_S + 1
        async with asyncio.timeout(30):
            while isinstance(result := await sink.deliver(delivery()), Ok):
                await asyncio.sleep(0.001)
        assert failed(result).error_class == "permanent"
        assert failed(result).reason.startswith("egress_denied: ")
        assert clients.denied == 1
        await sink.close()

    asyncio.run(main())
    assert len(asked) == 2


def test_a_private_address_is_never_connected_to(server: SinkServer) -> None:
    resolve, _ = resolver(["127.0.0.1"])
    for url in (server.url, f"http://inner.test:{server.port}/", f"http://2130706433:{server.port}/"):
        result = failed(send(url, Egress(resolver=resolve)))
        assert result.error_class == "permanent"
        assert result.reason.startswith("egress_denied: ")
    assert server.connections_opened == 0


def test_only_the_good_one_of_two_addresses_is_connected_to(server: SinkServer) -> None:
    resolve, _ = resolver(["127.0.0.2", "127.0.0.1"])
    assert send(f"http://mixed.test:{server.port}/", Egress(["127.0.0.1"], resolve)) == Ok("200")


def test_an_address_that_refuses_gives_way_to_the_next_in_the_same_attempt(server: SinkServer) -> None:
    resolve, asked = resolver(["127.0.0.2", "127.0.0.1"])
    egress = Egress(["127.0.0.0/8"], resolve)
    assert send_many(f"http://two.test:{server.port}/", 10, egress) == [Ok("200")] * 10
    assert (len(server.requests), len(asked)) == (10, 1)
    assert server.connections_opened <= 2


def test_a_lost_connection_is_not_tried_at_the_next_address(server: SinkServer) -> None:
    server.behave(mode="close_before")
    resolve, _ = resolver(["127.0.0.1", "127.0.0.2"])
    with SinkServer(host="127.0.0.2", port=server.port) as other:
        result = send(f"http://two.test:{server.port}/", Egress(["127.0.0.0/8"], resolve))
        assert failed(result).error_class == "transient"
        assert (len(server.requests), other.connections_opened) == (1, 0)


def test_a_name_nobody_knows_is_transient() -> None:
    async def fails(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    result = failed(send("http://gone.test/?token=hush", Egress(resolver=fails)))
    assert result.error_class == "transient"
    assert "gone.test" in result.reason and "hush" not in result.reason


def test_a_resolver_that_hangs_is_a_timeout() -> None:
    async def hangs(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    result = failed(send("http://slow.test/", Egress(resolver=hangs), options={"timeout_ms": 100}))
    assert result.error_class == "timeout"


def test_the_time_a_resolver_takes_counts_against_the_timeout(
    server: SinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the attempt's own clock, of which the resolver takes all but a moment."""
    server.behave(mode="hang")
    now_s = [0.0]
    monkeypatch.setattr("ankusa.sinks.http.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async def slow(host: str, port: int) -> list[str]:
        now_s[0] += 599.9
        return ["127.0.0.1"]

    async def timed(sink: HttpSink) -> SinkResult:
        async with asyncio.timeout(30):  # the answer would be waited for until the end of the test's time otherwise
            return await sink.deliver(delivery())

    options = {"url": f"http://slow.test:{server.port}/", "timeout_ms": 600_000}
    result = with_sink(options, timed, Egress(["127.0.0.1"], slow))
    assert (failed(result).error_class, failed(result).reason) == ("timeout", "no answer within 600000 ms")


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_proxy_setting_does_not_lead_past_the_guard(
    server: SinkServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SinkServer() as proxy:
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert send(server.url) == Ok("200")
        assert (len(server.requests), proxy.connections_opened) == (1, 0)


# The server itself, as other tests use it


def test_the_sink_alone_logs_each_delivery_and_is_told_over_http(tmp_path: Any) -> None:
    log = tmp_path / "deliveries"
    command = [sys.executable, "-m", "tests.support.http_sink", "--port", "0", "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            base = url.removesuffix("/hooks")

            def control(**fields: Any) -> None:
                body = json.dumps(fields).encode()
                with urllib.request.urlopen(urllib.request.Request(f"{base}/__control", data=body)) as answer:
                    assert answer.status == 200

            assert send(url, id="one") == Ok("200")
            assert send(url, id="two", replay_id="job-1") == Ok("200")
            control(status=503, headers={"retry-after": "1"})
            assert failed(send(url, id="three")).error_class == "retry_after"
            control()
            assert send(url, id="one") == Ok("200")
            with urllib.request.urlopen(f"{base}/__counts?ids=1") as answer:
                counts = json.load(answer)
            process.kill()
        finally:
            process.kill()
    assert (counts["total"], counts["delivered"], counts["unique"], counts["duplicates"]) == (4, 3, 2, 1)
    assert counts["ids"] == {"one": 2, "two": 1}
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    assert [(line[0], line[2]) for line in lines] == [("one", "-"), ("two", "job-1"), ("one", "-")]
    assert all(abs(int(line[1]) - clock.now_ms()) < 60_000 for line in lines)
