"""The `rabbitmq` sink: one delivery is one persistent message to an exchange, routed and confirmed (spec 04).

Owns the attempt and what its end means. It declares no exchange, queue or binding, and never retries.

Decisions:
- One connection per broker URL and exchange. An error of one publish closes the channel, and what the library still
  sends on it then ends the connection: all that wait for a confirm there fail with it. They are transient, and only the
  publish at fault may be permanent; sinks of other exchanges never notice.
- The exchange is looked up when a connection opens, so a missing one is found before anything is published.
- A message over the broker's `max_message_size` does that too. The broker tells its limit then; later messages
  over it are refused here and do the others no harm.
- The library does not reconnect by itself: an attempt that runs when the connection is lost fails at once, and the next
  one connects.
- No message id is set: the library finds a returned message by that id, and two sinks of one exchange may publish the
  same hook at once. The hook's id is the header `ankusa_id`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from aio_pika import DeliveryMode, Message, connect
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)

from ankusa.sinks.connections import Connection, Destinations, Share
from ankusa.sinks.contract import Delivery, Failed, Ok, SinkResult
from ankusa.sinks.rabbitmq_options import RabbitOptions, parse_options
from ankusa.sinks.reasons import reason
from schemas.message import encode, metadata

_MAX_SIZE = re.compile(r"larger than configured max size ([0-9]{1,18})")


class _Link(NamedTuple):
    """One AMQP connection, its only channel, and the exchange on it."""

    connection: AbstractConnection
    channel: AbstractChannel
    exchange: AbstractExchange

    def is_open(self) -> bool:
        return not self.channel.is_closed

    async def close(self) -> None:
        await self.connection.close()


class RabbitDestination:
    """One exchange and the one connection to it. `in_flight`: publishes that wait for their confirm."""

    def __init__(self, options: RabbitOptions) -> None:
        self._options = options
        self.in_flight = 0
        self.max_message_bytes: int | None = None  # as the broker told on this connection, once it did
        self.connection: Connection[_Link] = Connection(self._open, _Link.close, _Link.is_open, options.idle_timeout_ms)

    async def close(self) -> None:
        await self.connection.close()

    async def _open(self) -> _Link:
        self.max_message_bytes = None  # it may have changed with the broker's restart
        connection = await connect(self._options.url, client_properties={"connection_name": "ankusa"})
        try:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            return _Link(connection, channel, await channel.get_exchange(self._options.exchange, ensure=True))
        except BaseException:
            await connection.close()
            raise


class RabbitSink:
    """A built `rabbitmq` sink. Many deliveries may run at once, on one connection."""

    type = "rabbitmq"
    batching = False

    def __init__(self, options: RabbitOptions, source_id: str, destinations: Destinations) -> None:
        self.inline_max_bytes: int | None = options.inline_max_bytes
        self._options = options
        self._routing_key = f"ankusa.{source_id}" if options.routing_key is None else options.routing_key
        key = ("rabbitmq", options.url, options.exchange, options.idle_timeout_ms)
        self._share = Share(destinations, key, lambda: RabbitDestination(options))

    @classmethod
    def build(cls, options: Mapping[str, Any], source_id: str, destinations: Destinations) -> Self:
        """Check the options and take the destination. OptionError names a wrong option. Opens nothing."""
        return cls(parse_options(options), source_id, destinations)

    async def deliver(self, delivery: Delivery) -> SinkResult:
        """One attempt, bounded by `confirm_timeout_ms`, connecting included."""
        destination = self._share.destination
        if destination is None:
            return Failed("transient", "the sink is closed")
        if destination.in_flight >= self._options.max_inflight:
            return Failed("transient", f"busy: {destination.in_flight} publishes wait for their confirm")
        body = encode(delivery, delivery.claim)
        if destination.max_message_bytes is not None and len(body) > destination.max_message_bytes:
            return _too_large(len(body), destination.max_message_bytes)
        destination.in_flight += 1
        try:
            async with asyncio.timeout(self._options.confirm_timeout_ms / 1000):
                return await self._publish(destination, delivery, body)
        except TimeoutError:
            return Failed("transient", f"confirm_timeout: no confirm within {self._options.confirm_timeout_ms} ms")
        finally:
            destination.in_flight -= 1

    async def close(self) -> None:
        """Give the destination back. Idempotent."""
        await self._share.end()

    async def _publish(self, destination: RabbitDestination, delivery: Delivery, body: bytes) -> SinkResult:
        message = Message(
            body,
            content_type="application/json",
            delivery_mode=DeliveryMode.PERSISTENT,
            headers=dict(metadata(delivery)),
        )
        try:
            async with destination.connection.use() as link:
                try:
                    await link.exchange.publish(message, self._routing_key, mandatory=True)
                except DeliveryError:
                    raise
                except CONNECTION_EXCEPTIONS:
                    destination.connection.drop(link)
                    raise
        except PublishError:
            return Failed("transient", f"unroutable: the exchange has no queue for {self._routing_key!r}")
        except DeliveryError:
            return Failed("transient", "nacked: a queue refused it")
        except ChannelNotFoundEntity as error:
            return Failed("transient", reason("no_exchange", error, self._options.secrets))
        except ChannelPreconditionFailed as error:
            if (found := _MAX_SIZE.search(str(error))) is not None:
                destination.max_message_bytes = int(found[1])
                if len(body) > destination.max_message_bytes:
                    return _too_large(len(body), destination.max_message_bytes)
            return Failed("transient", reason("channel_closed", error, self._options.secrets))
        except CONNECTION_EXCEPTIONS as error:
            return Failed("transient", reason("not_connected", error, self._options.secrets))
        return Ok("confirmed")


def _too_large(size: int, limit: int) -> Failed:
    return Failed("permanent", f"too_large: {size} bytes, the broker takes {limit}")
