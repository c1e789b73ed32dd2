"""The steady clock under any wall clock: never backwards, never standing still, level with a wall that is ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ankusa.clock import SteadyClock, uuid7


class Walls:
    """A wall clock that steps and a monotonic one that does not."""

    def __init__(self, wall_ms: int) -> None:
        self.wall_ms = wall_ms
        self.seconds = 100.0

    def pass_ms(self, ms: float) -> None:
        self.wall_ms += int(ms)
        self.seconds += ms / 1000


STEPS = st.lists(st.tuples(st.integers(0, 5000), st.integers(-10_000_000, 10_000_000)), max_size=40)


@given(st.integers(0, 10**13), st.integers(0, 10**13), STEPS)
def test_it_never_runs_backwards_and_never_behind_the_wall(
    floor_ms: int, wall_ms: int, steps: list[tuple[int, int]]
) -> None:
    walls = Walls(wall_ms)
    clock = SteadyClock(floor_ms, lambda: walls.wall_ms, lambda: walls.seconds)
    last = clock()
    assert last >= floor_ms
    for passed_ms, stepped_ms in steps:
        walls.pass_ms(passed_ms)
        walls.wall_ms = max(0, walls.wall_ms + stepped_ms)
        now = clock()
        assert now >= last
        assert now >= walls.wall_ms
        last = now


@given(st.integers(1, 50), st.integers(60_000, 3_600_000))
def test_behind_a_stepped_wall_it_goes_on_at_half_speed_however_often_it_is_read(every_ms: int, back_ms: int) -> None:
    walls = Walls(10_000_000)
    clock = SteadyClock(0, lambda: walls.wall_ms, lambda: walls.seconds)
    began = clock()
    walls.wall_ms -= back_ms
    passed_ms = 0
    while passed_ms < 10_000:
        walls.pass_ms(every_ms)
        passed_ms += every_ms
        clock()
    assert abs(clock() - began - passed_ms // 2) <= 2


@given(st.integers(1, 600_000))
def test_the_wall_catches_up(back_ms: int) -> None:
    walls = Walls(10_000_000)
    clock = SteadyClock(0, lambda: walls.wall_ms, lambda: walls.seconds)
    clock()
    walls.wall_ms -= back_ms
    for _ in range(2 * back_ms // 1000 + 2):
        walls.pass_ms(1000)
        clock()
    assert clock() == walls.wall_ms


@given(st.integers(0, 2**48 - 1))
def test_ids_are_version_7_and_carry_their_time(at_ms: int) -> None:
    text = uuid7(at_ms)
    assert len(text) == 36
    assert text[14] == "7"
    assert text[19] in "89ab"
    assert int(text.replace("-", "")[:12], 16) == at_ms
    assert uuid7(at_ms) != text
