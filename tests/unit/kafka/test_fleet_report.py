"""How the pauses of a partition after an event are counted."""

from __future__ import annotations

from math import inf

import pytest

from tests.kafka.fleet_report import Event, Pauses, pauses_of

EVENT = Event("something", at=9_000, back_at=10_000, until=60_000)


def every(step_ms: int, first: int, last: int) -> list[int]:
    return list(range(first, last + 1, step_ms))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (every(500, 0, 60_000), Pauses(0.0, 0.5, 0.0)),
        (every(500, 0, 10_000) + every(500, 22_000, 60_000), Pauses(12.0, 12.0, 12.0)),
        # A short pause late is no long one: what counts is how long nothing came.
        (every(500, 0, 44_000) + every(500, 46_000, 60_000), Pauses(2.0, 2.0, 36.0)),
        # One that goes on and pauses again pays for both.
        (every(500, 0, 10_000) + every(500, 30_000, 35_000) + every(500, 55_000, 60_000), Pauses(40.0, 20.0, 45.0)),
        # What was silent at the end of the watch was not back.
        (every(500, 0, 50_000), Pauses(10.0, 10.0, 50.0)),
        (every(500, 0, 9_500), Pauses(inf, 50.0, inf)),
    ],
)
def test_pauses(times: list[int], expected: Pauses) -> None:
    assert pauses_of(times, EVENT) == expected
