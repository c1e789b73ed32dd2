"""The nats sink against a real NATS server with JetStream: each row of its outcomes, and the life of its connection."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import nkeys
import pytest
from nats.js import JetStreamContext

from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import Ok
from ankusa.sinks.nats import NatsSink
from schemas.message import encode
from tests.support import brokers
from tests.support.brokers import Server, free_ports, required
from tests.support.queue_sinks import PATIENT_MS, failed, numbered, ok, until, until_ok
from tests.support.tcp_proxy import TcpProxy
from tests.unit.sinks.deliveries import delivery


@asynccontextmanager
async def sinking(*ports: int, **options: Any) -> AsyncIterator[NatsSink]:
    servers = [f"127.0.0.1:{port}" for port in ports]
    entry = {"servers": servers, "subject": "hooks.github", "publish_timeout_ms": PATIENT_MS, **options}
    sink = NatsSink.build(entry, Destinations())
    try:
        yield sink
    finally:
        await sink.close()


@asynccontextmanager
async def stream(port: int, subject: str = "hooks.>", **settings: Any) -> AsyncIterator[JetStreamContext]:
    """A stream `HOOKS` that takes the subject, for as long as it is used."""
    options = {"user": settings.pop("user", None), "password": settings.pop("password", None)}
    client = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, **options)
    context = client.jetstream()
    await context.add_stream(name="HOOKS", subjects=[subject], **settings)
    try:
        yield context
    finally:
        await context.delete_stream("HOOKS")
        await client.close()


def test_the_stream_has_the_message_and_its_headers(nats_server: Server) -> None:
    async def main() -> None:
        async with stream(nats_server.port) as context, sinking(nats_server.port) as sink:
            sent = delivery(replay_id="job-1", dedupe_key="a\r\nb é")
            assert await sink.deliver(sent) == Ok("seq 1")
            got = await context.get_msg("HOOKS", 1)
            assert got.subject == "hooks.github" and got.data == encode(sent)
            assert got.headers == {
                "ankusa_id": sent.id,
                "ankusa_source_id": "github",
                "ankusa_tenant_id": "acme",
                "ankusa_message_version": "1",
                "ankusa_idempotency_key": "acme:github:evt_1",
                "content_type": "application/json",
                "ankusa_dedupe_key": "a%0D%0Ab%20%C3%A9",
                "ankusa_replay_id": "job-1",
                "Nats-Msg-Id": f"{sent.id}:replay:job-1",
            }

    asyncio.run(main())


def test_a_second_attempt_is_stored_once_and_a_replay_again(nats_server: Server) -> None:
    async def main() -> None:
        async with stream(nats_server.port) as context, sinking(nats_server.port) as sink:
            assert await sink.deliver(delivery()) == Ok("seq 1")
            assert await sink.deliver(delivery(attempt=2)) == Ok("duplicate of seq 1")
            assert await sink.deliver(delivery(replay_id="job-1")) == Ok("seq 2")
            assert (await context.stream_info("HOOKS")).state.messages == 2

    asyncio.run(main())


def test_no_stream_is_transient_and_none_is_made(nats_server: Server) -> None:
    async def main() -> None:
        async with sinking(nats_server.port) as sink:
            assert "no_stream" in failed(await sink.deliver(delivery()), "transient")
            client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
            assert await client.jetstream().streams_info() == []
            await client.close()
            async with stream(nats_server.port):
                ok(await sink.deliver(delivery()))

    asyncio.run(main())


@pytest.mark.parametrize("answer", [b"thanks", b"{}", b'{"stream":"HOOKS","seq":0}', b"[1]"])
def test_an_answer_of_somebody_who_is_no_stream_is_no_acknowledgement(nats_server: Server, answer: bytes) -> None:
    async def main() -> None:
        client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")

        async def respond(message: Any) -> None:
            await message.respond(answer)

        await client.subscribe("hooks.github", cb=respond)
        await client.flush()
        async with sinking(nats_server.port) as sink:
            assert "no_stream" in failed(await sink.deliver(delivery()), "transient")
        await client.close()

    asyncio.run(main())


def test_larger_than_the_server_takes_is_permanent_and_is_not_sent(nats_server: Server, nats_proxy: TcpProxy) -> None:
    async def main() -> None:
        async with stream(nats_server.port) as context, sinking(nats_proxy.port) as sink:
            large = delivery(body=bytes(786_000))  # 1,048,000 in base64: with the headers, over 1,048,576
            assert "too_large" in failed(await sink.deliver(large), "permanent")
            ok(await sink.deliver(delivery(body=bytes(784_000))))
            assert (await context.stream_info("HOOKS")).state.messages == 1
            assert nats_proxy.opened == 1  # the server did not end the connection

    asyncio.run(main())


def test_larger_than_the_stream_takes_is_permanent(nats_server: Server) -> None:
    async def main() -> None:
        async with stream(nats_server.port, max_msg_size=2_000), sinking(nats_server.port) as sink:
            ok(await sink.deliver(delivery()))
            reason = failed(await sink.deliver(delivery(id="b", body=bytes(3_000))), "permanent")
            assert "10054" in reason and "message size" in reason

    asyncio.run(main())


def test_a_full_stream_is_transient(nats_server: Server) -> None:
    async def main() -> None:
        async with stream(nats_server.port, max_msgs=1, discard="new"), sinking(nats_server.port) as sink:
            ok(await sink.deliver(delivery()))
            assert "maximum messages" in failed(await sink.deliver(delivery(id="b")), "transient")

    asyncio.run(main())


def test_200_at_once_share_one_connection(nats_server: Server, nats_proxy: TcpProxy) -> None:
    async def main() -> None:
        destinations = Destinations()
        options = {"servers": f"127.0.0.1:{nats_proxy.port}", "publish_timeout_ms": PATIENT_MS}
        one, two = (NatsSink.build({**options, "subject": f"hooks.{name}"}, destinations) for name in ("one", "two"))
        assert nats_proxy.opened == 0
        async with stream(nats_server.port) as context:
            results = await asyncio.gather(*((one if n % 2 else two).deliver(d) for n, d in enumerate(numbered(200))))
            assert {ok(result) for result in results} == {f"seq {n}" for n in range(1, 201)}
            assert (await context.stream_info("HOOKS", subjects_filter=">")).state.subjects == {
                "hooks.one": 100,
                "hooks.two": 100,
            }
            assert nats_proxy.opened == 1
            await one.close()
            ok(await two.deliver(delivery(id="b")))
            await two.close()
            await until(lambda: nats_proxy.open == 0)
            assert "closed" in failed(await two.deliver(delivery()), "transient")

    asyncio.run(main())


def test_a_connection_lost_amid_deliveries_fails_them_at_once_and_comes_back(
    nats_server: Server, nats_proxy: TcpProxy
) -> None:
    async def main() -> None:
        async with stream(nats_server.port), sinking(nats_proxy.port, publish_timeout_ms=60_000) as sink:
            ok(await sink.deliver(delivery()))
            nats_proxy.stall()
            tasks = [asyncio.create_task(sink.deliver(d)) for d in numbered(20)]
            destination = sink._share.destination
            assert destination is not None
            link = destination.connection._current
            assert link is not None
            await until(lambda: len(link.client._resp_map) == 20)  # published, and not acknowledged
            nats_proxy.shut()
            reasons = {failed(result, "transient") for result in await asyncio.gather(*tasks)}
            assert all("lost" in reason for reason in reasons), reasons
            failed(await sink.deliver(delivery()), "transient")
            nats_proxy.flow()
            nats_proxy.reopen()
            await until_ok(lambda: sink.deliver(delivery()))

    asyncio.run(main())


def test_no_acknowledgement_in_time_is_a_timeout(nats_server: Server, nats_proxy: TcpProxy) -> None:
    async def main() -> None:
        async with stream(nats_server.port), sinking(nats_proxy.port, publish_timeout_ms=200) as sink:
            await until_ok(lambda: sink.deliver(delivery()))
            nats_proxy.stall()
            assert failed(await sink.deliver(delivery()), "timeout") == "no acknowledgement within 200 ms"
            nats_proxy.flow()
            await until_ok(lambda: sink.deliver(delivery()))

    asyncio.run(main())


def test_an_idle_connection_closes_and_the_next_delivery_opens_another(
    nats_server: Server, nats_proxy: TcpProxy
) -> None:
    async def main() -> None:
        async with stream(nats_server.port), sinking(nats_proxy.port, idle_timeout_ms=50) as sink:
            ok(await sink.deliver(delivery()))
            await until(lambda: nats_proxy.open == 0)
            ok(await sink.deliver(delivery()))
            assert nats_proxy.opened == 2

    asyncio.run(main())


def test_a_dead_server_in_the_list_is_passed_over(nats_server: Server) -> None:
    async def main() -> None:
        async with stream(nats_server.port), sinking(*free_ports(3), nats_server.port) as sink:
            ok(await sink.deliver(delivery()))
        async with sinking(*free_ports(2)) as sink:
            assert "not published" in failed(await sink.deliver(delivery()), "transient")

    asyncio.run(main())


# Logging in

SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    public = nkeys.from_seed(bytearray(SEED, "ascii")).public_key.decode()
    may = 'permissions: {publish: ["hooks.>", "$JS.>", "_INBOX.>"], subscribe: ">"}'
    users = f'authorization: {{users: [{{user: u, password: hush, {may}}}, {{nkey: "{public}"}}]}}'
    server = required(lambda: brokers.nats(tmp_path_factory.mktemp("guarded"), users))
    yield server
    server.stop()


@pytest.mark.parametrize("auth", [{"username": "u", "password": "hush"}, {"nkey_seed": SEED}])
def test_logging_in(guarded: Server, auth: dict[str, str]) -> None:
    async def main() -> None:
        async with (
            stream(guarded.port, user="u", password="hush"),
            sinking(guarded.port, auth=auth) as sink,
        ):
            ok(await sink.deliver(delivery()))

    asyncio.run(main())


def test_a_token_logs_in(tmp_path: Path) -> None:
    server = required(lambda: brokers.nats(tmp_path, "authorization: {token: hush}"))

    async def main() -> None:
        async with sinking(server.port, auth={"token": "hush"}) as sink:
            assert "no_stream" in failed(await sink.deliver(delivery()), "transient")

    try:
        asyncio.run(main())
    finally:
        server.stop()


@pytest.mark.parametrize(
    "auth",
    [None, {"username": "u", "password": "guessed-word"}, {"token": "guessed-word"}, {"nkey_seed": SEED[:-2] + "AA"}],
)
def test_a_wrong_login_is_transient_and_is_not_told(guarded: Server, auth: Any) -> None:
    async def main() -> None:
        async with sinking(guarded.port, auth=auth) as sink:
            reason = failed(await sink.deliver(delivery()), "transient")
            assert "guessed-word" not in reason and SEED[:20] not in reason

    asyncio.run(main())


def test_a_jwt_and_its_seed_log_in_to_an_account_of_an_operator(tmp_path: Path) -> None:
    def pair(prefix: int, number: int) -> Any:
        seed = nkeys.encode_seed(bytes([number]) * 32, prefix)
        return nkeys.from_seed(bytearray(seed))

    def signed(issuer: Any, subject: Any, stated: dict[str, Any]) -> str:
        claims = {
            "jti": "1",
            "iat": 1_700_000_000,
            "iss": issuer.public_key.decode(),
            "sub": subject.public_key.decode(),
        }
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {**claims, "name": "n", "nats": {"version": 2, **stated}}]
        text = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return f"{text}.{base64.urlsafe_b64encode(issuer.sign(text.encode())).decode().rstrip('=')}"

    operator = pair(nkeys.PREFIX_BYTE_OPERATOR, 1)
    account, system = (pair(nkeys.PREFIX_BYTE_ACCOUNT, number) for number in (2, 3))
    user = nkeys.from_seed(bytearray(SEED, "ascii"))
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
    storing = {**limits, "mem_storage": -1, "disk_storage": -1}
    accounts = {account: storing, system: limits}
    preload = ", ".join(
        f"{each.public_key.decode()}: {signed(operator, each, {'type': 'account', 'limits': own})}"
        for each, own in accounts.items()
    )
    settings = (
        f"operator: {signed(operator, operator, {'type': 'operator'})}\nresolver: MEMORY\n"
        f"resolver_preload: {{{preload}}}\nsystem_account: {system.public_key.decode()}"
    )
    jwt = signed(account, user, {"type": "user", "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}})
    server = required(lambda: brokers.nats(tmp_path, settings))

    async def main() -> None:
        async with sinking(server.port, auth={"nkey_seed": SEED, "jwt": jwt}) as sink:
            assert "no_stream" in failed(await sink.deliver(delivery()), "transient")  # it is in, and there is none
        async with sinking(server.port, auth={"nkey_seed": SEED, "jwt": f"{jwt[:-3]}AAA"}) as sink:
            reason = failed(await sink.deliver(delivery()), "transient")
            assert "Authorization Violation" in reason and jwt[:40] not in reason

    try:
        asyncio.run(main())
    finally:
        server.stop()


def test_a_subject_that_is_not_allowed_is_a_timeout_and_the_log_says_why(
    guarded: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        auth = {"username": "u", "password": "hush"}
        async with sinking(guarded.port, auth=auth, subject="secret", publish_timeout_ms=300) as sink:
            failed(await sink.deliver(delivery()), "timeout")

    asyncio.run(main())
    assert "permissions violation" in caplog.text.lower() and "hush" not in caplog.text
