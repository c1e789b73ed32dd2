"""Routes of the node itself: health, ready, metrics, config, stats, lanes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from ankusa.operations import BadCursor
from api.admin.context import Caller, Node, Reader
from api.admin.document import answers
from api.admin.errors import RETRY_AFTER_S, bad_cursor
from schemas.api import Health, LaneList, NotReady, Ready, Stats
from schemas.api_requests import LaneQuery, StatsQuery

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["node"])


@router.get("/health")
async def health(node: Node) -> Health:
    """Answers while the process lives. Needs no token."""
    identity = node.identity
    return Health(instance=identity.instance, version=identity.version, roles=list(identity.roles))


@router.get("/ready", responses={503: {"model": NotReady, "description": "Not ready, and why"}})
async def ready(node: Node) -> Ready:
    """Whether the node does its work now. Needs no token."""
    reasons = node.not_ready()
    if reasons:
        content = NotReady(reasons=reasons).model_dump()
        return JSONResponse(content, 503, headers={"Retry-After": RETRY_AFTER_S})  # type: ignore[return-value]
    return Ready()


@router.get("/metrics", response_class=PlainTextResponse, responses=answers(401, 403))
async def metrics(node: Node, _: Reader) -> Response:
    """Prometheus text."""
    return Response(await node.metrics(), headers={"Content-Type": EXPOSITION})


@router.get("/v1/config", responses=answers(401, 403))
async def config(node: Node, _: Reader) -> dict[str, Any]:
    """The effective configuration, secrets redacted."""
    return node.config()


@router.get("/v1/stats", responses=answers(400, 401, 503))
async def stats(node: Node, caller: Caller, query: Annotated[StatsQuery, Query()]) -> Stats:
    """Lag, window, rows by state, depths per tenant and sink key, unfinished jobs. Never scans a table."""
    found = await node.stats(query, caller.sees)
    if isinstance(found, BadCursor):
        raise bad_cursor()
    return found


@router.get("/v1/lanes", responses=answers(400, 401, 503))
async def lanes(node: Node, caller: Caller, query: Annotated[LaneQuery, Query()]) -> LaneList:
    """The lanes of ordered sinks that have rows: how deep each is, its head, and how long that has been head."""
    found = await node.lanes(query, caller.sees)
    if isinstance(found, BadCursor):
        raise bad_cursor()
    return found
