"""Pub/Sub's REST contract on loopback, as far as publishing goes, and the metadata server's token.

`with PubsubServer() as server:`. A request is taken as a whole or refused as a whole, with the error documents, limits
and checks of the documented API: the topic must exist, the token must be right, at most 1,000 messages and 10,000,000
bytes a request, attributes of at most 256 and 1,024 bytes, one ordering key a request, data in base64.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from tests.support.asgi_server import Answer, AsgiServer, Request

JSON = [("content-type", "application/json; charset=UTF-8")]
MAX_MESSAGES, MAX_BYTES = 1_000, 10_000_000
CODES = {"INVALID_ARGUMENT": 400, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404}
CODES |= {"RESOURCE_EXHAUSTED": 429, "INTERNAL": 500, "UNAVAILABLE": 503}


class Published(NamedTuple):
    """One message that the topic took; `data` is decoded."""

    id: str
    topic: str
    data: bytes
    attributes: dict[str, str]
    ordering_key: str


class PubsubServer:
    """`published`: what topics took, in order. `batches`: how many messages each request had that came.

    `invalid`: asked for every message (decoded data); a request with one of them is INVALID_ARGUMENT. `error`: a status
    word, or a whole answer, that every request gets. `tokens`: those accepted; None for all, and for none at all.
    """

    def __init__(self) -> None:
        self.topics = {"projects/my-project/topics/hooks"}
        self.published: list[Published] = []
        self.batches: list[int] = []
        self.invalid: Callable[[dict[str, Any]], bool] = lambda message: False
        self.error: str | Answer | None = None
        self.tokens: set[str] | None = None
        self.seen_tokens: list[str] = []
        self.granted = 0
        self.grants: Answer | None = None
        self.delay_s = 0.0
        self.running = self.most_running = 0
        self._server = AsgiServer(self._serve)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def opened(self) -> int:
        """Connections ever opened."""
        return self._server.proxy.opened

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    async def _serve(self, request: Request) -> Answer:
        if request.path.startswith("/computeMetadata/"):
            return self._grant(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay_s)
            return self._publish(request)
        finally:
            self.running -= 1

    def _grant(self, request: Request) -> Answer:
        """The metadata server's answer: a new token every time."""
        if request.headers.get("metadata-flavor") != "Google" or request.method != "GET":
            return Answer(403, [], b"Missing Metadata-Flavor:Google header.")
        if self.grants is not None:
            return self.grants
        self.granted += 1
        token = {"access_token": f"granted-{self.granted}", "expires_in": 3599, "token_type": "Bearer"}
        return Answer(200, JSON, json.dumps(token).encode())

    def _publish(self, request: Request) -> Answer:
        document = json.loads(request.body)
        messages = document.get("messages", [])
        self.batches.append(len(messages))
        if isinstance(self.error, Answer):
            return self.error
        if self.error is not None:
            return _error(self.error, "told to")
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.seen_tokens.append(token)
        if self.tokens is not None and token not in self.tokens:
            return _error("UNAUTHENTICATED", "Request had invalid authentication credentials.")
        topic, colon, verb = request.path.removeprefix("/v1/").rpartition(":")
        if request.method != "POST" or (colon, verb) != (":", "publish"):
            return Answer(404, [("content-type", "text/html")], b"<html>Not Found</html>")
        if topic not in self.topics:
            return _error("NOT_FOUND", f"Resource not found (resource={topic.rpartition('/')[2]}).")
        if why := self._fault(messages):
            return _error("INVALID_ARGUMENT", why)
        first = len(self.published)
        for number, message in enumerate(messages, first):
            data = base64.b64decode(message.get("data", ""))
            attributes, key = message.get("attributes", {}), message.get("orderingKey", "")
            self.published.append(Published(str(10_000 + number), topic, data, attributes, key))
        ids = [published.id for published in self.published[first:]]
        return Answer(200, JSON, json.dumps({"messageIds": ids}).encode())

    def _fault(self, messages: list[dict[str, Any]]) -> str | None:
        """Why a request is refused, as a whole."""
        if not messages or len(messages) > MAX_MESSAGES:
            return "The value for message_count is out of bounds. You passed in a different number."
        if len({message.get("orderingKey", "") for message in messages}) > 1:
            return "In a single publish request, all messages must have no ordering key or the same one."
        total = 0
        for message in messages:
            try:
                data = base64.b64decode(message.get("data", ""), validate=True)
            except binascii.Error:
                return "Invalid value at 'messages[0].data' (TYPE_BYTES), Base64 decoding failed."
            attributes = message.get("attributes", {})
            if not data and not attributes:
                return "Some messages in the publish request are empty."
            if any(not 0 < len(k.encode()) <= 256 or len(v.encode()) > 1024 for k, v in attributes.items()):
                return "The attribute key or value is too long."
            if len(message.get("orderingKey", "").encode()) > 1024:
                return "The ordering key is too long."
            if self.invalid(json.loads(data)):
                return "Invalid data in message: Message failed schema validation."
            total += len(data) + sum(len(k.encode()) + len(v.encode()) for k, v in attributes.items())
        return "Request payload size exceeds the limit: 10000000 bytes." if total > MAX_BYTES else None


def _error(status: str, message: str) -> Answer:
    code = CODES[status]
    document = {"error": {"code": code, "message": message, "status": status}}
    return Answer(code, JSON, json.dumps(document).encode())
