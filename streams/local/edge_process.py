"""An edge of the embedded node as a process: the edge over its engine's socket.

Run as `python -m streams.local.edge_process --config FILE --socket PATH`, by the supervisor or by hand. It listens once
the engine has told it all that it goes by, so that one of several edges that comes up later answers no hook with 503.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import uvloop

from ankusa import logs
from ankusa.clock import now_ms
from ankusa.config import ConfigError, load
from ankusa.edge.parent import signal_on_parent_death
from ankusa.edge.tables import EdgeTables
from schemas.config import Config
from streams.edge import CONFIG_EXIT, Stop, run_edge, serve_until
from streams.local.client import SocketLog
from streams.local.server import socket_path

log = logging.getLogger("ankusa.edge")

TOLD_S = 2.0
"""How long an edge that starts waits for its engine before it listens all the same: then 503 says more than a refused
connection, for an engine that takes this long may take longer."""

POLL_S = 0.01


async def run(config: Config, config_path: str | None, socket: Path, env: Mapping[str, str], parent: int) -> int:
    """Run one edge over the engine's socket until SIGTERM, SIGINT or the death of `parent`; the exit status."""
    stop = Stop(parent)
    tables = EdgeTables(config, now_ms)
    edge_log = SocketLog(socket, now_ms, tables.take)
    edge_log.start()
    await _told(edge_log, tables, stop)
    try:
        edge = await run_edge(config, edge_log, tables)
    except OSError as error:
        log.critical("event=listen_failed reason=%s", error.strerror)
        await edge_log.close()
        return 1
    status = await serve_until(edge, stop, config_path, env)
    await edge_log.close()
    return status


async def _told(edge_log: SocketLog, tables: EdgeTables, stop: Stop) -> None:
    """Until the edge can answer for every hook; `TOLD_S` at most."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + TOLD_S
    while not (edge_log.connected and tables.complete) and not stop.asked.is_set():
        if loop.time() > until_s:
            log.warning("event=listening_untold reason=the engine has not answered within %.0f s", TOLD_S)
            return
        await asyncio.sleep(POLL_S)


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
