"""The google_pubsub sink against a stub of Pub/Sub's REST contract: batches, outcomes, tokens, and the guard."""

import asyncio
import base64
import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ankusa.sinks.clients import HttpClients
from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import Failed, Ok, SinkResult
from ankusa.sinks.egress import Egress
from ankusa.sinks.google_pubsub import PubsubSink
from ankusa.sinks.google_pubsub_options import parse_options
from ankusa.sinks.google_tokens import Tokens
from schemas.message import encode
from tests.support.asgi_server import Answer
from tests.support.brokers import free_ports
from tests.support.pubsub_server import PubsubServer
from tests.support.queue_sinks import PATIENT_MS, failed, numbered, ok, until_ok
from tests.unit.sinks.deliveries import delivery

LOOPBACK = Egress(["127.0.0.1"])


@pytest.fixture
def server() -> Iterator[PubsubServer]:
    with PubsubServer() as started:
        yield started


def built(
    server: PubsubServer,
    shared: Destinations | None = None,
    clients: HttpClients | None = None,
    egress: Egress = LOOPBACK,
    **more: Any,
) -> PubsubSink:
    topic = {"project": "my-project", "topic": "hooks", "endpoint": server.url, "auth": "none"}
    options = {**topic, "timeout_ms": PATIENT_MS, **more}
    return PubsubSink.build(options, egress, clients or HttpClients(egress), shared or Destinations())


@asynccontextmanager
async def sinking(server: PubsubServer, **more: Any) -> AsyncIterator[PubsubSink]:
    clients = HttpClients(more.get("egress", LOOPBACK))
    sink = built(server, clients=clients, **more)
    try:
        yield sink
    finally:
        await sink.close()
        clients.close()


def send(server: PubsubServer, count: int = 1, **more: Any) -> list[SinkResult]:
    """So many deliveries at once by a new sink."""

    async def main() -> list[SinkResult]:
        async with sinking(server, **more) as sink:
            return await asyncio.gather(*map(sink.deliver, numbered(count)))

    return asyncio.run(main())


def test_the_topic_has_the_message_and_its_attributes(server: PubsubServer) -> None:
    sent = delivery(tenant_id="", replay_id="job-1")

    async def main() -> None:
        async with sinking(server) as sink:
            assert await sink.deliver(sent) == Ok("id 10000")

    asyncio.run(main())
    (published,) = server.published
    assert published.data == encode(sent) and published.ordering_key == ""
    assert published.attributes == {
        "ankusa_id": sent.id,
        "ankusa_source_id": "github",
        "ankusa_message_version": "1",
        "ankusa_idempotency_key": "acme:github:evt_1",
        "content_type": "application/json",
        "ankusa_dedupe_key": "evt_1",
        "ankusa_replay_id": "job-1",
    }


def test_an_attribute_that_is_too_long_is_left_out(server: PubsubServer) -> None:
    async def main() -> None:
        async with sinking(server) as sink:
            ok(await sink.deliver(delivery(dedupe_key="k" * 1_025, content_type="c" * 1_024)))

    asyncio.run(main())
    assert "ankusa_dedupe_key" not in server.published[0].attributes
    assert server.published[0].attributes["content_type"] == "c" * 1_024
    assert json.loads(server.published[0].data)["dedupe_key"] == "k" * 1_025


def test_deliveries_go_1000_a_request_over_shared_connections(server: PubsubServer) -> None:
    async def main() -> None:
        shared, clients = Destinations(sink_concurrency=2), HttpClients(LOOPBACK)
        sinks = [built(server, shared, clients, timeout_ms=60_000) for _ in range(2)]
        server.delay_s = 0.02
        assert server.opened == 0
        results = await asyncio.gather(*(sinks[n % 2].deliver(d) for n, d in enumerate(numbered(4_500))))
        assert {type(result) for result in results} == {Ok}
        by_id = {json.loads(published.data)["id"]: published.id for published in server.published}
        assert [ok(result) for result in results] == [f"id {by_id[d.id]}" for d in numbered(4_500)]  # each its own
        for sink in sinks:
            await sink.close()
        assert "closed" in failed(await sinks[0].deliver(delivery()), "transient")
        assert shared.count == 0
        clients.close()

    asyncio.run(main())
    assert server.batches == [1_000] * 4 + [500]
    assert server.most_running == 2 and server.opened <= 2


def test_a_request_is_no_larger_than_pubsub_takes(server: PubsubServer) -> None:
    async def main() -> None:
        async with sinking(server, timeout_ms=60_000) as sink:
            results = await asyncio.gather(*(sink.deliver(d) for d in numbered(12, body=bytes(1_000_000))))
            assert {type(result) for result in results} == {Ok}

    asyncio.run(main())
    assert sum(server.batches) == 12 and max(server.batches) == 5  # 1.8 MB each, base64 in base64


def test_over_max_message_bytes_is_permanent_and_nothing_is_sent(server: PubsubServer) -> None:
    async def main() -> None:
        async with sinking(server, timeout_ms=60_000) as sink:
            assert "too_large" in failed(await sink.deliver(delivery(body=bytes(7_500_000))), "permanent")
            assert server.batches == []
            ok(await sink.deliver(delivery(body=bytes(7_499_000))))
        async with sinking(server, max_message_bytes=2_000, ordering_key="k" * 1_000) as sink:
            assert "too_large" in failed(await sink.deliver(delivery(body=bytes(600))), "permanent")
            ok(await sink.deliver(delivery()))

    asyncio.run(main())


def test_a_message_that_pubsub_will_not_have_settles_alone(server: PubsubServer) -> None:
    poison = numbered(100)[37].id
    server.invalid = lambda message: message["id"] == poison

    async def main() -> list[SinkResult]:
        async with sinking(server) as sink:
            # Two tenants: the one without a bad message is soon in requests of its own.
            return await asyncio.gather(
                *(sink.deliver(d) for d in numbered(100, tenant_id="bad")),
                *(sink.deliver(delivery(id=f"good-{n}", tenant_id="good")) for n in range(100)),
            )

    results = asyncio.run(main())
    reason = failed(results.pop(37), "permanent")
    assert reason.startswith("INVALID_ARGUMENT: Invalid data in message")
    assert {type(result) for result in results} == {Ok}
    assert len(server.published) == 199 and set(Counter(p.data for p in server.published).values()) == {1}
    assert server.batches[:3] == [200, 100, 50] and len(server.batches) < 2 * 9


@pytest.mark.parametrize(
    "status", ["UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "RESOURCE_EXHAUSTED", "INTERNAL", "UNAVAILABLE"]
)
def test_any_other_error_is_transient_for_all_and_is_tried_once(server: PubsubServer, status: str) -> None:
    server.error = status
    assert {failed(result, "transient") for result in send(server, 3)} == {f"{status}: told to"}
    assert server.batches == [3]


def test_a_missing_topic_is_transient_and_is_not_made(server: PubsubServer) -> None:
    (result,) = send(server, topic="later")
    assert failed(result, "transient").startswith("NOT_FOUND: ")
    server.topics.add("projects/my-project/topics/later")
    (result,) = send(server, topic="later")
    ok(result)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, [], b"not json"),
        Answer(200, [], b"{}"),
        Answer(200, [], b'{"messageIds":["1","2"]}'),
        Answer(200, [], b'{"messageIds":["1","2","3","4"]}'),
        Answer(200, [], b'{"messageIds":["","",""]}'),
        Answer(200, [], b'{"messageIds":[1,2,3]}'),
        Answer(200, [], b'{"messageIds":["' + b"x" * 1_100_000 + b'"]}'),
        Answer(204, [], b""),
        Answer(302, [("location", "http://127.0.0.1:1/")], b""),
        Answer(400, [("content-type", "text/html")], b"<html>a proxy</html>"),
        Answer(502, [], b""),
    ],
)
def test_any_other_answer_is_transient(server: PubsubServer, answer: Answer) -> None:
    server.error = answer
    for result in send(server, 3):
        failed(result, "transient")
    assert server.batches == [3]


def test_an_id_that_is_missing_fails_its_own_message(server: PubsubServer) -> None:
    server.error = Answer(200, [], b'{"messageIds":["1","","3"]}')
    results = send(server, 3)
    assert [ok(results[n]) for n in (0, 2)] == ["id 1", "id 3"]
    assert "names no id" in failed(results[1], "transient")


def test_no_answer_in_time_is_a_timeout(server: PubsubServer) -> None:
    server.delay_s = 0.6
    assert {failed(result, "timeout") for result in send(server, 3, timeout_ms=200)} == {"no answer within 200 ms"}


def test_nobody_there_is_transient_and_comes_back(server: PubsubServer) -> None:
    async def main() -> None:
        async with sinking(server, endpoint=f"http://127.0.0.1:{free_ports(1)[0]}") as sink:
            assert "no answer" in failed(await sink.deliver(delivery()), "transient")
        async with sinking(server) as sink:
            ok(await sink.deliver(delivery()))
            server._server.proxy.shut()
            failed(await sink.deliver(delivery()), "transient")
            server._server.proxy.reopen()
            await until_ok(lambda: sink.deliver(delivery()))

    asyncio.run(main())


def test_an_ordering_key_goes_along_and_keeps_requests_apart(server: PubsubServer) -> None:
    async def main() -> None:
        shared, clients = Destinations(), HttpClients(LOOPBACK)
        sinks = [built(server, shared, clients, **({"ordering_key": key} if key else {})) for key in (None, "a", "é")]
        results = await asyncio.gather(*(sinks[n % 3].deliver(d) for n, d in enumerate(numbered(30))))
        assert {type(result) for result in results} == {Ok}
        for sink in sinks:
            await sink.close()
        clients.close()

    asyncio.run(main())
    assert sorted(server.batches) == [10, 10, 10]
    assert Counter(published.ordering_key for published in server.published) == {"": 10, "a": 10, "é": 10}


# Tokens


def test_a_configured_token_goes_along_and_is_not_told(server: PubsubServer) -> None:
    server.tokens = {"hush-token"}
    (result,) = send(server, auth="token", token="hush-token")
    ok(result)
    server.error = Answer(403, [], b'{"error":{"status":"PERMISSION_DENIED","message":"not hush-token"}}')
    (result,) = send(server, auth="token", token="hush-token")
    assert "hush-token" not in failed(result, "transient")


def test_the_metadata_server_gives_a_token_that_is_kept_until_it_is_refused(server: PubsubServer) -> None:
    options = parse_options({"project": "my-project", "topic": "hooks"})
    assert options.auth == "metadata"

    async def main() -> None:
        tokens = Tokens(options, metadata=server.url)
        first = await asyncio.gather(*(tokens.headers() for _ in range(10)))
        assert first == [[("authorization", "Bearer granted-1")]] * 10 and server.granted == 1
        tokens.refused()
        assert await tokens.headers() == [("authorization", "Bearer granted-2")]
        tokens.close()

    asyncio.run(main())


def test_a_refused_token_is_renewed_for_the_next_attempt(server: PubsubServer) -> None:
    server.tokens = {"granted-2"}

    async def main() -> None:
        async with sinking(server, auth="metadata") as sink:
            destination = sink._share.destination if sink._share else None
            assert destination is not None
            destination._tokens._metadata = server.url
            assert "UNAUTHENTICATED" in failed(await sink.deliver(delivery()), "transient")
            ok(await sink.deliver(delivery()))
            ok(await sink.deliver(delivery()))

    asyncio.run(main())
    assert server.seen_tokens == ["granted-1", "granted-2", "granted-2"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(404, [], b""),
        Answer(200, [], b"{}"),
        Answer(200, [], b"x"),
        Answer(200, [], b'{"access_token":1,"expires_in":1}'),
    ],
)
def test_without_a_token_nothing_is_sent_and_it_is_transient(server: PubsubServer, answer: Answer) -> None:
    server.grants = answer

    async def main() -> None:
        async with sinking(server, auth="metadata") as sink:
            destination = sink._share.destination if sink._share else None
            assert destination is not None
            destination._tokens._metadata = server.url
            assert "no_credentials" in failed(await sink.deliver(delivery()), "transient")

    asyncio.run(main())
    assert server.batches == []


def test_a_service_account_signs_its_own_token(server: PubsubServer, tmp_path: Path) -> None:
    key = subprocess.run(["openssl", "genrsa", "2048"], capture_output=True, text=True, check=True).stdout
    file = tmp_path / "account.json"
    account = {
        "type": "service_account",
        "client_email": "a@my-project.test",
        "private_key": key,
        "private_key_id": "k1",
    }
    file.write_text(json.dumps({**account, "token_uri": "https://example.test/"}))
    (result,) = send(server, auth="service_account", credentials_file=str(file))
    ok(result)
    (token,) = server.seen_tokens
    header, claims, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "RS256", "kid": "k1"}
    stated = json.loads(claims)
    assert (stated["iss"], stated["sub"], stated["aud"]) == (
        *["a@my-project.test"] * 2,
        "https://pubsub.googleapis.com/",
    )
    assert stated["exp"] - stated["iat"] == 3_600
    # The account's public key verifies it, by another implementation than the one that signed.
    (tmp_path / "key").write_text(key)
    (tmp_path / "signature").write_bytes(signature)
    (tmp_path / "signed").write_text(token.rpartition(".")[0])
    command = ["openssl", "dgst", "-sha256", "-prverify", "key", "-signature", "signature", "signed"]
    assert b"Verified OK" in subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    "content", [None, "{}", "hush", '{"client_email":"a","private_key":"hush-key","token_uri":"x"}']
)
def test_a_credentials_file_of_no_use_is_transient_and_is_not_told(
    server: PubsubServer, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "account.json"
    if content is not None:
        file.write_text(content)
    (result,) = send(server, auth="service_account", credentials_file=str(file))
    assert "no_credentials" in (reason := failed(result, "transient")) and "hush" not in reason
    assert server.batches == []


# The guard


def test_the_guard_refuses_an_address_in_the_endpoint(server: PubsubServer) -> None:
    clients = HttpClients(guard := Egress())
    sink = built(server, clients=clients, egress=guard)
    assert failed(asyncio.run(sink.deliver(delivery())), "permanent").startswith("egress_denied: ")
    assert clients.denied == 1 and server.opened == 0


def test_the_guard_refuses_what_a_name_resolves_to(server: PubsubServer) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["169.254.169.254"]

    async def main() -> None:
        clients = HttpClients(guard := Egress([], resolver))
        sink = built(server, clients=clients, egress=guard, endpoint="http://pubsub.test")
        results = await asyncio.gather(*map(sink.deliver, numbered(3)))
        for result in results:
            assert isinstance(result, Failed) and result.reason.startswith("egress_denied: pubsub.test")
        assert clients.denied == 3
        await sink.close()
        clients.close()

    asyncio.run(main())
