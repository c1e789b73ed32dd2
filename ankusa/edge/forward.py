"""Request headers: decoding them, and choosing which travel on to the sinks (spec 02 "Forwarded headers").

Owns the four sets of names that stay behind and the rule what a decodable header is. It keeps order and
repeats, changes no value, and knows nothing of what a sink adds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

AUTHENTICATION = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "x-auth-token",
        "x-access-token",
        "x-gitlab-token",
        "x-telegram-bot-api-secret-token",
    }
)
"""Headers whose value is a reusable credential: whoever reads one can pose as the sender. Left out unless
named in `forward_headers`. Signatures are none: they prove one body, and a sink may check them again."""

FRAMING = frozenset({"content-length", "content-type", "transfer-encoding", "expect", "te", "trailer"})
"""How the body was sent to us, which says nothing about how it is sent on. `content-type` is here because it
travels in a field of its own; `content-encoding` is not, because the body is kept as encoded."""

HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "upgrade", "http2-settings"})
"""About one connection (RFC 9110 section 7.6.1), as is every header that `connection` names."""

OWN_PREFIX = "x-ankusa-"
"""Ours to set. Passed on from a sender, they would let it forge an id or a tenant at the sink."""

_NEVER = FRAMING | HOP_BY_HOP | {"host"}
_NOT_BY_DEFAULT = _NEVER | AUTHENTICATION

# A name is a token (RFC 9110 section 5.6.2). A value is UTF-8 text without control characters; the tab is
# none of them, it is white space that a value may hold.
_TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CONTROL_BYTES = bytes([*range(0x09), *range(0x0A, 0x20), 0x7F])
_C1_CONTROL = re.compile("[\x80-\x9f]")


def decode_headers(raw: Sequence[tuple[bytes, bytes]]) -> list[tuple[str, str]] | None:
    """The headers as text, names lower-cased, or None when one is not decodable (400 `invalid_headers`).

    Decodable: a name that is an ASCII token and a value that is UTF-8 without control characters. Bytes
    outside ASCII that are UTF-8 pass, because every later form of the hook (JSON, a header, a message) can
    carry them exactly; Latin-1 or binary bytes do not, because none of them can.
    """
    if not raw:
        return []
    # Checked joined, so that ten headers cost two scans and not twenty.
    names, values = zip(*raw, strict=True)
    all_names, all_values = b"".join(names), b"".join(values)
    if b"" in names or all_names.translate(None, _TOKEN_BYTES):
        return None
    if len(all_values.translate(None, _CONTROL_BYTES)) != len(all_values):
        return None
    try:
        headers = [(name.decode(), value.decode()) for name, value in raw]
    except UnicodeDecodeError:
        return None
    if not all_values.isascii() and any(_C1_CONTROL.search(value) for _, value in headers):
        return None
    if all_names.islower():  # as every server hands them over; tested once, not name by name
        return headers
    return [(name.lower(), value) for name, value in headers]


def forward_names(names: Iterable[str] | None) -> frozenset[str] | None:
    """`forward_headers` of a source as `forwarded` takes it: lower-cased, None when absent."""
    return None if names is None else frozenset(name.lower() for name in names)


def forwarded(headers: Iterable[tuple[str, str]], names: frozenset[str] | None) -> tuple[tuple[str, str], ...]:
    """The headers that travel with the hook, in the order they came, repeats included.

    `headers` as `decode_headers` gives them. `names` (lower-cased, see `forward_names`) lets through only
    those; None lets through all but authentication. Framing, hop-by-hop, `host` and `x-ankusa-*` are
    never forwarded, named or not. A header in `names` may be an authentication one: it was asked for.
    """
    barred = _NEVER if names is not None else _NOT_BY_DEFAULT
    kept: list[tuple[str, str]] = []
    per_connection: set[str] = set()
    for header in headers:
        name = header[0]
        if name in barred:
            if name == "connection":
                per_connection.update(token.strip().lower() for token in header[1].split(","))
        elif (names is None or name in names) and not name.startswith(OWN_PREFIX):
            kept.append(header)
    if per_connection:
        kept = [header for header in kept if header[0] not in per_connection]
    return tuple(kept)
