"""The options of a `redis` sink, checked (spec 04). Opens nothing, and needs no Redis library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from ankusa.redact import secret_values
from ankusa.sinks.options import MAX_TIMEOUT_MS, Options

_KEYS = ("url", "channel", "publish_timeout_ms", "inline_max_bytes", "idle_timeout_ms")
_DATABASE = re.compile(r"(?:/[0-9]{0,4})?")


class RedisOptions(Struct, frozen=True):
    """Checked options. `url` holds the password, `secrets` what must not be in a message."""

    url: str
    channel: str
    publish_timeout_ms: int
    inline_max_bytes: int
    idle_timeout_ms: int
    secrets: tuple[str, ...]


def parse_options(options: Mapping[str, Any]) -> RedisOptions:
    """Check the options of one sink entry. OptionError names the first that is wrong."""
    given = Options("redis", options, _KEYS)
    url = given.url("url", ("redis", "rediss"))
    parts = urlsplit(url)
    if parts.query or parts.fragment or not _DATABASE.fullmatch(parts.path):
        raise given.error("url", "may end in a database number, such as /0, and in nothing else")
    return RedisOptions(
        url=url,
        channel=given.text("channel", max_chars=1024),
        publish_timeout_ms=given.integer("publish_timeout_ms", 5_000, 1, MAX_TIMEOUT_MS),
        inline_max_bytes=given.inline_max_bytes(),
        idle_timeout_ms=given.idle_timeout_ms(),
        secrets=tuple(secret_values(options)),
    )
