"""What `breakers.py` found, and whether that is good. Judges counts and times alone; never talks to a node."""

from __future__ import annotations

from msgspec import Struct

SINKS = 5
FAILURES, SINK_CONCURRENCY = 5, 8
"""`dispatch.breaker_failures` and `dispatch.sink_concurrency`, as they are by default."""

LATE_MS = 2_000
"""The latest that a probe may come after its breaker's time, beside what the machine stood still."""


class Size(Struct, frozen=True):
    """`hooks` for each sink; the breakers' times in ms."""

    hooks: int
    open_ms: int
    max_open_ms: int


class Stage(Struct, frozen=True):
    """What each sink was asked in one stage, and how long after its breaker's time the first of it came."""

    name: str
    requests: list[int]
    late_ms: list[int]

    def __str__(self) -> str:
        return f"{self.name}: requests {self.requests}, {min(self.late_ms)} to {max(self.late_ms)} ms after their time"


class Report(Struct, frozen=True):
    """`opening`: requests at each sink until its breaker was open. `forgotten`: breakers that were not open until the
    same moment after the restart. `early`: requests while they were open. `changed`: hooks whose attempts were not what
    their sink had been asked and had answered, summed over four looks. `still_ms`: the longest the machine stood still.

    The second stage has no latest time: its node is down when the time comes."""

    size: Size
    opening: list[int]
    forgotten: int
    early: int
    stages: list[Stage]
    changed: int
    delivered: int
    doubled: int
    dead: list[str]
    left: int
    still_open: int
    restarts_s: list[float]
    still_ms: int
    seconds: float

    @property
    def good(self) -> bool:
        return (
            all(FAILURES <= count < FAILURES + SINK_CONCURRENCY for count in self.opening)
            and all(stage.requests == [1] * SINKS and min(stage.late_ms) >= 0 for stage in self.stages)
            and all(max(stage.late_ms) <= LATE_MS + self.still_ms for stage in (self.stages[0], self.stages[2]))
            and not any((self.forgotten, self.early, self.changed, self.left, self.still_open))
            and (self.delivered, self.doubled) == (SINKS * self.size.hooks - 1, 0)
            and self.dead == ["HTTP 410"]
        )

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{SINKS} sinks, {self.size.hooks} hooks each, breakers of {self.size.open_ms} ms, opened after "
                f"{self.opening} requests; {len(self.restarts_s)} kills, ready again after "
                f"{min(self.restarts_s):.1f} to {max(self.restarts_s):.1f} s",
                f"breakers forgotten {self.forgotten}, requests while open {self.early}, "
                f"attempts changed {self.changed}",
                *(str(stage) for stage in self.stages),
                f"delivered {self.delivered}, twice {self.doubled}, dead {self.dead}, left {self.left}, "
                f"still open {self.still_open}; {self.seconds:.0f} s; the machine stood still for {self.still_ms} ms",
            )
        )
