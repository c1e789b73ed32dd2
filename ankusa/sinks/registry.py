"""The sink types: from a sink entry of a source to a built client, or to the option that is wrong.

Owns the table of types. What a type's options mean is in the type's own module. A type with an optional
library gets its row here too; its module is imported when the first such sink is checked or built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from ankusa.sinks.clients import HttpClients
from ankusa.sinks.contract import OptionError, SinkClient
from ankusa.sinks.egress import Egress
from ankusa.sinks.http import HttpSink
from ankusa.sinks.http_options import parse_options
from ankusa.sinks.log import LogSink, parse_level
from schemas.config import Sink


class SinkContext(Struct, frozen=True):
    """What sinks of one process share."""

    egress: Egress
    clients: HttpClients


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


def _check_http(sink: Sink, egress: Egress) -> None:
    if refusal := egress.check_destination(parse_options(sink.options).url):
        raise OptionError("url", str(refusal))


def _build_http(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    return HttpSink.build(sink.options, source_id, ctx.egress, ctx.clients)


def _check_log(sink: Sink, egress: Egress) -> None:
    parse_level(sink.options)


def _build_log(sink: Sink, source_id: str, ctx: SinkContext) -> SinkClient:
    return LogSink.build(sink.options)


_TYPES = {
    "log": SinkType(_check_log, _build_log),
    "http": SinkType(_check_http, _build_http),
}
_NOT_BUILT_YET = frozenset({"kafka", "sqs", "google_pubsub", "rabbitmq", "nats", "redis"})


def _sink_type(name: str) -> SinkType:
    if (found := _TYPES.get(name)) is not None:
        return found
    if name in _NOT_BUILT_YET:
        raise OptionError("type", f"{name} is not built yet; known types: {', '.join(_TYPES)}")
    raise OptionError("type", f"unknown sink type {name!r}; known types: {', '.join(_TYPES)}")
