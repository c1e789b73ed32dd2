"""The sink types: from a sink entry of a source to a built client, or to the option that is wrong.

Owns the table of types. What a type's options mean is in the type's own module. A type with an optional library names
it here: without it a check says what to install, and the module that needs it is imported when such a sink is built.

Broker addresses (kafka, rabbitmq, nats, redis) are not judged by the egress guard. The guard is for HTTP, where a URL
may come from whoever may create a source; a broker is infrastructure that the operator names, mostly at a private
address. Who lets tenants create sources keeps such types out of their hands (`BROKER_TYPES`).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from msgspec import Struct, field

from ankusa.sinks import (
    google_pubsub_options,
    kafka_options,
    nats_options,
    rabbitmq_options,
    redis_options,
    sqs_options,
)
from ankusa.sinks.clients import HttpClients
from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import OptionError, SinkClient
from ankusa.sinks.egress import Egress, Refusal
from ankusa.sinks.http import HttpSink
from ankusa.sinks.http_options import parse_options
from ankusa.sinks.log import LogSink, parse_level
from schemas.config import Sink

BROKER_TYPES = frozenset({"kafka", "rabbitmq", "nats", "redis"})


class SinkContext(Struct, frozen=True):
    """What sinks of one process share."""

    egress: Egress
    clients: HttpClients
    destinations: Destinations = field(default_factory=Destinations)


class SinkType(NamedTuple):
    """`check(sink, egress)` raises OptionError and opens nothing; `build(sink, source_id, ctx)` gives the client."""

    check: Callable[[Sink, Egress], None]
    build: Callable[[Sink, str, SinkContext], SinkClient]


def build_sink(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    """The client of one sink entry. OptionError(field, message) names a wrong option; nothing is opened yet."""
    return _sink_type(sink.type).build(sink, source_id, ctx)


def check_sink(sink: Sink, egress: Egress) -> None:
    """Check one sink entry without building it, as config loading and the admin API do.

    OptionError(field, message) for a wrong option and for a URL that shows by itself that the guard refuses
    it (`egress_denied: ...`). No name is resolved.
    """
    _sink_type(sink.type).check(sink, egress)


def _denied(refusal: Refusal) -> str:
    """The guard's no with the way out, for whoever writes the configuration."""
    return f"{refusal}; if it is wanted, name it in egress.allow" if refusal.allowable else str(refusal)


def _check_http(sink: Sink, egress: Egress) -> None:
    if refusal := egress.check_destination(parse_options(sink.options).url):
        raise OptionError("url", _denied(refusal))


def _build_http(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    return HttpSink.build(sink.options, source_id, ctx.egress, ctx.clients)


def _check_log(sink: Sink, egress: Egress) -> None:
    parse_level(sink.options)


def _build_log(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    return LogSink.build(sink.options)


def _check_kafka(sink: Sink, egress: Egress) -> None:
    _needs("confluent_kafka", "kafka")
    kafka_options.parse_options(sink.options)


def _build_kafka(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    _check_kafka(sink, ctx.egress)
    from ankusa.sinks.kafka import KafkaSink

    return KafkaSink.build(sink.options, ctx.destinations)


def _check_sqs(sink: Sink, egress: Egress) -> None:
    _needs("aiobotocore", "sqs")
    parsed = sqs_options.parse_options(sink.options)
    if refusal := egress.check_destination(parsed.endpoint):
        raise OptionError("endpoint" if sink.options.get("endpoint") else "queue_url", _denied(refusal))


def _build_sqs(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    _needs("aiobotocore", "sqs")
    from ankusa.sinks.sqs import SqsSink

    return SqsSink.build(sink.options, ctx.egress, ctx.clients, ctx.destinations)


def _check_google_pubsub(sink: Sink, egress: Egress) -> None:
    parsed = google_pubsub_options.parse_options(sink.options)
    if parsed.auth == "service_account":
        _needs("google.auth", "google_pubsub", "auth")
    if refusal := egress.check_destination(parsed.endpoint):
        raise OptionError("endpoint", _denied(refusal))


def _build_google_pubsub(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    from ankusa.sinks.google_pubsub import PubsubSink

    return PubsubSink.build(sink.options, ctx.egress, ctx.clients, ctx.destinations)


def _check_rabbitmq(sink: Sink, egress: Egress) -> None:
    _needs("aio_pika", "rabbitmq")
    rabbitmq_options.parse_options(sink.options)


def _build_rabbitmq(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    _check_rabbitmq(sink, ctx.egress)
    from ankusa.sinks.rabbitmq import RabbitSink

    return RabbitSink.build(sink.options, source_id, ctx.destinations)


def _check_nats(sink: Sink, egress: Egress) -> None:
    _needs("nats", "nats")
    _needs("nkeys", "nats")
    nats_options.parse_options(sink.options)


def _build_nats(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    _check_nats(sink, ctx.egress)
    from ankusa.sinks.nats import NatsSink

    return NatsSink.build(sink.options, ctx.destinations)


def _check_redis(sink: Sink, egress: Egress) -> None:
    _needs("redis", "redis")
    redis_options.parse_options(sink.options)


def _build_redis(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    _check_redis(sink, ctx.egress)
    from ankusa.sinks.redis import RedisSink

    return RedisSink.build(sink.options, ctx.destinations)


def _needs(library: str, extra: str, option: str = "type") -> None:
    """OptionError that says what to install when a library is not there. Does not import it."""
    try:
        found = find_spec(library)
    except ModuleNotFoundError:  # the package around it is not there
        found = None
    if found is None:
        raise OptionError(option, f"needs a library that is not installed: pip install ankusa-server[{extra}]")


_TYPES = {
    "log": SinkType(_check_log, _build_log),
    "http": SinkType(_check_http, _build_http),
    "kafka": SinkType(_check_kafka, _build_kafka),
    "sqs": SinkType(_check_sqs, _build_sqs),
    "google_pubsub": SinkType(_check_google_pubsub, _build_google_pubsub),
    "rabbitmq": SinkType(_check_rabbitmq, _build_rabbitmq),
    "nats": SinkType(_check_nats, _build_nats),
    "redis": SinkType(_check_redis, _build_redis),
}


def _sink_type(name: str) -> SinkType:
    if (found := _TYPES.get(name)) is not None:
        return found
    raise OptionError("type", f"unknown sink type {name!r}; known types: {', '.join(_TYPES)}")
