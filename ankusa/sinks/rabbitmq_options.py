"""The options of a `rabbitmq` sink, checked (spec 04). Opens nothing, and needs no AMQP library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ankusa.redact import secret_values
from ankusa.sinks.options import MAX_TIMEOUT_MS, Options

_KEYS = ("url", "exchange", "routing_key", "confirm_timeout_ms", "max_inflight", "inline_max_bytes", "idle_timeout_ms")
MAX_INFLIGHT = 65_535


class RabbitOptions(Struct, frozen=True):
    """Checked options. `url` holds the password, `secrets` what must not be in a message.

    `routing_key` None is `ankusa.` and the source's id.
    """

    url: str
    exchange: str
    routing_key: str | None
    confirm_timeout_ms: int
    max_inflight: int
    inline_max_bytes: int
    idle_timeout_ms: int
    secrets: tuple[str, ...]


def parse_options(options: Mapping[str, Any]) -> RabbitOptions:
    """Check the options of one sink entry. OptionError names the first that is wrong."""
    given = Options("rabbitmq", options, (*_KEYS, "exchange_type"))
    if given.has("exchange_type"):
        raise given.error("exchange_type", "leave it out: this sink declares no exchange, whoever owns it does")
    has_key = given.has("routing_key")
    return RabbitOptions(
        url=given.url("url", ("amqp", "amqps")),
        exchange=given.text("exchange", max_chars=127),
        routing_key=given.text("routing_key", min_chars=0, max_chars=255) if has_key else None,
        confirm_timeout_ms=given.integer("confirm_timeout_ms", 5_000, 1, MAX_TIMEOUT_MS),
        max_inflight=given.integer("max_inflight", 256, 1, MAX_INFLIGHT),
        inline_max_bytes=given.inline_max_bytes(),
        idle_timeout_ms=given.idle_timeout_ms(),
        secrets=tuple(secret_values(options)),
    )
