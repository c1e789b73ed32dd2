"""The rabbitmq sink against a real RabbitMQ: each row of its outcomes, and the life of its connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractQueue

from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import Ok
from ankusa.sinks.rabbitmq import RabbitSink
from schemas.message import encode
from tests.support.brokers import Server, free_ports
from tests.support.queue_sinks import PATIENT_MS, failed, numbered, ok, until, until_ok
from tests.support.tcp_proxy import TcpProxy
from tests.unit.sinks.deliveries import delivery


@asynccontextmanager
async def sinking(
    port: int, *, login: str = "guest:guest", vhost: str = "", **options: Any
) -> AsyncIterator[RabbitSink]:
    url = f"amqp://{login}@127.0.0.1:{port}/{vhost}"
    entry = {"url": url, "exchange": "hooks", "confirm_timeout_ms": PATIENT_MS, **options}
    sink = RabbitSink.build(entry, "github", Destinations())
    try:
        yield sink
    finally:
        await sink.close()


@asynccontextmanager
async def administering(server: Server) -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{server.port}/")
    async with connection:
        yield await connection.channel()


@asynccontextmanager
async def bound(
    server: Server, exchange: str = "hooks", key: str = "ankusa.#", **queue: Any
) -> AsyncIterator[AbstractQueue]:
    """The exchange and a queue of its own bound to it, for as long as they are used."""
    async with administering(server) as channel:
        declared = await channel.declare_exchange(exchange, "topic")
        found = await channel.declare_queue(None, **queue)
        await found.bind(declared, key)
        try:
            yield found
        finally:
            await found.delete(if_unused=False, if_empty=False)
            await declared.delete()


async def bodies(queue: AbstractQueue) -> list[bytes]:
    found = []
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        found.append(message.body)
    return found


def test_a_bound_queue_has_the_message(rabbitmq_server: Server) -> None:
    async def main() -> None:
        async with bound(rabbitmq_server) as queue, sinking(rabbitmq_server.port) as sink:
            assert await sink.deliver(delivery(replay_id="job-1")) == Ok("confirmed")
            message = await queue.get(no_ack=True)
            assert message.body == encode(delivery(replay_id="job-1"))
            assert message.routing_key == "ankusa.github"
            assert message.content_type == "application/json"
            assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
            assert message.headers == {
                "ankusa_id": delivery().id,
                "ankusa_source_id": "github",
                "ankusa_tenant_id": "acme",
                "ankusa_message_version": "1",
                "ankusa_idempotency_key": "acme:github:evt_1",
                "content_type": "application/json",
                "ankusa_dedupe_key": "evt_1",
                "ankusa_replay_id": "job-1",
            }

    asyncio.run(main())


@pytest.mark.parametrize(("option", "key"), [({"routing_key": "orders.new"}, "orders.new"), ({"routing_key": ""}, "")])
def test_the_routing_key_is_as_configured(rabbitmq_server: Server, option: dict[str, str], key: str) -> None:
    async def main() -> None:
        async with bound(rabbitmq_server, key="#") as queue, sinking(rabbitmq_server.port, **option) as sink:
            ok(await sink.deliver(delivery()))
            assert (await queue.get(no_ack=True)).routing_key == key

    asyncio.run(main())


def test_unroutable_is_transient_and_others_at_the_same_moment_are_not_touched(rabbitmq_server: Server) -> None:
    async def main() -> None:
        destinations = Destinations()
        options = {"url": f"amqp://guest:guest@127.0.0.1:{rabbitmq_server.port}/", "confirm_timeout_ms": PATIENT_MS}
        async with bound(rabbitmq_server) as queue:
            routed, lost = (
                RabbitSink.build({**options, "exchange": "hooks", "routing_key": key}, "github", destinations)
                for key in ("ankusa.github", "elsewhere")
            )
            # The same hooks by both sinks at once: what comes back must be told apart although their ids are the same.
            sent = [(sink, d) for d in numbered(50) for sink in (routed, lost)]
            results = await asyncio.gather(*(sink.deliver(d) for sink, d in sent))
            assert [isinstance(result, Ok) for result in results] == [sink is routed for sink, _ in sent]
            assert "unroutable" in failed(results[1], "transient")
            assert sorted(await bodies(queue)) == sorted(encode(d) for d in numbered(50))
            await routed.close()
            await lost.close()

    asyncio.run(main())


def test_nacked_is_transient(rabbitmq_server: Server) -> None:
    async def main() -> None:
        full = {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
        async with bound(rabbitmq_server, **full), sinking(rabbitmq_server.port) as sink:
            ok(await sink.deliver(delivery()))
            assert "nacked" in failed(await sink.deliver(delivery(id="b")), "transient")

    asyncio.run(main())


def test_a_missing_exchange_is_transient_and_is_not_made(rabbitmq_server: Server) -> None:
    async def main() -> None:
        async with sinking(rabbitmq_server.port) as sink:
            for _ in range(2):
                reasons = {failed(r, "transient") for r in await asyncio.gather(*map(sink.deliver, numbered(5)))}
                assert all("no_exchange" in reason for reason in reasons)
            async with administering(rabbitmq_server) as channel:
                with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                    await channel.get_exchange("hooks", ensure=True)
            async with bound(rabbitmq_server):
                ok(await sink.deliver(delivery()))

    asyncio.run(main())


def test_one_exchange_that_is_missing_harms_no_other(rabbitmq_server: Server, rabbitmq_proxy: TcpProxy) -> None:
    async def main() -> None:
        destinations = Destinations()
        options = {"url": f"amqp://guest:guest@127.0.0.1:{rabbitmq_proxy.port}/", "confirm_timeout_ms": PATIENT_MS}
        good, bad = (
            RabbitSink.build({**options, "exchange": name}, "github", destinations) for name in ("hooks", "missing")
        )
        async with bound(rabbitmq_server) as queue:
            results = await asyncio.gather(*((bad if n % 2 else good).deliver(d) for n, d in enumerate(numbered(100))))
            assert [isinstance(result, Ok) for result in results] == [n % 2 == 0 for n in range(100)]
            assert len(await bodies(queue)) == 50
            assert rabbitmq_proxy.opened == 2  # one an exchange
        await good.close()
        await bad.close()

    asyncio.run(main())


def test_an_exchange_that_goes_away_is_transient_and_comes_back(rabbitmq_server: Server) -> None:
    async def main() -> None:
        async with sinking(rabbitmq_server.port) as sink:
            async with bound(rabbitmq_server):
                ok(await sink.deliver(delivery()))
            for result in await asyncio.gather(*map(sink.deliver, numbered(20))):
                failed(result, "transient")
            assert "no_exchange" in failed(await sink.deliver(delivery()), "transient")
            async with bound(rabbitmq_server):
                ok(await sink.deliver(delivery()))

    asyncio.run(main())


def test_larger_than_the_broker_takes_is_permanent_for_that_message_alone(rabbitmq_server: Server) -> None:
    async def main() -> None:
        large = delivery(body=bytes(3_200_000))
        async with bound(rabbitmq_server), sinking(rabbitmq_server.port) as sink:
            first, *others = await asyncio.gather(*(sink.deliver(d) for d in (large, *numbered(10))))
            assert "too_large" in failed(first, "permanent")
            for other in others:  # before the broker told its limit they share the fate of the channel, and come back
                if not isinstance(other, Ok):
                    failed(other, "transient")
            first, *others = await asyncio.gather(*(sink.deliver(d) for d in (large, *numbered(10))))
            assert failed(first, "permanent").endswith("the broker takes 4000000")
            assert {ok(other) for other in others} == {"confirmed"}

    asyncio.run(main())


def test_200_at_once_share_one_connection(rabbitmq_server: Server, rabbitmq_proxy: TcpProxy) -> None:
    async def main() -> None:
        destinations = Destinations()
        options = {"url": f"amqp://guest:guest@127.0.0.1:{rabbitmq_proxy.port}/", "confirm_timeout_ms": PATIENT_MS}
        one, two = (
            RabbitSink.build({**options, "exchange": "hooks", "routing_key": f"ankusa.{n}"}, "github", destinations)
            for n in range(2)
        )
        assert rabbitmq_proxy.opened == 0
        async with bound(rabbitmq_server) as queue:
            results = await asyncio.gather(*((one if n % 2 else two).deliver(d) for n, d in enumerate(numbered(200))))
            assert {ok(result) for result in results} == {"confirmed"}
            assert sorted(await bodies(queue)) == sorted(encode(d) for d in numbered(200))
            assert rabbitmq_proxy.opened == 1
            await one.close()
            ok(await two.deliver(delivery()))
            await two.close()
            await until(lambda: rabbitmq_proxy.open == 0)
            assert "closed" in failed(await two.deliver(delivery()), "transient")

    asyncio.run(main())


def test_over_max_inflight_is_busy_at_once(rabbitmq_server: Server) -> None:
    async def main() -> None:
        async with bound(rabbitmq_server) as queue, sinking(rabbitmq_server.port, max_inflight=5) as sink:
            results = await asyncio.gather(*map(sink.deliver, numbered(20)))
            assert [isinstance(result, Ok) for result in results] == [True] * 5 + [False] * 15
            assert "busy" in failed(results[5], "transient")
            assert len(await bodies(queue)) == 5
            ok(await sink.deliver(delivery()))

    asyncio.run(main())


def test_no_confirm_in_time_is_transient(rabbitmq_server: Server, rabbitmq_proxy: TcpProxy) -> None:
    async def main() -> None:
        async with bound(rabbitmq_server), sinking(rabbitmq_proxy.port, confirm_timeout_ms=300) as sink:
            await until_ok(lambda: sink.deliver(delivery()))
            rabbitmq_proxy.stall()
            results = await asyncio.gather(*map(sink.deliver, numbered(5)))
            assert {failed(r, "transient") for r in results} == {"confirm_timeout: no confirm within 300 ms"}
            rabbitmq_proxy.flow()
            await until_ok(lambda: sink.deliver(delivery()))

    asyncio.run(main())


def test_a_connection_lost_amid_deliveries_fails_them_at_once_and_comes_back(
    rabbitmq_server: Server, rabbitmq_proxy: TcpProxy
) -> None:
    async def main() -> None:
        async with bound(rabbitmq_server), sinking(rabbitmq_proxy.port, confirm_timeout_ms=60_000) as sink:
            ok(await sink.deliver(delivery()))
            rabbitmq_proxy.stall()
            tasks = [asyncio.create_task(sink.deliver(d)) for d in numbered(20)]
            destination = sink._share.destination
            assert destination is not None
            await until(lambda: destination.in_flight == 20)
            rabbitmq_proxy.shut()
            reasons = {failed(result, "transient") for result in await asyncio.gather(*tasks)}
            assert all("not_connected" in reason for reason in reasons), reasons
            failed(await sink.deliver(delivery()), "transient")
            rabbitmq_proxy.flow()
            rabbitmq_proxy.reopen()
            await until_ok(lambda: sink.deliver(delivery()))

    asyncio.run(main())


def test_an_idle_connection_closes_and_the_next_delivery_opens_another(
    rabbitmq_server: Server, rabbitmq_proxy: TcpProxy
) -> None:
    async def main() -> None:
        async with bound(rabbitmq_server), sinking(rabbitmq_proxy.port, idle_timeout_ms=50) as sink:
            ok(await sink.deliver(delivery()))
            await until(lambda: rabbitmq_proxy.open == 0)
            ok(await sink.deliver(delivery()))
            assert rabbitmq_proxy.opened == 2

    asyncio.run(main())


def test_nobody_there_a_wrong_password_and_a_wrong_vhost_are_transient_and_tell_no_secret(
    rabbitmq_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        for port, options in (
            (free_ports(1)[0], {"login": "guest:guessed-word"}),
            (rabbitmq_server.port, {"login": "guest:guessed-word"}),
            (rabbitmq_server.port, {"vhost": "nope"}),
        ):
            async with sinking(port, **options) as sink:
                reason = failed(await sink.deliver(delivery()), "transient")
                assert "not_connected" in reason and "guessed-word" not in reason

    asyncio.run(main())
    assert "guessed-word" not in caplog.text
