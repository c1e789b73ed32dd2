"""The routes listener's answers and bodies as models: what OpenAPI shows is what is sent (spec 07 "Routes").

Owns shapes only: what a body may hold is checked in `ankusa/routes/spec.py`. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.api import Model
from schemas.api_requests import PAGE_DEFAULT, PAGE_LIMIT, Cursor

Action = Literal["allow", "deny"]


class RoutesHealth(Model):
    status: Literal["ok"] = "ok"
    routes: int


class IpRule(Model):
    action: Action
    cidr: str


class Route(Model):
    """`ip_rules`, when there are any, replace the global ones and deny the rest."""

    id: str
    path: str
    methods: list[str]
    enabled: bool
    ip_rules: list[IpRule]
    metadata: dict[str, Any]
    inserted_at: str
    updated_at: str


class RoutePage(Model):
    """Routes in order of their ids."""

    routes: list[Route]
    next_cursor: str | None


class IpRules(Model):
    """The first rule that holds an address decides, `default` where none does."""

    default: Action
    rules: list[IpRule]


class DecidingRule(Model):
    action: Action
    cidr: str
    scope: Literal["global", "route"]


class Tested(Model):
    """What the guard would decide. `ip_rule` is null where no rule decided, but a default."""

    decision: Action
    reason: Literal["matched", "no_route", "method", "ip_denied"]
    route_id: str | None
    ip_rule: DecidingRule | None


class RouteQuery(Model):
    enabled: bool | None = None
    limit: int = Field(PAGE_DEFAULT, description=f"Clamped to 1..{PAGE_LIMIT}.")
    cursor: Cursor | None = None


# -- bodies ---------------------------------------------------------------------------------------------------------

_Rules = list[dict[str, str]]


class RouteRequest(Model):
    """A route, whole. `path` holds literal segments, `:param`, and a trailing `*`."""

    path: str
    id: str | None = Field(None, description="A slug; ours where none is given.")
    methods: list[str] = ["POST"]
    enabled: bool = True
    ip_rules: _Rules = []
    metadata: dict[str, Any] = {}


class RouteChanges(Model):
    """The keys of a route that change."""

    enabled: bool | None = None
    methods: list[str] | None = None
    ip_rules: _Rules | None = None
    metadata: dict[str, Any] | None = None


class IpRulesRequest(Model):
    default: Action = "allow"
    rules: _Rules = []


class TestRequest(Model):
    """A request that was not made."""

    __test__ = False

    path: Annotated[str, Field(min_length=1)]
    ip: str
    method: str = "POST"
