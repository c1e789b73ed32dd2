"""What an edge goes by, and how it changes while it runs: the file's part at a reload, the API's as it is told.

Owns the putting together. Until the engine has told the API's part once, an edge that needs it cannot say that a source
does not exist.
"""

from __future__ import annotations

from collections.abc import Callable

from ankusa.edge.route_guard import RouteGuard
from ankusa.edge.sources import Sources
from schemas.config import Config
from schemas.edge_update import EdgeUpdate


class EdgeTables:
    """The tables of one edge process. What `http` says needs a restart to change."""

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        """`clock` gives unix ms."""
        managed = config.source_store.type == "persistent"
        self.sources = Sources(config.http.prefix, config.http.routing, config.sources.values(), complete=not managed)
        self.guard = RouteGuard(config.routes, clock) if config.routes.enabled else None

    @property
    def complete(self) -> bool:
        """Whether the engine has told the API's part, where there is one."""
        return self.sources.complete and (self.guard is None or self.guard.told)

    def reload(self, config: Config) -> None:
        """Take up the file's sources. Raises as `compile_source` does, and then keeps the old ones."""
        self.sources.replace(config.sources.values())

    def take(self, update: EdgeUpdate) -> None:
        """Take up what the engine tells, all at once. Raises as `reload` does."""
        self.sources.manage(dict(update.sources), whole=update.whole)
        if self.guard is not None:
            self.guard.take(dict(update.routes), update.ip_rules, whole=update.whole)
