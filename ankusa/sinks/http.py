"""The `http` sink: one delivery is one POST, PUT or PATCH of the body as it was accepted (spec 04 "HTTP").

Owns the attempt and what its end means. Connections are `clients.py`, which addresses may be reached is
`egress.py`, the status table is `http_answer.py`. It never retries, never follows a redirect, never unpacks or
keeps an answer, and reads at most `max_response_bytes` of it.

Decisions:
- The status line decides. A destination that answered 2xx and then stalls or closes amid its body has the
  hook: ok. Reading the body only serves to use the connection again.
- Reading status and body in one step is about a tenth faster, but a broken body then hides the status. So a sink
  reads them apart until a body came whole, and again after one did not; the one attempt that meets the change
  is transient (or a timeout) and its repeat sees the status.
- An attempt whose connect failed, so that nothing was sent, goes on to the host's next judged address inside the
  same timeout. Any other failure ends the attempt: the destination may have the hook.
- A cancelled attempt frees its slot at once; the request itself may run on in the client until `timeout_ms`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

from pyreqwest.client import Client
from pyreqwest.exceptions import (
    BuilderError,
    DecodeError,
    DetailedPyreqwestError,
    PyreqwestError,
    ReadError,
    ReadTimeoutError,
    RequestTimeoutError,
)
from pyreqwest.http import Url
from pyreqwest.response import Response

from ankusa.sinks.clients import Endpoint, HttpClients
from ankusa.sinks.contract import Delivery, Failed, SinkResult
from ankusa.sinks.egress import Destination, Egress, Refusal, Unresolved
from ankusa.sinks.http_answer import answer
from ankusa.sinks.http_headers import HeaderPlan
from ankusa.sinks.http_options import HttpOptions, parse_options
from ankusa.sinks.signing import signature_headers

_NEVER_SENT = "client error (Connect)"  # the client's cause for a connect that failed; its class means less
_BROKEN_BODY = (DecodeError, ReadError, ReadTimeoutError)
_MAX_CAUSE_CHARS = 200
_UNSENDABLE = Failed("permanent", "a header of this hook cannot be sent over HTTP")


class HttpSink:
    """A built `http` sink. Many deliveries may run at once, on one event loop."""

    type = "http"
    batching = False
    inline_max_bytes: int | None = None

    def __init__(self, options: HttpOptions, judged: Destination | Refusal, clients: HttpClients) -> None:
        """`judged` is the guard's word on the URL; a Refusal makes every delivery a permanent failure."""
        self._options, self._clients = options, clients
        self._refusal = judged if isinstance(judged, Refusal) else None
        self._endpoint = clients.endpoint(judged) if isinstance(judged, Destination) else None
        self._url = Url(options.url)
        self._timeout = timedelta(milliseconds=options.timeout_ms)
        self._plan = HeaderPlan(options.headers, signed=bool(options.keys))
        self._apart = True  # read status and body apart, see the decisions above

    @classmethod
    def build(cls, options: Mapping[str, Any], source_id: str, egress: Egress, clients: HttpClients) -> Self:
        """Check the options and take the destination's endpoint. OptionError names a wrong option. Opens nothing.

        A URL that the guard refuses builds all the same: its deliveries fail `egress_denied`, so a source that
        was stored under another allow list still loads.
        """
        parsed = parse_options(options)
        return cls(parsed, egress.judge_url(parsed.url), clients)

    async def deliver(self, delivery: Delivery) -> SinkResult:
        """One attempt, bounded by `timeout_ms` from resolving the host to the last byte read."""
        endpoint = self._endpoint
        if endpoint is None:
            return Failed("transient", "the sink is closed") if self._refusal is None else self._denied(self._refusal)
        headers = self._plan.headers(delivery)
        if self._options.keys:
            headers += signature_headers(self._options.keys, delivery.id, delivery.at, delivery.body)
        deadline = time.monotonic() + self._options.timeout_ms / 1000
        client, within = endpoint.ready(), self._timeout
        if client is None:
            found = await self._client(endpoint)
            if isinstance(found, Failed):
                return found
            client, within = found, timedelta(seconds=max(0.001, deadline - time.monotonic()))
        return await self._try(endpoint, client, delivery, headers, within, deadline)

    async def close(self) -> None:
        """Give the endpoint back. Idempotent."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            self._clients.release(endpoint)

    async def _client(self, endpoint: Endpoint) -> Client | Failed:
        try:
            async with asyncio.timeout(self._options.timeout_ms / 1000):
                found = await endpoint.client()
        except TimeoutError:
            return Failed("timeout", f"resolving the host took over {self._options.timeout_ms} ms")
        if isinstance(found, Refusal):
            return self._denied(found)
        if isinstance(found, Unresolved):
            return Failed("transient", found.reason)
        return found

    async def _try(
        self,
        endpoint: Endpoint,
        client: Client,
        delivery: Delivery,
        headers: list[tuple[str, str]],
        within: timedelta,
        deadline: float,
    ) -> SinkResult:
        """Send to one address after the other, as long as nothing was sent and time is left: `within` for the first."""
        tries = 0
        while True:
            try:
                return await self._send(client, delivery, headers, within)
            except PyreqwestError as error:
                tries += 1
                another = await endpoint.after_failed_connect(client) if _never_sent(error) else None
                left_s = deadline - time.monotonic()
                if another is None or tries >= endpoint.address_count or left_s <= 0:
                    return self._failed(error)
                client, within = another, timedelta(seconds=left_s)
            except ValueError:
                return _UNSENDABLE

    async def _send(
        self, client: Client, delivery: Delivery, headers: list[tuple[str, str]], within: timedelta
    ) -> SinkResult:
        apart, limit = self._apart, self._options.max_response_bytes
        request = (
            client.request(self._options.method, self._url)
            .headers(headers)
            .timeout(within)
            .body_bytes(delivery.body)
            .streamed_read_buffer_limit(0 if apart else limit)
            .build_streamed()
        )
        async with request as response:  # leaving it closes the connection, unless the body was read to its end
            status = response.status
            retry_after = None if status < 300 else _header(response, "retry-after")
            if apart:
                self._apart = not await _read_body(response, limit)
        return answer(status, retry_after, delivery.at)

    def _denied(self, refusal: Refusal) -> Failed:
        self._clients.denied += 1
        return Failed("permanent", str(refusal))

    def _failed(self, error: PyreqwestError) -> Failed:
        if isinstance(error, BuilderError):
            return _UNSENDABLE
        if isinstance(error, _BROKEN_BODY):
            self._apart = True
        if isinstance(error, RequestTimeoutError):
            return Failed("timeout", f"no answer within {self._options.timeout_ms} ms")
        return Failed("transient", _reason(error))


async def _read_body(response: Response, limit: int) -> bool:
    """Read the body up to the limit, for the connection's sake. False when it broke off or stalled."""
    if limit == 0:
        return True
    try:
        await response.body_reader.read(limit)
    except PyreqwestError:
        return False
    return True


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:  # bytes outside ASCII
        return None


def _causes(error: PyreqwestError) -> list[str]:
    details = error.details if isinstance(error, DetailedPyreqwestError) else None
    return [cause["message"] for cause in (details["causes"] or [])] if details else []


def _never_sent(error: PyreqwestError) -> bool:
    return _NEVER_SENT in _causes(error)


def _reason(error: PyreqwestError) -> str:
    """What went wrong, from the innermost cause. The outermost quotes the URL, whose query may be a secret."""
    causes = [cause for cause in _causes(error) if "url (" not in cause]
    return f"{error.message}: {causes[-1][:_MAX_CAUSE_CHARS]}" if causes else error.message[:_MAX_CAUSE_CHARS]
