"""Routes of a tenant's sources: what the file says of a source, said through the API (spec 07).

A translation of the source store's answers, and nothing else. What is read has its secrets hidden, so it is never what
a write takes: a write takes the whole spec.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Query, Request, Response

from ankusa.source_store.answers import (
    Exists,
    HasDeliveries,
    Invalid,
    NotFound,
    ReadOnly,
    Refused,
    TooMany,
    Unavailable,
)
from api.admin.context import Caller, Changer, Node, NoQuery, json_body
from api.admin.document import answers, takes
from api.admin.errors import Refusal, unavailable
from schemas.api import TenantSource, TenantSources
from schemas.api_requests import SourceDeletion, SourceRequest, SourceSpec

FIELD_LIMIT, MESSAGE_LIMIT = 200, 4000
"""A field may end in a key of the caller's, and there may be as many faults as keys: answers stay readable."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

router = APIRouter(tags=["sources"])


@router.get("/v1/tenants/{tenant}/sources", dependencies=[NoQuery], responses=answers(400, 401, 404))
async def sources(node: Node, caller: Caller, tenant: str) -> TenantSources:
    """A tenant's sources that were set up through the API, in order of their names."""
    _check(tenant, caller.sees)
    found = [TenantSource.model_validate(entry) for entry in node.sources.of_tenant(tenant)]
    return TenantSources(tenant=tenant, entries=found)


@router.post(
    "/v1/tenants/{tenant}/sources",
    status_code=201,
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 404, 409, 413, 503),
    openapi_extra=takes(SourceRequest),
)
async def create(node: Node, caller: Changer, tenant: str, request: Request) -> TenantSource:
    """Set up a source; it takes hooks once this is answered. The body is its whole spec and its `name`."""
    _check(tenant, caller.changes)
    spec = await json_body(request)
    name = spec.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _invalid("name", "name: must match [A-Za-z0-9_-]{1,64}")
    return _source(await node.sources.create(tenant, name, spec))


@router.get("/v1/tenants/{tenant}/sources/{name}", dependencies=[NoQuery], responses=answers(400, 401, 404))
async def source(node: Node, caller: Caller, tenant: str, name: str) -> TenantSource:
    """One source, its secrets hidden."""
    _check(tenant, caller.sees)
    return _source(node.sources.get(tenant, name))


@router.put(
    "/v1/tenants/{tenant}/sources/{name}",
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 404, 409, 413, 503),
    openapi_extra=takes(SourceSpec),
)
async def replace(node: Node, caller: Changer, tenant: str, name: str, request: Request) -> TenantSource:
    """Replace a source by another whole spec. Hooks that wait are delivered to its sinks as they are then."""
    _check(tenant, caller.changes)
    return _source(await node.sources.replace(tenant, name, await json_body(request)))


@router.delete("/v1/tenants/{tenant}/sources/{name}", status_code=204, responses=answers(400, 401, 403, 404, 409, 503))
async def delete(
    node: Node, caller: Changer, tenant: str, name: str, query: Annotated[SourceDeletion, Query()]
) -> Response:
    """Take a source away. One with unsettled rows stays, unless `deliveries=dead_letter` kills those that wait."""
    _check(tenant, caller.changes)
    refused = await node.sources.delete(tenant, name, dead_letter=query.deliveries == "dead_letter")
    return Response(status_code=204) if refused is None else _refuse(refused)


def _check(tenant: str, tenants: frozenset[str] | None) -> None:
    """Refuse a tenant that cannot be, and hide one that is not the caller's."""
    if not _NAME.fullmatch(tenant):
        raise Refusal(400, "invalid_tenant", field="tenant", message="must match [A-Za-z0-9_-]{1,64}")
    if tenants is not None and tenant not in tenants:
        raise Refusal(404, "not_found")


def _source(found: dict[str, Any] | Refused) -> TenantSource:
    return TenantSource.model_validate(found) if isinstance(found, dict) else _refuse(found)


def _refuse(refused: Refused) -> NoReturn:
    match refused:
        case Invalid(field, message):
            raise _invalid(field, message)
        case NotFound():
            raise Refusal(404, "source_not_found")
        case Exists():
            raise Refusal(409, "source_exists")
        case ReadOnly():
            raise Refusal(409, "source_store_read_only")
        case TooMany(max_sources):
            raise Refusal(409, "too_many_sources", max_sources=max_sources)
        case HasDeliveries(pending, inflight):
            raise Refusal(409, "source_has_deliveries", pending=pending, inflight=inflight)
        case Unavailable(reason):
            raise unavailable(reason)


def _invalid(field: str, message: str) -> Refusal:
    return Refusal(400, "invalid_source", field=field[:FIELD_LIMIT], message=message[:MESSAGE_LIMIT])
