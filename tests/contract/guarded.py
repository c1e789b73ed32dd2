"""A node whose route guard is on, for the contract suite: its route store, and the guard of an edge that follows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ankusa.clock import now_ms
from ankusa.edge.tables import EdgeTables
from ankusa.routes.store import RouteStore
from schemas.config import Config, RateLimit, Routes
from schemas.edge_update import EdgeUpdate
from schemas.records import Change, RouteChange, RouteRecord, Topic, decode_change
from streams.kafka.route_host import KafkaRouteHost
from streams.kafka.set_up_log import SetUpLog
from streams.kafka.source_feed import SourceFeed
from streams.kafka.source_writer import SourceWriter
from streams.local.log import LocalLog
from streams.local.route_host import LocalRouteHost
from tests.kafka.folding import Fleet

SOON_S = 30.0


class Guarded(Protocol):
    """A node between `open` and `close`, and open again on what it kept."""

    store: RouteStore
    edge: EdgeTables

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def audit(self) -> list[Change]:
        """The audit trail, in order."""


class EmbeddedGuarded:
    """On the embedded log. Implements `Guarded`."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self._path = path / "store"
        self.config = Config(routes=_settings(settings))

    async def open(self) -> None:
        self._log = LocalLog(self._path, now_ms)
        self.edge = EdgeTables(self.config, now_ms)
        self.store = RouteStore(LocalRouteHost(self._log), self.config.routes, self._announce)
        await self.store.plant()
        routes = tuple((route.id, route) for route in self.store.routes())
        self.edge.take(EdgeUpdate(True, (), routes, self.store.ip_rules))

    async def _announce(self, record: RouteRecord) -> None:
        if isinstance(record, RouteChange):
            self.edge.take(EdgeUpdate(False, (), ((record.id, record.route),)))
        else:
            self.edge.take(EdgeUpdate(False, ip_rules=record.rules))

    async def close(self) -> None:
        self._log.close()

    async def audit(self) -> list[Change]:
        return [decode_change(value) for _, _, value in self._log.read(Topic.AUDIT)]


class KafkaGuarded:
    """A worker's store and an edge's guard, each following the topic. Implements `Guarded`."""

    def __init__(self, fleet: Fleet, **settings: Any) -> None:
        self._fleet = fleet
        self.config = msgspec.structs.replace(fleet.config, routes=_settings(settings))

    async def open(self) -> None:
        self.edge = EdgeTables(self.config, now_ms)
        read = asyncio.Event()

        def follow(update: EdgeUpdate) -> None:
            if update.whole:
                names, writer = self._fleet.names, SourceWriter(self.config)
                host = KafkaRouteHost(SetUpLog(names, writer, self.feed.end.reached), now_ms)
                self.store = RouteStore(host, self.config.routes, _announced)
            self.store.follow(dict(update.routes), update.ip_rules)
            read.set()

        self.feed = SourceFeed(self.config, follow, _ignored)
        self._edge_feed = SourceFeed(self.config, self.edge.take, _ignored)
        await asyncio.wait_for(self._edge_feed.read, SOON_S)
        await asyncio.wait_for(read.wait(), SOON_S)
        await self.store.plant()

    async def close(self) -> None:
        await self.feed.close()
        await self._edge_feed.close()

    async def audit(self) -> list[Change]:
        found = await asyncio.to_thread(self._fleet.read, self._fleet.names.audit)
        return [decode_change(record.value) for record in found]


def _settings(keys: Mapping[str, Any]) -> Routes:
    return msgspec.convert({"enabled": True, **keys}, Routes)


async def _announced(record: RouteRecord) -> None:
    """The edge follows the topic."""


def _ignored(limits: Mapping[str, RateLimit | None]) -> None:
    """Nobody asks for limits here."""


def answer(edge: EdgeTables, path: str, method: str = "POST", ip: str = "192.0.2.1") -> int:
    """What the guard of an edge answers a request with; 0 for one that may go on."""
    assert edge.guard is not None
    refused = edge.guard.refuse({"method": method, "raw_path": path.encode(), "client": (ip, 1), "headers": []})
    return 0 if refused is None else refused.status


async def soon(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds`: edges follow within a moment."""
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {SOON_S:.0f} s"
        await asyncio.sleep(0.02)
