"""A node's admin API that answers what it is told, for tests of what asks it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ankusa.replay.fleet import Node, parse_nodes

JOB = {
    "id": "01234567-89ab-7def-8123-456789abcdef",
    "kind": "dlq",
    "state": "running",
    "moved": 0,
    "delivered": 0,
    "dead": 0,
    "skipped": 0,
    "remaining": 10,
    "eta_ms": None,
    "throttled": {},
    "held": [],
    "error": None,
}


class FakeNode:
    """An admin API that answers from a list, the last answer again and again, and keeps what it was asked."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, str | None, Any]] = []
        self.port = 0

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, bytes]:
        self.asked.append((method, path, token, json.loads(body) if body else None))
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()


@contextmanager
def serving(node: FakeNode) -> Iterator[Node]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, raw = node.answer(self.command, self.path, self.headers.get("authorization"), body)
            self.send_response(status)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        node.port = server.server_address[1]
        try:
            yield parse_nodes(f"127.0.0.1:{node.port}")[0]
        finally:
            server.shutdown()
            thread.join()
