"""The supervisor: one engine process and its edge processes, started, watched and stopped together.

Each is a failure domain: an engine that dies is started again while edges answer 503, an edge that dies loses nothing
acknowledged. Owns processes and signals; it reads no hook, and imports nothing heavy, so that it cannot be what fails.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Sequence
from types import FrameType

log = logging.getLogger("ankusa.supervisor")

FATAL_EXIT = 65
"""An engine's exit status for a store it will not open (damaged, locked, of another format): starting it again would
not help (EX_DATAERR of sysexits.h)."""

BACKOFF_S, BACKOFF_MAX_S = 0.2, 10.0
HEALTHY_S = 30.0
"""A process that ran this long starts its next backoff from the beginning."""

POLL_S = 0.1
STOP_S = 25.0
"""How long a stopping process may take before it is killed: the engine's grace for attempts, and its closing."""


class Child:
    """One process and when it may be started again."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.command = list(command)
        self.process: subprocess.Popen[bytes] | None = None
        self._backoff_s = BACKOFF_S
        self._started_at = 0.0
        self._start_at = 0.0

    def poll(self, now: float) -> int | None:
        """Start it when it is not running and its backoff is over; the exit status when it has just ended."""
        if self.process is None:
            if now >= self._start_at:
                self._started_at = now
                self.process = subprocess.Popen(self.command)
                log.info("event=started name=%s pid=%d", self.name, self.process.pid)
            return None
        status = self.process.poll()
        if status is None:
            return None
        if now - self._started_at > HEALTHY_S:
            self._backoff_s = BACKOFF_S
        self._start_at = now + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        log.warning("event=exited name=%s pid=%d status=%d", self.name, self.process.pid, status)
        self.process = None
        return status

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Ask it to stop, wait, and kill it when it does not."""
        if self.process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("event=killed name=%s pid=%d", self.name, self.process.pid)
            self.process.kill()
            self.process.wait()


class Supervisor:
    """Runs an engine and edges until a signal, or until the engine says that it can never start."""

    def __init__(self, engine: Sequence[str], edges: Sequence[Sequence[str]]) -> None:
        self._engine = Child("engine", engine)
        self._edges = [Child(f"edge-{number}", command) for number, command in enumerate(edges)]
        self._stopping = False

    def run(self) -> int:
        """Block until stopped; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)
        status = 0
        while not self._stopping:
            now = time.monotonic()
            for child in (self._engine, *self._edges):
                ended = child.poll(now)
                if child is self._engine and ended == FATAL_EXIT:
                    status, self._stopping = FATAL_EXIT, True
                    break
            time.sleep(POLL_S)
        for edge in self._edges:  # all asked first, so that they drain side by side
            edge.signal(signal.SIGTERM)
        for child in (*self._edges, self._engine):
            child.stop()
        return status

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _on_reload(self, number: int, frame: FrameType | None) -> None:
        for child in (self._engine, *self._edges):
            child.signal(signal.SIGHUP)
