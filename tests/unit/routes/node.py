"""A node whose listener is the routes one, on the loopback, its event loop in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ankusa.routes.store import RouteStore
from api.auth import Tokens
from api.routes import build_routes_app
from api.serving import bind, serve
from schemas.config import AdminToken, Routes
from schemas.records import RouteRecord
from streams.local.route_host import LocalRouteHost
from tests.unit.api.node import Node, Parts


class RoutesNode(Node):
    """`announced` are the changes told to the edges."""

    def __init__(self, path: Path, *, tokens: Sequence[AdminToken] = (), **settings: Any) -> None:
        super().__init__(path, tokens=tokens)
        self._settings = Routes(enabled=True, **settings)
        self.announced: list[RouteRecord] = []
        self.store: RouteStore

    async def _announce(self, record: RouteRecord) -> None:
        self.announced.append(record)

    async def _start(self) -> None:
        self.parts = Parts(self._path, self._config, lambda: self.wall)
        self.store = RouteStore(LocalRouteHost(self.parts.log), self._settings, self._announce)
        await self.store.plant()
        self.app = build_routes_app(self.store, Tokens(self._tokens))
        self._listener = await serve(self.app, bind("127.0.0.1", 0))
        self.port = self._listener.port
