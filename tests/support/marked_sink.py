"""The counting sink as a process, which keeps the mark of each delivery beside its id (see `load.py`).

Alone: `python -m tests.support.marked_sink --port N --log FILE` appends one line a delivery answered 2xx, before the
answer goes out: `id arrival-unix-ms replay-id mark`, `-` for what is absent.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from msgspec import Struct

from tests.support.http_sink import Received
from tests.support.load import MARK_HEADER
from tests.support.logged_sink import LoggedSink, LoggedSinkProcess, run
from tests.support.node import ask


class MarkedSink(LoggedSink):
    def delivered(self, request: Received) -> None:
        self.write_down(request, request.header(MARK_HEADER) or "-")


class Arrival(Struct, frozen=True):
    """One delivery answered 2xx. `at` in unix ms; `replay_id` and `mark` are `-` when absent."""

    id: str
    at: int
    replay_id: str
    mark: str


class SinkProcess(LoggedSinkProcess):
    """The sink and what has arrived at it so far."""

    module = "tests.support.marked_sink"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.arrivals: list[Arrival] = []
        self.by_id: Counter[str] = Counter()
        self.by_mark: Counter[str] = Counter()

    def statuses(self) -> dict[str, int]:
        """Answers given so far, by status."""
        found: dict[str, int] = ask(self.port, "GET", "/__counts").json["statuses"]
        return found

    def read(self, fields: list[str]) -> None:
        hook_id, at, replay_id, mark = fields
        self.arrivals.append(Arrival(hook_id, int(at), replay_id, mark))
        self.by_id[hook_id] += 1
        self.by_mark[mark] += 1


if __name__ == "__main__":
    run(MarkedSink, "A sink that keeps marks.")
