"""The redis sink against a real Redis: each row of its outcomes, and the life of its connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import Failed, Ok, SinkResult
from ankusa.sinks.redis import RedisSink
from schemas.message import encode
from tests.support.brokers import Server, free_ports
from tests.support.queue_sinks import PATIENT_MS, failed, numbered, ok, until, until_ok
from tests.support.tcp_proxy import TcpProxy
from tests.unit.sinks.deliveries import delivery

HEARD_S = 30.0
"""The longest that a message takes to a subscriber, on a busy machine."""


@asynccontextmanager
async def sinking(port: int, *, user: str = "", **options: Any) -> AsyncIterator[RedisSink]:
    url = f"redis://{user}127.0.0.1:{port}/0"
    entry = {"url": url, "channel": "hooks", "publish_timeout_ms": PATIENT_MS, **options}
    sink = RedisSink.build(entry, Destinations())
    try:
        yield sink
    finally:
        await sink.close()


@asynccontextmanager
async def listening(server: Server, channel: str = "hooks") -> AsyncIterator[PubSub]:
    client = Redis(port=server.port)
    subscriber = client.pubsub()
    await subscriber.subscribe(channel)
    assert (await subscriber.get_message(timeout=HEARD_S))["type"] == "subscribe"
    try:
        yield subscriber
    finally:
        await subscriber.aclose()
        await client.aclose()


async def heard(subscriber: PubSub, count: int) -> list[bytes]:
    messages = [await subscriber.get_message(timeout=HEARD_S) for _ in range(count)]
    assert None not in messages
    return [message["data"] for message in messages]


def test_a_subscriber_gets_the_message(redis_server: Server) -> None:
    async def main() -> None:
        async with sinking(redis_server.port) as sink, listening(redis_server) as subscriber:
            assert await sink.deliver(delivery()) == Ok("1 subscribers")
            assert await heard(subscriber, 1) == [encode(delivery())]

    asyncio.run(main())


def test_no_subscriber_is_transient_until_there_is_one(redis_server: Server) -> None:
    async def main() -> None:
        async with sinking(redis_server.port) as sink:
            assert "no_subscribers" in failed(await sink.deliver(delivery()), "transient")
            async with listening(redis_server, "other"):
                assert "no_subscribers" in failed(await sink.deliver(delivery()), "transient")
            async with listening(redis_server):
                ok(await sink.deliver(delivery()))

    asyncio.run(main())


def test_a_claimed_body_goes_as_its_claim(redis_server: Server) -> None:
    async def main() -> None:
        async with sinking(redis_server.port) as sink, listening(redis_server) as subscriber:
            ok(await sink.deliver(delivery(claim="urn:ankusa:claim:v1:acme:01M39VMD8RA3C5HR4RBV67Y002")))
            (message,) = map(json.loads, await heard(subscriber, 1))
            assert message["claim"].endswith("Y002") and "body_base64" not in message

    asyncio.run(main())


def test_200_at_once_share_one_connection_and_each_gets_its_own_answer(
    redis_server: Server, redis_proxy: TcpProxy
) -> None:
    async def main() -> None:
        destinations = Destinations()
        url = f"redis://127.0.0.1:{redis_proxy.port}/0"
        options = {"url": url, "publish_timeout_ms": PATIENT_MS}
        heard_, silent = (RedisSink.build({**options, "channel": name}, destinations) for name in ("hooks", "nobody"))
        assert redis_proxy.opened == 0  # nothing is opened before the first delivery
        async with listening(redis_server) as subscriber:
            sent = numbered(200)
            results = await asyncio.gather(*((heard_ if n % 2 else silent).deliver(d) for n, d in enumerate(sent)))
            assert [isinstance(result, Ok) for result in results] == [n % 2 == 1 for n in range(200)]
            assert await heard(subscriber, 100) == [encode(d) for n, d in enumerate(sent) if n % 2]
        assert redis_proxy.opened == 1
        await heard_.close()
        ok_or_silent = await silent.deliver(delivery())  # the other sink still has the destination
        assert "no_subscribers" in failed(ok_or_silent, "transient")
        await silent.close()
        await until(lambda: redis_proxy.open == 0)
        assert destinations.count == 0
        assert "closed" in failed(await silent.deliver(delivery()), "transient")

    asyncio.run(main())


def test_a_lost_connection_is_transient_and_comes_back(redis_server: Server, redis_proxy: TcpProxy) -> None:
    async def main() -> None:
        async with sinking(redis_proxy.port) as sink, listening(redis_server):
            ok(await sink.deliver(delivery()))
            redis_proxy.shut()
            await until(lambda: redis_proxy.open == 0)
            failed(await sink.deliver(delivery()), "transient")
            redis_proxy.reopen()
            await until_ok(lambda: sink.deliver(delivery()))

    asyncio.run(main())


def test_a_server_that_does_not_answer_is_a_timeout_and_its_late_answer_is_nobodys(
    redis_server: Server, redis_proxy: TcpProxy
) -> None:
    async def main() -> None:
        async with sinking(redis_proxy.port, publish_timeout_ms=200) as sink:
            # It is connected once an answer comes in time, which here says that nobody listens.
            while (result := await sink.deliver(delivery())) == Failed("timeout", "no answer within 200 ms"):
                pass
            failed(result, "transient")
            redis_proxy.stall()
            results = await asyncio.gather(*(sink.deliver(d) for d in numbered(5)))
            assert {failed(result, "timeout") for result in results} == {"no answer within 200 ms"}
            async with listening(redis_server):
                redis_proxy.flow()
                assert await until_ok(lambda: sink.deliver(delivery())) == Ok("1 subscribers")

    asyncio.run(main())


def test_an_idle_connection_closes_and_the_next_delivery_opens_another(
    redis_server: Server, redis_proxy: TcpProxy
) -> None:
    async def main() -> None:
        async with sinking(redis_proxy.port, idle_timeout_ms=50) as sink, listening(redis_server):
            ok(await sink.deliver(delivery()))
            await until(lambda: redis_proxy.open == 0)
            ok(await sink.deliver(delivery()))
            assert redis_proxy.opened == 2

    asyncio.run(main())


def test_nobody_there_is_transient() -> None:
    async def main() -> None:
        async with sinking(free_ports(1)[0]) as sink:
            assert "not published" in failed(await sink.deliver(delivery()), "transient")

    asyncio.run(main())


def test_a_wrong_password_is_transient_and_is_not_told(redis_server: Server) -> None:
    async def main() -> None:
        async with sinking(redis_server.port, user="hook:guessed-word@") as sink:
            reason = failed(await sink.deliver(delivery()), "transient")
            assert "guessed-word" not in reason and "password" in reason

    asyncio.run(main())


def test_a_channel_that_is_not_allowed_is_transient(redis_server: Server) -> None:
    async def main() -> SinkResult:
        async with sinking(redis_server.port, user="hook:hush@") as sink, listening(redis_server, "allowed"):
            assert "NOPERM" in failed(await sink.deliver(delivery()), "transient").upper().replace(
                "NOPERMISSION", "NOPERM"
            )
        async with (
            sinking(redis_server.port, user="hook:hush@", channel="allowed") as sink,
            listening(redis_server, "allowed"),
        ):
            return await sink.deliver(delivery())

    ok(asyncio.run(main()))
