"""The `redis` sink: one delivery is one PUBLISH on a channel (spec 04). Not durable: Redis keeps no copy.

Owns the attempt and what its end means. It creates nothing in Redis and never retries.

Decisions:
- One connection per destination. Deliveries that come while one is under way go out together as a pipeline when it
  ends, each with its own answer, so the time of a round trip is not the time of a delivery.
- No subscriber is a transient failure: nobody has the hook. A later attempt may find one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ankusa.sinks.batcher import Batcher, Limits
from ankusa.sinks.connections import Connection, Destinations, Share
from ankusa.sinks.contract import Delivery, Failed, Ok, SinkResult
from ankusa.sinks.reasons import reason
from ankusa.sinks.redis_options import RedisOptions, parse_options
from schemas.message import encode

# One pipeline: enough to hide a round trip; at these bytes the wire is the bound, and others wait their turn.
_LIMITS = Limits(entries=256, size_bytes=1_048_576, linger_ms=0)

_Publish = tuple[str, bytes]


class RedisDestination:
    """One Redis and what waits for its connection."""

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._connection = Connection(self._open, _close, lambda _: True, options.idle_timeout_ms)
        self.batcher: Batcher[_Publish] = Batcher(self._publish, _LIMITS, lambda: 1)

    async def close(self) -> None:
        await self.batcher.close()
        await self._connection.close()

    async def _open(self) -> Redis:
        """A client that keeps one connection, connects with its first command, and again with the next after a loss."""
        timeout_s = self._options.publish_timeout_ms / 1000
        return Redis.from_url(
            self._options.url,
            single_connection_client=True,
            socket_connect_timeout=timeout_s,
            socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            client_name="ankusa",
        )

    async def _publish(self, publishes: Sequence[_Publish]) -> list[SinkResult]:
        timeout_ms = self._options.publish_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._connection.use() as client:
                try:
                    pipeline = client.pipeline(transaction=False)
                    for channel, message in publishes:
                        pipeline.publish(channel, message)
                    answers = await pipeline.execute(raise_on_error=False)
                except BaseException:
                    self._connection.drop(client)  # answers may still come, and must not be taken for those of others
                    raise
        except TimeoutError:
            return [Failed("timeout", f"no answer within {timeout_ms} ms")] * len(publishes)
        except (RedisError, OSError) as error:
            return [Failed("transient", reason("not published", error, self._options.secrets))] * len(publishes)
        return [self._result(answer) for answer in answers]

    def _result(self, answer: Any) -> SinkResult:
        if isinstance(answer, int) and answer > 0:
            return Ok(f"{answer} subscribers")
        if answer == 0:
            return Failed("transient", "no_subscribers: nobody listens on the channel")
        return Failed("transient", reason("refused", answer, self._options.secrets))


async def _close(client: Redis) -> None:
    await client.aclose()


class RedisSink:
    """A built `redis` sink."""

    type = "redis"
    batching = False  # the pipeline is about one connection, not about sending more than a slot's worth

    def __init__(self, options: RedisOptions, destinations: Destinations) -> None:
        self.inline_max_bytes: int | None = options.inline_max_bytes
        self._options = options
        key = ("redis", options.url, options.publish_timeout_ms, options.idle_timeout_ms)
        self._share = Share(destinations, key, lambda: RedisDestination(options))

    @classmethod
    def build(cls, options: Mapping[str, Any], destinations: Destinations) -> Self:
        """Check the options and take the destination. OptionError names a wrong option. Opens nothing."""
        return cls(parse_options(options), destinations)

    async def deliver(self, delivery: Delivery) -> SinkResult:
        """One attempt, bounded by `publish_timeout_ms`, the wait for the connection included."""
        destination = self._share.destination
        if destination is None:
            return Failed("transient", "the sink is closed")
        message = encode(delivery, delivery.claim)
        publish = (self._options.channel, message)
        timeout_ms = self._options.publish_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await destination.batcher.submit(delivery.tenant_id, len(message), publish)
        except TimeoutError:
            return Failed("timeout", f"no answer within {timeout_ms} ms")

    async def close(self) -> None:
        """Give the destination back. Idempotent."""
        await self._share.end()
