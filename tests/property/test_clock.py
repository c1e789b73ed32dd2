"""The steady clock under any wall clock: never backwards, never standing still, level with a wall that is ahead."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

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


LEADS = st.lists(st.tuples(st.integers(0, 5000), st.integers(-7_200_000, 7_200_000)), max_size=40)


@given(st.integers(10**7, 10**13), LEADS)
def test_it_is_never_before_a_record_never_backwards_and_never_slower_than_half_the_wall_that_is_behind(
    wall_ms: int, records: list[tuple[int, int]]
) -> None:
    walls = Walls(wall_ms)
    clock = SteadyClock(0, lambda: walls.wall_ms, lambda: walls.seconds)
    last = clock()
    latest = 0
    for passed_ms, ahead_ms in records:
        walls.pass_ms(passed_ms)
        at = walls.wall_ms + ahead_ms
        now = clock()
        assert now >= max(last, walls.wall_ms)
        assert now == walls.wall_ms or now >= last + (passed_ms - 3) // 2
        assert clock.reached(at) is (at > now)
        last, latest = clock(), max(latest, at)
        assert latest <= last <= max(now, at) + 1  # half milliseconds are rounded


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(-5000, 0)), max_size=40))
def test_where_no_record_is_ahead_it_is_the_wall(records: list[tuple[int, int]]) -> None:
    walls = Walls(10_000_000)
    clock = SteadyClock(0, lambda: walls.wall_ms, lambda: walls.seconds)
    for passed_ms, behind_ms in records:
        walls.pass_ms(passed_ms)
        clock.reached(walls.wall_ms + behind_ms)
        assert clock() == walls.wall_ms


@given(st.integers(1, 3_600_000))
def test_the_wall_catches_up_with_a_record_that_was_ahead(ahead_ms: int) -> None:
    walls = Walls(10_000_000)
    clock = SteadyClock(0, lambda: walls.wall_ms, lambda: walls.seconds)
    clock.reached(walls.wall_ms + ahead_ms)
    for _ in range(4):
        walls.pass_ms(ahead_ms // 4)
        clock()
    assert abs(clock() - walls.wall_ms - ahead_ms // 2) <= 8
    for _ in range(4):
        walls.pass_ms(ahead_ms // 4 + 4)
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


def test_ids_are_told_apart_over_the_blocks_they_are_drawn_from() -> None:
    ids = {uuid7(1) for _ in range(5000)}
    assert len(ids) == 5000
    digits = [set(column) for column in zip(*ids, strict=True)]
    random_places = [*range(15, 18), *range(20, 23), *range(24, 36)]
    assert all(len(digits[place]) == 16 for place in random_places)
    assert digits[19] == set("89ab")


def test_threads_draw_ids_at_once() -> None:
    together = threading.Barrier(4)

    def draw(at_ms: int) -> list[str]:
        together.wait()
        return [uuid7(at_ms + number % 3) for number in range(4000)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(draw, (10, 20, 30, 40)))
    finally:
        sys.setswitchinterval(before)
    assert len({one for ids in found for one in ids}) == 16_000
    for at_ms, ids in zip((10, 20, 30, 40), found, strict=True):
        times = [int(one.replace("-", "")[:12], 16) for one in ids]
        assert times == [at_ms + number % 3 for number in range(4000)]


FORKED = """
import os
from ankusa.clock import uuid7
uuid7(1)
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, "".join(uuid7(1) for _ in range(20)).encode())
    os._exit(0)
own = "".join(uuid7(1) for _ in range(20))
os.wait()
other = os.read(reading, 100_000).decode()
split = lambda text: {text[at : at + 36] for at in range(0, len(text), 36)}
assert len(split(own)) == len(split(other)) == 20
print(len(split(own) & split(other)))
"""


def test_a_forked_process_draws_ids_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "0"
