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
from fastapi import FastAPI

from ankusa import heap, logs
from ankusa.claim_check.reader import Reader
from ankusa.clock import now_ms
from ankusa.config import ConfigError, load
from ankusa.edge.tables import EdgeTables
from ankusa.source_store.store import UnreadableSourcesError
from ankusa.store.errors import StoreDamagedError, StoreError, StoreFormatError, StoreLockedError
from ankusa.supervisor import FATAL_EXIT
from api.admin import build_admin_app
from api.auth import Tokens
from api.claims import build_claims_app
from api.routes import build_routes_app
from api.serving import Listener, bind, serve
from schemas.config import Config
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
    admin: Listener | None = None
    gateway: Listener | None = None
    routes: Listener | None = None
    edge: Edge | None = None
    status = 0
    try:
        await engine.start(socket_path(config.node.data_dir) if config.node.edges else None)
        app = build_admin_app(LocalOperations(engine), config.admin.tokens)
        admin = await _admin(app, config)
        gateway = await _gateway(engine, config)
        routes = await _routes(engine, app.state.tokens, config)
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
    for listener in (gateway, routes, admin):
        if listener is not None:
            await listener.close()
    await engine.stop()
    return status


async def _admin(app: FastAPI, config: Config) -> Listener | None:
    """The admin listener. Raises OSError naming the address."""
    if not config.admin.enabled:
        return None
    ip, port = config.admin.ip, config.admin.port
    if not config.admin.tokens:
        log.warning(
            "event=admin_open address=%s:%d reason=no admin.tokens: whoever reaches it may do anything", ip, port
        )
    try:
        bound = bind(ip, port)
    except OSError as error:
        raise OSError(error.errno, f"admin.port: cannot listen on {ip}:{port}: {error.strerror}") from error
    listener = await serve(app, bound)
    log.info("event=listening listener=admin address=%s:%d", ip, listener.port)
    return listener


async def _gateway(engine: Engine, config: Config) -> Listener | None:
    """The claim-check gateway's listener, in the role `claim_check`. Raises OSError naming the address."""
    if "claim_check" not in config.node.roles:
        if any(sink.inline_max_bytes is not None for sink in engine.sources.sinks()):
            log.warning(
                "event=claim_check_unserved reason=sinks send large bodies by reference, and nothing here serves them: "
                "add claim_check to node.roles"
            )
        return None
    ip, port = config.claim_check.ip, config.claim_check.port
    try:
        bound = bind(ip, port)
    except OSError as error:
        raise OSError(error.errno, f"claim_check.port: cannot listen on {ip}:{port}: {error.strerror}") from error
    listener = await serve(build_claims_app(Reader(engine.blobs)), bound)
    log.info("event=listening listener=claim_check address=%s:%d", ip, listener.port)
    return listener


async def _routes(engine: Engine, tokens: Tokens, config: Config) -> Listener | None:
    """The routes listener, where the guard is on. Raises OSError naming the address."""
    if engine.route_store is None:
        return None
    ip, port = config.routes.admin.ip, config.routes.admin.port
    try:
        bound = bind(ip, port)
    except OSError as error:
        raise OSError(error.errno, f"routes.admin.port: cannot listen on {ip}:{port}: {error.strerror}") from error
    listener = await serve(build_routes_app(engine.route_store, tokens), bound)
    log.info("event=listening listener=routes address=%s:%d routes=%d", ip, listener.port, len(engine.route_store))
    return listener


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
