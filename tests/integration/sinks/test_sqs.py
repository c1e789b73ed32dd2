"""The sqs sink against moto's HTTP server: batches, each row of the outcomes, entry by entry, and the guard."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from ankusa.sinks.clients import HttpClients
from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import Ok, SinkResult
from ankusa.sinks.egress import Egress
from ankusa.sinks.sqs import SqsSink, group_id
from schemas.message import encode
from tests.support.brokers import free_ports
from tests.support.queue_sinks import PATIENT_MS, failed, numbered, ok, until
from tests.support.sqs_server import REGION, SqsServer
from tests.unit.sinks.deliveries import delivery

LOOPBACK = Egress(["127.0.0.1"])
KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "guessed-word"}


@pytest.fixture
def server() -> Iterator[SqsServer]:
    with SqsServer() as started:
        started.make_queue("hooks")
        yield started


def built(
    server: SqsServer, shared: Destinations | None = None, queue: str = "hooks", egress: Egress = LOOPBACK, **more: Any
) -> SqsSink:
    options = {"queue_url": server.queue_url(queue), "region": REGION, **KEYS, "timeout_ms": PATIENT_MS, **more}
    return SqsSink.build(options, egress, HttpClients(egress), shared or Destinations())


@asynccontextmanager
async def sinking(server: SqsServer, **more: Any) -> AsyncIterator[SqsSink]:
    sink = built(server, **more)
    try:
        yield sink
    finally:
        await sink.close()


def send(server: SqsServer, count: int = 1, **more: Any) -> list[SinkResult]:
    """So many deliveries at once by a new sink."""

    async def main() -> list[SinkResult]:
        async with sinking(server, **more) as sink:
            return await asyncio.gather(*map(sink.deliver, numbered(count)))

    return asyncio.run(main())


def number(entry: dict[str, Any]) -> int:
    """Which of `numbered` an entry is."""
    return int(entry["MessageAttributes"]["ankusa_id"]["StringValue"][-12:])


def test_the_queue_has_the_message_and_its_attributes(server: SqsServer) -> None:
    server.make_queue("attributes")

    async def main() -> None:
        async with sinking(server, queue="attributes") as sink:
            assert await sink.deliver(delivery(tenant_id="", dedupe_key=None)) == Ok("sent")

    asyncio.run(main())
    (message,) = server.messages("attributes")
    assert message.body == encode(delivery(tenant_id="", dedupe_key=None)).decode()
    assert {name: value["StringValue"] for name, value in message.message_attributes.items()} == {
        "ankusa_id": delivery().id,
        "ankusa_source_id": "github",
        "ankusa_message_version": "1",
        "ankusa_idempotency_key": "acme:github:evt_1",
        "content_type": "application/json",
    }


def test_deliveries_go_ten_a_request_over_shared_connections(server: SqsServer) -> None:
    async def main() -> None:
        shared = Destinations(sink_concurrency=3)
        sinks = [built(server, shared), built(server, shared)]  # two sources, one queue
        assert server.opened == 0
        server.delay_s = 0.2  # so that three have come before the first is answered
        results = await asyncio.gather(*(sinks[n % 2].deliver(d) for n, d in enumerate(numbered(200))))
        assert {ok(result) for result in results} == {"sent"}
        for sink in sinks:
            await sink.close()
        assert "closed" in failed(await sinks[0].deliver(delivery()), "transient")

    asyncio.run(main())
    assert [len(batch) for batch in server.batches] == [10] * 20
    assert server.most_running == 3 and server.opened <= 3
    assert Counter(message["id"] for message in server.bodies("hooks")) == Counter(d.id for d in numbered(200))


def test_a_single_delivery_does_not_wait_for_nine_others(server: SqsServer) -> None:
    assert [ok(result) for result in send(server, 1)] == ["sent"]
    assert len(server.batches) == 1


def test_a_batch_is_no_larger_than_sqs_takes(server: SqsServer) -> None:
    async def main() -> None:
        async with sinking(server) as sink:
            bodies = [
                bytes(40_000)
            ] * 20  # 53 KB each in base64; moto takes 256 KiB a batch, so some are sent in halves
            results = await asyncio.gather(*(sink.deliver(delivery(id=str(n), body=b)) for n, b in enumerate(bodies)))
            assert {ok(result) for result in results} == {"sent"}

    asyncio.run(main())
    assert sorted(int(message["id"]) for message in server.bodies("hooks")) == list(range(20))


def test_larger_than_max_message_bytes_is_permanent_and_nothing_is_sent(server: SqsServer) -> None:
    async def main() -> None:
        async with sinking(server, max_message_bytes=2_048) as sink:
            # With the attributes it is too large, without them it would not be.
            body = encode(delivery())
            room = 2_048 - len(body)
            large = delivery(body=delivery().body + bytes(room // 4 * 3 - 3))
            assert len(encode(large)) < 2_048
            reason = failed(await sink.deliver(large), "permanent")
            assert "too_large" in reason
            assert server.batches == []
            ok(await sink.deliver(delivery()))
        async with sinking(server) as sink:
            assert "too_large" in failed(await sink.deliver(delivery(body=bytes(786_000))), "permanent")

    asyncio.run(main())


@pytest.mark.parametrize(
    "code", ["InvalidMessageContents", "InvalidParameterValue", "AWS.SimpleQueueService.InvalidMessageContents"]
)
def test_a_refused_entry_is_permanent_and_settles_alone(server: SqsServer, code: str) -> None:
    server.refuse = lambda entry: {"Code": code, "Message": "bad"} if number(entry) == 4 else None
    results = send(server, 10)
    assert len(server.batches) == 1
    assert failed(results.pop(4), "permanent") == f"{code.rsplit('.')[-1]}: bad"
    assert {ok(result) for result in results} == {"sent"}


@pytest.mark.parametrize("code", ["InternalError", "ThrottlingException", "KmsThrottled", ""])
def test_any_other_failure_of_an_entry_is_transient(server: SqsServer, code: str) -> None:
    server.refuse = lambda entry: {"Code": code, "Message": "later"} if number(entry) == 0 else None
    results = send(server, 3)
    failed(results[0], "transient")
    assert [ok(result) for result in results[1:]] == ["sent", "sent"]


def test_a_wrong_md5_is_transient_and_settles_alone(server: SqsServer) -> None:
    server.corrupt = lambda entry: number(entry) == 1
    results = send(server, 3)
    assert "MD5" in failed(results[1], "transient")
    assert [ok(results[n]) for n in (0, 2)] == ["sent", "sent"]


def test_an_entry_that_the_answer_does_not_name_is_transient(server: SqsServer) -> None:
    server.forget = lambda entry: number(entry) == 1
    results = send(server, 3)
    assert "does not name" in failed(results[1], "transient")
    assert [ok(results[n]) for n in (0, 2)] == ["sent", "sent"]


def test_one_message_that_the_queue_will_not_have_fails_no_other_in_its_request(server: SqsServer) -> None:
    """Here SQS refuses the request as a whole, and does not say for which entry."""
    server.make_queue("small", MaximumMessageSize="5000")

    async def main() -> list[SinkResult]:
        async with sinking(server, queue="small") as sink:
            deliveries = numbered(10)
            deliveries[3] = delivery(id="x", body=bytes(9_000))
            return await asyncio.gather(*map(sink.deliver, deliveries))

    results = asyncio.run(main())
    assert "InvalidParameterValue" in failed(results.pop(3), "permanent")
    assert {ok(result) for result in results} == {"sent"}
    assert [len(batch) for batch in server.batches] == [10, 5, 2, 3, 1, 2, 1, 1, 5]
    assert len(server.bodies("small")) == 9


def test_a_missing_queue_is_transient_and_is_not_made(server: SqsServer) -> None:
    results = send(server, 3, queue="missing")
    for result in results:
        assert failed(result, "transient").startswith(("QueueDoesNotExist", "NonExistentQueue"))
    server.make_queue("missing")
    assert [ok(result) for result in send(server, 1, queue="missing")] == ["sent"]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, '{"__type":"com.amazonaws.sqs#ServiceUnavailable","message":"busy"}'),
        (403, '{"__type":"com.amazonaws.sqs#AccessDenied","message":"no"}'),
        (502, "<html>a proxy</html>"),
        (200, "not json"),
        (200, "{}"),
        (301, ""),
    ],
)
def test_any_other_answer_is_transient_for_all_and_is_tried_once(server: SqsServer, status: int, body: str) -> None:
    server.broken = (status, body)
    for result in send(server, 3):
        failed(result, "transient")
    assert len(server.batches) == 1


def test_no_answer_in_time_is_a_timeout(server: SqsServer) -> None:
    server.delay_s = 0.6
    for result in send(server, 3, timeout_ms=300):
        assert failed(result, "timeout") == "no answer within 300 ms"


def test_nobody_there_is_transient_and_comes_back(server: SqsServer) -> None:
    async def main() -> None:
        gone = f"http://127.0.0.1:{free_ports(1)[0]}"
        async with sinking(server, endpoint=gone) as sink:
            assert "not sent" in failed(await sink.deliver(delivery()), "transient")
        async with sinking(server, endpoint=server.url) as sink:
            ok(await sink.deliver(delivery()))

    asyncio.run(main())


def test_an_idle_client_closes_and_the_next_delivery_opens_another(server: SqsServer) -> None:
    async def main() -> None:
        async with sinking(server, idle_timeout_ms=50) as sink:
            ok(await sink.deliver(delivery()))
            destination = sink._share.destination if sink._share else None
            assert destination is not None
            await until(lambda: destination._client._current is None)
            ok(await sink.deliver(delivery()))

    asyncio.run(main())
    assert server.opened == 2


# First in, first out


def test_a_fifo_queue_gets_group_and_deduplication_ids(server: SqsServer) -> None:
    server.make_queue("hooks.fifo", FifoQueue="true")

    async def main() -> None:
        async with sinking(server, queue="hooks.fifo") as sink:
            for again in (delivery(), delivery(attempt=2), delivery(replay_id="job-1")):
                ok(await sink.deliver(again))
        async with sinking(server, queue="hooks.fifo", message_group_id="all") as sink:
            ok(await sink.deliver(delivery(id="b")))

    asyncio.run(main())
    assert [(message.group_id, message.deduplication_id) for message in server.messages("hooks.fifo")] == [
        ("acme/github", delivery().id),
        ("acme/github", f"{delivery().id}:replay:job-1"),
        ("all", "b"),
    ]


def test_a_standard_queue_gets_a_group_only_when_configured(server: SqsServer) -> None:
    server.make_queue("fair")
    results = send(server, 1, queue="fair") + send(server, 1, queue="fair", message_group_id="team")
    assert [ok(result) for result in results] == ["sent", "sent"]
    assert [(message.group_id, message.deduplication_id) for message in server.messages("fair")] == [
        (None, None),
        ("team", None),
    ]


def test_a_long_group_id_is_cut_and_stays_one_of_its_own() -> None:
    long = [delivery(tenant_id="t" * 64, source_id=f"{'t' * 64}.{'s' * 63}{end}") for end in "ab"]
    ids = [group_id(each) for each in long]
    assert [len(id_) for id_ in ids] == [128, 128] and ids[0] != ids[1]
    assert group_id(delivery()) == "acme/github"


# The guard


def test_the_guard_refuses_an_address_in_the_endpoint(server: SqsServer) -> None:
    clients = HttpClients(guard := Egress())

    async def main() -> SinkResult:
        options = {"queue_url": server.queue_url("hooks"), "region": REGION, **KEYS}
        sink = SqsSink.build(options, guard, clients, Destinations())
        try:
            return await sink.deliver(delivery())
        finally:
            await sink.close()

    assert failed(asyncio.run(main()), "permanent").startswith("egress_denied: ")
    assert clients.denied == 1 and server.opened == 0


def test_the_guard_refuses_what_a_name_resolves_to_and_judges_every_connection(server: SqsServer) -> None:
    answers = ["127.0.0.1"]

    async def resolver(host: str, port: int) -> list[str]:
        assert (host, port) == ("queues.test", int(server.url.rsplit(":")[-1]))
        return list(answers)

    async def main() -> None:
        guard = Egress(["127.0.0.1"], resolver)
        clients = HttpClients(guard)
        port = server.url.rsplit(":")[-1]
        options = {"queue_url": server.queue_url("hooks"), "endpoint": f"http://queues.test:{port}", "region": REGION}
        sink = SqsSink.build({**options, **KEYS, "timeout_ms": PATIENT_MS}, guard, clients, Destinations())
        server.delay_s = 0.05
        ok(await sink.deliver(delivery()))
        answers[:] = ["169.254.169.254"]
        ok(await sink.deliver(delivery()))  # a connection that was judged is kept
        await sink.close()
        sink = SqsSink.build({**options, **KEYS}, guard, clients, Destinations())
        for _ in range(2):
            reason = failed(await sink.deliver(delivery()), "permanent")
            assert reason == "egress_denied: queues.test resolves to nothing that may be reached"
        assert clients.denied == 2
        answers[:] = []
        assert "not sent" in failed(await sink.deliver(delivery()), "transient")
        answers[:] = ["10.0.0.1", "127.0.0.1"]  # the judged one of the two
        ok(await sink.deliver(delivery()))
        await sink.close()

    asyncio.run(main())


def test_a_proxy_of_the_environment_is_not_used(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert [ok(result) for result in send(server)] == ["sent"]


def test_no_secret_is_told(server: SqsServer, caplog: pytest.LogCaptureFixture) -> None:
    server.broken = (
        403,
        json.dumps({"__type": "SignatureDoesNotMatch", "message": "not guessed-word, by AKIDEXAMPLE"}),
    )
    (result,) = send(server)
    reason = failed(result, "transient")
    assert "guessed-word" not in reason and "AKIDEXAMPLE" not in reason
    assert "guessed-word" not in caplog.text and "guessed-word" not in repr(built(server)._options.credentials)


def test_without_credentials_it_is_transient(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    (result,) = send(server, access_key_id=None, secret_access_key=None)
    assert "NoCredentialsError" in failed(result, "transient")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    (result,) = send(server, access_key_id=None, secret_access_key=None)
    ok(result)


# The acceptance run


def _acceptance(server: SqsServer, count: int) -> None:
    """Hooks in batches of ten; in every tenth batch one entry is refused, and settles alone."""
    seen = iter(range(count))
    refused: list[int] = []

    def refuse(entry: dict[str, Any]) -> dict[str, Any] | None:
        if next(seen) % 100 == 95:  # the sixth entry of the tenth batch
            refused.append(number(entry))
            return {"Code": "InvalidMessageContents", "Message": "not allowed"}
        return None

    server.refuse = refuse

    async def main() -> list[SinkResult]:
        async with sinking(server, timeout_ms=600_000) as sink:  # the emulator is slow, and a timeout is not the matter
            of_tenants = (replace(d, tenant_id=f"t{n % 4}") for n, d in enumerate(numbered(count, body=b"{}")))
            tasks = [asyncio.create_task(sink.deliver(d)) for d in of_tenants]
            return await asyncio.gather(*tasks)

    results = asyncio.run(main())
    assert len(server.batches) == count // 10 and {len(batch) for batch in server.batches} == {10}
    assert len(refused) == count // 100
    for index, result in enumerate(results):
        if index in refused:
            assert failed(result, "permanent") == "InvalidMessageContents: not allowed"
        else:
            assert result == Ok("sent")
    expected = Counter(d.id for index, d in enumerate(numbered(count)) if index not in refused)
    assert Counter(message["id"] for message in server.bodies("hooks")) == expected  # each once, none lost


def test_1000_hooks_in_batches_of_ten(server: SqsServer) -> None:
    _acceptance(server, 1_000)


@pytest.mark.soak
def test_10000_hooks_in_batches_of_ten(server: SqsServer) -> None:
    _acceptance(server, 10_000)
