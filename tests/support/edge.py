"""Parts for tests of the edge: a log in memory that can be held up, a running edge, and a raw HTTP client.

The client speaks bytes, so that a test can send what no HTTP library would.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from msgspec import Struct

from ankusa import clock
from ankusa.edge.batcher import Batcher
from ankusa.edge.log import EdgeLog
from ankusa.edge.sources import Sources
from api import serving
from api.ingest import build_ingest_app
from schemas import config
from schemas.append import Answer, AnswerStatus, Submission
from schemas.config import Dedupe, Http, Sink, Source, Verify
from schemas.records import Held

SECRET = "s3cret"
WAIT_S, TEST_S = 60.0, 240.0
"""A process of a test takes two seconds to listen, and twenty where ten others want the processor."""


def run(body: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine on the loop that production runs."""

    async def bounded() -> None:
        async with asyncio.timeout(TEST_S):
            await body()

    uvloop.run(bounded())


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.002)


class MemoryLog:
    """An `EdgeLog` that keeps what it is given. `answer` decides; an unset `gate` holds appends up."""

    def __init__(self) -> None:
        self.stored: list[Submission] = []
        self.batches: list[list[Submission]] = []
        self.deadlines: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.reason: str | None = None
        self.answer: Callable[[Submission], Answer] = durable

    async def append(self, submissions: Sequence[Submission], deadline_at: int) -> list[Answer]:
        self.batches.append(list(submissions))
        self.deadlines.append(deadline_at)
        await self.gate.wait()
        answers = [self.answer(submission) for submission in submissions]
        for submission, answer in zip(submissions, answers, strict=True):
            if answer.status in (AnswerStatus.ACCEPTED, AnswerStatus.QUARANTINED):
                self.stored.append(submission)
        return answers

    async def probe(self) -> str | None:
        return self.reason


def durable(submission: Submission) -> Answer:
    entry = submission.entry
    return Answer(AnswerStatus.QUARANTINED if isinstance(entry, Held) else AnswerStatus.ACCEPTED, entry.id)


def source(name: str, **keys: Any) -> Source:
    """A source with one `log` sink and no verification unless `keys` say otherwise."""
    return Source(name=name, **{"verify": Verify(type="none"), "sinks": (Sink(type="log"),), **keys})


def signed(name: str, policy: str, **keys: Any) -> Source:
    return source(name, verify=Verify(type="github", secret=SECRET), on_verify_failure=policy, **keys)


SOURCES = (
    source("open"),
    source("orders", tenant="acme", sinks=(Sink(type="http"), Sink(type="log"))),
    source("events", dedupe=Dedupe(header="X-Event")),
    signed("strict", "reject"),
    signed("pen", "quarantine"),
    signed("flag", "accept_flag", dedupe=Dedupe(header="X-Event")),
)


class RunningEdge(Struct):
    """A served edge. `port` is on loopback."""

    port: int
    batcher: Batcher
    sources: Sources
    listener: serving.Listener


@asynccontextmanager
async def serve(
    edge_log: EdgeLog,
    *,
    sources: Iterable[Source] = SOURCES,
    http: Http | None = None,
    batcher: config.Batcher | None = None,
    body_timeout_ms: int = 30_000,
    now: Callable[[], int] = clock.now_ms,
) -> AsyncIterator[RunningEdge]:
    http = http or Http()
    table = Sources(http.prefix, http.routing, sources)
    queue = Batcher(edge_log, batcher or config.Batcher(), now)
    app = build_ingest_app(http, table, queue, edge_log, now, body_timeout_ms)
    listener = await serving.serve(app, serving.bind("127.0.0.1", 0))
    try:
        yield RunningEdge(listener.port, queue, table, listener)
    finally:
        await listener.close()
        queue.close()
        app.close()


class Response(Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def read_response(reader: asyncio.StreamReader, *, head_only: bool = False) -> Response:
    """One response with a content-length. Raises IncompleteReadError when the connection ends first."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.rstrip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    length = 0 if head_only else int(headers.get("content-length", "0"))
    return Response(int(status_line.split(" ")[1]), headers, await reader.readexactly(length))


RequestHeaders = Iterable[tuple[str, str | bytes]]


def request(method: str, path: str | bytes, headers: RequestHeaders = (), body: bytes = b"") -> bytes:
    """A request's bytes; `content-length` is added unless the headers frame the body themselves."""
    lines = [(name, value if isinstance(value, bytes) else value.encode()) for name, value in headers]
    names = {name.lower() for name, _ in lines}
    if body and not names & {"content-length", "transfer-encoding"}:
        lines.append(("content-length", b"%d" % len(body)))
    raw_path = path if isinstance(path, bytes) else path.encode()
    head = method.encode() + b" " + raw_path + b" HTTP/1.1\r\nhost: edge\r\n"
    return head + b"".join(name.encode() + b": " + value + b"\r\n" for name, value in lines) + b"\r\n" + body


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, raw: bytes, *, head_only: bool = False) -> Response:
        self.writer.write(raw)
        return await self.answer(head_only=head_only)

    async def answer(self, *, head_only: bool = False) -> Response:
        async with asyncio.timeout(WAIT_S):
            return await read_response(self.reader, head_only=head_only)

    async def post(self, path: str, body: bytes = b"", headers: RequestHeaders = ()) -> Response:
        return await self.ask(request("POST", path, headers, body))

    async def closed(self) -> bool:
        """Whether the server ends the connection. Waits for it."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


def chunked(*chunks: bytes) -> bytes:
    """Chunks and the end in chunked transfer encoding."""
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


CHUNKED = (("transfer-encoding", "chunked"),)
