"""The sink of the fleet tests as a process: it takes what `orders` sends, treats the source `unlucky` as it is told,
and keeps a line of every request, refused or not.

Alone: `python -m tests.kafka.fleet_sink --port N --log FILE` appends `id arrival-unix-ms status replay-id` before each
answer goes out, and for one that it holds when that is over. Judges nothing.
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
from tests.support.http_sink import Behaviour, Received, SinkServer, _serve
from tests.support.node import ask
from tests.support.node_process import free_port, poll

STEADY, UNLUCKY = "orders", "unlucky"
GOOD = Behaviour()


class FleetSink(SinkServer):
    """`behave` says how the source `unlucky` is answered; every other is taken at once."""

    def __init__(self, port: int, path: Path) -> None:
        super().__init__(port=port, keep=False)
        self._lines = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def next_behaviour(self, request: Received) -> Behaviour:
        behaviour = super().next_behaviour(request) if request.header("x-ankusa-source") == UNLUCKY else GOOD
        if not 200 <= behaviour.status < 300:
            self._write_down(request, behaviour.status)
        return behaviour

    def delivered(self, request: Received) -> None:
        self._write_down(request, 200)

    def _write_down(self, request: Received, status: int) -> None:
        hook_id, replay_id = (request.header(name) or "-" for name in ("x-ankusa-id", "x-ankusa-replay-id"))
        os.write(self._lines, f"{hook_id} {clock.now_ms()} {status} {replay_id}\n".encode("latin-1"))


class Asked(Struct, frozen=True):
    """One request at the sink. `at` in unix ms; `replay_id` is `-` when live."""

    id: str
    at: int
    status: int
    replay_id: str

    @property
    def delivered(self) -> bool:
        return self.status == 200


class FleetSinkProcess:
    """The sink and what it was asked so far: `asked` in order, `delivered` and `refused` by id."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.asked: list[Asked] = []
        self.delivered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._path = folder / f"asked-{self.port}.log"
        self._read_bytes = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sink"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.kafka.fleet_sink"]
        self._process = subprocess.Popen([*command, "--port", str(self.port), "--log", str(self._path)])
        poll("a sink", lambda: ask(self.port, "GET", "/__counts").status == 200)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def behave(self, **fields: Any) -> None:
        """Answer the source `unlucky` as `http_sink.Behaviour` says, from now on."""
        answer = ask(self.port, "POST", "/__control", msgspec.json.encode(fields))
        assert answer.status == 200, answer

    def refresh(self) -> Self:
        """Read what it was asked since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        if whole:
            self._read_bytes += len(whole) + 1
            for line in whole.decode("latin-1").split("\n"):
                hook_id, at, status, replay_id = line.split(" ")
                asked = Asked(hook_id, int(at), int(status), replay_id)
                self.asked.append(asked)
                (self.delivered if asked.delivered else self.refused)[hook_id] += 1
        return self


def main() -> None:
    parser = argparse.ArgumentParser(description="The sink of the fleet tests. Loopback only.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    arguments = parser.parse_args()
    uvloop.run(_serve(FleetSink(arguments.port, arguments.log)))


if __name__ == "__main__":
    main()
