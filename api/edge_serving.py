"""The ingest listener: the edge's app on a socket of ours, served with the edge's own HTTP protocol.

Owns the server's settings and the sweep of stalled connections; sockets and closing are `api/serving.py`'s.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from api.edge_protocol import EdgeProtocol
from api.serving import BACKLOG, DRAIN_S, KEEP_ALIVE_S, Listener, _Server

_SWEEP_TICKS = 50
"""uvicorn ticks ten times a second: stalled heads are looked for every five."""


class EdgeServer(_Server):
    """uvicorn without its signal handlers, and with a bound on how long a request's head may take."""

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP_TICKS == 0:
            at_s = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, EdgeProtocol):
                    connection.close_if_stalled(at_s)
        return await super().on_tick(counter)


async def serve_edge(app: Callable[..., Any], bound: socket.socket) -> Listener:
    """Serve `app` on `bound` until closed; it accepts once this returns. Raises RuntimeError when it cannot start."""
    config = uvicorn.Config(
        app,
        http=EdgeProtocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
        backlog=BACKLOG,
    )
    server = EdgeServer(config)
    # The task is kept by the listener; a server nobody refers to stops listening.
    task = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        if task.done():
            raise RuntimeError("the ingest listener did not start") from task.exception()
        await asyncio.sleep(0.005)
    return Listener(server, task, bound)
