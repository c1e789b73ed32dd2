"""The `sqs` sink: deliveries go to a queue ten a request, and each settles on its own entry's result (spec 04).

Owns what an entry holds and what its result means. Requests are gathered by `batcher.py`, the client is
`sqs_client.py`. It creates no queue and never retries.

Decisions:
- An entry is ok when the answer names it with the MD5 of the body that was sent. An answer that names it neither as
  sent nor as failed says nothing: transient.
- A group id that would be longer than SQS takes is cut and made unique by a hash: API-managed sources have long ids.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    ReadTimeoutError,
)
from msgspec import Struct

from ankusa.sinks.batcher import Batcher, Limits, Refused
from ankusa.sinks.batching_sink import BatchingSink, Sized
from ankusa.sinks.clients import HttpClients
from ankusa.sinks.connections import Connection, Destinations
from ankusa.sinks.contract import Delivery, ErrorClass, Failed, Ok, SinkResult
from ankusa.sinks.egress import Destination, Egress, Refusal
from ankusa.sinks.reasons import reason
from ankusa.sinks.sqs_client import GuardedResolver, SqsClient, open_client
from ankusa.sinks.sqs_options import MAX_MESSAGE_BYTES, SqsOptions, parse_options
from schemas.message import deduplication_id, encode, metadata

MAX_ENTRIES = 10
MAX_GROUP_CHARS = 128
_PERMANENT = frozenset({"InvalidMessageContents", "InvalidParameterValue"})
# Codes of a whole request that one entry may be to blame for.
_REFUSED = _PERMANENT | {"BatchRequestTooLong"}


class _Entry(Struct, frozen=True):
    """One message, as SQS takes it but for the id."""

    fields: dict[str, Any]
    md5: str


class SqsDestination:
    """One queue with one set of credentials: the client, and what waits for a request."""

    def __init__(
        self, options: SqsOptions, judged: Destination, egress: Egress, concurrency: Callable[[], int | None]
    ) -> None:
        self._options = options
        self.resolver = GuardedResolver(judged, egress)
        self._client: Connection[SqsClient] = Connection(
            lambda: open_client(options, judged, self.resolver),
            SqsClient.close,
            lambda _: True,
            options.idle_timeout_ms,
        )
        limits = Limits(MAX_ENTRIES, MAX_MESSAGE_BYTES, options.linger_ms)
        self.batcher: Batcher[_Entry] = Batcher(self._send, limits, concurrency)

    async def close(self) -> None:
        await self.batcher.close()
        await self._client.close()

    async def _send(self, entries: Sequence[_Entry]) -> Sequence[SinkResult] | Refused:
        request = [{"Id": str(number), **entry.fields} for number, entry in enumerate(entries)]
        try:
            async with asyncio.timeout(self._options.timeout_ms / 1000), self._client.use() as client:
                answer = await client.api.send_message_batch(QueueUrl=self._options.queue_url, Entries=request)
        except ClientError as error:
            failed = self._failed(error.response.get("Error", {}))
            code = _code(error.response.get("Error", {}))
            return Refused(failed) if code in _REFUSED else [failed] * len(entries)
        except (TimeoutError, ConnectTimeoutError, ReadTimeoutError):
            failed = Failed("timeout", f"no answer within {self._options.timeout_ms} ms")
        except (BotoCoreError, OSError) as error:
            if self.resolver.refusal is not None:
                failed = Failed("permanent", str(self.resolver.refusal))
            else:
                failed = Failed("transient", reason("not sent", error, self._options.secrets))
        else:
            return self._results(entries, answer)
        return [failed] * len(entries)

    def _results(self, entries: Sequence[_Entry], answer: Mapping[str, Any]) -> list[SinkResult]:
        sent = {entry.get("Id"): entry for entry in answer.get("Successful") or ()}
        failed = {entry.get("Id"): entry for entry in answer.get("Failed") or ()}
        results: list[SinkResult] = []
        for number, entry in enumerate(entries):
            found = sent.get(str(number))
            if str(number) in failed:
                results.append(self._failed(failed[str(number)]))
            elif found is None:
                results.append(Failed("transient", "the answer does not name this entry"))
            elif found.get("MD5OfMessageBody") != entry.md5:
                results.append(Failed("transient", "the answer's MD5 is not that of what was sent"))
            else:
                results.append(Ok("sent"))
        return results

    def _failed(self, error: Mapping[str, Any]) -> Failed:
        """What SQS says of a request or of one entry."""
        code = _code(error)
        error_class: ErrorClass = "permanent" if code in _PERMANENT else "transient"
        return Failed(error_class, reason(code, str(error.get("Message") or ""), self._options.secrets))


class SqsSink(BatchingSink[_Entry]):
    """A built `sqs` sink."""

    type = "sqs"

    def __init__(
        self,
        options: SqsOptions,
        judged: Destination | Refusal,
        egress: Egress,
        clients: HttpClients,
        shared: Destinations,
    ) -> None:
        self._options = options
        key = (
            *("sqs", options.queue_url, options.endpoint, options.region, options.credentials),
            *(options.timeout_ms, options.linger_ms, options.idle_timeout_ms),
        )
        super().__init__(
            *(options, judged, clients, shared, key),
            lambda found: SqsDestination(options, found, egress, lambda: shared.sink_concurrency),
        )

    @classmethod
    def build(cls, options: Mapping[str, Any], egress: Egress, clients: HttpClients, shared: Destinations) -> Self:
        """Check the options and take the destination. OptionError names a wrong option. Opens nothing.

        An endpoint that the guard refuses builds all the same: its deliveries fail `egress_denied`.
        """
        parsed = parse_options(options)
        return cls(parsed, egress.judge_url(parsed.endpoint), egress, clients, shared)

    def entry(self, delivery: Delivery) -> Sized[_Entry]:
        """SQS counts the body, and of each attribute name, type and value."""
        body = encode(delivery, delivery.claim)
        attributes = {name: value for name, value in metadata(delivery) if value}
        fields: dict[str, Any] = {
            "MessageBody": body.decode("ascii"),
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        }
        if self._options.is_fifo:
            fields["MessageDeduplicationId"] = deduplication_id(delivery)
            fields["MessageGroupId"] = self._options.message_group_id or group_id(delivery)
        elif self._options.message_group_id is not None:
            fields["MessageGroupId"] = self._options.message_group_id
        size = len(body) + sum(len(name) + len("String") + len(value) for name, value in attributes.items())
        entry = _Entry(fields, hashlib.md5(body, usedforsecurity=False).hexdigest())
        return Sized(entry, size, size)


def group_id(delivery: Delivery) -> str:
    """`tenant/source`, or as much of it as SQS takes with a hash of the whole."""
    group = f"{delivery.tenant_id}/{delivery.source_id}"
    if len(group) <= MAX_GROUP_CHARS:
        return group
    digest = hashlib.sha256(group.encode()).hexdigest()[:32]
    return f"{group[: MAX_GROUP_CHARS - len(digest) - 1]}#{digest}"


def _code(error: Mapping[str, Any]) -> str:
    """The error code without the namespaces that SQS's protocols put before it."""
    return str(error.get("Code") or "UnknownError").replace("#", ".").rsplit(".", 1)[-1]
