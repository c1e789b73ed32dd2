"""An edge: sources, batcher, app and listener over a log, and the process that is one.

Run as `python -m streams.local.edge_process --config FILE --socket PATH`, by the supervisor or by hand. `run_edge` is
the same edge inside another process (`node.edges: 0`). Owns the building and the order of stopping: no new
connections, running requests to their end, what is queued to the log, the log. It decides nothing about a hook.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import uvloop

from ankusa import logs
from ankusa.clock import now_ms
from ankusa.config import ConfigError, load, reloadable_changes
from ankusa.edge.batcher import Batcher
from ankusa.edge.ingest import Ingest
from ankusa.edge.log import EdgeLog
from ankusa.edge.parent import parent_gone, signal_on_parent_death
from ankusa.edge.tables import EdgeTables
from api.ingest import build_ingest_app
from api.serving import Listener, bind, serve
from schemas.config import Config
from streams.local.client import SocketLog
from streams.local.server import socket_path

log = logging.getLogger("ankusa.edge")

CONFIG_EXIT = 78
"""EX_CONFIG of sysexits.h."""

DRAIN_S = 2.0
"""For what is still queued after the last request has ended; its senders are gone by then."""


class Edge:
    """A running edge, made by `run_edge`."""

    def __init__(self, config: Config, tables: EdgeTables, batcher: Batcher, app: Ingest, listener: Listener) -> None:
        self.config = config
        self.port = listener.port
        self._tables = tables
        self._batcher = batcher
        self._app = app
        self._listener = listener

    @property
    def queued(self) -> int:
        """Hooks that wait for the log or are with it."""
        return self._batcher.hooks

    def reload(self, config: Config) -> None:
        """Take up the sources of `config`; what else an edge reads of it waits for a restart."""
        changed, needs_restart = reloadable_changes(self.config, config)
        self._tables.reload(config)
        self.config = config
        log.info("event=config_reloaded changed=%s needs_restart=%s", ",".join(changed), ",".join(needs_restart))

    async def close(self) -> None:
        """Stop accepting, answer what has begun, hand what is queued to the log. About 12 s at most."""
        self._batcher.hurry()
        await self._listener.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._batcher.drain()
        self._batcher.close()
        self._app.close()


async def run_edge(config: Config, edge_log: EdgeLog, tables: EdgeTables | None = None) -> Edge:
    """Start an edge over `edge_log` on `http.ip:http.port`; it accepts once this returns. `tables` is for who tells it
    of changes.

    The port is shared with the other edge processes when `node.edges` is above 1. Raises OSError naming the address
    when it cannot be had.
    """
    http = config.http
    try:
        bound = bind(http.ip, http.port, shared=config.node.edges > 1)
    except OSError as error:
        raise OSError(error.errno, f"http.port: cannot listen on {http.ip}:{http.port}: {error.strerror}") from error
    tables = tables or EdgeTables(config, now_ms)
    batcher = Batcher(edge_log, config.batcher, now_ms)
    app = build_ingest_app(http, tables.sources, batcher, edge_log, now_ms, guard=tables.guard)
    listener = await serve(app, bound)
    log.info("event=listening listener=http address=%s:%d sources=%d", http.ip, listener.port, len(config.sources))
    return Edge(config, tables, batcher, app, listener)


async def run(config: Config, config_path: str | None, socket: Path, env: Mapping[str, str], parent: int) -> int:
    """Run one edge over the engine's socket until SIGTERM, SIGINT or the death of `parent`; the exit status."""
    stopping, reloading = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, reloading.set)
    tables = EdgeTables(config, now_ms)
    edge_log = SocketLog(socket, now_ms, tables.take)
    edge_log.start()
    try:
        edge = await run_edge(config, edge_log, tables)
    except OSError as error:
        log.critical("event=listen_failed reason=%s", error.strerror)
        await edge_log.close()
        return 1
    ends = [loop.create_task(stopping.wait()), loop.create_task(parent_gone(parent))]
    reloads = loop.create_task(reload(edge, config_path, env, reloading))
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    log.info("event=edge_stopping parent_gone=%s", not stopping.is_set())
    for task in (*ends, reloads):
        task.cancel()
    await edge.close()
    await edge_log.close()
    return 0


async def reload(edge: Edge, config_path: str | None, env: Mapping[str, str], asked: asyncio.Event) -> None:
    """At each SIGHUP read the file again, beside the loop. A broken one changes nothing and says why."""
    while True:
        await asked.wait()
        asked.clear()
        try:
            edge.reload(await asyncio.to_thread(load, config_path, env))
        except ConfigError as error:
            log.error("event=reload_refused reason=%s", error)
        except Exception:
            log.exception("event=reload_failed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="ankusa-edge")
    parser.add_argument("--config", help="the YAML file; without it ANKUSA_CONFIG, else the demo source")
    parser.add_argument("--socket", type=Path, help="the engine's socket; without it where node.data_dir puts it")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end with this process (default: the parent)")
    arguments = parser.parse_args()
    signal_on_parent_death()
    try:
        config = load(arguments.config, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return CONFIG_EXIT
    logs.set_up(config.log.level, "edge")
    socket = arguments.socket or socket_path(config.node.data_dir)
    return uvloop.run(run(config, arguments.config, socket, os.environ, arguments.parent))


if __name__ == "__main__":
    sys.exit(main())
