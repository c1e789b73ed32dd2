"""The route store of a node whose guard is on: routes and global ip rules, kept and changed (spec 07 "Routes").

A write is judged, stored with its audit record in one durable batch, then announced to the edges, then answered: in
that order, and one at a time. Where several nodes share a log, each follows what the others store, and edges follow the
log too. What the file seeds is there from the start; what the API has changed since stands. Owns the rules of changing
routes; the decision is the guard's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from ankusa import lifecycle
from ankusa.changing import Changing
from ankusa.clock import uuid7
from ankusa.routes import spec as specs
from ankusa.routes.answers import Duplicate, Invalid, NotFound, Refused, TooMany
from ankusa.routes.guard import Decision, Guard
from ankusa.routes.spec import InvalidError
from schemas.config import Routes
from schemas.records import Change, ChangeAction, ChangeKind, IpRulesChange, RouteChange, RouteRecord
from schemas.routes import IpRules, Route

log = logging.getLogger("ankusa.routes")

IP_RULES_SUBJECT = "ip-rules"


class RouteLog(Protocol):
    """Where routes are kept."""

    def now(self) -> int:
        """Unix ms."""

    def kept_routes(self) -> list[RouteRecord]:
        """The last change of every route there is, and of the ip rules. Raises StoreError."""

    async def begin(self) -> None:
        """A change comes next. What other nodes have changed is told (`RouteStore.follow`) before it returns, and one
        of theirs that is stored from now on has this change refused. Raises StoreError."""

    async def change(self, record: RouteRecord, audit: Change | None) -> None:
        """Store a change with its audit record, durably. Raises StoreError: then nothing of it is stored;
        `changing.ContendedError` when another node has changed routes since `begin`."""


Announce = Callable[[RouteRecord], Awaitable[None]]
"""Tell a change to the node's edges; returns once they go by it."""


class RouteStore:
    """One node's routes."""

    def __init__(self, route_log: RouteLog, settings: Routes, announce: Announce) -> None:
        """Reads what is kept. Raises StoreError."""
        self._log = route_log
        self._settings = settings
        self._announce = announce
        self._routes: dict[str, Route] = {}
        self.ip_rules = specs.configured_rules(settings)
        for record in route_log.kept_routes():
            if isinstance(record, IpRulesChange):
                self.ip_rules = record.rules
            elif record.route is not None:
                self._routes[record.id] = record.route
        self._guard = Guard(self._routes, self.ip_rules)
        self._lock = asyncio.Lock()
        self._changing = Changing("route", log)

    async def plant(self) -> None:
        """Make the file's routes that are not there. Raises StoreError."""
        for seed in self._settings.seed:
            route = specs.seeded(seed, self._log.now())
            if route.id not in self._routes:
                await self._changing.carried(partial(self._plant, route))

    async def _plant(self, route: Route) -> None:
        async with self._lock:
            await self._log.begin()
            if route.id in self._routes:
                return
            refused = self._refused(route)
            if refused is not None:
                log.warning("event=seed_refused route=%s reason=%s", route.id, refused)
                return
            await self._put(route, ChangeAction.CREATED)

    def follow(self, routes: Mapping[str, Route | None], rules: IpRules | None) -> None:
        """Take up what was stored since, here or by another node: each route as it is now, None of one that is gone,
        and the global rules, None where they are as they were."""
        for route_id, route in routes.items():
            if route is None:
                self._drop(route_id)
            else:
                self._keep(route)
        if rules is not None:
            self._rule(rules)

    def _keep(self, route: Route) -> None:
        self._routes[route.id] = route
        self._guard.put(route)

    def _drop(self, route_id: str) -> None:
        self._routes.pop(route_id, None)
        self._guard.drop(route_id)

    def _rule(self, rules: IpRules) -> None:
        self.ip_rules = rules
        self._guard.set_rules(rules)

    # -- reading ------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._routes)

    def routes(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def get(self, route_id: str) -> Route | NotFound:
        return self._routes.get(route_id) or NotFound()

    def page(self, *, enabled: bool | None, after: str, limit: int) -> tuple[list[Route], bool]:
        """Up to `limit` routes with ids behind `after`, in their order, and whether there are more."""
        ids = sorted(
            route.id
            for route in self._routes.values()
            if route.id > after and (enabled is None or route.enabled is enabled)
        )
        return [self._routes[route_id] for route_id in ids[:limit]], len(ids) > limit

    def test(self, body: Mapping[str, Any]) -> Decision | Invalid:
        """What the guard would decide; nothing is taken."""
        try:
            asked = specs.read_dry_run(body)
        except InvalidError as error:
            return error.refusal
        return self._guard.decide(asked.method, asked.path, asked.ip)

    # -- writing ------------------------------------------------------------------

    async def create(self, body: Mapping[str, Any]) -> Route | Refused:
        """A new route, with the id it asks for or one of ours. Raises StoreError."""
        return await self._changing.carried(lambda: self._create(body))

    async def replace(self, route_id: str, body: Mapping[str, Any]) -> tuple[Route, bool] | Refused:
        """Make or replace a route, whole; and whether it is new. Raises StoreError."""
        return await self._changing.carried(lambda: self._replace(route_id, body))

    async def patch(self, route_id: str, body: Mapping[str, Any]) -> Route | Refused:
        """Change some keys of a route. Raises StoreError."""
        return await self._changing.carried(lambda: self._patch(route_id, body))

    async def delete(self, route_id: str) -> NotFound | None:
        """Take a route away. Raises StoreError."""
        return await self._changing.carried(lambda: self._delete(route_id))

    async def set_ip_rules(self, body: Mapping[str, Any]) -> IpRules | Invalid:
        """Replace the global rules. Raises StoreError."""
        return await self._changing.carried(lambda: self._set_ip_rules(body))

    async def _create(self, body: Mapping[str, Any]) -> Route | Refused:
        async with self._lock:
            await self._log.begin()
            at = self._log.now()
            try:
                route = specs.read_route(body, specs.read_id(body) or uuid7(at), at, None)
            except InvalidError as error:
                return error.refusal
            if route.id in self._routes:
                return Duplicate(route.id)
            return self._refused(route) or await self._put(route, ChangeAction.CREATED)

    async def _replace(self, route_id: str, body: Mapping[str, Any]) -> tuple[Route, bool] | Refused:
        async with self._lock:
            await self._log.begin()
            before = self._routes.get(route_id)
            try:
                if body.get("id", route_id) != route_id:
                    raise InvalidError("invalid_route", "id", "is not the id in the path")
                route = specs.read_route(body, specs.checked_id(route_id), self._log.now(), before)
            except InvalidError as error:
                return error.refusal
            refused = self._refused(route)
            if refused is not None:
                return refused
            await self._put(route, ChangeAction.CREATED if before is None else ChangeAction.UPDATED)
            return route, before is None

    async def _patch(self, route_id: str, body: Mapping[str, Any]) -> Route | Refused:
        async with self._lock:
            await self._log.begin()
            before = self._routes.get(route_id)
            if before is None:
                return NotFound()
            try:
                route = specs.read_patch(body, before, self._log.now())
            except InvalidError as error:
                return error.refusal
            return self._refused(route) or await self._put(route, ChangeAction.UPDATED)

    async def _delete(self, route_id: str) -> NotFound | None:
        async with self._lock:
            await self._log.begin()
            before = self._routes.get(route_id)
            if before is None:
                return NotFound()
            record = RouteChange(route_id, self._log.now(), None)
            audit = lifecycle.change(ChangeKind.ROUTE, route_id, ChangeAction.DELETED, record.at, specs.audited(before))
            await self._log.change(record, audit)
            self._drop(route_id)
            await self._announce(record)
            log.info("event=route_deleted route=%s", route_id)
            return None

    async def _set_ip_rules(self, body: Mapping[str, Any]) -> IpRules | Invalid:
        async with self._lock:
            await self._log.begin()
            try:
                rules = specs.read_ip_rules(body)
            except InvalidError as error:
                return error.refusal
            record = IpRulesChange(self._log.now(), rules)
            entity = msgspec.to_builtins(rules)
            audit = lifecycle.change(ChangeKind.IP_RULES, IP_RULES_SUBJECT, ChangeAction.UPDATED, record.at, entity)
            await self._log.change(record, audit)
            self._rule(rules)
            await self._announce(record)
            log.info("event=ip_rules_set default=%s rules=%d", rules.default, len(rules.rules))
            return rules

    def _refused(self, route: Route) -> Duplicate | TooMany | None:
        other = self._guard.index.conflict(route)
        if other is not None:
            return Duplicate(other.id)
        full = route.id not in self._routes and len(self._routes) >= self._settings.max_routes
        return TooMany(self._settings.max_routes) if full else None

    async def _put(self, route: Route, action: ChangeAction) -> Route:
        record = RouteChange(route.id, route.updated_at, route)
        audit = lifecycle.change(ChangeKind.ROUTE, route.id, action, route.updated_at, specs.audited(route))
        await self._log.change(record, audit)
        self._keep(route)
        await self._announce(record)
        log.info("event=route_%s route=%s enabled=%s", action.name.lower(), route.id, route.enabled)
        return route
