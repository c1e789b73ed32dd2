"""The ingest listener: the edge's app on a socket of ours, served with the edge's own HTTP protocol.

Owns the server's settings; sockets, stalled connections and closing are `api/serving.py`'s.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from api.edge_protocol import EdgeProtocol
from api.serving import BACKLOG, DRAIN_S, KEEP_ALIVE_S, Listener, _Server


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
    server = _Server(config)
    # The task is kept by the listener; a server nobody refers to stops listening.
    task = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        if task.done():
            raise RuntimeError("the ingest listener did not start") from task.exception()
        await asyncio.sleep(0.005)
    return Listener(server, task, bound)
