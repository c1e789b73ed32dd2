"""The claim-check gateway over real sockets (spec 04), and bodies redeemed by the published client, unmodified."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ankusa.claim_check import reader
from ankusa.claim_check.blobs import BlobError
from ankusa.claim_check.local_blobs import LocalBlobs
from ankusa.sinks import registry
from ankusa.sinks.contract import Delivery, Failed, Ok
from ankusa.sinks.registry import SinkType
from api.claims import CACHE_CONTROL, requested
from schemas.append import AnswerStatus, Submission
from schemas.config import ClaimCheck, Config, RetryOverride, Sink, Source, Verify
from schemas.config import Node as NodeConfig
from schemas.message import encode as encode_message
from schemas.records import Envelope, encode
from streams import listeners
from streams.local.engine import Engine
from tests.contract.blobs import ScriptedBlobs
from tests.integration.test_client_sdk import python  # noqa: F401 - the environment that holds the published client
from tests.support.gateway import Gateway, gateway, path_of
from tests.support.node import Node, ask
from tests.support.node_process import free_ports, poll, serving
from tests.support.sqs_server import REGION, SqsServer

BODY = bytes(range(256)) * 12_000
UNKNOWN = "/v1/claims/acme/01ARYZ6S410000000000000000"

# Redeems each of `calls`, a list of [reference, sha256], and prints the length of what came or what was raised.
SCRIPT = """
import hashlib, json, sys
from ankusa import ClaimCheckClient, ClaimCheckError

found = []
with ClaimCheckClient(sys.argv[1]) as client:
    found.append(client.health())
    for reference, sha256 in json.loads(sys.argv[2]):
        try:
            body = client.redeem(reference, sha256)
            found.append([len(body), hashlib.sha256(body).hexdigest()])
        except ClaimCheckError as error:
            found.append([type(error).__name__, error.retryable])
print(json.dumps(found))
"""


class FailingBlobs(ScriptedBlobs):
    """Readings that go by `faults`: each in turn an exception to raise, or None to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Exception | None] = []
        self.reads: list[int] = []

    async def read(self, tenant_id: str, pack: str, start: int, length: int) -> bytes | None:
        await asyncio.sleep(0.001)  # as any real store lets the loop go on
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        self.reads.append(length)
        return await super().read(tenant_id, pack, start, length)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Gateway]:
    with gateway(LocalBlobs(tmp_path / "claims")) as served:
        yield served


@pytest.fixture
def failing() -> FailingBlobs:
    return FailingBlobs()


@pytest.fixture
def fragile(failing: FailingBlobs) -> Iterator[Gateway]:
    with gateway(failing) as served:
        yield served


def redeem(python: Path, port: int, calls: list[list[str]]) -> list[Any]:  # noqa: F811
    command = [str(python), "-I", "-c", SCRIPT, f"http://127.0.0.1:{port}", json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def test_a_body_comes_back_byte_for_byte(local: Gateway) -> None:
    first, second, third = local.store(b"first", BODY, b"third")
    answer = ask(local.port, "GET", path_of(second))
    assert (answer.status, answer.body) == (200, BODY)
    assert answer.headers["content-length"] == str(len(BODY))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["cache-control"] == CACHE_CONTROL == "private, max-age=31536000, immutable"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert ask(local.port, "GET", path_of(first)).body == b"first"
    assert ask(local.port, "GET", path_of(third)).body == b"third"


def test_head_says_all_but_the_body(local: Gateway) -> None:
    (reference,) = local.store(BODY)
    whole = ask(local.port, "GET", path_of(reference))
    head = ask(local.port, "HEAD", path_of(reference), headers={"range": "bytes=0-1"})
    assert (head.status, head.body) == (200, b"")
    same = ("content-length", "content-type", "accept-ranges", "cache-control")
    assert [head.headers[name] for name in same] == [whole.headers[name] for name in same]
    assert ask(local.port, "HEAD", UNKNOWN).status == 404


@pytest.mark.parametrize(
    ("range_", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-1023", (0, 1024)),
        ("bytes=3000000-3071999", (3_000_000, 72_000)),
        ("bytes=3071999-", (3_071_999, 1)),
        ("bytes=100-99999999999999999999999", (100, 3_071_900)),
        ("bytes=-5", (3_071_995, 5)),
        ("bytes=-99999999999999999999999", (0, 3_072_000)),
        ("bytes=0000000000000000000000007-8", (7, 2)),
    ],
)
def test_a_range_is_served(local: Gateway, range_: str, expected: tuple[int, int]) -> None:
    (_, reference) = local.store(b"before", BODY)
    start, length = expected
    answer = ask(local.port, "GET", path_of(reference), headers={"range": range_})
    assert answer.status == 206
    assert answer.body == BODY[start : start + length]
    assert answer.headers["content-range"] == f"bytes {start}-{start + length - 1}/{len(BODY)}"
    assert answer.headers["content-length"] == str(length)
    assert answer.headers["cache-control"] == CACHE_CONTROL


@pytest.mark.parametrize(
    "range_", ["bytes=3072000-", "bytes=3072000-3072001", "bytes=99999999999999999999-", "bytes=-0"]
)
def test_a_range_outside_is_refused(local: Gateway, range_: str) -> None:
    (reference,) = local.store(BODY)
    answer = ask(local.port, "GET", path_of(reference), headers={"range": range_})
    assert (answer.status, answer.body) == (416, b"")
    assert answer.headers["content-range"] == f"bytes */{len(BODY)}"
    assert answer.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize(
    "headers",
    [
        *({"range": value} for value in ("bytes=0-1,3-4", "bytes=5-2", "bytes=", "bytes=-", "lines=1-2", "bytes 0-1")),
        *({"range": value} for value in ("bytes=a-b", "bytes=0x1-2", "bytes=\u0661-\u0662".encode().decode("latin-1"))),
        {"range": "bytes=0-1", "if-range": '"etag"'},
    ],
)
def test_any_other_range_is_ignored(local: Gateway, headers: dict[str, str]) -> None:
    (reference,) = local.store(BODY)
    answer = ask(local.port, "GET", path_of(reference), headers=headers)
    assert (answer.status, len(answer.body)) == (200, len(BODY))


def test_a_body_of_nothing_has_no_range() -> None:
    assert requested("bytes=0-", 0) == (0, 0)
    assert requested("bytes=-1", 0) == (0, 0)
    assert requested(None, 0) is None


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", UNKNOWN, 404, "not_found"),
        ("GET", "/v1/claims/nobody/01ARYZ6S410000000000000000", 404, "not_found"),
        ("GET", "/v1/claims/a.b/01ARYZ6S410000000000000000", 400, "invalid_tenant"),
        ("GET", "/v1/claims/%2e%2e/01ARYZ6S410000000000000000", 400, "invalid_tenant"),
        ("GET", f"/v1/claims/{'a' * 65}/01ARYZ6S410000000000000000", 400, "invalid_tenant"),
        ("GET", "/v1/claims/acme/01aryz6s410000000000000000", 400, "invalid_id"),
        ("GET", "/v1/claims/acme/81ARYZ6S410000000000000000", 400, "invalid_id"),
        ("GET", "/v1/claims/acme/.ankusa-claim-check", 400, "invalid_id"),
        ("GET", "/v1/claims/acme/..%2f..%2fetc%2fpasswd", 404, "not_found"),
        ("GET", "/v1/claims/acme", 404, "not_found"),
        ("GET", "/v1/claims/acme/", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("PUT", UNKNOWN, 405, "method_not_allowed"),
        ("DELETE", UNKNOWN, 405, "method_not_allowed"),
    ],
)
def test_what_is_not_there(local: Gateway, method: str, path: str, status: int, code: str) -> None:
    answer = ask(local.port, method, path)
    assert (answer.status, answer.json) == (status, {"error": code})
    assert "cache-control" not in answer.headers


def test_a_position_past_the_last_of_a_pack_is_not_there(local: Gateway) -> None:
    *_, last = local.store(b"a", b"b")
    past = path_of(last)[:-1] + "Z"
    assert ask(local.port, "GET", past).json == {"error": "not_found"}


def test_it_lives(local: Gateway) -> None:
    assert ask(local.port, "GET", "/health").json == {"status": "ok"}
    document = ask(local.port, "GET", "/openapi.json").json
    assert sorted(document["paths"]) == ["/health", "/v1/claims/{tenant_id}/{claim_id}"]
    answers = document["paths"]["/v1/claims/{tenant_id}/{claim_id}"]["get"]["responses"]
    assert sorted(answers) == ["200", "206", "400", "404", "416", "503"]
    assert list(answers["200"]["content"]) == ["application/octet-stream"]


@pytest.mark.parametrize("fault", [BlobError("connection refused"), TimeoutError()])
@pytest.mark.parametrize("good", [0, 1])
def test_a_store_that_fails_before_a_byte_is_sent(
    fragile: Gateway, failing: FailingBlobs, good: int, fault: Exception
) -> None:
    (reference,) = fragile.store(BODY)
    failing.faults = [None] * good + [fault]
    answer = ask(fragile.port, "GET", path_of(reference))
    assert (answer.status, answer.json) == (503, {"error": "store_unavailable"})
    assert answer.headers["retry-after"] == "1"
    assert ask(fragile.port, "GET", path_of(reference)).body == BODY


def test_a_store_that_hangs(fragile: Gateway, failing: FailingBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "READ_MS", 50)
    (reference,) = fragile.store(BODY)

    async def read(*_: Any) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    failing.read = read  # type: ignore[method-assign]
    assert ask(fragile.port, "GET", path_of(reference)).status == 503


def test_a_damaged_pack(fragile: Gateway, failing: FailingBlobs) -> None:
    (reference,) = fragile.store(BODY)
    for name, stored in failing.packs.items():
        failing.packs[name] = b"\0" * len(stored)
    assert ask(fragile.port, "GET", path_of(reference)).status == 503


def test_a_store_that_fails_amid_a_body_cuts_the_connection(
    fragile: Gateway, failing: FailingBlobs, caplog: pytest.LogCaptureFixture
) -> None:
    (reference,) = fragile.store(BODY)
    failing.faults = [None, None, BlobError("connection reset")]
    with caplog.at_level(logging.WARNING):
        connection = http.client.HTTPConnection("127.0.0.1", fragile.port, timeout=30)
        connection.request("GET", path_of(reference))
        response = connection.getresponse()
        assert response.status == 200
        with pytest.raises(http.client.IncompleteRead):
            response.read()
        connection.close()
    assert "event=claim_cut" in caplog.text
    assert "Traceback" not in caplog.text
    assert ask(fragile.port, "GET", path_of(reference)).body == BODY


def test_a_large_body_is_read_in_pieces_and_only_what_is_asked_for(fragile: Gateway, failing: FailingBlobs) -> None:
    large = b"\xa5" * (16 << 20)
    (reference,) = fragile.store(large)
    assert ask(fragile.port, "GET", path_of(reference)).body == large
    assert max(failing.reads) == reader.PIECE_BYTES
    assert len(failing.reads) == 17
    failing.reads.clear()
    ask(fragile.port, "GET", path_of(reference), headers={"range": "bytes=5000000-5000009"})
    assert failing.reads == [20, 10]
    failing.reads.clear()
    ask(fragile.port, "HEAD", path_of(reference))
    assert failing.reads == [20]


def test_a_reader_that_goes_away_leaves_nothing_running(fragile: Gateway, failing: FailingBlobs) -> None:
    (reference,) = fragile.store(b"\xa5" * (16 << 20))
    connection = http.client.HTTPConnection("127.0.0.1", fragile.port, timeout=30)
    connection.request("GET", path_of(reference))
    connection.getresponse().read(1000)
    connection.close()
    assert ask(fragile.port, "GET", path_of(reference), headers={"range": "bytes=0-9"}).status == 206
    assert len(failing.reads) < 17 + 2


def test_the_published_client_redeems(python: Path, local: Gateway) -> None:  # noqa: F811
    small, large = local.store(b"small", BODY)
    sha256 = hashlib.sha256(BODY).hexdigest()
    health, *found = redeem(
        python,
        local.port,
        [
            [large, sha256],
            [small, hashlib.sha256(b"small").hexdigest()],
            [small, sha256],
            ["urn:ankusa:claim:v1:acme:01ARYZ6S410000000000000000", sha256],
            ["urn:ankusa:claim:v1:acme:nonsense", sha256],
        ],
    )
    assert health == {"status": "ok"}
    assert found == [
        [len(BODY), sha256],
        [5, hashlib.sha256(b"small").hexdigest()],
        ["ClaimIntegrityError", False],
        ["ClaimNotFoundError", False],
        ["InvalidClaimRefError", False],
    ]


def test_the_published_client_tries_again_when_the_store_fails(
    python: Path,  # noqa: F811
    fragile: Gateway,
    failing: FailingBlobs,
) -> None:
    (reference,) = fragile.store(BODY)
    sha256 = hashlib.sha256(BODY).hexdigest()
    failing.faults = [BlobError("away"), None, None, BlobError("away")]
    _, *found = redeem(python, fragile.port, [[reference, sha256]] * 3)
    unavailable = ["ClaimCheckUnavailableError", True]
    assert found == [unavailable, unavailable, [len(BODY), sha256]]


# -- a whole node -------------------------------------------------------------------

# Decodes each of the messages in the file at argv[2], redeems it, and prints its key and its body's digest.
CONSUMER = """
import hashlib, json, pathlib, sys
from ankusa import ClaimCheckClient, decode_message, idempotency_key

found = []
with ClaimCheckClient(sys.argv[1]) as client:
    for line in pathlib.Path(sys.argv[2]).read_text().splitlines():
        message = decode_message(line)
        body = client.redeem(message.claim, message.sha256)
        found.append([message.claim, idempotency_key(message), message.size, hashlib.sha256(body).hexdigest()])
print(json.dumps(found))
"""


class Queue:
    """A sink that publishes messages to a list, after `failures` refusals."""

    batching = False
    inline_max_bytes: int | None = 65_536

    def __init__(self, type: str, failures: int = 0) -> None:
        self.type = type
        self.failures = failures
        self.messages: list[bytes] = []

    async def deliver(self, delivery: Delivery) -> Ok | Failed:
        if self.failures:
            self.failures -= 1
            return Failed("transient", "busy")
        self.messages.append(encode_message(delivery, delivery.claim))
        return Ok()

    async def close(self) -> None:
        """Nothing to release."""


def test_three_megabytes_on_two_queues_through_a_whole_node(
    python: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = {"sqs": Queue("sqs"), "kafka": Queue("kafka", failures=2)}
    for name, queue in queues.items():
        made = SinkType(lambda *_: None, lambda *_, queue=queue: queue)  # type: ignore[misc]
        monkeypatch.setitem(registry._TYPES, name, made)
    sinks = tuple(Sink(type=name, retry=RetryOverride(base_ms=1)) for name in queues)
    config = Config(
        node=NodeConfig(data_dir=str(tmp_path), edges=0, roles=("dispatch", "claim_check")),
        claim_check=ClaimCheck(port=0),
        sources={"orders": Source(name="orders", verify=Verify(type="none"), sinks=sinks)},
    )
    messages = tmp_path / "messages"

    async def node() -> list[Any]:
        engine = Engine(config)
        await engine.start(None)
        (listener,) = await listeners.gateway(engine.blobs, config)
        try:
            at = engine.log.now()
            entry = Envelope("hook-1", "orders", "default", at, tuple(queues), (), "image/png", "default:orders:evt-1")
            (answer,) = await engine.intake.append([(Submission(entry, BODY), encode(entry))], at + 60_000)
            assert answer.status is AnswerStatus.ACCEPTED
            while not all(queue.messages for queue in queues.values()):
                await asyncio.sleep(0.01)
            messages.write_bytes(b"\n".join(queue.messages[0] for queue in queues.values()))
            command = [str(python), "-I", "-c", CONSUMER, f"http://127.0.0.1:{listener.port}", str(messages)]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            found: list[Any] = json.loads(done.stdout)
            return found
        finally:
            await listener.close()
            await engine.stop()

    first, second = asyncio.run(asyncio.wait_for(node(), 120))
    assert first == second
    assert first[1:] == ["default:orders:evt-1", len(BODY), hashlib.sha256(BODY).hexdigest()]
    (pack,) = (tmp_path / "claims" / "default").iterdir()
    assert pack.stat().st_size < len(BODY) + 100


def test_two_sqs_queues_a_failing_retry_and_a_kill_share_one_stored_body(python: Path, tmp_path: Path) -> None:  # noqa: F811
    """Real processes: one queue takes the message, the other refuses it until the node has been killed and is back."""
    (port,) = free_ports(1)
    with SqsServer() as sqs:
        sqs.make_queue("first")
        sqs.make_queue("second.fifo", FifoQueue="true")
        sqs.refuse = lambda entry: (
            {"Code": "InternalError", "Message": "not now"} if "MessageGroupId" in entry else None
        )
        keys = {"region": REGION, "access_key_id": "AKIDEXAMPLE", "secret_access_key": "guessed-word"}
        queues = ("first", "second.fifo")
        sinks = [{"type": "sqs", "queue_url": sqs.queue_url(name), **keys, "retry": {"max_ms": 200}} for name in queues]
        source = {"verify": {"type": "none"}, "sinks": sinks}
        config = {
            "node": {"roles": ["edge", "dispatch", "storage", "claim_check"], "data_dir": str(tmp_path / "data")},
            "claim_check": {"port": port},
            "dispatch": {"breaker_failures": 0},
            "sources": {"orders": source},
        }
        with Node(tmp_path, config) as node:
            answer = node.post("orders", BODY)
            assert answer.status == 201
            poll("the first message and two refusals", lambda: sqs.messages("first") and len(sqs.batches) > 3)
            node.kill()
            node.start()
            sqs.refuse = lambda _: None
            poll("the second message", lambda: sqs.messages("second.fifo"))
            messages = [message for name in queues for message in sqs.messages(name)]
            (tmp_path / "messages").write_text("\n".join(message.body for message in messages))
            command = [str(python), "-I", "-c", CONSUMER, f"http://127.0.0.1:{port}", str(tmp_path / "messages")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            assert node.stop() == 0
    found = json.loads(done.stdout)
    ((_, key, size, sha256),) = {tuple(one) for one in found}
    assert len(found) >= 2
    assert (key, size, sha256) == (answer.json["id"], len(BODY), hashlib.sha256(BODY).hexdigest())
    assert len(list((tmp_path / "data" / "claims" / "default").iterdir())) == 1


@pytest.mark.parametrize("edges", [0, 1])
def test_serve_listens_in_its_role_and_names_a_port_that_is_taken(tmp_path: Path, edges: int) -> None:
    (port,) = free_ports(1)
    config = {
        "node": {"edges": edges, "roles": ["edge", "dispatch", "storage", "claim_check"]},
        "claim_check": {"port": port},
        "sources": {"first": {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}},
    }
    with serving(tmp_path, config) as node:
        poll("the gateway", lambda: ask(port, "GET", "/health").status == 200)
        assert ask(port, "GET", UNKNOWN).status == 404
        assert "claim_check_unserved" not in node.log()
        assert node.end() == 0
    taken = socket.create_server(("127.0.0.1", port))
    with taken:
        command = [sys.executable, "-m", "ankusa.cli", "serve", "--config", "ankusa.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode != 0
        assert f"claim_check.port: cannot listen on 127.0.0.1:{port}" in done.stderr


def test_without_the_role_nothing_listens(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    source = {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}
    with serving(tmp_path, {"claim_check": {"port": port}, "sources": {"first": source}}) as node:
        with pytest.raises(OSError, match="refused"):
            ask(port, "GET", "/health")
        assert node.end() == 0
