"""The claim-check gateway: a body for its reference (spec 04 "Claim-check gateway").

Owns the routes and what each end of a reading is answered with. Like the published gateway it asks for no token: a
reference holds 64 random bits and is known to whoever was sent one, the listener is on loopback unless told otherwise,
and who may reach it from further away is for what stands in front to say. It never checks the bytes: the receiver
has their sha256.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from ankusa.claim_check.blobs import BlobError
from ankusa.claim_check.reader import Reader, Stored
from ankusa.claim_check.reference import is_claim_id, is_tenant

log = logging.getLogger("ankusa.claim_check")

CACHE_CONTROL = "private, max-age=31536000, immutable"
"""A pack is never changed; and who holds the reference may cache it, nobody between."""

RETRY_AFTER = {"retry-after": "1"}

_RANGE = re.compile(r"bytes=(?:([0-9]+)-([0-9]*)|-([0-9]+))")
_MAX_DIGITS = 18
_CODES = {404: "not_found", 405: "method_not_allowed"}
_CLAIM_PATH = "/v1/claims/{tenant_id}/{claim_id}"


def build_claims_app(reader: Reader) -> FastAPI:
    """The gateway's app."""
    app = FastAPI(
        title="Ankusa claim-check gateway",
        version=version("ankusa-server"),
        description="Reads the bodies that queue messages name by reference.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )

    @app.get(_CLAIM_PATH, operation_id="read_claim", summary="Read a body", responses=_RESPONSES, response_class=_Bytes)
    async def read(tenant_id: str, claim_id: str, request: Request) -> Response:
        return await _answer(reader, tenant_id, claim_id, request)

    @app.head(_CLAIM_PATH, include_in_schema=False)
    async def head(tenant_id: str, claim_id: str, request: Request) -> Response:
        return await _answer(reader, tenant_id, claim_id, request)

    @app.get("/health", summary="Whether the listener is up")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, _CODES.get(error.status_code, "invalid_request"), dict(error.headers or {}))

    made = app.openapi

    def openapi() -> dict[str, Any]:
        """Without what the framework adds for parameters of a wrong type: a path is text."""
        document = made()
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        document.pop("components", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


async def _answer(reader: Reader, tenant_id: str, claim_id: str, request: Request) -> Response:
    if not is_tenant(tenant_id):
        return _error(400, "invalid_tenant")
    if not is_claim_id(claim_id):
        return _error(400, "invalid_id")
    try:
        body = await reader.find(tenant_id, claim_id)
        if body is None:
            return _error(404, "not_found")
        return await _found(reader, body, request)
    except BlobError as error:
        log.warning("event=claim_unreadable tenant=%s claim=%s reason=%s", tenant_id, claim_id, error)
        return _error(503, "store_unavailable", RETRY_AFTER)


async def _found(reader: Reader, body: Stored, request: Request) -> Response:
    """Raises BlobError while nothing has been sent."""
    start, length, status = 0, body.length, 200
    headers = {"accept-ranges": "bytes", "cache-control": CACHE_CONTROL, "x-content-type-options": "nosniff"}
    # A body has no validator, so no If-Range can match; and a range is for GET alone (RFC 9110, 13.1.5 and 14.2).
    if request.method == "GET" and "if-range" not in request.headers:
        span = requested(request.headers.get("range"), body.length)
        if span is not None and not span[1]:
            unsatisfied = {"accept-ranges": "bytes", "content-range": f"bytes */{body.length}"}
            return Response(status_code=416, headers=unsatisfied)
        if span is not None:
            (start, length), status = span, 206
            headers["content-range"] = f"bytes {start}-{start + length - 1}/{body.length}"
    headers["content-length"] = str(length)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=_Bytes.media_type)
    pieces = reader.pieces(body, start, length)
    first = await anext(pieces, b"")  # before the status goes out: a store that is away is then still a 503
    return _Bytes(_after(first, pieces), status_code=status, headers=headers)


def requested(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """`(start, length)` of the one range a `Range` header asks for; length 0 when it lies outside.

    None, the whole, when there is no header or it is not a single well-formed range of bytes.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None:
        return None
    first, last, suffix = (_number(digits) for digits in match.groups())
    if suffix is not None:
        length = min(suffix, size_bytes)
        return size_bytes - length, length
    assert first is not None
    if last is not None and last < first:
        return None
    end = size_bytes if last is None else min(last + 1, size_bytes)
    return first, max(0, end - first)


def _number(digits: str | None) -> int | None:
    """Digits as a number; more of them than any size has are as good as the largest."""
    if not digits:
        return None
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


class _Bytes(StreamingResponse):
    """A body in pieces. When the store fails amid it the connection is cut: nobody may take a part for the whole."""

    media_type = "application/octet-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except BlobError as error:
            # Ended without a last piece: the server then closes the connection short of the length it announced.
            log.warning("event=claim_cut path=%s reason=%s", scope["path"], error)


def _error(status: int, code: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": code}, status, headers=headers)


def _refusal(description: str) -> dict[str, Any]:
    schema = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_OCTETS = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole body", "content": _OCTETS},
    206: {"description": "The one range of bytes that was asked for", "content": _OCTETS},
    400: _refusal("`invalid_tenant` or `invalid_id`"),
    404: _refusal("`not_found`: never stored, or past its retention"),
    416: {"description": "The range lies outside the body"},
    503: _refusal("`store_unavailable`: try again"),
}
