"""The queue message, version 1: what every queue sink publishes, byte for byte the same (spec 04 "Message").

Owns the keys, their order and their bytes, and the names of the metadata that travels beside the message where the
transport has a place for it. It never decides between a body and a claim reference, and never sends anything.

Decisions:
- The JSON is plain ASCII, everything else escaped. It then has no byte that some transport refuses, and no text a
  hook may hold can keep it from being written.
- A request header that came more than once is one value, joined with ", " as HTTP allows; the consumers' decoders take
  one string a name.
- Metadata are printable ASCII. A key is encoded as in the headers of an HTTP delivery: percent-encoded when it is
  anything but visible ASCII without `%`, so that two keys never become one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Protocol
from urllib.parse import quote

VERSION = 1

_PLAIN_KEY = re.compile(r"[!-$&-~]*")
_KEY_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F))


class HookFields(Protocol):
    """What a message is made from; `ankusa.sinks.contract.Delivery` has it. `received_at` is unix ms."""

    @property
    def id(self) -> str: ...
    @property
    def source_id(self) -> str: ...
    @property
    def tenant_id(self) -> str: ...
    @property
    def received_at(self) -> int: ...
    @property
    def headers(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def body(self) -> bytes: ...
    @property
    def idempotency_key(self) -> str: ...
    @property
    def dedupe_key(self) -> str | None: ...
    @property
    def replay_id(self) -> str | None: ...


def encode(hook: HookFields, claim: str | None = None) -> bytes:
    """The message of a hook. With `claim` (`urn:ankusa:claim:v1:...`) it carries that in place of the body.

    `size` and `sha256` are those of the body either way.
    """
    message = json.dumps(
        {
            "v": VERSION,
            "id": hook.id,
            "source_id": hook.source_id,
            "tenant_id": hook.tenant_id,
            "received_at": hook.received_at,
            "content_type": hook.content_type,
            "size": len(hook.body),
            "dedupe_key": hook.dedupe_key,
            "replay_id": hook.replay_id,
            "idempotency_key": hook.idempotency_key,
            "headers": _joined(hook.headers),
            "sha256": hashlib.sha256(hook.body).hexdigest(),
        },
        separators=(",", ":"),
    ).encode("ascii")
    if claim is not None:
        return b'%b,"claim":%b}' % (message[:-1], json.dumps(claim).encode("ascii"))
    return b'%b,"body_base64":"%b"}' % (message[:-1], base64.b64encode(hook.body))


def metadata(hook: HookFields) -> list[tuple[str, str]]:
    """Names and values that go beside the message: Kafka, NATS and AMQP headers, SQS and Pub/Sub attributes.

    `ankusa_tenant_id` may be empty; a transport that has no empty values leaves it out. No value is `None`.
    """
    found = [
        ("ankusa_id", hook.id),
        ("ankusa_source_id", hook.source_id),
        ("ankusa_tenant_id", hook.tenant_id),
        ("ankusa_message_version", str(VERSION)),
        ("ankusa_idempotency_key", encode_key(hook.idempotency_key)),
        ("content_type", None if hook.content_type is None else _printable(hook.content_type)),
        ("ankusa_dedupe_key", None if hook.dedupe_key is None else encode_key(hook.dedupe_key)),
        ("ankusa_replay_id", hook.replay_id),
    ]
    return [(name, value) for name, value in found if value is not None]


def encode_key(key: str) -> str:
    """A key beside the message: as it is, or percent-encoded throughout; percent-decoding gives it back."""
    return key if _PLAIN_KEY.fullmatch(key) else quote(key, safe=_KEY_SAFE, errors="surrogatepass")


def deduplication_id(hook: HookFields) -> str:
    """The id by which a broker drops a second copy: the hook's, and another one for each replay that re-sends it."""
    return hook.id if hook.replay_id is None else f"{hook.id}:replay:{hook.replay_id}"


def _joined(headers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _printable(value: str) -> str:
    return value if value.isascii() and value.isprintable() else quote(value, safe=_PRINTABLE, errors="surrogatepass")
