"""Durability, shared: many callers wait, one fsync serves all that were written before it started.

The fsync runs in a thread of its own (it releases the GIL; a thread and a queue cost half of an executor's round
trip). Owns the waiting; never writes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from ankusa.store.errors import StoreError


class Flusher:
    """Group fsync. `flush` blocks and raises StoreError; `flushed` hears of every fsync that succeeded, on the loop."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[list[asyncio.Future[None]] | None] = SimpleQueue()
        self._waiting: list[asyncio.Future[None]] = []
        self._running = False
        self._thread = threading.Thread(target=self._run, name="ankusa-flusher", daemon=True)
        self._thread.start()

    def wait(self) -> asyncio.Future[None]:
        """A future that is done when everything written before this call is durable, or fails with StoreError."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        if not self._running:
            self._start()
        return future

    def _start(self) -> None:
        self._running = True
        waiting, self._waiting = self._waiting, []
        self._jobs.put(waiting)

    def _run(self) -> None:
        while (waiting := self._jobs.get()) is not None:
            error: StoreError | None = None
            try:
                self._flush()
            except StoreError as refused:
                error = refused
            except Exception as unexpected:
                error = StoreError(str(unexpected))
            try:
                self._loop.call_soon_threadsafe(self._finish, waiting, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def _finish(self, waiting: list[asyncio.Future[None]], error: StoreError | None) -> None:
        for future in waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        if self._waiting:
            self._start()
        else:
            self._running = False

    def close(self) -> None:
        """Finish the fsync that runs and end the thread."""
        self._jobs.put(None)
        self._thread.join()
