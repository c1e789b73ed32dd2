"""An edge: tables, batcher, app and listener over a log, whatever host the log is of, and its life in a process.

Owns the building and the order of stopping: no new connections, running requests to their end, what is queued to the
log. The log is the caller's to open and close. It decides nothing about a hook.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping, Sequence

from ankusa import heap
from ankusa.clock import now_ms
from ankusa.config import ConfigError, load, reloadable_changes, taken_up
from ankusa.edge.batcher import Batcher
from ankusa.edge.ingest import Ingest
from ankusa.edge.log import EdgeLog
from ankusa.edge.parent import parent_gone
from ankusa.edge.tables import EdgeTables
from api.ingest import build_ingest_app
from api.serving import Listener, bind, serve
from schemas.config import Config

log = logging.getLogger("ankusa.edge")

CONFIG_EXIT = 78
"""EX_CONFIG of sysexits.h."""

DRAIN_S = 2.0
"""For what is still queued after the last request has ended; its senders are gone by then."""


class Edge:
    """A running edge, made by `run_edge`. `reloaded` is told of each configuration it has taken up."""

    def __init__(self, config: Config, tables: EdgeTables, batcher: Batcher, app: Ingest, listener: Listener) -> None:
        self.config = config
        self.port = listener.port
        self.reloaded: Callable[[Config], None] = lambda _: None
        self._tables = tables
        self._batcher = batcher
        self._app = app
        self._listener = listener

    @property
    def queued(self) -> int:
        """Hooks that wait for the log or are with it."""
        return self._batcher.hooks

    def reload(self, config: Config) -> None:
        """Take up the sources of `config`; what else an edge reads of it waits for a restart. Raises ConfigError where
        it cannot be taken up without one."""
        changed, needs_restart = reloadable_changes(self.config, config)
        self.config = taken_up(self.config, config)
        self._tables.reload(self.config)
        self.reloaded(self.config)
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


async def run_edge(
    config: Config, edge_log: EdgeLog, tables: EdgeTables | None = None, slow_append_ms: int | None = None
) -> Edge:
    """Start an edge over `edge_log` on `http.ip:http.port`; it accepts once this returns. `tables` is for who tells it
    of changes, `slow_append_ms` the batcher's.

    The port is shared with the other edge processes when `node.edges` is above 1. Raises OSError naming the address
    when it cannot be had.
    """
    http = config.http
    try:
        bound = bind(http.ip, http.port, shared=config.node.edges > 1)
    except OSError as error:
        raise OSError(error.errno, f"http.port: cannot listen on {http.ip}:{http.port}: {error.strerror}") from error
    tables = tables or EdgeTables(config, now_ms)
    batcher = Batcher(edge_log, config.batcher, now_ms, slow_append_ms)
    app = build_ingest_app(http, tables.sources, batcher, edge_log, now_ms, guard=tables.guard)
    listener = await serve(app, bound)
    log.info("event=listening listener=http address=%s:%d sources=%d", http.ip, listener.port, len(config.sources))
    return Edge(config, tables, batcher, app, listener)


class Stop:
    """When a process is to end: asked to by a signal, or when `parent` is gone. Made on the process's event loop before
    anything that takes time, so that no signal is missed."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self.asked = asyncio.Event()
        self.reload = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.asked.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)

    async def wait(self, *others: asyncio.Task[int]) -> int:
        """Until it is time, or one of `others` ends; the exit status, which is what that one says."""
        loop = asyncio.get_running_loop()
        ends = [loop.create_task(self.asked.wait()), loop.create_task(parent_gone(self._parent))]
        await asyncio.wait([*ends, *others], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        return next((other.result() for other in others if other.done()), 0)


async def serve_until(
    edge: Edge, stop: Stop, config_path: str | None, env: Mapping[str, str], others: Sequence[asyncio.Task[int]] = ()
) -> int:
    """Serve and take up changes of the file until it is time to stop, and close the edge; the exit status."""
    heap.settle()
    reloads = asyncio.get_running_loop().create_task(_reload(edge, config_path, env, stop.reload))
    status = await stop.wait(*others)
    log.info("event=edge_stopping parent_gone=%s", not (stop.asked.is_set() or status))
    reloads.cancel()
    await edge.close()
    return status


async def _reload(edge: Edge, config_path: str | None, env: Mapping[str, str], asked: asyncio.Event) -> None:
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
