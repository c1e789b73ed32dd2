"""The engine as a process: configuration, logs, signals, the admin listener, and one `Engine` between start and stop.

Run as `python -m streams.local.engine_process [--config FILE]`, by the supervisor or by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import uvloop

from ankusa import heap, logs
from ankusa.clock import now_ms
from ankusa.config import ConfigError, load
from ankusa.edge.tables import EdgeTables
from ankusa.source_store.store import UnreadableSourcesError
from ankusa.store.errors import StoreDamagedError, StoreError, StoreFormatError, StoreLockedError
from ankusa.supervisor import FATAL_EXIT
from api.admin import build_admin_app
from api.auth import Tokens
from api.serving import Listener
from schemas.config import Config
from streams import listeners
from streams.edge import Edge, run_edge
from streams.local.direct import DirectLog
from streams.local.engine import Engine
from streams.local.operations import LocalOperations
from streams.local.server import socket_path

log = logging.getLogger("ankusa.engine")

CONFIG_EXIT = 78
"""EX_CONFIG of sysexits.h."""


async def run(config: Config, config_path: str | None, env: Mapping[str, str]) -> int:
    """Run one engine until SIGTERM or SIGINT; the exit status."""
    try:
        engine = Engine(config)
    except (StoreLockedError, StoreDamagedError, StoreFormatError) as error:
        log.critical("event=store_refused reason=%s", error)
        return FATAL_EXIT
    except StoreError as error:
        log.error("event=store_unavailable reason=%s", error)
        return 1
    except UnreadableSourcesError as error:
        log.critical("event=sources_unreadable reason=%s", error)
        return FATAL_EXIT
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    opened: list[Listener] = []
    edge: Edge | None = None
    status = 0
    try:
        await engine.start(socket_path(config.node.data_dir) if config.node.edges else None)
        app = build_admin_app(LocalOperations(engine), config.admin.tokens)
        opened += await listeners.admin(app, config)
        opened += await listeners.gateway(engine.blobs, config)
        if engine.route_store is not None:
            opened.append(await listeners.routes(engine.route_store, app.state.tokens, config))
        _warn_unserved(engine, config)
        if not config.node.edges:
            tables = EdgeTables(config, now_ms)
            engine.updates.attach(tables.take)
            edge = await run_edge(config, DirectLog(engine.intake, engine.probe), tables)
        asked = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, asked.set)
        heap.settle()
        reloads = loop.create_task(_reloads(asked, engine, app.state.tokens, edge, config_path, env))
        await stopping.wait()
        reloads.cancel()
    except OSError as error:
        log.critical("event=listen_failed reason=%s", error)
        status = 1
    if edge is not None:
        await edge.close()
    for listener in reversed(opened):
        await listener.close()
    await engine.stop()
    return status


def _warn_unserved(engine: Engine, config: Config) -> None:
    """Say it where bodies go by reference that this node does not serve."""
    if "claim_check" not in config.node.roles and any(
        sink.inline_max_bytes is not None for sink in engine.sources.sinks()
    ):
        log.warning(
            "event=claim_check_unserved reason=sinks send large bodies by reference, and nothing here serves them: "
            "add claim_check to node.roles"
        )


async def _reloads(
    asked: asyncio.Event,
    engine: Engine,
    tokens: Tokens,
    edge: Edge | None,
    config_path: str | None,
    env: Mapping[str, str],
) -> None:
    """At each SIGHUP take the file again, read beside the loop. A broken one changes nothing and says why."""
    while True:
        await asked.wait()
        asked.clear()
        try:
            config = await asyncio.to_thread(load, config_path, env)
            engine.reload(config)
            tokens.reconfigure(engine.config.admin.tokens)
            if edge is not None:
                edge.reload(config)
        except ConfigError as error:
            log.error("event=reload_refused reason=%s", error)
        except Exception:
            log.exception("event=reload_failed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="ankusa-engine")
    parser.add_argument("--config")
    arguments = parser.parse_args()
    try:
        config = load(arguments.config, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return CONFIG_EXIT
    logs.set_up(config.log.level, "engine")
    Path(config.node.data_dir).mkdir(parents=True, exist_ok=True)
    return uvloop.run(run(config, arguments.config, os.environ))


if __name__ == "__main__":
    sys.exit(main())
