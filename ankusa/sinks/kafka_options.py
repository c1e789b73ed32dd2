"""The options of a `kafka` sink, checked (spec 04). Opens nothing, and needs no Kafka library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ankusa.redact import secret_values
from ankusa.sinks.options import MAX_MESSAGE_BYTES, MAX_TIMEOUT_MS, Options

_KEYS = (
    *("brokers", "topic", "key", "ssl", "sasl", "produce_timeout_ms", "max_record_bytes"),
    *("inline_max_bytes", "idle_timeout_ms"),
)
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_MECHANISMS = {"plain": "PLAIN", "scram_sha_256": "SCRAM-SHA-256", "scram_sha_512": "SCRAM-SHA-512"}


class Sasl(Struct, frozen=True):
    """How to log in. `mechanism` is in Kafka's spelling."""

    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Sasl(mechanism={self.mechanism!r})"


class KafkaOptions(Struct, frozen=True):
    """Checked options. `key` None is `tenant/source`; `secrets` is what must not be in a message."""

    brokers: tuple[str, ...]
    topic: str
    key: str | None
    ssl: bool
    sasl: Sasl | None
    produce_timeout_ms: int
    max_record_bytes: int
    inline_max_bytes: int
    idle_timeout_ms: int
    secrets: tuple[str, ...]


def parse_options(options: Mapping[str, Any]) -> KafkaOptions:
    """Check the options of one sink entry. OptionError names the first that is wrong."""
    given = Options("kafka", options, _KEYS)
    brokers = given.addresses("brokers")
    topic = given.text("topic", max_chars=249)
    if not _TOPIC.fullmatch(topic):
        raise given.error("topic", "must be a topic's name: letters, digits, dot, dash and underscore")
    return KafkaOptions(
        brokers=brokers,
        topic=topic,
        key=given.optional_text("key"),
        ssl=given.flag("ssl"),
        sasl=_sasl(given.section("sasl", ("mechanism", "username", "password"))),
        produce_timeout_ms=given.integer("produce_timeout_ms", 5_000, 1, MAX_TIMEOUT_MS),
        max_record_bytes=given.integer("max_record_bytes", 1_000_000, 1_000, MAX_MESSAGE_BYTES),
        inline_max_bytes=given.inline_max_bytes(),
        idle_timeout_ms=given.idle_timeout_ms(),
        secrets=tuple(secret_values(options)),
    )


def _sasl(given: Options | None) -> Sasl | None:
    if given is None:
        return None
    mechanism = _MECHANISMS[given.choice("mechanism", _MECHANISMS)]
    return Sasl(mechanism, given.text("username"), given.text("password"))
