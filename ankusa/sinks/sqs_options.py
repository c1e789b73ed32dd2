"""The options of an `sqs` sink, checked (spec 04). Opens nothing, and needs no AWS library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from ankusa.redact import secret_values
from ankusa.sinks.options import MAX_TIMEOUT_MS, Options

_KEYS = (
    *("queue_url", "region", "endpoint", "message_group_id", "access_key_id", "secret_access_key", "session_token"),
    *("max_message_bytes", "timeout_ms", "linger_ms", "inline_max_bytes", "idle_timeout_ms"),
)
MAX_MESSAGE_BYTES = 1_048_576  # SQS's own, for a message with its attributes and for all of a batch together
MAX_LINGER_MS = 1_000
_REGION = re.compile(r"[a-z0-9-]{1,32}")
_GROUP = re.compile(r"[!-~]{1,128}")


class Credentials(Struct, frozen=True):
    """Static keys. Without them AWS's own chain finds some: the environment, a web identity, the instance's role."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None

    def __repr__(self) -> str:
        return "Credentials(...)"


class SqsOptions(Struct, frozen=True):
    """Checked options. `endpoint` is where requests go; `secrets` what must not be in a message."""

    queue_url: str
    region: str
    endpoint: str
    message_group_id: str | None
    credentials: Credentials | None
    max_message_bytes: int
    timeout_ms: int
    linger_ms: int
    inline_max_bytes: int
    idle_timeout_ms: int
    secrets: tuple[str, ...]

    @property
    def is_fifo(self) -> bool:
        return self.queue_url.endswith(".fifo")


def parse_options(options: Mapping[str, Any]) -> SqsOptions:
    """Check the options of one sink entry. OptionError names the first that is wrong."""
    given = Options("sqs", options, _KEYS)
    queue_url = given.url("queue_url", ("https", "http"))
    parts = urlsplit(queue_url)
    if parts.username is not None or parts.query or parts.fragment or len(parts.path) < 2:
        raise given.error("queue_url", "must be the URL of a queue, such as https://host/account/name")
    region = given.text("region")
    if not _REGION.fullmatch(region):
        raise given.error("region", "must be the name of a region, such as us-east-1")
    group = given.optional_text("message_group_id")
    if group is not None and not _GROUP.fullmatch(group):
        raise given.error("message_group_id", "must be 1 to 128 visible ASCII characters")
    origin = f"{parts.scheme}://{parts.netloc}"
    return SqsOptions(
        queue_url=queue_url,
        region=region,
        endpoint=given.url("endpoint", ("https", "http")) if given.has("endpoint") else origin,
        message_group_id=group,
        credentials=_credentials(given),
        max_message_bytes=given.integer("max_message_bytes", MAX_MESSAGE_BYTES, 1_024, MAX_MESSAGE_BYTES),
        timeout_ms=given.integer("timeout_ms", 5_000, 1, MAX_TIMEOUT_MS),
        linger_ms=given.integer("linger_ms", 5, 0, MAX_LINGER_MS),
        inline_max_bytes=given.inline_max_bytes(),
        idle_timeout_ms=given.idle_timeout_ms(),
        secrets=tuple(secret_values(options)),
    )


def _credentials(given: Options) -> Credentials | None:
    if not any(map(given.has, ("access_key_id", "secret_access_key", "session_token"))):
        return None
    return Credentials(
        given.text("access_key_id"), given.text("secret_access_key"), given.optional_text("session_token")
    )
