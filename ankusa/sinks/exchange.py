"""One request and its whole answer through the node's guarded HTTP clients, for sinks that talk to an HTTP API.

Owns reading an answer up to a limit and turning what goes wrong into a failed attempt. What a status or an answer
means is the caller's. It never retries and never follows a redirect.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError, RequestTimeoutError
from pyreqwest.response import Response

from ankusa.sinks.clients import Endpoint
from ankusa.sinks.contract import Failed
from ankusa.sinks.egress import Refusal, Unresolved
from ankusa.sinks.reasons import reason

_NEVER_SENT = "client error (Connect)"  # the client's cause for a connect that failed
MAX_ANSWER_BYTES = 1_048_576  # the ids of 1,000 messages are a tenth of it


async def exchange(
    endpoint: Endpoint, method: str, url: str, headers: list[tuple[str, str]], body: bytes, timeout_ms: int
) -> tuple[int, bytes] | Failed:
    """Status and body; or what came in between: the guard's refusal, no address, no connection, no time, too much."""
    deadline = time.monotonic() + timeout_ms / 1000
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            client = endpoint.ready() or await endpoint.client()
        if isinstance(client, Refusal):
            return Failed("permanent", str(client))
        if isinstance(client, Unresolved):
            return Failed("transient", client.reason)
        left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
        request = client.request(method, url).headers(headers).timeout(left).body_bytes(body).build_streamed()
        try:
            async with request as response:
                return await _read(response)
        except PyreqwestError as error:
            if _NEVER_SENT in _causes(error):
                await endpoint.after_failed_connect(client)  # the next request goes to another address, if there is one
            raise
    except (TimeoutError, RequestTimeoutError):
        return Failed("timeout", f"no answer within {timeout_ms} ms")
    except PyreqwestError as error:
        return Failed("transient", reason("no answer", _cause(error)))


async def _read(response: Response) -> tuple[int, bytes] | Failed:
    body = bytearray()
    while (chunk := await response.body_reader.read_chunk()) is not None:
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            return Failed("transient", f"HTTP {response.status}, the answer is over {MAX_ANSWER_BYTES} bytes")
    return response.status, bytes(body)


def _causes(error: PyreqwestError) -> list[str]:
    details = error.details if isinstance(error, DetailedPyreqwestError) else None
    return [cause["message"] for cause in (details["causes"] or [])] if details else []


def _cause(error: PyreqwestError) -> str:
    """The innermost cause; the outermost quotes the URL."""
    named = [cause for cause in _causes(error) if "url (" not in cause]
    return named[-1] if named else type(error).__name__
