"""The supervisor: an engine process and its edge processes, or one kind of them, started, watched and stopped together.

Each is a failure domain: an engine that dies is started again while edges answer 503, an edge that dies loses nothing
acknowledged. A changed configuration file, or SIGHUP, is passed on to all as SIGHUP. Owns processes and signals; it
reads no hook and no configuration, and imports nothing heavy, so that it cannot be what fails.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

log = logging.getLogger("ankusa.supervisor")

FATAL_EXIT = 65
"""A process's exit status for what it will not work with: a store that is damaged, locked or of another format, topics
that would lose hooks. Starting it again would not help (EX_DATAERR of sysexits.h)."""

BACKOFF_S, BACKOFF_MAX_S = 0.2, 10.0
HEALTHY_S = 30.0
"""A process that ran this long starts its next backoff from the beginning."""

POLL_S = 0.1
WATCH_S = 1.0
"""How often a configuration file is looked at: a reload that takes a second longer is none the worse."""

STOP_S = 25.0
"""How long a stopping process may take before it is killed: the engine's grace for attempts, and its closing."""


class FileWatch:
    """Tells when a file was replaced or written to. One that is gone for now is no change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether it changed since the last call."""
        found = self._look()
        if found is None or found == self._seen:
            return False
        self._seen = found
        return True

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()  # of what a link points to: mounted files are swapped that way
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _before_program() -> Callable[[], None]:
    """For a child to run before its program: no hang-up may end it before it has a handler, and it is asked to stop
    when the supervisor dies without having stopped it.

    Else an engine left over by `kill -9` would keep the store locked. That part is Linux only; elsewhere it stays.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # looked up before the fork

    def prepare() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if prctl is not None:
            prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG

    return prepare


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
                # A group of its own: Ctrl-C reaches the supervisor alone, which stops edges before the engine.
                self.process = subprocess.Popen(self.command, process_group=0, preexec_fn=_before_program())
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
    """Runs an engine (on Kafka a worker, or none) and edges until a signal, or until one says that it can never start.

    `config` is the file they were configured from, None when there is none to watch.
    """

    def __init__(
        self, engine: Sequence[str] | None, edges: Sequence[Sequence[str]], config: FileWatch | None = None
    ) -> None:
        self._engines = [] if engine is None else [Child("engine", engine)]
        self._edges = [Child(f"edge-{number}", command) for number, command in enumerate(edges)]
        self._config = config
        self._look_at = time.monotonic() + WATCH_S
        self._stopping = False

    def run(self) -> int:
        """Block until stopped; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)
        status = 0
        while not self._stopping:
            now = time.monotonic()
            for child in (*self._engines, *self._edges):
                if child.poll(now) == FATAL_EXIT:
                    status, self._stopping = FATAL_EXIT, True
                    break
            self._watch(now)
            time.sleep(POLL_S)
        for edge in self._edges:  # all asked first, so that they drain side by side
            edge.signal(signal.SIGTERM)
        for child in (*self._edges, *self._engines):
            child.stop()
        return status

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _watch(self, now: float) -> None:
        if self._config is None or now < self._look_at:
            return
        self._look_at = now + WATCH_S
        if self._config.changed():
            log.info("event=config_changed path=%s", self._config.path)
            self._reload()

    def _on_reload(self, number: int, frame: FrameType | None) -> None:
        self._reload()

    def _reload(self) -> None:
        for child in (*self._engines, *self._edges):
            child.signal(signal.SIGHUP)
