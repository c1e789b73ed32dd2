"""A real node with queue sinks: one message for all of them, and batches that no dead tenant rides in."""

import asyncio
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import aio_pika
import nats
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from redis import Redis

from tests.integration.sinks.conftest import KafkaBehindProxy
from tests.support.brokers import Server
from tests.support.node import Node
from tests.support.node_process import poll
from tests.support.pubsub_server import PubsubServer
from tests.support.queue_sinks import PATIENT_MS
from tests.support.sqs_server import REGION, SqsServer

KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "guessed-word"}


def test_every_queue_sink_publishes_the_same_bytes(
    tmp_path: Path, kafka: KafkaBehindProxy, nats_server: Server, rabbitmq_server: Server, redis_server: Server
) -> None:
    brokers = {"bootstrap.servers": f"127.0.0.1:{kafka.server.port}"}
    admin = AdminClient(brokers)
    admin.create_topics([NewTopic("all-hooks", 1, 1)])["all-hooks"].result(30)
    subscriber = Redis(port=redis_server.port).pubsub()
    subscriber.subscribe("all-hooks")
    with SqsServer() as sqs, PubsubServer() as pubsub:
        sqs.make_queue("all-hooks")
        amqp = f"amqp://guest:guest@127.0.0.1:{rabbitmq_server.port}/"
        sinks: list[dict[str, Any]] = [
            {"type": "kafka", "brokers": f"127.0.0.1:{kafka.proxy.port}", "topic": "all-hooks"},
            {"type": "sqs", "queue_url": sqs.queue_url("all-hooks"), "region": REGION, **KEYS},
            {
                "type": "google_pubsub",
                "project": "my-project",
                "topic": "hooks",
                "endpoint": pubsub.url,
                "auth": "none",
            },
            {"type": "rabbitmq", "url": amqp, "exchange": "all-hooks"},
            {"type": "nats", "servers": f"127.0.0.1:{nats_server.port}", "subject": "all-hooks"},
            {"type": "redis", "url": f"redis://127.0.0.1:{redis_server.port}", "channel": "all-hooks"},
        ]
        config = {"sources": {"orders": {"tenant": "acme", "verify": {"type": "none"}, "sinks": sinks}}}

        async def main() -> list[bytes]:
            stream = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
            await stream.jetstream().add_stream(name="ALL", subjects=["all-hooks"])
            connection = await aio_pika.connect(amqp)
            channel = await connection.channel()
            exchange = await channel.declare_exchange("all-hooks", "topic", auto_delete=True)
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(exchange, "ankusa.orders")
            try:
                return [await asyncio.to_thread(posted), await taken(stream, queue)]
            finally:
                await stream.jetstream().delete_stream("ALL")
                await stream.close()
                await connection.close()

        async def taken(stream: Any, queue: Any) -> bytes:
            message = (await queue.get(no_ack=True)).body
            assert (await stream.jetstream().get_msg("ALL", 1)).data == message
            return bytes(message)

        def posted() -> bytes:
            with Node(tmp_path, config) as node:
                answer = node.post("orders", b'{"n": 1}', {"x-shop": "a"})
                assert answer.status == 201
                poll("no row left", lambda: not any(node.get("/v1/stats")["rows"][k] for k in ("pending", "claimed")))
                assert node.get("/v1/stats")["rows"]["dead"] == 0, node.log()
                assert node.stop() == 0
                assert "guessed-word" not in node.log()
                return bytes(str(answer.json["id"]), "ascii")

        hook_id, message = asyncio.run(main())
        others = [message_of_kafka(brokers), sqs.messages("all-hooks")[0].body.encode(), pubsub.published[0].data]
        others.append(
            next(m["data"] for m in iter(lambda: subscriber.get_message(timeout=5), None) if m["type"] == "message")
        )
        assert others == [message] * 4
    subscriber.connection_pool.disconnect()
    subscriber.close()
    document = json.loads(message)
    assert document["id"] == hook_id.decode() and document["tenant_id"] == "acme" and document["source_id"] == "orders"
    assert document["sha256"] == hashlib.sha256(b'{"n": 1}').hexdigest()


def message_of_kafka(brokers: dict[str, str]) -> bytes:
    consumer = Consumer({**brokers, "group.id": "none"})
    consumer.assign([TopicPartition("all-hooks", 0, 0)])
    try:
        found = consumer.poll(20)
        assert found is not None and found.error() is None
        return bytes(found.value() or b"")
    finally:
        consumer.close()


def test_a_tenant_whose_breaker_is_open_has_no_entry_in_another_tenants_batch(tmp_path: Path) -> None:
    """Two tenants share a queue that fails every message of the one. The other one's requests are soon its own."""
    with SqsServer() as sqs:
        sqs.make_queue("shared")
        queue = {"queue_url": sqs.queue_url("shared"), "region": REGION, **KEYS}
        sink = {"type": "sqs", "timeout_ms": PATIENT_MS, **queue}  # what is slow is not refused, and not sent again
        source = {"verify": {"type": "none"}, "sinks": [sink]}
        sqs.refuse = lambda entry: (
            {"Code": "InternalError", "Message": "not now"}
            if entry["MessageAttributes"]["ankusa_tenant_id"]["StringValue"] == "failing"
            else None
        )
        config = {
            "dispatch": {
                "breaker_open_ms": 600_000,
                "breaker_max_open_ms": 600_000,
                "attempt_timeout_ms": 2 * PATIENT_MS,
            },
            "sources": {"bad": {**source, "tenant": "failing"}, "good": {**source, "tenant": "sound"}},
        }
        with Node(tmp_path, config) as node:

            def is_open() -> bool:
                node.post("bad")
                return any(key["breaker"] == "open" for key in node.get("/v1/stats")["sinks"])

            poll("the breaker to open", is_open)
            poll("what is under way to settle", lambda: node.get("/v1/stats")["rows"]["claimed"] == 0)
            before = len(sqs.batches)
            ids: dict[str, list[str]] = {"bad": [], "good": []}

            def post_all(name: str) -> None:
                ids[name] = [node.post(name).json["id"] for _ in range(60)]

            senders = [threading.Thread(target=post_all, args=(name,)) for name in ids]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
            poll("the good ones' delivery", lambda: {*ids["good"]} <= {m["id"] for m in sqs.bodies("shared")})
            sent = [id_ for batch in sqs.batches[before:] for id_ in batch]
            assert sorted(sent) == sorted(ids["good"])
