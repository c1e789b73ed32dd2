"""The demo's destination: a small HTTP server that can be told to fail and keeps a record of every hook it got.

Run as `python -m ankusa.demo.sink --port N --secret whsec_…`. Owns the record that the demo counts by, so it checks
each delivery's signature and never trusts a header alone. On loopback unless told `--ip`; it stores nothing.

Control: `POST /mode/up`, `/mode/down` (every delivery is answered 503), `/mode/stumble` (the first try of each hook
is answered 500). `GET /record` answers `{"mode", "hooks": {id: {tries, ok, replayed, sha256}}}`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODES = ("up", "down", "stumble")


class Record:
    """What came, by hook id. `tries` are all deliveries, `ok` those that were taken, `replayed` those of a replay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: dict[str, dict[str, Any]] = {}
        self.mode = "up"

    def deliver(self, hook_id: str, body: bytes, *, replayed: bool) -> int:
        """Count one signed delivery; the status to answer."""
        with self._lock:
            first = hook_id not in self._hooks
            entry = self._hooks.setdefault(hook_id, {"tries": 0, "ok": 0, "replayed": 0, "sha256": ""})
            entry["tries"] += 1
            if self.mode == "down":
                return 503
            if self.mode == "stumble" and first:
                return 500
            entry["ok"] += 1
            entry["replayed"] += replayed
            entry["sha256"] = hashlib.sha256(body).hexdigest()
            return 200

    def document(self) -> bytes:
        with self._lock:
            return json.dumps({"mode": self.mode, "hooks": self._hooks}).encode()


def signed(secret: str, headers: Any, body: bytes) -> bool:
    """Whether a delivery carries a Standard Webhooks signature made with `secret` (`whsec_` and base64)."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers.get('webhook-id')}.{headers.get('webhook-timestamp')}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    given = str(headers.get("webhook-signature", "")).split(" ")
    return any(hmac.compare_digest(expected.encode(), each.encode()) for each in given)


def handler(record: Record, secret: str) -> type[BaseHTTPRequestHandler]:
    """The request handler around one record."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # so that connections are kept and reused
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if self.path == "/record":
                self._answer(200, record.document())
            else:
                self._answer(404, b'{"error": "not_found"}')

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path.startswith("/mode/"):
                mode = self.path.removeprefix("/mode/")
                if mode not in MODES:
                    self._answer(404, b'{"error": "no such mode"}')
                    return
                record.mode = mode
                self._answer(200, json.dumps({"mode": mode}).encode() + b"\n")
                return
            hook_id = self.headers.get("x-ankusa-id")
            if hook_id is None or not signed(secret, self.headers, body):
                self._answer(401, b'{"error": "not signed by this node"}')
                return
            status = record.deliver(hook_id, body, replayed="x-ankusa-replay-id" in self.headers)
            self._answer(status, b"{}")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silent: the demo tells what happens."""

    return Handler


def main() -> int:
    arguments = argparse.ArgumentParser(prog="ankusa-demo-sink")
    arguments.add_argument("--ip", default="127.0.0.1")
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--secret", required=True)
    given = arguments.parse_args()
    server = ThreadingHTTPServer((given.ip, given.port), handler(Record(), given.secret))
    server.daemon_threads = True

    def stop(number: int, frame: object) -> None:
        threading.Thread(target=server.shutdown).start()  # it waits for the loop that this handler interrupts

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.serve_forever(poll_interval=0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
