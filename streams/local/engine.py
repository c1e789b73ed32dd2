"""The engine: one embedded node without its HTTP edge. Builds the parts, starts them in order, drains them in order.

Owns lifecycles; decides nothing about a hook. The parts are the log and its health, the intake that edges talk to, the
dispatcher, the replayer, the sweeper and, through `Operations`, the admin API.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from ankusa.admission import Admission
from ankusa.claim_check.check_ins import CheckIns
from ankusa.claim_check.retention import Retention
from ankusa.claim_check.stores import open_store
from ankusa.clock import jitter, now_ms, unguessable
from ankusa.config import reloadable_changes, taken_up
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.dispatch.sources import NodeSources
from ankusa.replay.operator import Operator
from ankusa.replay.replayer import Replayer
from ankusa.routes.store import RouteStore
from ankusa.sinks.clients import HttpClients
from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import SinkClient
from ankusa.sinks.egress import Egress
from ankusa.sinks.registry import SinkContext
from ankusa.source_store.store import SourceStore, UnreadableSourcesError
from ankusa.store.errors import StoreError
from schemas.config import Config, ManagedSource, RateLimit
from schemas.edge_update import EdgeUpdate
from schemas.records import RouteChange, RouteRecord
from streams.local import server
from streams.local.dispatch_host import LocalDispatchHost
from streams.local.health import Health
from streams.local.intake import Intake
from streams.local.log import LocalLog
from streams.local.pack_host import LocalPackHost
from streams.local.replay_host import LocalReplayHost
from streams.local.route_host import LocalRouteHost
from streams.local.source_host import LocalSourceHost
from streams.local.sweeper import Sweeper
from streams.local.updates import Updates

log = logging.getLogger("ankusa.engine")

GRACE_MS = 10_000
"""How long a stop waits for running attempts. A supervisor that kills after 30 s, the usual figure, lets it finish."""


class Engine:
    """One node's engine. Making it raises StoreError and its kinds, and UnreadableSourcesError; after `start` it runs
    until `stop`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.blobs = open_store(config.claim_check.store, config.node.data_dir)
        self.log = LocalLog(Path(config.node.data_dir) / "store", now_ms)
        overrides = {
            tenant: RateLimit(rate=limit.rate, burst=limit.burst)
            for tenant, limit in self.log.tables.limits().items()
            if limit.rate is not None and limit.burst is not None
        }
        self.admission = Admission(config.rate_limits, config.quarantine, overrides)
        self.intake = Intake(self.log, self.admission, now_ms)
        self.health = Health(self.log)
        self.sink_context = _context(config)
        self.sources = NodeSources(config, self.sink_context)
        dispatch_host = LocalDispatchHost(self.log)
        claim_check = config.claim_check
        check_ins = CheckIns(dispatch_host, self.blobs, claim_check.pack_max_bytes, self.log.now, unguessable)
        self.retention = Retention(self.blobs, LocalPackHost(self.log), claim_check.retention_days, check_ins.stats)
        self.dispatcher = Dispatcher(dispatch_host, self.sources, config.dispatch, self.log.now, jitter, check_ins)
        self.log.on_rows = self.dispatcher.wake
        replay_host = LocalReplayHost(self.log, self.dispatcher.pressure, config.node.roles)
        self.replayer = Replayer(replay_host)
        self.replays = Operator(replay_host, self.replayer.wake)
        self.sweeper = Sweeper(self.log)
        source_host = LocalSourceHost(self.log, self.dispatcher)
        try:
            self.source_store = SourceStore(source_host, lambda: self.config, source_host, self._announce)
        except UnreadableSourcesError:
            self.log.close()
            raise
        for source in self.source_store.sources:
            self.sources.put(source)
        self.route_store: RouteStore | None = None
        if config.routes.enabled:
            self.route_store = RouteStore(LocalRouteHost(self.log), config.routes, self._announce_route)
        self.updates = Updates(self._everything)
        self._server: server.IntakeServer | None = None
        self._replaying: asyncio.Task[None] | None = None

    def _everything(self) -> EdgeUpdate:
        """What an edge must know beside its file."""
        sources = tuple((source.source_id, source) for source in self.source_store.sources)
        if self.route_store is None:
            return EdgeUpdate(True, sources)
        routes = tuple((route.id, route) for route in self.route_store.routes())
        return EdgeUpdate(True, sources, routes, self.route_store.ip_rules)

    async def _announce_route(self, record: RouteRecord) -> None:
        if isinstance(record, RouteChange):
            await self.updates.push(EdgeUpdate(False, (), ((record.id, record.route),)))
        else:
            await self.updates.push(EdgeUpdate(False, ip_rules=record.rules))

    async def _announce(self, source_id: str, source: ManagedSource | None) -> None:
        """Go by a change of a source. A new one may be delivered before it is taken, a gone one the other way round."""
        unused = [] if source is None else self.sources.put(source)
        await self.updates.push(EdgeUpdate(False, ((source_id, source),)))
        if source is None:
            unused = self.sources.drop(source_id)
        self._close_later(unused, None)
        self.dispatcher.wake()

    def _close_later(self, unused: list[SinkClient], clients: HttpClients | None) -> None:
        """Close what is no longer in use once its last attempts are over."""
        if unused or clients is not None:
            after_s = self.config.dispatch.attempt_timeout_ms / 1000
            asyncio.get_running_loop().call_later(after_s, _close_soon, unused, clients)

    async def start(self, socket: Path | None) -> None:
        """Watch the store, deliver what is due, listen for edges at `socket` (None: the edge is in this process)."""
        await self.health.start()
        try:
            await self.source_store.reseal()
            if self.route_store is not None:
                await self.route_store.plant()
        except StoreError as error:
            log.warning("event=set_up_refused reason=%s", error)  # tried again at the next start
        self.dispatcher.wake()
        self._replaying = asyncio.create_task(self.replayer.run())
        self.sweeper.start()
        self.retention.start()
        if socket is not None:
            self._server = await server.serve(socket, self.intake, self.probe, self.updates)
        live, replayed, dead = self.log.tables.counts.total()
        log.info("event=engine_started pending=%d replayed=%d dead=%d path=%s", live, replayed, dead, self.log.path)

    async def probe(self) -> str | None:
        """None while the log takes a durable write, else why not."""
        return await self.health.check()

    def reload(self, config: Config) -> list[str]:
        """Take what may change while it runs; the answer names changed keys that need a restart and were not taken.
        Raises ConfigError where it cannot be taken up without one."""
        changed, needs_restart = reloadable_changes(self.config, config)
        config = taken_up(self.config, config)
        old = self.sink_context
        if config.egress != self.config.egress:
            self.sink_context = _context(config)
        self.sink_context.destinations.reconfigure(config.dispatch.sink_concurrency)
        unused = self.sources.reload(config, None if self.sink_context is old else self.sink_context)
        self.admission.reconfigure(config.rate_limits)
        self.dispatcher.reconfigure(config.dispatch)
        self.config = config
        self._close_later(unused, None if self.sink_context is old else old.clients)
        log.info("event=config_reloaded changed=%s needs_restart=%s", ",".join(changed), ",".join(needs_restart))
        return needs_restart

    async def stop(self) -> None:
        """Refuse edges, stop moving rows, drain attempts, close the store. Nothing acknowledged is lost."""
        if self._server is not None:
            await self._server.close()
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)
        await self.sweeper.stop()
        await self.retention.stop()
        await self.dispatcher.stop(GRACE_MS)
        await self.health.stop()
        for sink in self.sources.sinks():
            with contextlib.suppress(Exception):  # a sink that cannot close must not keep the store open
                await sink.close()
        self.sink_context.clients.close()
        await self.blobs.close()
        self.log.close()
        log.info("event=engine_stopped")


def _context(config: Config) -> SinkContext:
    egress = Egress(config.egress.allow)
    return SinkContext(egress, HttpClients(egress), Destinations(config.dispatch.sink_concurrency))


def _close_soon(sinks: list[SinkClient], clients: HttpClients | None) -> None:
    """Close what a reload left without a user: its last attempts are over by now."""

    async def close() -> None:
        for sink in sinks:
            with contextlib.suppress(Exception):
                await sink.close()
        if clients is not None:
            clients.close()

    _closing.add(task := asyncio.get_running_loop().create_task(close()))
    task.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()
