"""What the admin API refuses with: `{"error": code, ...}`, the field named where there is one, never a stack trace.

Owns the refusal as an exception of the request, its bytes, and what becomes of everything else that is raised.
"""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ankusa.store.errors import StoreError

log = logging.getLogger("ankusa.admin")

RETRY_AFTER_S = "1"
"""Told with every 503: the store is probed each second, so sooner makes no difference."""

_CODES = {404: "not_found", 405: "method_not_allowed"}


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """Ends a request with `status` and `{"error": code, **details}`; details that are None are left out."""

    def __init__(self, status: int, code: str, *, headers: dict[str, str] | None = None, **details: Any) -> None:
        super().__init__(code)
        self.status = status
        self.headers = headers
        self.content = {"error": code, **{key: value for key, value in details.items() if value is not None}}


def unavailable(reason: str) -> Refusal:
    return Refusal(503, "store_unavailable", headers={"Retry-After": RETRY_AFTER_S}, message=reason)


def bad_cursor() -> Refusal:
    return Refusal(400, "invalid_query", field="cursor", message="is not a cursor of this list")


def install(app: FastAPI, allowed: dict[str, list[str]]) -> None:
    """Answer everything that may be raised. `allowed` is the methods by path template."""

    async def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Refusal)
        return JSONResponse(error.content, error.status, headers=error.headers)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        message = "is not a parameter of this route" if first["type"] == "extra_forbidden" else first["msg"]
        content = {"error": "invalid_query", "field": str(first["loc"][-1])[:64], "message": message}
        return JSONResponse(content, 400)

    async def store(_: Request, error: Exception) -> JSONResponse:
        refusal = unavailable(str(error))
        return JSONResponse(refusal.content, refusal.status, headers=refusal.headers)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "invalid_request")
        headers = {"Allow": _allow(request, allowed)} if error.status_code == 405 else None
        return JSONResponse({"error": code}, error.status_code, headers=headers)

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(StoreError, store)
    app.add_exception_handler(HTTPException, http)


def _allow(request: Request, allowed: dict[str, list[str]]) -> str:
    """The framework names the methods of the first route of a path only; a path may have several."""
    path = request.scope["path"].split("/")
    for template, methods in allowed.items():
        parts = template.split("/")
        if len(parts) == len(path) and all(a == b or a.startswith("{") for a, b in zip(parts, path, strict=True)):
            return ", ".join(methods)
    return ""


class Outermost:
    """ASGI: HEAD is answered as GET (the server leaves the body out), and a fault of ours becomes a plain 500.

    The log line names the fault's type and place, not its message: a message may quote a hook or a secret.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, watched)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            log.error("event=request_failed error=%s at=%s", type(error).__name__, place)
            if not started:
                await JSONResponse({"error": "internal"}, 500)(scope, receive, send)
