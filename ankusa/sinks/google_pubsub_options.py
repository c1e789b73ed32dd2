"""The options of a `google_pubsub` sink, checked (spec 04). Opens nothing, and needs no Google library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast
from urllib.parse import quote

from msgspec import Struct

from ankusa.redact import secret_values
from ankusa.sinks.options import MAX_TIMEOUT_MS, Options

_KEYS = (
    *("project", "topic", "endpoint", "ordering_key", "auth", "token", "credentials_file"),
    *("max_message_bytes", "timeout_ms", "linger_ms", "inline_max_bytes"),
)
ENDPOINT = "https://pubsub.googleapis.com"
MAX_MESSAGE_BYTES = 10_000_000  # Pub/Sub's own, for data, attributes and ordering key
MAX_LINGER_MS = 1_000
AUTHS = ("metadata", "service_account", "token", "none")
# With an organisation's domain in front, as in example.com:project.
_PROJECT = re.compile(r"(?:[a-z0-9.-]{1,100}:)?[a-z][a-z0-9-]{4,61}[a-z0-9]")
_TOPIC = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")

Auth = Literal["metadata", "service_account", "token", "none"]


class PubsubOptions(Struct, frozen=True):
    """Checked options. `secrets` is what must not be in a message."""

    project: str
    topic: str
    endpoint: str
    ordering_key: str | None
    auth: Auth
    token: str | None
    credentials_file: str | None
    max_message_bytes: int
    timeout_ms: int
    linger_ms: int
    inline_max_bytes: int
    secrets: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"/v1/projects/{self.project}/topics/{quote(self.topic, safe='')}:publish"


def parse_options(options: Mapping[str, Any]) -> PubsubOptions:
    """Check the options of one sink entry. OptionError names the first that is wrong."""
    given = Options("google_pubsub", options, _KEYS)
    project, topic = given.text("project"), given.text("topic")
    if not _PROJECT.fullmatch(project):
        raise given.error("project", "must be the id of a project")
    if not _TOPIC.fullmatch(topic):
        raise given.error("topic", "must be the id of a topic, not its full name")
    endpoint = given.url("endpoint", ("https", "http")) if given.has("endpoint") else ENDPOINT
    if not re.fullmatch(r"https?://[^/?#@]+/?", endpoint):
        raise given.error("endpoint", "must be an origin, such as https://us-east1-pubsub.googleapis.com")
    auth = cast(Auth, given.choice("auth", AUTHS, "metadata"))
    for option, of in (("token", "token"), ("credentials_file", "service_account")):
        if given.has(option) != (auth == of):
            raise given.error(option, f"goes with auth: {of}, and only with it")
    return PubsubOptions(
        project=project,
        topic=topic,
        endpoint=endpoint.removesuffix("/"),
        ordering_key=given.optional_text("ordering_key", max_chars=1_024),
        auth=auth,
        token=given.optional_text("token", max_chars=16_384),
        credentials_file=given.optional_text("credentials_file"),
        max_message_bytes=given.integer("max_message_bytes", MAX_MESSAGE_BYTES, 1_024, MAX_MESSAGE_BYTES),
        timeout_ms=given.integer("timeout_ms", 5_000, 1, MAX_TIMEOUT_MS),
        linger_ms=given.integer("linger_ms", 5, 0, MAX_LINGER_MS),
        inline_max_bytes=given.inline_max_bytes(),
        secrets=tuple(secret_values(options)),
    )
