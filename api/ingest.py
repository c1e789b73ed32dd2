"""The ingest listener's app: catch URLs in front, health, readiness and OpenAPI behind (spec 02, spec 07).

Owns the routes and the documents of this listener. Catch URLs never reach FastAPI: they are answered by
`ankusa/edge/ingest.py`, and only described here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ankusa.edge.batcher import Batcher
from ankusa.edge.body import BODY_TIMEOUT_MS
from ankusa.edge.ingest import Ingest
from ankusa.edge.log import EdgeLog
from ankusa.edge.route_guard import RouteGuard
from ankusa.edge.sources import Sources
from schemas.config import Http

RETRY_AFTER = {"retry-after": "1"}
_CODES = {404: "not_found", 405: "method_not_allowed"}


def build_ingest_app(
    http: Http,
    sources: Sources,
    batcher: Batcher,
    log: EdgeLog,
    clock: Callable[[], int],
    body_timeout_ms: int = BODY_TIMEOUT_MS,
    guard: RouteGuard | None = None,
) -> Ingest:
    """The whole app of one edge. `clock` gives unix ms. Call it on the event loop that will run the app."""
    return Ingest(
        prefix=http.prefix,
        max_body_bytes=http.max_body_bytes,
        sources=sources,
        batcher=batcher,
        clock=clock,
        others=_others(http, log, guarded=guard is not None),
        body_timeout_ms=body_timeout_ms,
        guard=guard,
    )


class SharedProbe:
    """A probe that many may ask at once: each costs the log a durable write, so all who wait share one."""

    def __init__(self, probe: Callable[[], Awaitable[str | None]]) -> None:
        self._probe = probe
        self._running: asyncio.Task[str | None] | None = None

    async def __call__(self) -> str | None:
        """The reason why the log takes no durable write, None when it does."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._ask())
        return await asyncio.shield(self._running)

    async def _ask(self) -> str | None:
        return await self._probe()


def _others(http: Http, log: EdgeLog, *, guarded: bool) -> FastAPI:
    app = FastAPI(title="Ankusa ingest", version=version("ankusa-server"), docs_url=None, redoc_url=None)
    probe = SharedProbe(log.probe)

    @app.get("/health", summary="Whether the process lives")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", summary="Whether the log takes a durable write", responses={503: _json("Why it does not")})
    async def ready() -> JSONResponse:
        reason = await probe()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "unavailable", "store": reason}, 503, RETRY_AFTER)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "invalid_request")
        return JSONResponse({"error": code}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "internal_error"}, 500)

    routes_only = app.openapi

    def openapi() -> dict[str, Any]:
        document = routes_only()
        document["paths"].update(catch_url_paths(http, guarded=guarded))
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


# -- the catch URL's description ------------------------------------------------

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
_SOURCE_ID = {"type": "string", "pattern": r"^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})?$"}


def _json(description: str, *keys: str, retry: bool = False) -> dict[str, Any]:
    """A response with a JSON object; `keys` are always in it."""
    schema: dict[str, Any] = {"type": "object", "required": list(keys), "properties": {key: {} for key in keys}}
    found: dict[str, Any] = {"description": description, "content": {"application/json": {"schema": schema}}}
    if retry:
        found["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Whole seconds"}}
    return found


def catch_url_paths(http: Http, *, guarded: bool) -> dict[str, Any]:
    """The OpenAPI path item of the catch URL, for the routing and limits that `http` sets. `guarded`: the route guard
    is on, and has an answer of its own."""
    denied = {"403": _json("`ip_denied`, by the route guard; nothing stored", "error")} if guarded else {}
    names = {"tenant": _NAME, "source": _NAME} if http.routing == "tenant_path" else {"source": _SOURCE_ID}
    path = "/".join([http.prefix, *(f"{{{name}}}" for name in names)])
    parameters = [{"name": name, "in": "path", "required": True, "schema": names[name]} for name in names]
    return {
        path: {
            "post": {
                "summary": "Accept a hook",
                "description": "Any body, kept byte for byte. A 2xx is sent only once the hook is durable.",
                "operationId": "accept_hook",
                "parameters": parameters,
                "requestBody": {
                    "required": False,
                    "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
                },
                "responses": {
                    "201": _json("Durable; `duplicate` marks a repeat, with the first hook's id", "id", "status"),
                    "202": _json("Not verified, held durably in the pen", "status", "reason"),
                    "400": _json("`body_read_failed` or `invalid_headers`; nothing stored", "error"),
                    "401": _json("`verification_failed`; nothing stored", "error", "reason"),
                    **denied,
                    "404": _json("`unknown_source` or `not_found`", "error"),
                    "405": _json("Only POST", "error"),
                    "413": _json(f"Over {http.max_body_bytes} bytes; nothing stored", "error", "limit"),
                    "429": _json("`rate_limited` or `quarantine_rate_limited`; nothing stored", "error", retry=True),
                    "503": _json(
                        "`overload`, `store_unavailable` or `quarantine_full`; nothing stored", "error", retry=True
                    ),
                },
            }
        }
    }
