"""The kafka sink against a real Apache Kafka: each row of its outcomes, and the life of its producer."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import Ok
from ankusa.sinks.kafka import KafkaSink
from schemas.message import encode
from tests.integration.sinks.conftest import KafkaBehindProxy
from tests.support.brokers import free_ports
from tests.support.http_sink import wait_until
from tests.support.queue_sinks import PATIENT_MS, failed, numbered, ok, until, until_ok
from tests.unit.sinks.deliveries import delivery


def threads() -> int:
    return sum(thread.name == "ankusa-kafka" for thread in threading.enumerate())


@pytest.fixture(scope="module")
def admin(kafka: KafkaBehindProxy) -> AdminClient:
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{kafka.server.port}"})


@pytest.fixture
def topic(admin: AdminClient) -> Iterator[str]:
    yield made(admin)


def made(admin: AdminClient, **config: str) -> str:
    """A new topic of four partitions, which the broker tells its clients of by now."""
    name = f"hooks-{uuid.uuid4().hex[:12]}"
    admin.create_topics([NewTopic(name, 4, 1, config=config)])[name].result(30)
    wait_until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 4, 30)
    return name


def options(kafka: KafkaBehindProxy, topic: str, **more: Any) -> dict[str, Any]:
    # Through the proxy's port only: a producer keeps a connection to every address it is told.
    brokers = f"127.0.0.1:{kafka.proxy.port}"
    return {"brokers": brokers, "topic": topic, "produce_timeout_ms": PATIENT_MS, **more}


@asynccontextmanager
async def sinking(kafka: KafkaBehindProxy, topic: str, **more: Any) -> AsyncIterator[KafkaSink]:
    sink = KafkaSink.build(options(kafka, topic, **more), Destinations())
    try:
        yield sink
    finally:
        await sink.close()


def records(kafka: KafkaBehindProxy, topic: str, count: int) -> list[Message]:
    """The first `count` records of the topic, of all its partitions."""
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{kafka.server.port}", "group.id": "none"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
    found: list[Message] = []
    try:
        while len(found) < count and (message := consumer.poll(20)) is not None:
            assert message.error() is None, message.error()
            found.append(message)
        assert consumer.poll(0.2) is None
        return found
    finally:
        consumer.close()


def test_the_topic_has_the_record_its_key_and_headers(kafka: KafkaBehindProxy, topic: str) -> None:
    async def main() -> None:
        async with sinking(kafka, topic) as sink:
            assert await sink.deliver(delivery(tenant_id="", replay_id="job-1")) == Ok("acknowledged")

    asyncio.run(main())
    (record,) = records(kafka, topic, 1)
    assert record.key() == b"/github" and record.value() == encode(delivery(tenant_id="", replay_id="job-1"))
    assert dict(record.headers()) == {
        "ankusa_id": delivery().id.encode(),
        "ankusa_source_id": b"github",
        "ankusa_tenant_id": b"",
        "ankusa_message_version": b"1",
        "ankusa_idempotency_key": b"acme:github:evt_1",
        "content_type": b"application/json",
        "ankusa_dedupe_key": b"evt_1",
        "ankusa_replay_id": b"job-1",
    }


def test_the_key_picks_the_partition(kafka: KafkaBehindProxy, topic: str) -> None:
    async def main() -> None:
        async with sinking(kafka, topic) as by_source, sinking(kafka, topic, key="fixed") as fixed:
            for sink, tenants in ((by_source, "abcdefgh"), (fixed, "ab")):
                for tenant in tenants:
                    ok(await sink.deliver(delivery(tenant_id=tenant)))

    asyncio.run(main())
    found = records(kafka, topic, 10)
    assert sorted({record.key() for record in found}) == sorted(
        [b"fixed", *(f"{t}/github".encode() for t in "abcdefgh")]
    )
    assert len({record.partition() for record in found if record.key() == b"fixed"}) == 1
    assert len({record.partition() for record in found}) > 1
    # Where a Java producer puts it: murmur2 of the bytes, sign cut off, modulo the partitions.
    assert {record.partition() for record in found if record.key() == b"fixed"} == {_murmur2(b"fixed") % 4}


def _murmur2(data: bytes) -> int:
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    for start in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[len(data) - len(data) % 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_a_missing_topic_is_transient_at_once_is_not_made_and_is_found_when_it_is(
    kafka: KafkaBehindProxy, admin: AdminClient
) -> None:
    name = f"later-{uuid.uuid4().hex[:12]}"

    async def main() -> None:
        async with sinking(kafka, name, produce_timeout_ms=60_000) as sink:
            for _ in range(3):
                assert "no_topic" in failed(await sink.deliver(delivery()), "transient")
            assert name not in admin.list_topics(timeout=10).topics
            admin.create_topics([NewTopic(name, 4, 1)])[name].result(30)
            await until_ok(lambda: sink.deliver(delivery()))

    asyncio.run(main())


def test_over_max_record_bytes_is_permanent_and_nothing_is_produced(kafka: KafkaBehindProxy, topic: str) -> None:
    async def main() -> None:
        async with sinking(kafka, topic) as sink:
            large = delivery(body=bytes(750_000))  # a million in base64, and the rest
            before = kafka.proxy.opened
            assert "too_large" in failed(await sink.deliver(large), "permanent")
            assert kafka.proxy.opened == before  # not even a connection
            ok(await sink.deliver(delivery(body=bytes(749_000))))
        async with sinking(kafka, topic, max_record_bytes=1_040_000) as sink:
            ok(await sink.deliver(large))

    asyncio.run(main())
    assert len(records(kafka, topic, 2)) == 2


def test_larger_than_the_topic_takes_is_permanent_for_that_record_alone(
    kafka: KafkaBehindProxy, admin: AdminClient
) -> None:
    name = made(admin, **{"max.message.bytes": "100000"})

    async def main() -> None:
        async with sinking(kafka, name, key="one") as sink:
            ok(await sink.deliver(delivery()))  # connected, so that the next go out as one batch
            sizes = [40_000] * 10 + [90_000]
            results = await asyncio.gather(*(sink.deliver(delivery(body=bytes(size))) for size in sizes))
            for result in results[:-1]:
                ok(result)
            assert "MSG_SIZE_TOO_LARGE" in failed(results[-1], "permanent")

    asyncio.run(main())
    assert len(records(kafka, name, 11)) == 11


def test_200_at_once_share_one_producer(kafka: KafkaBehindProxy, admin: AdminClient) -> None:
    names = [made(admin), made(admin)]

    async def main() -> None:
        destinations = Destinations()
        sinks = [KafkaSink.build(options(kafka, name), destinations) for name in names]
        assert threads() == 0
        results = await asyncio.gather(*(sinks[n % 2].deliver(d) for n, d in enumerate(numbered(200))))
        assert {ok(result) for result in results} == {"acknowledged"}
        assert threads() == 1
        await sinks[0].close()
        ok(await sinks[1].deliver(delivery()))
        await sinks[1].close()
        assert threads() == 0
        assert "closed" in failed(await sinks[1].deliver(delivery()), "transient")

    asyncio.run(main())
    assert [len(records(kafka, name, count)) for name, count in zip(names, (100, 101), strict=True)] == [100, 101]


def test_a_lost_connection_comes_back(kafka: KafkaBehindProxy, topic: str) -> None:
    async def main() -> None:
        async with sinking(kafka, topic, produce_timeout_ms=500) as sink:
            await until_ok(lambda: sink.deliver(delivery()))
            kafka.proxy.shut()
            try:
                reasons = {failed(r, "timeout") for r in await asyncio.gather(*map(sink.deliver, numbered(5)))}
                assert reasons == {"no acknowledgement within 500 ms"}
            finally:
                kafka.proxy.reopen()
            await until_ok(lambda: sink.deliver(delivery()))

    asyncio.run(main())


def test_an_idle_producer_closes_and_the_next_delivery_opens_another(kafka: KafkaBehindProxy, topic: str) -> None:
    async def main() -> None:
        async with sinking(kafka, topic, idle_timeout_ms=50) as sink:
            ok(await sink.deliver(delivery()))
            await until(lambda: threads() == 0)
            ok(await sink.deliver(delivery()))
            assert threads() == 1

    asyncio.run(main())
    assert len(records(kafka, topic, 2)) == 2


def test_a_producer_with_a_fatal_error_is_replaced(kafka: KafkaBehindProxy, topic: str) -> None:
    async def main() -> None:
        async with sinking(kafka, topic) as sink:
            ok(await sink.deliver(delivery()))
            destination = sink._share.destination
            assert destination is not None
            async with destination.together.use() as producer:
                report = KafkaError(KafkaError._FATAL, "the producer id is gone", fatal=True)
                producer._settle([(asyncio.get_running_loop().create_future(), report)])
            ok(await sink.deliver(delivery()))
            async with destination.together.use() as another:
                assert another is not producer

    asyncio.run(main())


def test_a_close_with_records_under_way_answers_them(kafka: KafkaBehindProxy, topic: str) -> None:
    async def main() -> None:
        sink = KafkaSink.build(options(kafka, topic, produce_timeout_ms=60_000), Destinations())
        await until_ok(lambda: sink.deliver(delivery()))
        kafka.proxy.stall()
        try:
            tasks = [asyncio.create_task(sink.deliver(d)) for d in numbered(5)]
            destination = sink._share.destination
            assert destination is not None
            producer = destination.together._current
            assert producer is not None
            await until(lambda: len(producer._producer) >= 5)
            await sink.close()
            for task in tasks:
                failed(await task, "transient")
        finally:
            kafka.proxy.flow()

    asyncio.run(main())


def test_nobody_there_is_a_timeout_and_tells_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        sasl = {"mechanism": "scram_sha_512", "username": "u", "password": "guessed-word"}
        entry = {"brokers": f"127.0.0.1:{free_ports(1)[0]}", "topic": "t", "sasl": sasl, "produce_timeout_ms": 300}
        sink = KafkaSink.build(entry, Destinations())
        assert "guessed-word" not in failed(await sink.deliver(delivery()), "timeout")
        await sink.close()

    asyncio.run(main())
    assert "guessed-word" not in caplog.text
