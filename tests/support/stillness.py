"""How long the machine stood still during a test, so that lateness is judged by what the node could do about it.

A thread that wants to wake every few ms and notes by how much it was late. Never changes what it watches.
"""

from __future__ import annotations

import threading
import time
from typing import Self

TICK_S = 0.02


class Stillness:
    """`longest_ms`: the longest that the thread was not run, which goes for others on the machine too."""

    def __init__(self) -> None:
        self.longest_ms = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stillness", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(TICK_S):
            now = time.monotonic()
            self.longest_ms = max(self.longest_ms, round((now - before - TICK_S) * 1000))
            before = now
