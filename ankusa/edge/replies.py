"""What a catch URL answers: every status, header and body of the table in spec 02, as ASGI messages.

Owns the bytes of the answers. What can be is built once: under overload refusals are the hot path. It never decides
which answer a hook gets, except that each `Answer` of the log has exactly one.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from schemas.append import Answer, AnswerStatus

Message = MutableMapping[str, Any]

_TYPE = (b"content-type", b"application/json")
_CLOSE = (b"connection", b"close")
_CACHED = 1024

OVERLOAD_RETRY_AFTER_MS = 1000
"""The queue of a working log empties in far less; one second spreads what was refused without holding it up."""


class Reply(Struct, frozen=True):
    """An answer as the two ASGI messages it is sent in. `lingers`: the request's body is still coming in, so it is to
    be read and dropped for a while before the connection ends. `lines`: the headers as they go over HTTP/1.1."""

    start: Message
    body: Message
    lines: bytes
    lingers: bool = False

    @property
    def status(self) -> int:
        status: int = self.start["status"]
        return status


def _reply(
    status: int,
    content: dict[str, Any],
    *headers: tuple[bytes, bytes],
    closes: bool = False,
    lingers: bool = False,
) -> Reply:
    """`closes`: the body will not be read to its end, so the connection carries no other request."""
    raw = msgspec.json.encode(content)
    own = [_TYPE, (b"content-length", b"%d" % len(raw)), *headers]
    if closes or lingers:
        own.append(_CLOSE)
    return Reply(
        {"type": "http.response.start", "status": status, "headers": own},
        {"type": "http.response.body", "body": raw},
        _lines(own),
        lingers,
    )


def _lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%s: %s\r\n" % header for header in headers)


def _retry_after(wait_ms: int) -> tuple[bytes, bytes]:
    """Whole seconds, rounded up: a client that waits that long is not too early."""
    return b"retry-after", b"%d" % max(1, -(-wait_ms // 1000))


NOT_FOUND = _reply(404, {"error": "not_found"})
UNKNOWN_SOURCE = _reply(404, {"error": "unknown_source"})
METHOD_NOT_ALLOWED = _reply(405, {"error": "method_not_allowed"}, (b"allow", b"POST"))
INVALID_HEADERS = _reply(400, {"error": "invalid_headers"})
BODY_READ_FAILED = _reply(400, {"error": "body_read_failed"}, closes=True)
OVERLOAD = _reply(503, {"error": "overload"}, _retry_after(OVERLOAD_RETRY_AFTER_MS))
OVERLOAD_MID_BODY = _reply(503, {"error": "overload"}, _retry_after(OVERLOAD_RETRY_AFTER_MS), lingers=True)
NOT_TOLD_YET = _reply(503, {"error": "store_unavailable"}, _retry_after(OVERLOAD_RETRY_AFTER_MS))
INTERNAL_ERROR = _reply(500, {"error": "internal_error"})


def ip_denied(status: int) -> Reply:
    """With 404 it is told apart from a path that is not there by nobody."""
    return NOT_FOUND if status == 404 else _reply(status, {"error": "ip_denied"})


def too_large(limit_bytes: int, *, ended: bool = False) -> Reply:
    """`ended`: the body was read to its end all the same, so the connection may go on."""
    return _reply(413, {"error": "payload_too_large", "limit": limit_bytes}, lingers=not ended)


@lru_cache(_CACHED)
def verification_failed(reason: str) -> Reply:
    return _reply(401, {"error": "verification_failed", "reason": reason})


@lru_cache(_CACHED)
def quarantined(reason: str) -> Reply:
    return _reply(202, {"status": "quarantined", "reason": reason})


@lru_cache(_CACHED)
def _created(length: int) -> tuple[Message, bytes]:
    headers = [_TYPE, (b"content-length", b"%d" % length)]
    return {"type": "http.response.start", "status": 201, "headers": headers}, _lines(headers)


def accepted(hook_id: str, *, duplicate: bool = False) -> Reply:
    # Hook ids are ours, hex digits and dashes: nothing in them needs escaping.
    tail = b'","status":"accepted","duplicate":true}' if duplicate else b'","status":"accepted"}'
    body = b'{"id":"' + hook_id.encode() + tail
    start, lines = _created(len(body))
    return Reply(start, {"type": "http.response.body", "body": body}, lines)


_REFUSALS = {
    AnswerStatus.RATE_LIMITED: (429, "rate_limited"),
    AnswerStatus.QUARANTINE_RATE_LIMITED: (429, "quarantine_rate_limited"),
    AnswerStatus.QUARANTINE_FULL: (503, "quarantine_full"),
    AnswerStatus.STORE_UNAVAILABLE: (503, "store_unavailable"),
}


@lru_cache(_CACHED)
def _refusal(status: AnswerStatus, wait_s: int) -> Reply:
    code, error = _REFUSALS[status]
    return _reply(code, {"error": error}, _retry_after(wait_s * 1000))


def reply_of(answer: Answer, reason: str = "") -> Reply:
    """The reply to what the log answered. `reason` is why a held hook did not verify."""
    status = answer.status
    if status is AnswerStatus.ACCEPTED:
        return accepted(answer.id)
    if status is AnswerStatus.DUPLICATE:
        return accepted(answer.id, duplicate=True)
    if status is AnswerStatus.QUARANTINED:
        return quarantined(reason)
    return _refusal(status, -(-answer.retry_after_ms // 1000))
