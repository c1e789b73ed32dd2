"""The one place that reads the clock, draws randomness and makes ids. Everything else is handed them.

`now_ms` is wall time in integer unix milliseconds: the time that is stored and compared across restarts.
Nothing that is stored uses the monotonic clock.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - the one drawing place
import time
from collections.abc import Callable


def now_ms() -> int:
    """Wall time, integer unix milliseconds."""
    return time.time_ns() // 1_000_000


def jitter() -> float:
    """A draw uniform in [0, 1), for the retry policy."""
    return random.random()  # noqa: S311 - spreads load, protects nothing


def unguessable() -> int:
    """64 random bits that nobody can guess."""
    return int.from_bytes(os.urandom(8), "big")


def uuid7(at_ms: int) -> str:
    """A UUIDv7 (RFC 9562 section 5.7) in its canonical form: 48 bits of `at_ms`, 74 random bits. Safe in any thread."""
    global _prefix
    prefix = _prefix
    if prefix[0] != at_ms:
        time_hex = f"{at_ms & 0xFFFF_FFFF_FFFF:012x}"
        prefix = _prefix = (at_ms, f"{time_hex[:8]}-{time_hex[8:]}-7")
    try:
        drawn = _draws.pop()
    except IndexError:
        drawn = _draw()
    return f"{prefix[1]}{drawn[:3]}-{_VARIANT[drawn[3]]}{drawn[4:7]}-{drawn[7:]}"


_prefix = (-1, "")
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""The hex digit that carries the variant's two bits, by a random one."""

_DRAW_DIGITS = 19
_DRAWS = 512

_draws: list[str] = []
"""19 random hex digits each. A draw is taken out with one step that no other thread comes between."""


def _draw() -> str:
    """One draw, and others for the ids to come, asked of the system by the block: a system call for each id is a tenth
    of what an edge does for a hook."""
    block = os.urandom(_DRAW_DIGITS * _DRAWS // 2).hex()
    drawn, *others = (block[place : place + _DRAW_DIGITS] for place in range(0, len(block), _DRAW_DIGITS))
    _draws.extend(others)
    return drawn


# A child that is forked off would draw what its parent draws.
os.register_at_fork(after_in_child=_draws.clear)


class SteadyClock:
    """Wall time that never runs backwards and never stands still: what the log and the dispatcher go by.

    When the wall clock steps back, or the log has `reached` a later time, this one goes on from where it was at half
    speed until the wall has caught up, so that due times stay comparable and rows keep coming due, and no lead stays
    that nothing keeps up. A step forward is followed at once.
    """

    def __init__(
        self, floor_ms: int, wall: Callable[[], int] = now_ms, monotonic: Callable[[], float] = time.monotonic
    ):
        """`floor_ms` is the last time that was handed out before a restart; `monotonic` is in seconds."""
        self._wall = wall
        self._monotonic = monotonic
        self._last_ms = floor_ms
        self._read_at = monotonic()

    def __call__(self) -> int:
        """Unix ms, never less than the last answer."""
        wall, read_at = self._wall(), self._monotonic()
        if wall >= self._last_ms:
            self._last_ms, self._read_at = wall, read_at
            return wall
        gained_ms = int((read_at - self._read_at) * 500)
        if gained_ms > 0:
            self._last_ms += gained_ms
            self._read_at += gained_ms / 500  # what was too little for a millisecond counts for the next
        return self._last_ms

    def reached(self, at_ms: int) -> bool:
        """A record has the time `at_ms`, by whatever clock: no answer is less from now on. Whether it was later than
        this clock."""
        later = at_ms > self._last_ms and at_ms > self()
        if later:
            self._last_ms = at_ms
        return later
