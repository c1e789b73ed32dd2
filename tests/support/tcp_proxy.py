"""A TCP proxy on loopback that a test can cut, close or stall, and that counts connections.

`with TcpProxy(port) as proxy:`; it runs in a thread and loop of its own. Attributes may be read from any thread.
It forwards bytes as they come and knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self


class TcpProxy:
    """`port` forwards to `target`. `opened`: connections ever accepted; `open`: those open now."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.opened = 0
        self.open = 0
        self._closed = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Close every connection now; new ones are still taken."""
        self._loop.call_soon_threadsafe(self._abort)

    def shut(self) -> None:
        """Close every connection, and each new one as soon as it comes, until `reopen`."""
        self._closed = True
        self.cut()

    def reopen(self) -> None:
        self._closed = False

    def stall(self) -> None:
        """Keep connections open and pass nothing on, until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._flowing.set()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self._abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.opened += 1
        self.open += 1
        try:
            if not self._closed:
                with contextlib.suppress(OSError):
                    await self._join(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            pumps = [asyncio.create_task(self._pump(*ends)) for ends in ((reader, far_writer), (far_reader, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers -= pair
            far_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            while not self._flowing.is_set():
                await asyncio.sleep(0.005)
            writer.write(data)
            await writer.drain()
