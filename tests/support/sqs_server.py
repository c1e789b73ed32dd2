"""SQS on loopback: moto's server over HTTP, with faults that a test asks for put between it and its clients.

`with SqsServer() as server:`; it runs in threads of its own. Queues, validation, batches and MD5s are moto's. Faults
are of the entries of a SendMessageBatch, or of whole requests. Moto's own listener ends every connection after one
answer; this one keeps them, as SQS does.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from io import BytesIO
from typing import Any, Self

from moto.server import DomainDispatcherApplication, create_backend_app
from moto.sqs.models import Message, sqs_backends

from tests.support.asgi_server import Answer, AsgiServer, Request

ACCOUNT, REGION = "123456789012", "us-east-1"
JSON = [("content-type", "application/x-amz-json-1.0")]
Fault = dict[str, Any]
"""What the `Failed` list says of an entry: Code, Message, SenderFault."""


class SqsServer:
    """`batches`: the ids (`ankusa_id`) of every SendMessageBatch that came, in order.

    `refuse`, `corrupt`, `forget`: asked for every entry. It is refused with the fault, sent but answered with a wrong
    MD5, or sent and not named in the answer. `broken`: (status, body) that every request gets. `delay_s` before each.
    """

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.refuse: Callable[[dict[str, Any]], Fault | None] = lambda entry: None
        self.corrupt: Callable[[dict[str, Any]], bool] = lambda entry: False
        self.forget: Callable[[dict[str, Any]], bool] = lambda entry: False
        self.broken: tuple[int, str] | None = None
        self.delay_s = 0.0
        self.running = self.most_running = 0
        self._taken: dict[str, list[Message]] = {}
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()  # moto is no server's core: one request at a time gets to it
        self._server = AsgiServer(self._serve)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def opened(self) -> int:
        """Connections ever opened."""
        return self._server.proxy.opened

    def queue_url(self, name: str) -> str:
        return f"{self.url}/{ACCOUNT}/{name}"

    def make_queue(self, name: str, **attributes: str) -> None:
        sqs_backends[ACCOUNT][REGION].create_queue(name, None, **attributes)

    def messages(self, name: str) -> list[Message]:
        """Everything that the queue took, in order."""
        self._store_away()
        return self._taken[name]

    def bodies(self, name: str) -> list[dict[str, Any]]:
        """The messages that the queue took, decoded."""
        return [json.loads(message.body) for message in self.messages(name)]

    def __enter__(self) -> Self:
        sqs_backends[ACCOUNT][REGION].queues.clear()
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    async def _serve(self, request: Request) -> Answer:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay_s)
            return await asyncio.to_thread(self._answer, _environ(request.scope), request.body)
        finally:
            self.running -= 1

    def _answer(self, environ: dict[str, Any], body: bytes) -> Answer:
        if environ.get("HTTP_X_AMZ_TARGET") != "AmazonSQS.SendMessageBatch":
            return self._ask(environ, body)
        request = json.loads(body)
        entries = {entry["Id"]: entry for entry in request["Entries"]}
        self.batches.append([entry["MessageAttributes"]["ankusa_id"]["StringValue"] for entry in entries.values()])
        if self.broken is not None:
            return Answer(self.broken[0], JSON, self.broken[1].encode())
        refused = {id_: fault for id_, entry in entries.items() if (fault := self.refuse(entry))}
        document: dict[str, Any] = {"Successful": [], "Failed": []}
        if kept := [entry for id_, entry in entries.items() if id_ not in refused]:
            answer = self._ask(environ, json.dumps({**request, "Entries": kept}).encode())
            if answer.status != 200:
                return answer
            document = json.loads(answer.body)
        for entry in document["Successful"]:
            if self.corrupt(entries[entry["Id"]]):
                entry["MD5OfMessageBody"] = "0" * 32
        document["Successful"] = [e for e in document["Successful"] if not self.forget(entries[e["Id"]])]
        document["Failed"] += [{"Id": id_, "SenderFault": True, **fault} for id_, fault in refused.items()]
        return Answer(200, JSON, json.dumps(document).encode())

    def _ask(self, environ: dict[str, Any], body: bytes) -> Answer:
        """Moto's answer to the request with this body."""
        told: list[Any] = []
        environ = {**environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        with self._lock:
            self._store_away()
            answer = b"".join(self._moto(environ, lambda status, headers, *_: told.append((status, headers))))
        ((status, headers),) = told
        return Answer(int(status[:3]), headers, answer)

    def _store_away(self) -> None:
        """Empty the queues; moto walks all they hold each time. A FIFO queue knows doubles by it: it stays so."""
        for name, queue in sqs_backends[ACCOUNT][REGION].queues.items():
            if queue.fifo_queue:
                self._taken[name] = list(queue._messages)
            else:
                self._taken.setdefault(name, []).extend(queue._messages)
                queue._messages.clear()


def _environ(scope: Any) -> dict[str, Any]:
    """What a WSGI application wants to know of a request."""
    environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"],
        "QUERY_STRING": scope["query_string"].decode(),
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": str(scope["server"][1]),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": BytesIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in scope["headers"]:
        key = name.decode().upper().replace("-", "_")
        environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value.decode()
    return environ
