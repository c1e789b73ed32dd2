"""The `google_pubsub` sink: deliveries go to a topic up to 1,000 a request, each settles on its own id (spec 04).

Owns what a message holds and what the answer means, over Pub/Sub's REST API. Requests are gathered by `batcher.py` and
sent through the node's guarded clients (`exchange.py`). It creates no topic or subscription and never retries.

Decisions:
- Pub/Sub takes a request as a whole or not at all, so an INVALID_ARGUMENT says nothing of which message is at fault:
  the batcher sends the parts again.
- All messages of a request must have one ordering key, so sinks with different ones do not share a batcher.
- An attribute may have 1,024 bytes. A longer one (of a provider's long event key) is left out: the message has it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec import Struct, field

from ankusa.sinks.batcher import Batcher, Limits, Refused
from ankusa.sinks.batching_sink import BatchingSink, Sized
from ankusa.sinks.clients import HttpClients
from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import Delivery, Failed, Ok, SinkResult
from ankusa.sinks.egress import Destination, Egress, Refusal
from ankusa.sinks.exchange import exchange
from ankusa.sinks.google_pubsub_options import PubsubOptions, parse_options
from ankusa.sinks.google_tokens import Tokens
from ankusa.sinks.reasons import reason
from schemas.message import encode, metadata

MAX_ENTRIES = 1_000
# Pub/Sub's bound of a request. Counted in what is sent, base64 and all, which is the strictest way to read it; a
# message near its own bound is more than that and goes alone.
MAX_REQUEST_BYTES = 10_000_000
MAX_ATTRIBUTE_BYTES = 1_024


class _Published(Struct):
    ids: list[str] = field(name="messageIds", default_factory=list)


class _Error(Struct):
    status: str = "UNKNOWN"
    message: str = ""


class _Faulty(Struct):
    error: _Error


class PubsubDestination:
    """One topic with one set of options: what waits for a request, and the token."""

    def __init__(
        self, options: PubsubOptions, judged: Destination, clients: HttpClients, concurrency: Callable[[], int | None]
    ) -> None:
        self._options, self._url, self._clients = options, judged.url, clients
        self._endpoint = clients.endpoint(judged)
        self._tokens = Tokens(options)
        limits = Limits(MAX_ENTRIES, MAX_REQUEST_BYTES, options.linger_ms)
        self.batcher: Batcher[bytes] = Batcher(self._send, limits, concurrency)

    async def close(self) -> None:
        await self.batcher.close()
        self._tokens.close()
        self._clients.release(self._endpoint)

    async def _send(self, messages: Sequence[bytes]) -> Sequence[SinkResult] | Refused:
        """Messages as JSON; one request, bounded by `timeout_ms` with the token it may have to get first."""
        timeout_ms = self._options.timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                result = await self._publish(messages)
        except TimeoutError:
            result = Failed("timeout", f"no answer within {timeout_ms} ms")
        return [result] * len(messages) if isinstance(result, Failed) else result

    async def _publish(self, messages: Sequence[bytes]) -> list[SinkResult] | Refused | Failed:
        token = await self._tokens.headers()
        if isinstance(token, Failed):
            return token
        headers = [("content-type", "application/json"), *token]
        body = b'{"messages":[' + b",".join(messages) + b"]}"
        answer = await exchange(self._endpoint, "POST", self._url, headers, body, self._options.timeout_ms)
        if isinstance(answer, Failed):
            return answer
        status, body = answer
        return self._published(body, len(messages)) if status == 200 else self._refused(status, body)

    def _published(self, body: bytes, count: int) -> list[SinkResult] | Failed:
        try:
            ids = msgspec.json.decode(body, type=_Published).ids
        except msgspec.DecodeError:
            return Failed("transient", "the answer is not Pub/Sub's")
        if len(ids) != count:  # they are told apart by their place alone
            return Failed("transient", f"the answer names {len(ids)} ids for {count} messages")
        return [Ok(f"id {id_[:64]}") if id_ else Failed("transient", "the answer names no id") for id_ in ids]

    def _refused(self, status: int, body: bytes) -> Refused | Failed:
        try:
            error = msgspec.json.decode(body, type=_Faulty).error
        except msgspec.DecodeError:
            return Failed("transient", f"HTTP {status}, the answer is not Pub/Sub's")
        why = reason(error.status, error.message, self._options.secrets)
        if error.status == "INVALID_ARGUMENT":
            return Refused(Failed("permanent", why))
        if status == 401:
            self._tokens.refused()
        return Failed("transient", why)


class PubsubSink(BatchingSink[bytes]):
    """A built `google_pubsub` sink."""

    type = "google_pubsub"

    def __init__(
        self, options: PubsubOptions, judged: Destination | Refusal, clients: HttpClients, shared: Destinations
    ) -> None:
        self._options = options
        key = (
            *("google_pubsub", options.endpoint + options.path, options.auth, options.token, options.credentials_file),
            *(options.ordering_key, options.timeout_ms, options.linger_ms),
        )
        super().__init__(
            *(options, judged, clients, shared, key),
            lambda found: PubsubDestination(options, found, clients, lambda: shared.sink_concurrency),
        )

    @classmethod
    def build(cls, options: Mapping[str, Any], egress: Egress, clients: HttpClients, shared: Destinations) -> Self:
        """Check the options and take the destination. OptionError names a wrong option. Opens nothing.

        An endpoint that the guard refuses builds all the same: its deliveries fail `egress_denied`.
        """
        parsed = parse_options(options)
        return cls(parsed, egress.judge_url(parsed.endpoint + parsed.path), clients, shared)

    def entry(self, delivery: Delivery) -> Sized[bytes]:
        """The message as JSON; Pub/Sub counts its data, attributes and ordering key."""
        data, key = encode(delivery, delivery.claim), self._options.ordering_key
        attributes = {name: value for name, value in metadata(delivery) if 0 < len(value) <= MAX_ATTRIBUTE_BYTES}
        size = len(data) + sum(len(name) + len(value) for name, value in attributes.items()) + len((key or "").encode())
        rest: dict[str, Any] = {"attributes": attributes, **({"orderingKey": key} if key is not None else {})}
        after = json.dumps(rest, separators=(",", ":")).encode("ascii")
        message = b'{"data":"%b",%b' % (base64.b64encode(data), after[1:])
        return Sized(message, size, len(message) + 1)
