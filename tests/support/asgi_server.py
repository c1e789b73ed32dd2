"""An HTTP server on loopback for the emulators of the tests: one async function answers, connections are kept.

`with AsgiServer(answer) as server:`; it runs in a thread and loop of its own, behind a proxy that counts connections.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self

import uvicorn

from tests.support.tcp_proxy import TcpProxy


class Request(NamedTuple):
    """`headers` by lower-cased name. `scope` is ASGI's."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    scope: dict[str, Any]


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class AsgiServer:
    def __init__(self, answer: Callable[[Request], Awaitable[Answer]]) -> None:
        self._answer = answer
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.proxy = TcpProxy(self._socket.getsockname()[1])
        self._server = uvicorn.Server(uvicorn.Config(self._app, interface="asgi3", log_config=None, lifespan="off"))
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="asgi-server", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.005)
        self.proxy.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(20)
        self._socket.close()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        answer = await self._answer(Request(scope["method"], scope["raw_path"].decode(), headers, bytes(body), scope))
        sent = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
        sent = [header for header in sent if header[0] not in (b"content-length", b"connection")]
        sent.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": sent})
        await send({"type": "http.response.body", "body": answer.body})
