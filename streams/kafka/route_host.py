"""The Kafka host of the route guard: routes and ip rules in the topic `sources`, stored there and read from it.

Owns the keys of those records, `route/` and a route's id or the key of the global rules, and what is read of them and
not told yet. Decides nothing about a request.
"""

from __future__ import annotations

from collections.abc import Callable

from ankusa.core.set_up import entry_of
from ankusa.routes.spec import configured_rules
from schemas import records
from schemas.config import Routes
from schemas.records import Change, IpRulesChange, RouteChange, RouteRecord, decode_route_record
from schemas.routes import IpRules, Route
from streams.kafka.set_up_log import SetUpLog

PREFIX = "route/"
"""No source's key begins so: its id has no slash."""


class KafkaRouteHost:
    """Implements `ankusa.routes.store.RouteLog`. What is kept is told to the store as it is read
    (`RouteStore.follow`), all of it before its first change."""

    def __init__(self, kept_in: SetUpLog, clock: Callable[[], int]) -> None:
        self._log = kept_in
        self._clock = clock

    def now(self) -> int:
        return self._clock()

    def kept_routes(self) -> list[RouteRecord]:
        return []

    async def begin(self) -> None:
        await self._log.begin()

    async def change(self, record: RouteRecord, audit: Change | None) -> None:
        _, _, entry = entry_of(record)
        gone = isinstance(record, RouteChange) and record.route is None
        await self._log.store(PREFIX + entry, None if gone else records.encode(record), audit)


class FollowedRoutes:
    """What is read of the guard and not told yet; at first the rules of the file, which hold until there are others."""

    def __init__(self, settings: Routes) -> None:
        self.enabled = settings.enabled
        self._routes: dict[str, Route | None] = {}
        self._rules: IpRules | None = configured_rules(settings) if settings.enabled else None
        self.unreadable: set[str] = set()

    def take(self, key: str, value: bytes | None) -> None:
        """What a key says now. Raises one of `records.DecodeError` or ValueError, and then has it in `unreadable`."""
        if not self.enabled:
            return
        entry = key.removeprefix(PREFIX)
        self.unreadable.add(key)
        record = RouteChange(entry, 0, None) if value is None else decode_route_record(value)
        if PREFIX + entry_of(record)[2] != key:
            raise ValueError("a route under the key of another")
        if isinstance(record, IpRulesChange):
            self._rules = record.rules
        else:
            self._routes[entry] = record.route
        self.unreadable.discard(key)

    def __bool__(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._routes) or self._rules is not None

    def told(self) -> tuple[tuple[tuple[str, Route | None], ...], IpRules | None]:
        """All that is to tell; from now on it is told."""
        routes, rules = tuple(self._routes.items()), self._rules
        self._routes, self._rules = {}, None
        return routes, rules
