"""A sink that fails at random, refuses poison for good, and keeps in order all that was asked of it.

Runs in the test's own process, in a thread (see `http_sink.SinkServer`). A request with a header `x-poison` is answered
410 until the sink is cured. Chance is drawn from a fixed seed. Never judges what it saw.
"""

from __future__ import annotations

import random  # noqa: TID251 - drawn from a fixed seed
from enum import Enum, auto
from typing import Literal

from msgspec import Struct

from ankusa import clock
from tests.support.http_sink import Behaviour, Received, SinkServer
from tests.support.load import MARK_HEADER

KEY_HEADER, POISON_HEADER = "x-key", "x-poison"

Mode = Literal["answer", "close_before", "close_mid"]

FAILURES: tuple[tuple[float, Mode], ...] = ((0.14, "answer"), (0.03, "close_before"), (0.03, "close_mid"))
"""A fifth of all requests, each kind by its probability: five in a row, which open a breaker, come now and then."""


class What(Enum):
    """A request FAILED, was REFUSED for good, or the sink TOOK it, all booked when it came; ANSWERED: what was taken
    gets its 2xx. A node that dies between the last two has delivered and does not know."""

    FAILED = auto()
    REFUSED = auto()
    TOOK = auto()
    ANSWERED = auto()


class Event(Struct, frozen=True):
    """One thing that happened at the sink. `at` in unix ms; `mark` is the load's; `replay_id` is empty when live."""

    what: What
    at: int
    id: str
    key: str
    mark: str
    replay_id: str


class FailingSink(SinkServer):
    """`events` may be read from any thread: it only grows."""

    def __init__(self, *, seed: int, delay_ms: int) -> None:
        super().__init__(keep=False)
        self.events: list[Event] = []
        self.cured = False
        self._draw = random.Random(seed)
        self._delay_ms = delay_ms

    def next_behaviour(self, request: Received) -> Behaviour:
        poisoned = request.header(POISON_HEADER) and not self.cured
        mode = None if poisoned or self.cured else self._failure()
        if mode is not None:
            self._book(What.FAILED, request)
            return Behaviour(mode=mode, status=500, delay_ms=self._delay_ms)
        self._book(What.REFUSED if poisoned else What.TOOK, request)
        return Behaviour(status=410 if poisoned else 200, delay_ms=self._delay_ms)

    def _failure(self) -> Mode | None:
        drawn = self._draw.random()
        for probability, mode in FAILURES:
            if drawn < probability:
                return mode
            drawn -= probability
        return None

    def delivered(self, request: Received) -> None:
        super().delivered(request)
        self._book(What.ANSWERED, request)

    def _book(self, what: What, request: Received) -> None:
        names = ("x-ankusa-id", KEY_HEADER, MARK_HEADER, "x-ankusa-replay-id")
        self.events.append(Event(what, clock.now_ms(), *(request.header(name) or "" for name in names)))
