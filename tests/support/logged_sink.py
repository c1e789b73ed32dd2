"""A sink as a process that keeps a line of what it was asked, and how those lines are read while it runs.

Owns the process, the file and which lines are new; what a line holds is for whoever writes and reads it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import uvloop

from ankusa import clock
from tests.support.http_sink import Received, SinkServer, _serve
from tests.support.node import ask
from tests.support.node_process import free_port, poll


class LoggedSink(SinkServer):
    """Within the process: `write_down` appends a line of a request, before its answer goes out."""

    def __init__(self, port: int, path: Path) -> None:
        super().__init__(port=port, keep=False)
        self._lines = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write_down(self, request: Received, *fields: object) -> None:
        """`id arrival-unix-ms replay-id`, `-` for what is absent, and `fields`."""
        hook_id, replay_id = (request.header(name) or "-" for name in ("x-ankusa-id", "x-ankusa-replay-id"))
        line = " ".join(map(str, (hook_id, clock.now_ms(), replay_id, *fields)))
        os.write(self._lines, f"{line}\n".encode("latin-1"))


class LoggedSinkProcess(ABC):
    """The sink as its test sees it. `module` is run as the process."""

    module: str

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._path = folder / f"asked-{self.port}.log"
        self._read_bytes = 0

    @abstractmethod
    def read(self, fields: list[str]) -> None:
        """One line."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sink"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", self.module, "--port", str(self.port), "--log", str(self._path)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        poll("a sink", lambda: ask(self.port, "GET", "/__counts").status == 200)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def behave(self, **fields: Any) -> None:
        """Answer as `http_sink.Behaviour` says, from now on."""
        answer = ask(self.port, "POST", "/__control", msgspec.json.encode(fields))
        assert answer.status == 200, answer

    def refresh(self) -> Self:
        """Read what was written down since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        if whole:
            self._read_bytes += len(whole) + 1
            for line in whole.decode("latin-1").split("\n"):
                self.read(line.split(" "))
        return self


def run(sink: Callable[[int, Path], LoggedSink], description: str) -> None:
    """The process of a sink."""
    parser = argparse.ArgumentParser(description=f"{description} Loopback only.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    arguments = parser.parse_args()
    uvloop.run(_serve(sink(arguments.port, arguments.log)))
