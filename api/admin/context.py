"""What every route of the admin API takes from its request: the node, the caller, a bounded JSON body.

Owns how a request becomes those; who may do what is `api/auth.py`'s.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, cast

import msgspec
from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import ClientDisconnect

from ankusa.operations import Operations
from api.admin.errors import Refusal
from api.auth import Access, Tokens

BODY_LIMIT_BYTES = 1 << 20
"""A request's body: the largest is a replay with a long list of tenants, a few kilobytes."""

_bearer = HTTPBearer(auto_error=False, description="One of `admin.tokens`, where any are configured.")


async def _operations(request: Request) -> Operations:
    return cast(Operations, request.app.state.operations)


async def _caller(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> Access:
    tokens = cast(Tokens, request.app.state.tokens)
    found = tokens.judge(credentials.credentials if credentials else None)
    if found is None:
        challenge = 'Bearer realm="ankusa"' + (', error="invalid_token"' if credentials else "")
        raise Refusal(401, "unauthorized", headers={"WWW-Authenticate": challenge})
    # Without tokens a listener on the loopback is open to every page in a local browser; a page's request is told by
    # this header, and only what another site's page asks to change is refused (it cannot read what it is answered).
    if tokens.open and request.method != "GET" and request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Refusal(403, "forbidden", message="asked for by a page of another site")
    if tokens.open and _is_rebound(request):
        raise Refusal(403, "forbidden", message="without admin.tokens, ask for 127.0.0.1, [::1] or localhost")
    return found


def _is_rebound(request: Request) -> bool:
    """Whether a loopback listener is asked for by a name of somebody else's: so does a page whose own name was made to
    point here (DNS rebinding), and to its browser what is answered is that page's own."""
    server = request.scope.get("server")
    if not server or not _is_ip(server[0]) or not ipaddress.ip_address(server[0]).is_loopback:
        return False
    host = request.headers.get("host", "").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].removesuffix(".")
    return not (name in ("", "localhost") or name.endswith(".localhost") or _is_ip(name))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


Node = Annotated[Operations, Depends(_operations)]
Caller = Annotated[Access, Depends(_caller)]
"""Anybody with a token; what it sees and changes is up to the route."""


def forbidden() -> Refusal:
    return Refusal(403, "forbidden", message="outside the token's scopes")


async def _reader(caller: Caller) -> Access:
    if caller.sees is not None:
        raise forbidden()
    return caller


async def _changer(caller: Caller) -> Access:
    if caller.changes is not None and not caller.changes:
        raise forbidden()
    return caller


async def _admin(caller: Caller) -> Access:
    if not caller.admin:
        raise forbidden()
    return caller


async def no_query(request: Request) -> None:
    """Refuse parameters where a route takes none: `POST /v1/replays?dry_run=true` must not start a job."""
    for name in request.query_params:
        raise Refusal(400, "invalid_query", field=name, message="is not a parameter of this route")


Reader = Annotated[Access, Depends(_reader)]
"""A caller that may see the whole node."""
Changer = Annotated[Access, Depends(_changer)]
"""A caller that may change something, if only of its own tenants."""
Admin = Annotated[Access, Depends(_admin)]
NoQuery = Depends(no_query)


async def json_body(request: Request) -> dict[str, Any]:
    """The request's JSON object. Refuses one over `BODY_LIMIT_BYTES` as soon as that is known."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > BODY_LIMIT_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_LIMIT_BYTES:
                raise _too_large()
    except ClientDisconnect:
        raise Refusal(400, "body_read_failed") from None
    try:
        value = msgspec.json.decode(bytes(body))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Refusal(400, "invalid_body", message="is not JSON") from None
    if not isinstance(value, dict):
        raise Refusal(400, "invalid_body", message="is not a JSON object")
    return value


def _too_large() -> Refusal:
    return Refusal(413, "payload_too_large", limit=BODY_LIMIT_BYTES)
