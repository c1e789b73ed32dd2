"""The guard's decision on one request: deny unless a route and the ip rules let it through (spec 02 "Route guard").

In this order: an explicit global deny; the route of method and path; the route's own rules, which replace the global
ones and deny the rest; else the global rules and their default. Owns the decision and the tables it is made by; never
reads a request, and never keeps a table beyond its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ankusa.core.ip_rules import Address, RuleList
from ankusa.core.route import RouteIndex
from schemas.routes import IpRule, IpRules, Route

Reason = Literal["matched", "no_route", "method", "ip_denied"]
Scope = Literal["global", "route"]


class Decision(Struct, frozen=True):
    """Whether a request may go on, and why. `rule` is the ip rule that decided, with its scope; None for a default."""

    allowed: bool
    reason: Reason
    route_id: str | None = None
    rule: IpRule | None = None
    scope: Scope | None = None


class Guard:
    """Routes and rules as they are now."""

    def __init__(self, routes: Mapping[str, Route], rules: IpRules) -> None:
        self._routes: dict[str, Route] = {}
        self._own_rules: dict[str, RuleList] = {}
        self.index = RouteIndex()
        for route in routes.values():
            self.put(route)
        self.set_rules(rules)

    def put(self, route: Route) -> None:
        """Make or replace a route."""
        self.drop(route.id)
        self._routes[route.id] = route
        self.index.add(route)
        if route.ip_rules:
            self._own_rules[route.id] = RuleList(route.ip_rules)

    def drop(self, route_id: str) -> None:
        before = self._routes.pop(route_id, None)
        if before is not None:
            self.index.remove(before)
            self._own_rules.pop(route_id, None)

    def set_rules(self, rules: IpRules) -> None:
        self._default = rules.default
        self._global = RuleList(rules.rules)

    def decide(self, method: str, path: str, client: Address | None) -> Decision:
        """`path` is without its query; `client` None is one that nobody knows: it is denied."""
        if client is None:
            return Decision(False, "ip_denied")
        ruled = self._global.first(client)
        if ruled is not None and ruled.action == "deny":
            return Decision(False, "ip_denied", rule=ruled, scope="global")
        route, fits = self.index.find(method, path)
        if route is None:
            return Decision(False, "method" if fits else "no_route")
        own = self._own_rules.get(route.id)
        if own is not None:
            rule = own.first(client)
            allowed = rule is not None and rule.action == "allow"
            return Decision(
                allowed, "matched" if allowed else "ip_denied", route.id, rule, None if rule is None else "route"
            )
        allowed = ruled is not None or self._default == "allow"
        scope: Scope | None = None if ruled is None else "global"
        return Decision(allowed, "matched" if allowed else "ip_denied", route.id, ruled, scope)
