"""One HTTP listener: an ASGI app on a socket of ours, served by uvicorn inside the caller's event loop.

Owns the socket, the server task and the sweep of stalled connections; signals stay the process's own business.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.edge_protocol import EdgeProtocol

KEEP_ALIVE_S = 75
"""Idle connections are kept this long: providers reuse theirs for a minute, and uvicorn's default of 5 s closes them
under their feet."""

BACKLOG = 2048
DRAIN_S = 10

_SWEEP_TICKS = 50
"""uvicorn ticks ten times a second: stalled heads are looked for every five."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and with a bound on how long a request's head may take."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP_TICKS == 0:
            at_s = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, EdgeProtocol):
                    connection.close_if_stalled(at_s)
        return await super().on_tick(counter)


class Listener:
    """A started listener. `port` is the real one, also where 0 was asked for."""

    def __init__(self, server: _Server, task: asyncio.Task[None], bound: socket.socket) -> None:
        self._server = server
        self._task = task
        self._socket = bound
        self.port = int(bound.getsockname()[1])

    async def close(self) -> None:
        """Stop accepting, let running requests finish, and end."""
        self._server.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()


def bind(ip: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket. `shared` lets several processes bind one port (SO_REUSEPORT). Raises OSError."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((ip, port))
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


async def serve(
    app: Callable[..., Any], bound: socket.socket, http: type[HttpToolsProtocol] = EdgeProtocol
) -> Listener:
    """Serve `app` on `bound` until closed; it accepts once this returns. Raises RuntimeError when it cannot start.

    `http` speaks the protocol. uvicorn's own bounds no request's head, which is read before any token is.
    """
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
        backlog=BACKLOG,
    )
    server = _Server(config)
    # The task is kept by the listener; a server nobody refers to stops listening.
    task = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        if task.done():
            raise RuntimeError("the HTTP listener did not start") from task.exception()
        await asyncio.sleep(0.005)
    return Listener(server, task, bound)
