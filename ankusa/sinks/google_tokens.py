"""Bearer tokens for Google's APIs: configured, signed here with a service account's key, or from the metadata server.

Owns where a token comes from and how long it is used. It never sends one anywhere.

The metadata server is a fixed address of the machine itself, which the egress guard refuses to sinks. It is asked
through a guard of its own that lets through this one host and nothing else, so no sink's option can point there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from ankusa import clock
from ankusa.sinks.clients import HttpClients
from ankusa.sinks.contract import Failed
from ankusa.sinks.egress import Destination, Egress
from ankusa.sinks.exchange import exchange
from ankusa.sinks.google_pubsub_options import PubsubOptions
from ankusa.sinks.reasons import reason

AUDIENCE = "https://pubsub.googleapis.com/"
METADATA = "http://metadata.google.internal"
METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
SIGNED_FOR_S = 3_600  # the longest Google takes
EARLY_S = 300.0  # a token is replaced this long before it ends; the metadata server has a new one by then
METADATA_TIMEOUT_MS = 3_000


class _Granted(Struct):
    access_token: str
    expires_in: float


class Tokens:
    """The token of one sink's options. `refused` after a 401: the next one is a new one."""

    def __init__(
        self, options: PubsubOptions, *, metadata: str = METADATA, now_ms: Callable[[], int] = clock.now_ms
    ) -> None:
        """`metadata`: the origin of the metadata server. `now_ms`: unix ms, for what is signed."""
        self._options, self._metadata, self._now_ms = options, metadata, now_ms
        self._token: str | None = options.token
        self._until = float("inf") if options.token is not None else 0.0
        self._work: asyncio.Task[str | Failed] | None = None
        self._clients: HttpClients | None = None

    async def headers(self) -> list[tuple[str, str]] | Failed:
        """The header that goes with a request, if any. A failure is transient: no request is to be sent."""
        if self._options.auth == "none":
            return []
        if self._token is None or time.monotonic() >= self._until:
            if self._work is None or self._work.done():
                self._work = asyncio.create_task(self._renew())
            answer = await asyncio.shield(self._work)
            if isinstance(answer, Failed):
                return answer
        return [("authorization", f"Bearer {self._token}")]

    def refused(self) -> None:
        """The API did not take the token. One that is configured stays; whoever mends it changes the config."""
        if self._options.token is None:
            self._token = None

    def close(self) -> None:
        """Let go of what a renewal holds. Idempotent."""
        if self._work is not None:
            self._work.cancel()
        if self._clients is not None:
            self._clients.close()

    async def _renew(self) -> str | Failed:
        if self._options.auth == "service_account":
            answer = await asyncio.to_thread(self._sign)
        else:
            answer = await self._fetch()
        if isinstance(answer, Failed):
            return answer
        self._token = answer.access_token
        self._until = time.monotonic() + max(1.0, answer.expires_in - EARLY_S)
        return answer.access_token

    def _sign(self) -> _Granted | Failed:
        """A token of our own, signed with the account's key: Google takes it as it is, nobody has to be asked."""
        from google.auth import crypt, jwt  # only where a service account is used

        assert self._options.credentials_file is not None
        try:
            account = msgspec.json.decode(Path(self._options.credentials_file).read_bytes(), type=dict)
            issued_at = self._now_ms() // 1000
            email = account["client_email"]
            claims = {
                "iss": email,
                "sub": email,
                "aud": AUDIENCE,
                "iat": issued_at,
                "exp": issued_at + SIGNED_FOR_S,
            }
            signer = crypt.RSASigner.from_service_account_info(account)  # type: ignore[no-untyped-call]
            token = jwt.encode(signer, claims)  # type: ignore[no-untyped-call]
        except Exception as error:  # its text may hold a part of the file
            return Failed("transient", f"no_credentials: the credentials file is of no use ({type(error).__name__})")
        return _Granted(token.decode("ascii"), SIGNED_FOR_S)

    async def _fetch(self) -> _Granted | Failed:
        if self._clients is None:
            host = self._metadata.split("://")[1].split(":")[0]
            self._clients = HttpClients(Egress([host]))
        judged = self._clients.egress.judge_url(self._metadata + METADATA_PATH)
        assert isinstance(judged, Destination)
        endpoint = self._clients.endpoint(judged)
        try:
            headers = [("metadata-flavor", "Google")]
            answer = await exchange(endpoint, "GET", judged.url, headers, b"", METADATA_TIMEOUT_MS)
        finally:
            self._clients.release(endpoint)
        if isinstance(answer, Failed):
            return Failed("transient", f"no_credentials: metadata server: {answer.reason}")
        status, body = answer
        if status != 200:
            return Failed("transient", f"no_credentials: metadata server: HTTP {status}")
        try:
            return msgspec.json.decode(body, type=_Granted)
        except msgspec.DecodeError as error:
            return Failed("transient", reason("no_credentials: metadata server", error))
