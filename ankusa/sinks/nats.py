"""The `nats` sink: one delivery is one message published to JetStream and acknowledged by its stream (spec 04).

Owns the attempt and what its end means. It creates no stream and never retries.

Decisions:
- The stream's acknowledgement is read here, not by the library: an answer of anybody else who listens on the subject
  must not count as one, and one that carries an error carries a sequence number too.
- The library does not reconnect by itself: an attempt that runs when the connection is lost fails at once, and the next
  one connects. Servers are tried in random order, each twice.
- A message over the server's `max_payload` is refused here, headers counted: the server would end the connection that
  all deliveries share.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import nkeys  # type: ignore[import-untyped]
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, NoRespondersError

from ankusa.sinks.connections import Connection, Destinations, Share
from ankusa.sinks.contract import Delivery, ErrorClass, Failed, Ok, SinkResult
from ankusa.sinks.nats_options import NatsAuth, NatsOptions, parse_options
from ankusa.sinks.options import MAX_TIMEOUT_MS
from ankusa.sinks.reasons import reason
from schemas.message import deduplication_id, encode, metadata

log = logging.getLogger("ankusa.sinks.nats")

CONNECT_TIMEOUT_S = 3  # for one server
TOO_LARGE = 10_054  # JetStream's error code: the stream's max_msg_size
_HEADERS_BYTES = 12  # NATS/1.0, its line end and the empty line


class _Fault(Struct, frozen=True):
    err_code: int = 0
    description: str = ""


class _Ack(Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Fault | None = None


class _Link:
    """One connection, and the moment it is lost."""

    def __init__(self, client: Client, lost: asyncio.Future[None]) -> None:
        self.client, self.lost = client, lost

    def is_open(self) -> bool:
        return self.client.is_connected and not self.lost.done()


class NatsDestination:
    """The servers of one sink's options, and the one connection to them."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options
        self.connection: Connection[_Link] = Connection(self._open, _close, _Link.is_open, options.idle_timeout_ms)

    async def close(self) -> None:
        await self.connection.close()

    async def _open(self) -> _Link:
        client, lost = Client(), asyncio.get_running_loop().create_future()

        async def on_lost() -> None:
            if not lost.done():
                lost.set_result(None)

        async def on_error(error: Exception) -> None:
            log.warning("event=server_said %s", reason("error", error, self._options.secrets))

        scheme = "tls" if self._options.tls else "nats"
        try:
            await client.connect(
                [f"{scheme}://{server}" for server in self._options.servers],
                name="ankusa",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_TIMEOUT_S,
                tls=ssl.create_default_context() if self._options.tls else None,
                disconnected_cb=on_lost,
                closed_cb=on_lost,
                error_cb=on_error,
                **_credentials(self._options.auth),
            )
        except BaseException:
            await client.close()
            raise
        return _Link(client, lost)


async def _close(link: _Link) -> None:
    await link.client.close()


def _credentials(auth: NatsAuth) -> dict[str, Any]:
    if auth.username is not None:
        return {"user": auth.username, "password": auth.password}
    if auth.token is not None:
        return {"token": auth.token}
    if (seed := auth.nkey_seed) is None:
        return {}
    if (jwt := auth.jwt) is None:
        return {"nkeys_seed_str": seed}

    def sign(nonce: str) -> bytes:
        return base64.b64encode(nkeys.from_seed(bytearray(seed, "ascii")).sign(nonce.encode()))

    return {"user_jwt_cb": lambda: bytearray(jwt, "utf-8"), "signature_cb": sign}


class NatsSink:
    """A built `nats` sink. Many deliveries may run at once, on one connection."""

    type = "nats"
    batching = False

    def __init__(self, options: NatsOptions, destinations: Destinations) -> None:
        self.inline_max_bytes: int | None = options.inline_max_bytes
        self._options = options
        key = ("nats", options.servers, options.tls, options.auth, options.idle_timeout_ms)
        self._share = Share(destinations, key, lambda: NatsDestination(options))

    @classmethod
    def build(cls, options: Mapping[str, Any], destinations: Destinations) -> Self:
        """Check the options and take the destination. OptionError names a wrong option. Opens nothing."""
        return cls(parse_options(options), destinations)

    async def deliver(self, delivery: Delivery) -> SinkResult:
        """One attempt, bounded by `publish_timeout_ms`, connecting included."""
        destination = self._share.destination
        if destination is None:
            return Failed("transient", "the sink is closed")
        timeout_ms = self._options.publish_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                try:
                    async with destination.connection.use() as link:
                        return await self._publish(link, delivery)
                except NoRespondersError:
                    return Failed("transient", "no_stream: no stream takes the subject")
                except (Error, OSError) as error:
                    return Failed("transient", reason("not published", error, self._options.secrets))
        except TimeoutError:
            return Failed("timeout", f"no acknowledgement within {timeout_ms} ms")

    async def _publish(self, link: _Link, delivery: Delivery) -> SinkResult:
        message = encode(delivery, delivery.claim)
        headers = {**dict(metadata(delivery)), "Nats-Msg-Id": deduplication_id(delivery)}
        size = (
            len(message) + _HEADERS_BYTES + sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
        )
        if size > link.client.max_payload:
            return Failed("permanent", f"too_large: {size} bytes, the server takes {link.client.max_payload}")
        # The deadline is deliver's; the library's own is out of the way.
        request: asyncio.Future[Any] = asyncio.ensure_future(
            link.client.request(self._options.subject, message, MAX_TIMEOUT_MS, headers=headers)
        )
        try:
            await asyncio.wait({request, link.lost}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise ConnectionError("the connection was lost before the acknowledgement")
            return self._answer(request.result())
        finally:
            request.cancel()

    def _answer(self, answer: Msg) -> SinkResult:
        try:
            ack = msgspec.json.decode(answer.data, type=_Ack)
        except msgspec.DecodeError:
            return Failed("transient", "no_stream: whoever answered on the subject is no stream")
        if ack.error is not None:
            error_class: ErrorClass = "permanent" if ack.error.err_code == TOO_LARGE else "transient"
            return Failed(error_class, reason(f"refused ({ack.error.err_code})", ack.error.description))
        if not ack.stream or ack.seq < 1:
            return Failed("transient", "no_stream: the answer names no stream and sequence number")
        return Ok(f"duplicate of seq {ack.seq}" if ack.duplicate else f"seq {ack.seq}")

    async def close(self) -> None:
        """Give the destination back. Idempotent."""
        await self._share.end()
