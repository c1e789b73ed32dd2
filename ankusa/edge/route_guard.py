"""The route guard at the edge: the first thing a request to a catch URL meets, before any of it is read (spec 02).

Owns the way from an ASGI scope to the guard's question and from its decision to an answer. A denied request stores
nothing, and is told nothing that helps it find what is there. Until the engine has told the routes, nobody is let
through and nobody is told 404.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ankusa.core.ip_rules import Address, address, cidr, client
from ankusa.edge import replies
from ankusa.edge.replies import Message, Reply
from ankusa.routes.guard import Guard, Reason
from schemas.config import Routes
from schemas.routes import IpRules, Route

log = logging.getLogger("ankusa.edge")

LOG_EVERY_MS = 10_000
"""One line tells how many were denied since the last, and why: a scanner must not fill the disk."""

_FORWARDED_FOR = b"x-forwarded-for"


class RouteGuard:
    """The guard of one edge process. `clock` gives unix ms."""

    def __init__(self, settings: Routes, clock: Callable[[], int]) -> None:
        self._trusted = [cidr(proxy) for proxy in settings.trusted_proxies]
        self._denied_address = replies.ip_denied(settings.ip_denied_status)
        self._clock = clock
        self._guard: Guard | None = None
        self._denied: dict[Reason, int] = {}
        self._logged_at = 0

    @property
    def told(self) -> bool:
        """Whether there are rules to go by."""
        return self._guard is not None

    def take(self, routes: dict[str, Route | None], rules: IpRules | None, *, whole: bool) -> None:
        """Take up what the engine tells: all routes and rules there are, or what has changed."""
        if whole or self._guard is None:
            made = {route_id: route for route_id, route in routes.items() if route is not None}
            self._guard = Guard(made, rules or IpRules())
            return
        for route_id, route in routes.items():
            if route is None:
                self._guard.drop(route_id)
            else:
                self._guard.put(route)
        if rules is not None:
            self._guard.set_rules(rules)

    def refuse(self, scope: Message) -> Reply | None:
        """The answer to a request that is denied; None for one that may go on."""
        if self._guard is None:
            return replies.NOT_TOLD_YET
        path = scope["raw_path"].decode("latin-1")
        decision = self._guard.decide(scope["method"], path, self._client(scope))
        if decision.allowed:
            return None
        self._note(decision.reason)
        return self._denied_address if decision.reason == "ip_denied" else replies.NOT_FOUND

    def _client(self, scope: Message) -> Address | None:
        peer = scope["client"]
        found = None if peer is None else address(peer[0])
        if not self._trusted:
            return found
        forwarded: list[str] = []
        for name, value in scope["headers"]:
            if name == _FORWARDED_FOR:
                entries = value.decode("latin-1").split(",")
                forwarded += [entry for entry in map(str.strip, entries) if entry]
        return client(found, forwarded, self._trusted)

    def _note(self, reason: Reason) -> None:
        self._denied[reason] = self._denied.get(reason, 0) + 1
        at = self._clock()
        if at - self._logged_at >= LOG_EVERY_MS:
            counts = " ".join(f"{reason}={count}" for reason, count in sorted(self._denied.items()))
            log.info("event=requests_denied %s", counts)
            self._denied.clear()
            self._logged_at = at
