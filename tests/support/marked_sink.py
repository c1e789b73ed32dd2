"""The counting sink as a process, which keeps the mark of each delivery beside its id (see `load.py`).

Alone: `python -m tests.support.marked_sink --port N --log FILE` appends one line a delivery answered 2xx, before the
answer goes out: `id arrival-unix-ms replay-id mark`, `-` for what is absent.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

import msgspec
import uvloop
from msgspec import Struct

from ankusa import clock
from tests.support.http_sink import Received, SinkServer, _serve
from tests.support.load import MARK_HEADER
from tests.support.node import ask
from tests.support.node_process import free_port, poll


class MarkedSink(SinkServer):
    """`SinkServer` with its own line of log."""

    def __init__(self, port: int, path: Path) -> None:
        super().__init__(port=port, keep=False)
        self._lines = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def delivered(self, request: Received) -> None:
        names = ("x-ankusa-id", "x-ankusa-replay-id", MARK_HEADER)
        hook_id, replay_id, mark = (request.header(name) or "-" for name in names)
        os.write(self._lines, f"{hook_id} {clock.now_ms()} {replay_id} {mark}\n".encode("latin-1"))


class Arrival(Struct, frozen=True):
    """One delivery answered 2xx. `at` in unix ms; `replay_id` and `mark` are `-` when absent."""

    id: str
    at: int
    replay_id: str
    mark: str


class SinkProcess:
    """The sink and what has arrived at it so far."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.arrivals: list[Arrival] = []
        self.by_id: Counter[str] = Counter()
        self.by_mark: Counter[str] = Counter()
        self._path = folder / f"arrivals-{self.port}.log"
        self._read_bytes = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sink"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.marked_sink"]
        command += ["--port", str(self.port), "--log", str(self._path)]
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

    def statuses(self) -> dict[str, int]:
        """Answers given so far, by status."""
        found: dict[str, int] = ask(self.port, "GET", "/__counts").json["statuses"]
        return found

    def refresh(self) -> Self:
        """Read what has arrived since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        if whole:
            self._read_bytes += len(whole) + 1
            for line in whole.decode("latin-1").split("\n"):
                hook_id, at, replay_id, mark = line.split(" ")
                self.arrivals.append(Arrival(hook_id, int(at), replay_id, mark))
                self.by_id[hook_id] += 1
                self.by_mark[mark] += 1
        return self


def main() -> None:
    parser = argparse.ArgumentParser(description="A sink that keeps marks. Loopback only.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args()
    uvloop.run(_serve(MarkedSink(args.port, args.log)))


if __name__ == "__main__":
    main()
