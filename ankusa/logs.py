"""Logging set up once per process: one line an event on stderr, logfmt-like, bounded in rate.

Modules log `event=name key=value`; this adds time, level and process. A message that repeats is let through at most
`BURST` times in `WINDOW_S` seconds per place in the code, then counted, so that a broken disk or a dead sink cannot
fill one.
"""

from __future__ import annotations

import logging
import sys
import time

BURST = 20
WINDOW_S = 10.0


class RateLimit(logging.Filter):
    """At most BURST records per place in the code in a window; the next window's first says how many were dropped.

    Deliveries of the `log` sink are what the user asked to see, and pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "ankusa.sink.log":
            return True
        place = (record.pathname, record.lineno)
        now = time.monotonic()
        began, count = self._seen.get(place, (now, 0))
        if now - began > WINDOW_S:
            if count > BURST:
                record.msg = f"{record.msg} dropped_before={count - BURST}"
            began, count = now, 0
        self._seen[place] = (began, count + 1)
        return count < BURST


def set_up(level: str, process: str) -> None:
    """Send every logger of the process to stderr at `level`, lines marked with `process`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(
            f"%(asctime)s.%(msecs)03dZ level=%(levelname)s process={process} logger=%(name)s %(message)s",
            "%Y-%m-%dT%H:%M:%S",
        )
    )
    assert handler.formatter is not None
    handler.formatter.converter = time.gmtime
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
