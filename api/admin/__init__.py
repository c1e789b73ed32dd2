"""The admin API: one FastAPI app over the `Operations` port (spec 07).

Owns how the app is put together. Routes only translate; what they answer is the node's, who may ask `api/auth.py`'s.
There is no page of documentation: the usual ones load their scripts from somebody else's server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI

from ankusa.operations import Operations
from api.admin import dead_letters, node, quarantine, rate_limits, replays, sources
from api.admin.context import Reader
from api.admin.document import answers, document, methods
from api.admin.errors import Outermost, install
from api.auth import Tokens
from schemas.config import AdminToken

__all__ = ["build_admin_app"]

_ROUTERS = (node.router, dead_letters.router, replays.router, quarantine.router, rate_limits.router, sources.router)


def build_admin_app(operations: Operations, tokens: Iterable[AdminToken]) -> FastAPI:
    """The app. Its routes run on the event loop of the server, which must be the one that owns the node's log.

    Tokens are replaced while it runs with `app.state.tokens.reconfigure(tokens)`.
    """
    app = FastAPI(
        title="Ankusa admin",
        version=operations.identity.version,
        description="Health, metrics, dead letters, replays, quarantine, rate limits and sources of one node.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.operations = operations
    app.state.tokens = Tokens(tokens)
    routers = (*_ROUTERS, _document_router(app))
    for router in routers:
        app.include_router(router)
    app.add_middleware(Outermost)
    install(app, methods(routers))
    return app


def _document_router(app: FastAPI) -> APIRouter:
    router = APIRouter(tags=["node"])
    made: dict[str, Any] = {}

    @router.get("/openapi.json", responses=answers(401, 403))
    async def openapi(_: Reader) -> dict[str, Any]:
        """This document."""
        if not made:
            made.update(document(app))
        return made

    return router
