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
from ankusa import logs
from ankusa.config import ConfigError, load
from ankusa.store.errors import StoreDamagedError, StoreError, StoreFormatError, StoreLockedError
from ankusa.supervisor import FATAL_EXIT
from api.admin import build_admin_app
from api.serving import Listener, bind, serve
from schemas.config import Config

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
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, reload, engine, config_path, env)
    listeners: list[Listener] = []
    status = 0
    try:
        await engine.start(socket_path(config.node.data_dir) if config.node.edges else None)
        listeners = await listen(engine, config)
        await stopping.wait()
    except OSError as error:
        log.critical("event=listen_failed reason=%s", error)
        status = 1
    for listener in listeners:
        await listener.close()
    await engine.stop()
    return status


async def listen(engine: Engine, config: Config) -> list[Listener]:
    """The admin listener and, with `node.edges: 0`, the edge inside this process. Raises OSError naming the address."""
    listeners: list[Listener] = []
    if config.admin.enabled:
        app = build_admin_app(LocalOperations(engine), config.admin.tokens)
        listeners.append(await serve(app, _bind("admin", config.admin.ip, config.admin.port)))
        log.info("event=listening listener=admin address=%s:%d", config.admin.ip, listeners[-1].port)
    return listeners


def _bind(name: str, ip: str, port: int):  # type: ignore[no-untyped-def]
    try:
        return bind(ip, port)
    except OSError as error:
        raise OSError(f"{name}.port: cannot listen on {ip}:{port}: {error.strerror}") from error


def reload(engine: Engine, config_path: str | None, env: Mapping[str, str]) -> None:
    """SIGHUP: take the file again. A broken one changes nothing and says why."""
    try:
        engine.reload(load(config_path, env))
    except ConfigError as error:
        log.error("event=reload_refused reason=%s", error)


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
