"""The engine's end of the socket: takes appends and probes from edges and hands them to the intake (spec 08).

Owns the socket file, the connections and the bound on what they may have unanswered. An append that has been read is
carried through although its edge goes away. It decides nothing about a hook.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from schemas.append import Answer, Submission, encode_answers
from schemas.records import DecodeError
from streams.local.frame_reader import FrameError, FrameReader, check_hello, hello
from streams.local.frames import Kind, frame, read_append
from streams.local.updates import Updates

log = logging.getLogger("ankusa.engine")

MAX_UNANSWERED_BYTES = 64 << 20
"""Appends read from one connection and not answered yet. An edge keeps one of 16 MiB in flight; one that sends more
is not read until answers have gone out. At worst an edge's bodies are held here once beside its own memory."""

MAX_SOCKET_PATH_BYTES = 107
"""What fits into a Unix socket's address on Linux, without its final zero. (103 on macOS: an error there says so.)"""

Probe = Callable[[], Awaitable[str | None]]


class IntakePort(Protocol):
    """What the server asks of an intake."""

    async def append(
        self, batch: Sequence[tuple[Submission, bytes]], deadline_at: int, *, again: bool = False
    ) -> list[Answer]: ...


def socket_path(data_dir: str | Path) -> Path:
    """Where an engine on `data_dir` listens: in it, or under a short name of its own where that path is too long."""
    path = Path(data_dir) / "engine.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    name = hashlib.sha256(os.fsencode(Path(data_dir).absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"ankusa-{os.geteuid()}-{name}.sock"


class IntakeServer:
    """A listening server, made by `serve`."""

    def __init__(self, path: Path, intake: IntakePort, probe: Probe, updates: Updates | None = None) -> None:
        """`updates` tells edges what the API set up, where it sets up anything."""
        self.path = path
        self.intake = intake
        self.probe = probe
        self.updates = updates
        self.connections: set[Connection] = set()
        self.running: set[asyncio.Task[None]] = set()
        self.orphans: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._file: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen. Raises OSError with the path when that cannot be done."""
        bound = _bind(self.path)
        found = self.path.stat()
        self._file = (found.st_dev, found.st_ino)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: Connection(self), sock=bound)

    async def close(self) -> None:
        """Stop listening, hang up, and wait until the appends that were read have ended."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.hang_up()
        while self.running:
            await asyncio.wait(self.running)
        with contextlib.suppress(OSError):
            found = self.path.stat()
            if (found.st_dev, found.st_ino) == self._file:  # else a successor's
                self.path.unlink()


async def serve(path: Path, intake: IntakePort, probe: Probe, updates: Updates | None = None) -> IntakeServer:
    """Listen for edges at `path`; it accepts once this returns. Raises OSError."""
    server = IntakeServer(path, intake, probe, updates)
    await server.start()
    return server


def _bind(path: Path) -> socket.socket:
    """A socket at `path` that only this user may connect to. A file left by an engine that died is removed: that no
    other engine is alive on the directory, the store's lock has shown."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise OSError(f"the socket path {path} is longer than {MAX_SOCKET_PATH_BYTES} bytes")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} is in the way: it is not a socket")
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(os.fspath(path))
        path.chmod(0o600)  # before it listens, so nobody has connected yet
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror}") from error
    return bound


class Connection(asyncio.Protocol):
    """One edge."""

    def __init__(self, server: IntakeServer) -> None:
        self._server = server
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self.unanswered_bytes = 0
        self._write_paused = False
        self._read_paused = False
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # No isinstance: uvloop's transports are not asyncio's.
        self._transport = transport
        self._server.connections.add(self)
        transport.write(hello())

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            for kind, request_id, payload in self._reader.feed(data):
                self._on_frame(kind, request_id, payload)
        except (FrameError, *DecodeError) as error:
            log.warning("event=edge_refused reason=%s", error)
            self.hang_up()

    def _on_frame(self, kind: Kind, request_id: int, payload: bytes) -> None:
        if not self._greeted:
            check_hello(kind, payload)
            self._greeted = True
            if self._server.updates is not None:
                self._server.updates.joined(self)
        elif kind is Kind.APPEND:
            deadline_at, again, batch = read_append(payload)
            self._spawn(self._append(request_id, batch, deadline_at, again), len(payload))
        elif kind is Kind.PROBE:
            self._spawn(self._probe(request_id), 0)
        elif kind is Kind.TAKEN and self._server.updates is not None:
            self._server.updates.taken(self, request_id)
        else:
            raise FrameError(f"an unexpected {kind.name}")

    def send_update(self, version: int, payload: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame(Kind.UPDATE, version, payload))

    def _spawn(self, work: Awaitable[bytes], size_bytes: int) -> None:
        self.unanswered_bytes += size_bytes
        task = asyncio.get_running_loop().create_task(self._answer(work, size_bytes))
        for tasks in (self._tasks, self._server.running):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        self._regulate()

    async def _answer(self, work: Awaitable[bytes], size_bytes: int) -> None:
        try:
            answer = await work
        except Exception:
            # What became of it is unknown, and an answer would be a guess: the edge sends it again on a new
            # connection, and what was stored is then found by its id.
            log.exception("event=edge_request_failed")
            self.hang_up()
        else:
            if self._transport is not None:
                self._transport.write(answer)
        finally:
            self.unanswered_bytes -= size_bytes
            self._regulate()

    async def _append(
        self, request_id: int, batch: list[tuple[Submission, bytes]], deadline_at: int, again: bool
    ) -> bytes:
        if again and self._server.orphans:
            # Its first sending may still be at work, written and not yet durable: it is not to be found too early.
            await asyncio.wait(list(self._server.orphans))
        answers = await self._server.intake.append(batch, deadline_at, again=again)
        return frame(Kind.ANSWERS, request_id, encode_answers(answers))

    async def _probe(self, request_id: int) -> bytes:
        reason = await self._server.probe()
        return frame(Kind.PROBED, request_id, (reason or "").encode())

    def _regulate(self) -> None:
        """Read on only while the edge takes its answers and has not too much unanswered."""
        pause = self._write_paused or self.unanswered_bytes > MAX_UNANSWERED_BYTES
        if self._transport is None or pause is self._read_paused:
            return
        self._read_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._regulate()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._regulate()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        if self._server.updates is not None:
            self._server.updates.left(self)
        for task in self._tasks:
            self._server.orphans.add(task)
            task.add_done_callback(self._server.orphans.discard)
