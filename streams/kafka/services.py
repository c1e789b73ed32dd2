"""The services of a worker, beside its fold: dispatcher, replayers, lane sweep, and what they need of sources, sinks
and the claim check. They read tables, act, and publish; they never write a table, and no fold ever waits for them.

Owns the building, the order of starting and stopping, and reloads; decides nothing about a hook. Who owns which
partition is told by `OwnedPartitions`, which each service follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from ankusa.claim_check.check_ins import CheckIns
from ankusa.claim_check.retention import Retention
from ankusa.claim_check.stores import open_store
from ankusa.clock import jitter, now_ms, unguessable
from ankusa.config import reloadable_changes, taken_up
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.dispatch.sources import NodeSources
from ankusa.replay.operator import Operator
from ankusa.routes.store import RouteStore
from ankusa.sinks.clients import HttpClients
from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import SinkClient
from ankusa.sinks.egress import Egress
from ankusa.sinks.registry import SinkContext
from ankusa.source_store.store import SourceStore
from ankusa.store.errors import StoreError
from schemas.config import Config, ManagedSource
from schemas.edge_update import EdgeUpdate
from schemas.records import RouteRecord, SourceChange, Topic
from streams.kafka.bodies import Bodies
from streams.kafka.compacted_reader import CompactedReader
from streams.kafka.dead_hooks import DeadHooks, check_dead
from streams.kafka.delivery import Delivery
from streams.kafka.dispatch_host import KafkaDispatchHost
from streams.kafka.fleet_log import FleetLog
from streams.kafka.folding import PartitionFold
from streams.kafka.hook_reader import HookReader
from streams.kafka.known_sources import KnownSources
from streams.kafka.lane_healing import LaneHealing
from streams.kafka.limits import FleetLimits
from streams.kafka.log_producer import LogProducer
from streams.kafka.owned import OwnedPartitions
from streams.kafka.pack_host import KafkaPackHost
from streams.kafka.pen_sizes import TellingPens
from streams.kafka.reclaiming import Reclaiming
from streams.kafka.replay_host import NodeReplays
from streams.kafka.replaying import Replaying
from streams.kafka.route_host import KafkaRouteHost
from streams.kafka.set_up_log import SetUpLog
from streams.kafka.source_feed import SourceFeed
from streams.kafka.source_host import KafkaSourceHost
from streams.kafka.source_rows import SourceRows
from streams.kafka.source_writer import SourceWriter
from streams.kafka.spent_commands import SpentCommands, take_all
from streams.kafka.topic_trim import TopicTrim
from streams.kafka.topics import TopicNames
from streams.kafka.trimming import Trimming

log = logging.getLogger("ankusa.worker")

GRACE_MS = 10_000
"""How long a stop waits for running attempts. A supervisor that kills after 30 s, the usual figure, lets it finish."""

RETENTION_AFTER_MS = 60_000
"""The first look at packs, after the start: partitions have come by then, and the next look is an hour later."""


class Services:
    """One worker's services. Made on the event loop they run on; raises StoreError where the claim check's store cannot
    be had."""

    def __init__(self, config: Config, owned: OwnedPartitions, producer: LogProducer) -> None:
        self.config = config
        claim_check = config.claim_check
        self.blobs = open_store(claim_check.store, config.node.data_dir, shared=True)
        self.fleet = FleetLog(producer, topics(config), now_ms)
        self.reader = HookReader.of(config)
        names = TopicNames(config.kafka.prefix)
        self.dead_reader = CompactedReader.of(config, names.dead, check_dead)
        dead = DeadHooks(names.dead, self.fleet, producer, self.dead_reader)
        self.bodies = Bodies(self.fleet, self.reader, dead.read_back)
        self.host = KafkaDispatchHost(self.fleet, self.bodies, lambda: owned.doubtful())
        self.sink_context = _context(config)
        self.sources = NodeSources(config, self.sink_context)
        check_ins = CheckIns(self.host, self.blobs, claim_check.pack_max_bytes, self.fleet.now, unguessable)
        packs = KafkaPackHost(self.fleet)
        self.retention = Retention(self.blobs, packs, claim_check.retention_days, check_ins.stats)
        self.known = KnownSources(self.sources.resolve, self._caught_up, self.fleet.now)
        sources = self.known if config.source_store.type == "persistent" else self.sources
        self.dispatcher = Dispatcher(self.host, sources, config.dispatch, self.fleet.now, jitter, check_ins)
        self.delivery = Delivery(self.fleet, self.host, self.dispatcher)
        self.healing = LaneHealing(self.fleet)
        self.replaying = Replaying(self.fleet, self.dispatcher.pressure)
        node_replays = NodeReplays(self.fleet, config.kafka.partitions, self.dispatcher.pressure)
        self.replays = Operator(node_replays, self.replaying.wake)
        self.reclaiming = Reclaiming(self.fleet)
        self.replay_reader = CompactedReader.of(config, names.replays, take_all)
        self.spent_commands = SpentCommands(self.fleet, self.replay_reader, owned.still_owned)
        self.trimming = Trimming(
            *(self.fleet, self.bodies, dead, TopicTrim(config)), (names.hooks, names.quarantine), owned.still_owned
        )
        self.limits = FleetLimits(config, self.fleet)
        self.source_rows = SourceRows(self.fleet, self.dispatcher, config.kafka.partitions)
        self.feed: SourceFeed | None = None
        self.source_store: SourceStore | None = None
        self.routes: asyncio.Future[RouteStore] = asyncio.get_running_loop().create_future()
        """The guard's routes, once they are read; never where it is off."""
        self.owned = owned
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()

    # -- partitions -------------------------------------------------------------

    def start(self) -> None:
        """Follow the partitions, once the sources are known: a row whose source is not known yet would die."""
        self.feed = SourceFeed(self.config, self._take, self.limits.take, self._stored, self.source_rows.hear)
        if self.config.source_store.type != "persistent":
            self._stored({})
            self._follow()
        loop = asyncio.get_running_loop()
        sweeps = self.healing, self.reclaiming, self.trimming, self.spent_commands
        self._tasks += [loop.create_task(each.run_for_ever()) for each in sweeps]
        self._tasks.append(loop.create_task(TellingPens(self.config, self.fleet, self.feed.pens).run_for_ever()))
        self.retention.start(RETENTION_AFTER_MS)

    def _follow(self) -> None:
        self.delivery.start(self.owned)  # first: the fleet log learns of partitions here
        self.replaying.start(self.owned)
        self.owned.on_revoked(self.healing.remove)
        self.owned.on_revoked(self.reclaiming.remove)
        self.owned.on_revoked(self.trimming.remove)
        self.owned.on_assigned(self._assigned)

    def _assigned(self, fold: PartitionFold) -> None:
        self.healing.add(fold.partition)
        self.reclaiming.add(fold.partition)
        self.trimming.add(fold.partition)
        self.source_rows.add(fold.partition)
        live, replayed, dead = fold.tables.counts.total()
        log.info(
            "event=partition_owned partition=%d epoch=%d pending=%d replayed=%d dead=%d",
            *(fold.partition, fold.epoch, live, replayed, dead),
        )

    # -- sources ------------------------------------------------------------------

    def _stored(self, changes: Mapping[str, SourceChange | None]) -> None:
        """Know what is kept of the sources that the API set up: all of it, then what has changed."""
        if self.source_store is None:
            host = KafkaSourceHost(self._set_up_log(), self.source_rows, self.fleet.now, changes)
            self.source_store = SourceStore(host, lambda: self.config, host, self._announce)
            self._tasks.append(asyncio.get_running_loop().create_task(_set_up(self.source_store.reseal)))
        else:
            self.source_store.follow(changes)

    def _set_up_log(self) -> SetUpLog:
        assert self.feed is not None
        return SetUpLog(TopicNames(self.config.kafka.prefix), SourceWriter(self.config), self.feed.end.reached)

    def _keep_routes(self) -> None:
        store = RouteStore(KafkaRouteHost(self._set_up_log(), self.fleet.now), self.config.routes, _announced)
        self._tasks.append(asyncio.get_running_loop().create_task(_set_up(store.plant)))
        self.routes.set_result(store)

    async def _caught_up(self) -> None:
        assert self.feed is not None
        await self.feed.end.caught_up()

    async def _announce(self, source_id: str, source: ManagedSource | None) -> None:
        """Go by a change that was made here; edges and other workers hear of it from the topic."""
        self._take(EdgeUpdate(False, ((source_id, source),)))

    def _take(self, update: EdgeUpdate) -> None:
        """Go by what the API set up."""
        if update.whole and self.config.routes.enabled:
            self._keep_routes()
        if self.routes.done():
            self.routes.result().follow(dict(update.routes), update.ip_rules)
        unused: list[SinkClient] = []
        for source_id, source in update.sources:
            unused += self.sources.drop(source_id) if source is None else self.sources.put(source)
        if update.whole and self.config.source_store.type == "persistent":
            self._follow()
        self._close_later(unused, None)
        self.dispatcher.wake()

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
        self.dispatcher.reconfigure(config.dispatch)
        self.limits.reload(config)
        self.config = config
        self._close_later(unused, None if self.sink_context is old else old.clients)
        log.info("event=config_reloaded changed=%s needs_restart=%s", ",".join(changed), ",".join(needs_restart))
        return needs_restart

    def _close_later(self, unused: list[SinkClient], clients: HttpClients | None) -> None:
        """Close what is no longer in use once its last attempts are over."""
        if unused or clients is not None:
            task = asyncio.get_running_loop().create_task(self._close(unused, clients))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, unused: list[SinkClient], clients: HttpClients | None) -> None:
        await asyncio.sleep(self.config.dispatch.attempt_timeout_ms / 1000)
        await _close_all(unused)
        if clients is not None:
            clients.close()

    # -- the end ----------------------------------------------------------------------

    async def stop(self) -> None:
        """Drain attempts and publish what they came to; the fold goes on meanwhile."""
        if self.feed is not None:
            await self.feed.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.source_rows.stop()
        await self.known.stop()
        await self.replaying.stop()
        await self.retention.stop()
        await self.dispatcher.stop(GRACE_MS)
        await self.reader.close()
        await self.dead_reader.close()
        await self.replay_reader.close()
        for task in self._closing:
            task.cancel()
        await _close_all(self.sources.sinks())
        self.sink_context.clients.close()
        await self.blobs.close()


def topics(config: Config) -> dict[Topic, str]:
    """The names of the topics that services publish to."""
    names = TopicNames(config.kafka.prefix)
    return {
        Topic.OUTCOMES: names.outcomes,
        Topic.REPLAYS: names.replays,
        Topic.QUARANTINE: names.quarantine,
        Topic.SOURCES: names.sources,
        Topic.AUDIT: names.audit,
    }


async def _set_up(work: Callable[[], Awaitable[None]]) -> None:
    """What a start changes of what is kept: sources sealed anew, routes of the file. What is left then is tried again
    at the next one."""
    try:
        await work()
    except StoreError as error:
        log.warning("event=set_up_refused reason=%s", error)


async def _announced(record: RouteRecord) -> None:
    """Edges and other workers hear of it from the topic."""


async def _close_all(sinks: list[SinkClient]) -> None:
    for sink in sinks:
        with contextlib.suppress(Exception):  # a sink that cannot close must keep nothing else open
            await sink.close()


def _context(config: Config) -> SinkContext:
    egress = Egress(config.egress.allow)
    return SinkContext(egress, HttpClients(egress), Destinations(config.dispatch.sink_concurrency))
