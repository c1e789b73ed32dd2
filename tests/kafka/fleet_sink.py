"""The sink of the fleet tests as a process: it takes what `orders` sends, treats the source `unlucky` as it is told,
and keeps a line of every request, refused or not.

Alone: `python -m tests.kafka.fleet_sink --port N --log FILE` appends `id arrival-unix-ms replay-id status` before each
answer goes out, and for one that it holds when that is over. Judges nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from msgspec import Struct

from tests.support.http_sink import Behaviour, Received
from tests.support.logged_sink import LoggedSink, LoggedSinkProcess, run

STEADY, UNLUCKY = "orders", "unlucky"
GOOD = Behaviour()


class FleetSink(LoggedSink):
    """`behave` says how the source `unlucky` is answered; every other is taken at once."""

    def next_behaviour(self, request: Received) -> Behaviour:
        behaviour = super().next_behaviour(request) if request.header("x-ankusa-source") == UNLUCKY else GOOD
        if not 200 <= behaviour.status < 300:
            self.write_down(request, behaviour.status)
        return behaviour

    def delivered(self, request: Received) -> None:
        self.write_down(request, 200)


class Asked(Struct, frozen=True):
    """One request at the sink. `at` in unix ms; `replay_id` is `-` when live."""

    id: str
    at: int
    replay_id: str
    status: int

    @property
    def delivered(self) -> bool:
        return self.status == 200


class FleetSinkProcess(LoggedSinkProcess):
    """The sink and what it was asked so far: `asked` in order, `delivered` and `refused` by id."""

    module = "tests.kafka.fleet_sink"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: list[Asked] = []
        self.delivered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def read(self, fields: list[str]) -> None:
        hook_id, at, replay_id, status = fields
        asked = Asked(hook_id, int(at), replay_id, int(status))
        self.asked.append(asked)
        (self.delivered if asked.delivered else self.refused)[hook_id] += 1


if __name__ == "__main__":
    run(FleetSink, "The sink of the fleet tests.")
