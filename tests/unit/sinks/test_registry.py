"""From a sink entry to a client, or to the option that is wrong."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from ankusa.sinks.clients import HttpClients
from ankusa.sinks.contract import Failed, OptionError
from ankusa.sinks.egress import Egress
from ankusa.sinks.http import HttpSink
from ankusa.sinks.log import LogSink
from ankusa.sinks.registry import SinkContext, build_sink, check_sink
from schemas.config import Sink
from tests.unit.sinks.deliveries import delivery

EGRESS = Egress()


def context() -> SinkContext:
    return SinkContext(EGRESS, HttpClients(EGRESS))


def test_the_built_types() -> None:
    assert isinstance(build_sink(Sink(type="log"), "s", context()), LogSink)
    http = build_sink(Sink(type="http", options={"url": "https://example.com/"}), "s", context())
    assert isinstance(http, HttpSink) and http.type == "http"


QUEUES: dict[str, tuple[str, dict[str, Any]]] = {
    "kafka": ("confluent_kafka", {"brokers": "a:9092", "topic": "hooks"}),
    "sqs": ("aiobotocore", {"queue_url": "https://sqs.us-east-1.amazonaws.com/1/hooks", "region": "us-east-1"}),
    "google_pubsub": ("google", {"project": "my-project", "topic": "hooks", "auth": "none"}),
    "rabbitmq": ("aio_pika", {"url": "amqp://localhost", "exchange": "hooks"}),
    "nats": ("nats", {"servers": "a:4222", "subject": "hooks"}),
    "redis": ("redis", {"url": "redis://localhost", "channel": "hooks"}),
}


@pytest.mark.parametrize("name", QUEUES)
def test_a_queue_sink_is_checked_and_built_and_opens_nothing(name: str) -> None:
    sink = Sink(type=name, options=QUEUES[name][1])
    check_sink(sink, EGRESS)
    ctx = context()

    async def main() -> None:
        client = build_sink(sink, "s", ctx)
        assert client.type == name and client.inline_max_bytes == 65_536
        assert client.batching is (name in ("sqs", "google_pubsub"))
        assert ctx.destinations.count == 1
        await client.close()
        await client.close()
        assert ctx.destinations.count == 0
        assert isinstance(result := await client.deliver(delivery()), Failed) and "closed" in result.reason

    asyncio.run(main())


@pytest.mark.parametrize("name", QUEUES)
def test_checking_and_building_a_queue_sink_name_the_same_wrong_option(name: str) -> None:
    sink = Sink(type=name, options={**QUEUES[name][1], "nope": 1})
    for call in (lambda: check_sink(sink, EGRESS), lambda: build_sink(sink, "s", context())):
        with pytest.raises(OptionError) as caught:
            call()
        assert caught.value.field == "nope"


@pytest.mark.parametrize("name", [name for name in QUEUES if name != "google_pubsub"])
def test_without_its_library_a_check_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, options = QUEUES[name]
    monkeypatch.setitem(sys.modules, library, None)
    for call in (
        lambda: check_sink(Sink(type=name, options=options), EGRESS),
        lambda: build_sink(Sink(type=name, options=options), "s", context()),
    ):
        with pytest.raises(OptionError) as caught:
            call()
        assert caught.value.field == "type"
        assert caught.value.message.endswith(f"pip install ankusa-server[{name}]")


def test_pubsub_needs_its_library_for_a_service_account_only(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"project": "my-project", "topic": "hooks"}
    account = {**options, "auth": "service_account", "credentials_file": "f"}
    check_sink(Sink(type="google_pubsub", options=account), EGRESS)
    monkeypatch.setitem(sys.modules, "google", None)
    monkeypatch.delitem(sys.modules, "google.auth", raising=False)
    check_sink(Sink(type="google_pubsub", options=options), EGRESS)
    with pytest.raises(OptionError, match=r"pip install ankusa-server\[google_pubsub\]") as caught:
        check_sink(Sink(type="google_pubsub", options=account), EGRESS)
    assert caught.value.field == "auth"


def test_a_check_imports_no_library() -> None:
    """Every process checks the config, and only the one that delivers needs the libraries."""
    program = f"""
import sys
from ankusa.sinks.egress import Egress
from ankusa.sinks.registry import check_sink
from schemas.config import Sink
for name, (_, options) in {QUEUES!r}.items():
    check_sink(Sink(type=name, options=options), Egress())
heavy = {[library for library, _ in QUEUES.values() if library != "google"]!r} + ["botocore", "aiohttp", "nkeys"]
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("sqs", {"queue_url": "http://127.0.0.1:4566/1/a"}, "queue_url"),
        ("sqs", {"endpoint": "http://localhost:4566"}, "endpoint"),
        ("google_pubsub", {"endpoint": "http://169.254.169.254"}, "endpoint"),
    ],
)
def test_an_endpoint_that_the_guard_refuses_is_a_config_error(name: str, changes: dict[str, Any], field: str) -> None:
    sink = Sink(type=name, options={**QUEUES[name][1], **changes})
    with pytest.raises(OptionError) as caught:
        check_sink(sink, EGRESS)
    assert caught.value.field == field and caught.value.message.startswith("egress_denied: ")
    check_sink(sink, Egress(["127.0.0.0/8", "169.254.169.254"]))

    async def main() -> None:  # one that was stored under another allow list
        client = build_sink(sink, "s", context())
        if "localhost" not in str(changes):
            result = await client.deliver(delivery())
            assert isinstance(result, Failed) and result.reason.startswith("egress_denied: ")
        await client.close()

    asyncio.run(main())


def test_an_unknown_type_lists_the_known_ones() -> None:
    for call in (lambda s: check_sink(s, EGRESS), lambda s: build_sink(s, "s", context())):
        with pytest.raises(
            OptionError, match=r"'smtp'; known types: log, http, kafka, sqs, google_pubsub, rabbitmq, nats, redis"
        ) as caught:
            call(Sink(type="smtp"))
        assert caught.value.field == "type"


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1/", "http://2130706433/", "http://localhost:9000/", "ftp://example.com/", "http://u:hush@e.test/"],
)
def test_a_url_that_the_guard_refuses_is_a_config_error(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_sink(Sink(type="http", options={"url": url}), EGRESS)
    assert caught.value.field == "url"
    assert caught.value.message.startswith("egress_denied: ")
    assert "hush" not in str(caught.value)
    could_be_allowed = not url.startswith("ftp:") and "hush" not in url
    assert caught.value.message.endswith("; if it is wanted, name it in egress.allow") is could_be_allowed


def test_it_passes_when_allowed() -> None:
    check_sink(Sink(type="http", options={"url": "http://localhost:9000/"}), Egress(["127.0.0.0/8"]))
    check_sink(Sink(type="http", options={"url": "https://example.com/"}), EGRESS)
    check_sink(Sink(type="log", options={"level": "debug"}), EGRESS)


@pytest.mark.parametrize(
    ("sink", "field"),
    [
        (Sink(type="http"), "url"),
        (Sink(type="http", options={"url": "https://e.test/", "nope": 1}), "nope"),
        (Sink(type="log", options={"url": "x"}), "url"),
    ],
)
def test_checking_and_building_name_the_same_wrong_option(sink: Sink, field: str) -> None:
    for call in (lambda: check_sink(sink, EGRESS), lambda: build_sink(sink, "s", context())):
        with pytest.raises(OptionError) as caught:
            call()
        assert caught.value.field == field


def test_a_stored_sink_that_the_guard_refuses_builds_and_fails_each_delivery_for_good() -> None:
    ctx = context()
    sink = build_sink(Sink(type="http", options={"url": "http://169.254.169.254/"}), "s", ctx)
    result = asyncio.run(sink.deliver(delivery()))
    assert isinstance(result, Failed)
    assert result.error_class == "permanent"
    assert result.reason.startswith("egress_denied: ")
    assert ctx.clients.denied == 1
