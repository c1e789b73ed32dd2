"""HTTP/1.1 on every listener: uvicorn's httptools protocol with what a port that strangers reach needs beside it.

Owns what uvicorn leaves out: a bound on the size and time of a request's head, on the size of what follows its body,
and on the requests that wait behind another; JSON for what cannot be parsed; an answer to a client that has closed its
sending side; trailers told apart from headers, since what came behind a body may neither sign nor describe it; and the
body of a request that offers an upgrade. The last one matters: the parser treats
everything behind an upgradable head as another protocol, so a client that offers `h2c` with each request, as Java's
does by default, would have its hooks taken with an empty body.

And one short cut: a request that came whole with one read goes to the app without a task and two ASGI messages each
way, where the app offers that (`api/direct.py`). Whatever is out of the ordinary about it takes uvicorn's way.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.direct import STATUS_LINE, Exchange, direct_of, head_lines
from api.joined_writes import JoinedWrites

MAX_HEAD_BYTES = 96 << 10
"""Request line and headers, and whatever else comes in without being body: trailers, a chunk's extensions. Above the
64 KiB that ingest takes, so that this refuses only what goes on and on."""

HEAD_TIMEOUT_S = 30.0
"""From the first byte of a head, or from the connection, to the head's end: what a body may stall for."""

MAX_PIPELINED = 256
"""Requests that wait behind another on one connection. Each costs some kilobytes and thousands come with one read:
behind so many the connection ends, and what was not answered may be sent again. No client comes near."""

_UPGRADE_HEADERS = frozenset({b"upgrade", b"http2-settings"})
_UPGRADE_OPTIONS = _UPGRADE_HEADERS | {b"close", b"keep-alive"}
"""Options of a connection that its plain head says itself, or not at all. What else it names stays with it."""


class EdgeProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_since: float | None = None
        self._head_bytes = 0
        self._body_came = False
        self._ended = False
        self._upgrading = False
        self._idle_since: float | None = None
        self._direct = direct_of(self.app)
        self._source: Any = None
        self._chunks: list[bytes] = []
        self.url = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_since = self.loop.time()
        self._joined = JoinedWrites(transport, self.loop)
        super().connection_made(self._joined)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self._body_came = self._ended = False
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._to_app_after_all()
            self._refuse()
            return
        self._to_app_after_all()
        if self._ended or (self._body_came and self._head_since is None):
            self._head_bytes = 0  # of a head behind a whole request nobody knows the size: it counts from the next read
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._plain_head() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)

    def _plain_head(self) -> bytes:
        """The head that was just parsed, without its offer to upgrade. Raises HttpParserError for a CONNECT."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("this is no proxy")
        named = [value for name, value in self.headers if name == b"connection"]
        options = [option for option in map(bytes.strip, b",".join(named).split(b",")) if option]
        options = [option for option in options if option.lower() not in _UPGRADE_OPTIONS]
        if not self.parser.should_keep_alive():
            options.append(b"close")
        kept = [header for header in self.headers if header[0] not in _UPGRADE_HEADERS and header[0] != b"connection"]
        if options:
            kept.append((b"connection", b", ".join(options)))
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version), *(b"%s: %s" % header for header in kept)]
        return b"\r\n".join((*lines, b"", b""))

    def on_message_begin(self) -> None:
        self._head_since = self.loop.time()
        self._idle_since = None
        self._head_bytes = 0
        self._upgrading = False
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, but for trailers: the head has ended, and they are dropped."""
        if self._head_since is None:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._upgrading = True  # the parser stops behind this head; `_feed` goes on with a plain one
            return
        self._head_since = None
        if self._direct is not None and self._is_plain_post():
            self._source = self._direct.direct(self.url)
        if self._source is None:
            self._to_app()

    def _is_plain_post(self) -> bool:
        """Whether nothing about this request or its connection needs more than an answer."""
        return (
            (self.cycle is None or self.cycle.response_complete)
            and self.parser.get_method() == b"POST"
            and not self.expect_100_continue
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"
            and not self.flow.write_paused
        )

    def _to_app(self) -> None:
        """Begin this request as uvicorn does, which makes its scope when a message begins. Raises HttpParserError when
        too many wait."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise httptools.HttpParserError("too many requests behind one that waits")
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        super().on_headers_complete()

    def _to_app_after_all(self) -> None:
        """What was read has ended and the request has not: it is the app's, with what came of its body."""
        if self._source is None:
            return
        self._source = None
        chunks, self._chunks = self._chunks, []
        self._to_app()
        for chunk in chunks:
            super().on_body(chunk)

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        if self._source is None:
            super().on_body(body)
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._ended = True
        source = self._source
        if source is None:
            super().on_message_complete()
            return
        assert self._direct is not None
        body = b"".join(self._chunks)
        exchange = Exchange(self)
        before, self.cycle = self.cycle, exchange  # type: ignore[assignment]
        if self._direct.take_whole(source, self.headers, self.url, body, exchange.answer):
            self._source = None
            self._chunks = []
        else:
            self.cycle = before
            self._to_app_after_all()
            super().on_message_complete()

    def answered(self, exchange: Exchange, answer: bytes) -> None:
        """An exchange has its answer: send it, and go on."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._joined.write_whole(answer)
        if exchange.keep_alive:
            self._go_on()
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """As uvicorn's, without a timer for each answer: `close_if_stalled` finds connections that stay idle."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self._go_on()

    def _go_on(self) -> None:
        """Read on, and begin the request that waits, if there is one."""
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._idle_since = self.loop.time()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more. One that has sent a whole request still waits for the answer, and gets it."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.disconnected:
            self._joined.flush()  # the connection is closed now, and the end of an answer may be of this turn
            return None
        if cycle.more_body:
            self._refuse()
            return None
        cycle.keep_alive = False
        return True

    def _refuse(self) -> None:
        """End a connection whose bytes are no HTTP, or stopped in the middle of it."""
        cycle = self.cycle
        if self.transport.is_closing():
            return
        if cycle is None or cycle.response_complete:
            in_headers = self._head_since is not None and self.url != b""
            self.send_400_response("invalid_headers" if in_headers else "invalid_request")
        elif not cycle.more_body:
            cycle.keep_alive = False  # behind a whole request: that one is answered, then it ends
            self.flow.pause_reading()
        elif cycle.response_started or self.pipeline:
            self.transport.close()
        else:
            self.send_400_response("body_read_failed")

    def send_400_response(self, msg: str) -> None:
        """Answer 400 with `msg` as the error code and close; the request that this is an answer to has none yet."""
        content = b'{"error":"%s"}' % msg.encode("ascii")
        own = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(content)
        self.transport.write(STATUS_LINE[400] + head_lines(self.server_state) + own + b"\r\n" + content)
        self.transport.close()

    def close_if_stalled(self, at_s: float) -> None:
        """Close a connection whose head takes too long, or that has been idle for long. `at_s` is the loop's time."""
        stalled = self._head_since is not None and at_s - self._head_since > HEAD_TIMEOUT_S
        idle = self._idle_since is not None and at_s - self._idle_since > self.timeout_keep_alive
        # One answer may have gone out while the next head came in, whose request waits for its own since.
        if stalled or (idle and self.cycle.response_complete):
            self.transport.close()
