"""From a sink entry to a client, or to the option that is wrong."""

import asyncio

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


@pytest.mark.parametrize("name", ["kafka", "sqs", "google_pubsub", "rabbitmq", "nats", "redis"])
def test_a_type_of_the_spec_that_is_not_built_says_so(name: str) -> None:
    for call in (lambda s: check_sink(s, EGRESS), lambda s: build_sink(s, "s", context())):
        with pytest.raises(OptionError, match="is not built yet") as caught:
            call(Sink(type=name))
        assert caught.value.field == "type"


def test_an_unknown_type_lists_the_known_ones() -> None:
    for call in (lambda s: check_sink(s, EGRESS), lambda s: build_sink(s, "s", context())):
        with pytest.raises(OptionError, match=r"'smtp'; known types: log, http") as caught:
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
