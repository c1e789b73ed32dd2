"""The one place that reads the clock, draws randomness and makes ids. Everything else is handed them.

`now_ms` is wall time in integer unix milliseconds: the time that is stored and compared across restarts.
Nothing that is stored uses the monotonic clock.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - the one drawing place
import time



def now_ms() -> int:
    """Wall time, integer unix milliseconds."""
    return time.time_ns() // 1_000_000


def jitter() -> float:
    """A draw uniform in [0, 1), for the retry policy."""
    return random.random()  # noqa: S311 - spreads load, protects nothing


def uuid7(at_ms: int) -> str:
    """A UUIDv7 (RFC 9562 section 5.7) in its canonical form: 48 bits of `at_ms`, 74 random bits."""
    raw = int.from_bytes(os.urandom(10), "big")
    value = (at_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (raw >> 68 & 0xFFF) << 64 | 0b10 << 62 | raw & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
