"""A worker whose wall clock is an hour behind everybody else's: `python -m tests.kafka.late_worker --config FILE`."""

from __future__ import annotations

import time
from collections.abc import Callable

from streams.kafka.process import begin
from streams.kafka.worker import leave
from streams.kafka.worker_process import _run

BEHIND_NS = 3_600 * 10**9


def _behind(read: Callable[[], int]) -> Callable[[], int]:
    return lambda: read() - BEHIND_NS


if __name__ == "__main__":
    time.time_ns = _behind(time.time_ns)  # what `ankusa.clock` reads, and nothing else of the worker
    leave(begin("worker", _run))
