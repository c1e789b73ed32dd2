"""The demo's providers: two tenants' hooks, signed as GitHub and as the Standard Webhooks specification do, and sent.

Owns the book of what the node acknowledged: every id that got a 201, with the digest of the body that was sent. It
behaves as providers do: a hook that is refused for now, or whose answer is lost, is sent again as it was.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from ankusa.clock import now_ms, uuid7
from ankusa.demo.processes import DemoError
from ankusa.demo.setting import Setting

SENDERS = 4
MAX_TRIES = 100
RETRY_S = 0.1

TENANTS = ("acme", "globex")


class Hook(Struct, frozen=True):
    """A request as a provider makes it."""

    tenant: str
    path: str
    headers: dict[str, str]
    body: bytes


class Accepted(Struct, frozen=True):
    """A hook that got a 201."""

    tenant: str
    sha256: str
    hook: Hook


class Provider:
    """Makes hooks and sends them. `accepted` is keyed by the id in the 201; `again` counts sends after the first."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._lock = threading.Lock()
        self.accepted: dict[str, Accepted] = {}
        self.again = 0

    def make(self, number: int) -> Hook:
        """The hook of that number; the tenants take turns."""
        at = now_ms()
        if number % 2 == 0:
            push = {"ref": "refs/heads/main", "number": number, "repository": {"full_name": "acme/shop"}}
            body = json.dumps(push, separators=(",", ":")).encode()
            digest = hmac.new(self._setting.github_secret.encode(), body, hashlib.sha256).hexdigest()
            headers = {
                "x-github-event": "push",
                "x-github-delivery": uuid7(at),
                "x-hub-signature-256": f"sha256={digest}",
            }
            return Hook("acme", "/webhooks/github", headers, body)
        body = json.dumps({"type": "invoice.paid", "data": {"number": number, "total": "12,50 €"}}).encode()
        key = base64.b64decode(self._setting.billing_secret.removeprefix("whsec_"))
        event, stamp = f"evt_{uuid7(at)}", str(at // 1000)
        digest = base64.b64encode(hmac.digest(key, f"{event}.{stamp}.".encode() + body, "sha256")).decode()
        headers = {"webhook-id": event, "webhook-timestamp": stamp, "webhook-signature": f"v1,{digest}"}
        return Hook("globex", "/webhooks/billing", headers, body)

    def send_many(self, numbers: range, sent: Callable[[int], None]) -> None:
        """Send a hook for each number; `sent` hears how many of them are accepted. Raises DemoError."""
        done = 0

        def some(first: int) -> None:
            nonlocal done
            connection = self._connect()
            try:
                for number in numbers[first::SENDERS]:
                    self._accept(connection, self.make(number))
                    with self._lock:
                        done += 1
            finally:
                connection.close()

        with ThreadPoolExecutor(SENDERS) as pool:
            running = [pool.submit(some, first) for first in range(SENDERS)]
            while not all(each.done() for each in running):
                sent(done)
                time.sleep(0.05)
            for each in running:
                each.result()
        sent(done)

    def send_again(self, count: int) -> int:
        """Send the first `count` accepted hooks once more; how many were recognised, with the id they had."""
        connection = self._connect()
        try:
            recognised = 0
            for hook_id, accepted in list(self.accepted.items())[:count]:
                status, answer = self._post(connection, accepted.hook)
                recognised += status == 201 and answer.get("duplicate") is True and answer.get("id") == hook_id
            return recognised
        finally:
            connection.close()

    def send_forged(self, number: int) -> int:
        """Send a hook whose body was changed after it was signed; the status."""
        hook = self.make(number)
        connection = self._connect()
        try:
            return self._post(connection, Hook(hook.tenant, hook.path, hook.headers, hook.body + b" "))[0]
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._setting.http_port, timeout=10)

    def _accept(self, connection: http.client.HTTPConnection, hook: Hook) -> None:
        for _ in range(MAX_TRIES):
            status, answer = self._post(connection, hook)
            if status == 201:
                with self._lock:
                    entry = Accepted(hook.tenant, hashlib.sha256(hook.body).hexdigest(), hook)
                    self.accepted[str(answer["id"])] = entry
                return
            if status not in (0, 429, 503):
                raise DemoError(f"{hook.path} answered {status}: {answer}")
            with self._lock:
                self.again += 1
            time.sleep(RETRY_S)
        raise DemoError(f"{hook.path} did not accept a hook in {MAX_TRIES} tries; it last answered {status}: {answer}")

    def _post(self, connection: http.client.HTTPConnection, hook: Hook) -> tuple[int, dict[str, object]]:
        """Status and answer, 0 when there was none."""
        try:
            connection.request("POST", hook.path, hook.body, {"content-type": "application/json", **hook.headers})
            response = connection.getresponse()
            answer = json.loads(response.read() or b"{}")
            return response.status, answer if isinstance(answer, dict) else {}
        except (OSError, http.client.HTTPException, ValueError):
            connection.close()
            return 0, {}
