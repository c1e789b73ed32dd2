"""Routes of the tenants' ingest limits: read them, override one, take an override back.

A limit is set by who runs the node: a token limited to a tenant may read its own, never raise it.
"""

from __future__ import annotations

import logging
import math
import re
from typing import Any

from fastapi import APIRouter, Request, Response

from api.admin.context import Admin, Caller, Node, NoQuery, json_body
from api.admin.document import answers, takes
from api.admin.errors import Refusal
from schemas.api import Limit, Limits, TenantLimit

log = logging.getLogger("ankusa.admin")

RATE_MAX = 1_000_000
BURST_MAX = 1 << 53
"""The configuration's own bounds: an override must not be what the file could not say."""

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")

router = APIRouter(tags=["rate limits"])


@router.get("/v1/rate-limits", responses=answers(401, 503))
async def limits(node: Node, caller: Caller) -> Limits:
    """The default, and every tenant with a limit of its own."""
    return node.limits(caller.sees)


@router.get("/v1/tenants/{tenant}/rate-limit", responses=answers(400, 401, 404, 503))
async def limit(node: Node, caller: Caller, tenant: str) -> TenantLimit:
    """One tenant's limit and where it comes from."""
    _check_tenant(tenant)
    if caller.sees is not None and tenant not in caller.sees:
        raise Refusal(404, "not_found")
    return node.limit(tenant)


@router.put(
    "/v1/tenants/{tenant}/rate-limit",
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 413, 503),
    openapi_extra=takes(Limit),
)
async def set_limit(node: Node, _: Admin, tenant: str, request: Request) -> TenantLimit:
    """Override a tenant's limit: `{rate, burst}`, hooks per second and the most at once. Holds at once, survives
    a restart."""
    _check_tenant(tenant)
    rate, burst = _checked(await json_body(request))
    after = await node.set_limit(tenant, rate, burst)
    log.info("event=rate_limit_set tenant=%s rate=%s burst=%d", tenant, rate, burst)
    return after


@router.delete(
    "/v1/tenants/{tenant}/rate-limit",
    status_code=204,
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 404, 503),
)
async def drop_limit(node: Node, _: Admin, tenant: str) -> Response:
    """Take an override back: the configured limit holds again."""
    _check_tenant(tenant)
    if not await node.drop_limit(tenant):
        raise Refusal(404, "rate_limit_not_found")
    log.info("event=rate_limit_dropped tenant=%s", tenant)
    return Response(status_code=204)


def _check_tenant(tenant: str) -> None:
    if not _TENANT.fullmatch(tenant):
        raise Refusal(400, "invalid_tenant", field="tenant", message="must match [A-Za-z0-9_-]{1,64}")


def _checked(body: dict[str, Any]) -> tuple[float, int]:
    for key in body:
        if key not in ("rate", "burst"):
            raise _invalid(key[:64], "is not a key of a rate limit: give rate and burst")
    rate, burst = body.get("rate"), body.get("burst")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate):
        raise _invalid("rate", "must be a number of hooks per second")
    if not 0 < rate <= RATE_MAX:
        raise _invalid("rate", f"must be more than 0 and at most {RATE_MAX}")
    if isinstance(burst, float) and burst.is_integer():
        burst = int(burst)
    if isinstance(burst, bool) or not isinstance(burst, int):
        raise _invalid("burst", "must be a whole number of hooks")
    if not 1 <= burst <= BURST_MAX:
        raise _invalid("burst", f"must be at least 1 and at most {BURST_MAX}")
    return rate, burst


def _invalid(field: str, message: str) -> Refusal:
    return Refusal(400, "invalid_rate_limit", field=field, message=message)
