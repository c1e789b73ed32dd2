"""The AWS client of one SQS endpoint, kept behind the egress guard (spec 04).

Owns how it is built: which addresses it may connect to, no proxy, no retries of its own. The requests are `sqs.py`'s.

The client resolves names by the guard alone, again for every new connection, and connects to what the guard let
through. It is given the URL as the guard reads it, so that the two cannot read one differently. The chain that looks
for credentials makes its requests (to the instance's metadata, to STS) by itself: where it may ask is fixed by AWS and
by the node's own environment, not by a sink.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.session import get_session  # type: ignore[import-untyped]
from aiohttp.abc import AbstractResolver, ResolveResult
from botocore.loaders import create_loader  # type: ignore[import-untyped]

from ankusa.sinks.egress import Destination, Egress, Refusal, Unresolved
from ankusa.sinks.sqs_options import SqsOptions

MAX_CONNECTIONS = 64  # one request each; `sink_concurrency` is far below

_models = create_loader()  # what the library reads of a service: a quarter of a second, once a process


class GuardedResolver(AbstractResolver):
    """Resolves one host, by the guard. `refusal` is its last word, None when it let an address through."""

    def __init__(self, destination: Destination, egress: Egress) -> None:
        self.refusal: Refusal | None = None
        self._destination, self._egress = destination, egress

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Addresses to connect to, in order. OSError when there is none."""
        if host != self._destination.host:
            raise OSError(None, "another host than the endpoint's")
        answer = await self._egress.resolve(self._destination)
        self.refusal = answer if isinstance(answer, Refusal) else None
        if isinstance(answer, Refusal | Unresolved):
            raise OSError(None, str(answer) if isinstance(answer, Refusal) else answer.reason)
        return [
            ResolveResult(
                hostname=host,
                host=ip,
                port=port,
                family=socket.AF_INET6 if ":" in ip else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for ip in answer
        ]

    async def close(self) -> None:
        """Nothing to release."""


class SqsClient:
    """An open client. `api` has SQS's methods."""

    def __init__(self, api: Any, stack: contextlib.AsyncExitStack) -> None:
        self.api, self._stack = api, stack

    async def close(self) -> None:
        await self._stack.aclose()


async def open_client(options: SqsOptions, destination: Destination, resolver: GuardedResolver) -> SqsClient:
    """Build the client. Opens no connection; looks for credentials when the options have none."""
    host = f"[{destination.host}]" if ":" in destination.host else destination.host
    keys = options.credentials
    config = AioConfig(
        connector_args={"resolver": resolver, "use_dns_cache": False},
        warm_up_loader_caches=True,  # its models are read in a thread, not in the loop
        connect_timeout=options.timeout_ms / 1000,
        read_timeout=options.timeout_ms / 1000,
        max_pool_connections=MAX_CONNECTIONS,
        retries={"total_max_attempts": 1},
        proxies={},  # not None, which would be those of the environment
        user_agent_extra="ankusa",
    )
    session = get_session()
    session.register_component("data_loader", _models)
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(
            session.create_client(
                "sqs",
                region_name=options.region,
                endpoint_url=f"{destination.scheme}://{host}:{destination.port}",
                aws_access_key_id=keys.access_key_id if keys else None,
                aws_secret_access_key=keys.secret_access_key if keys else None,
                aws_session_token=keys.session_token if keys else None,
                config=config,
            )
        )
        return SqsClient(api, stack.pop_all())
