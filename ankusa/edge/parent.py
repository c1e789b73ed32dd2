"""Ending with the process that started this one: an edge without its supervisor would hold the port for ever.

Owns the two ways to notice: the kernel's signal on Linux, and asking who the parent is everywhere.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
POLL_S = 1.0


def signal_on_parent_death(number: int = signal.SIGTERM) -> None:
    """Have the kernel send `number` when the thread that started this process ends. Does nothing but on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


async def parent_gone(parent: int) -> None:
    """Return when `parent` (a process id) is no longer the parent. Covers what died before the signal was set."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing tells us but asking
        await asyncio.sleep(POLL_S)
