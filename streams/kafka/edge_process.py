"""An edge on Kafka as a process: stateless, it answers for what the cluster acknowledges.

Run as `python -m streams.kafka.edge_process --config FILE`, by `ankusa serve` or by hand. It listens at once and
refuses until (1) the topics are as they must be, (2) a first record is acknowledged, and (3), where the API may set up
sources, it has read them. Topics that would lose hooks, and sources that cannot be read, end it with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping

from ankusa.clock import now_ms, unguessable
from ankusa.edge.tables import EdgeTables
from ankusa.supervisor import FATAL_EXIT
from schemas.config import Config
from schemas.edge_update import EdgeUpdate
from streams.edge import Stop, run_edge, serve_until
from streams.kafka.edge_log import KafkaEdgeLog
from streams.kafka.lanes import Lanes
from streams.kafka.process import begin
from streams.kafka.producer import EdgeProducer
from streams.kafka.source_feed import SourceFeed
from streams.kafka.topic_admin import topics_fit

log = logging.getLogger("ankusa.edge")

OVERRIDES_S = 10.0
"""How long an edge that begins waits for overrides of limits: refusing hooks for longer costs more than they save."""

SLOW_APPEND_MS = 100
"""Ten times what three brokers take for a commit. Whoever waits longer waits for one partition, or for all: hooks
behind it go to others, or are refused at once when nobody answers."""


async def run(config: Config, config_path: str | None, env: Mapping[str, str], parent: int) -> int:
    """Run one edge until SIGTERM, SIGINT, the death of `parent` or what must not go on; the exit status."""
    stop = Stop(parent)
    tables, lanes = EdgeTables(config, now_ms), Lanes(config.sources.values())
    edge_log = KafkaEdgeLog(config, EdgeProducer(config), lanes.agreed, now_ms, unguessable())

    def take(update: EdgeUpdate) -> None:
        lanes.take(update)  # first: a hook of a new source needs its rule
        tables.take(update)

    def reloaded(config: Config) -> None:
        lanes.replace(config.sources.values())
        edge_log.reload(config)

    try:
        edge = await run_edge(config, edge_log, tables, SLOW_APPEND_MS)
    except OSError as error:
        log.critical("event=listen_failed reason=%s", error.strerror)
        await edge_log.close()
        return 1
    edge.reloaded = reloaded
    feed = SourceFeed(config, take, edge_log.override)
    edge_log.pen_bytes = lambda: feed.pens.total_bytes
    loop = asyncio.get_running_loop()
    others = [loop.create_task(_opened(config, edge_log, feed)), loop.create_task(_unreadable(feed))]
    status = await serve_until(edge, stop, config_path, env, others)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await feed.close()
    await edge_log.close()
    return status


async def _opened(config: Config, edge_log: KafkaEdgeLog, feed: SourceFeed) -> int:
    """Check the topics and open the log; ends only when the topics are not as they must be."""
    if not await topics_fit(config):
        return FATAL_EXIT
    done, _ = await asyncio.wait([feed.read], timeout=OVERRIDES_S)
    if not done:
        log.warning("event=limits_unread reason=no broker has given the topic of overrides: the file's limits hold")
    await edge_log.open()
    log.info("event=edge_open brokers=%s", ",".join(config.kafka.brokers))
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def _unreadable(feed: SourceFeed) -> int:
    """Ends when stored sources cannot be read."""
    log.critical("event=sources_unreadable reason=%s", await asyncio.shield(feed.failed))
    return FATAL_EXIT


async def _run(config: Config, config_path: str | None, parent: int) -> int:
    return await run(config, config_path, os.environ, parent)


if __name__ == "__main__":
    sys.exit(begin("edge", _run))
