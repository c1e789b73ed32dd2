"""How fast replays go: a token bucket per job, and the share of one tick that each running job gets (spec 05).

Owns the arithmetic of a tick. Never reads an entry, never looks at the clock: times come in as `at` (unix ms).
Counts thousandths of an item in integers, so that a rate is kept exactly however long a job runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct

TICK_MS = 200
"""One tick of the replayer: a changed rate shows within it, and five a second are no load."""

TICK_ITEMS = 2_000
"""The most items a job moves in one tick, so 10,000 a second whatever its rate says."""

TICK_ENTRIES = 20_000
"""The most index entries a job scans in one tick, so that a filter that matches nothing is paced too."""

NODE_ITEMS = TICK_ITEMS
NODE_ENTRIES = TICK_ENTRIES
"""What all running jobs of a node may do in one tick: one job's most. More jobs are no more load: a node delivers
fewer than 10,000 a second, and moving an item costs about 40 µs of its event loop, scanning one 2 to 8."""

PAGE_ITEMS = 125
PAGE_ENTRIES = 500
"""One page, between two turns of the event loop: about 5 ms, the most that a live hook waits behind it. 125 items are
also what each of sixteen jobs gets of a node's tick."""

SPEED_LIMIT = TICK_ITEMS * 1000 // TICK_MS
"""Items a second that no job exceeds."""

_MILLI = 1000


class Pace(Struct, frozen=True, gc=False):
    """A job's tokens: `milli` thousandths of an item at `at`."""

    milli: int
    at: int


def refill(pace: Pace | None, rate: int, at: int) -> Pace:
    """The tokens at `at` for `rate` items a second. A job new here starts with one tick's.

    It holds at most one tick's tokens and at least one item's, beside the fraction of an item it carries: unused
    tokens make no burst, and 7 a second are 7, not the 5 that whole items a tick would give. A clock that steps back
    gives nothing and takes nothing.
    """
    tick_milli = min(TICK_ITEMS * _MILLI, max(_MILLI, rate * TICK_MS))
    if pace is None:
        return Pace(tick_milli, at)
    gained = max(0, at - pace.at) * rate
    return Pace(min(pace.milli + gained, tick_milli + pace.milli % _MILLI), at)


def items(pace: Pace) -> int:
    """Whole items that may move now, at most `TICK_ITEMS`."""
    return min(TICK_ITEMS, pace.milli // _MILLI)


def spend(pace: Pace, count: int) -> Pace:
    """The tokens left after `count` items, at most `items(pace)`, have moved."""
    return Pace(pace.milli - count * _MILLI, pace.at)


class Grant(Struct, frozen=True, gc=False):
    """One page for one job: at most so many items and scanned entries. `first` is the job's first in this tick."""

    job_id: str
    items: int
    entries: int
    first: bool


class Round:
    """One tick: pages go round the running jobs until each has had its due or the node's budget is used up."""

    def __init__(self, due: Iterable[tuple[str, int]]) -> None:
        """`due` is `(job id, items it may move)`, in the order of their turn."""
        self._waiting: deque[str] = deque()
        self._items: dict[str, int] = {}
        self._entries: dict[str, int] = {}
        self._node_items = NODE_ITEMS
        self._node_entries = NODE_ENTRIES
        for job_id, count in due:
            if count > 0:
                self._waiting.append(job_id)
                self._items[job_id] = count

    def next(self) -> Grant | None:
        """The next page, None when the tick is over."""
        if not self._waiting or self._node_items <= 0 or self._node_entries <= 0:
            return None
        job_id = self._waiting.popleft()
        left = self._entries.get(job_id)
        return Grant(
            job_id,
            min(PAGE_ITEMS, self._items[job_id], self._node_items),
            min(PAGE_ENTRIES, TICK_ENTRIES if left is None else left, self._node_entries),
            first=left is None,
        )

    def used(self, grant: Grant, count: int, scanned: int, *, more: bool) -> None:
        """What came of a page. `more` is False when the job has no further page in this tick."""
        job_id = grant.job_id
        self._node_items -= count
        self._node_entries -= scanned
        self._items[job_id] -= count
        self._entries[job_id] = self._entries.get(job_id, TICK_ENTRIES) - scanned
        if more and self._items[job_id] > 0 and self._entries[job_id] > 0:
            self._waiting.append(job_id)


def in_turn(job_ids: list[str], tick: int) -> list[str]:
    """The jobs with another one first in every tick, so that an early job does not starve later ones."""
    if not job_ids:
        return []
    start = tick % len(job_ids)
    return job_ids[start:] + job_ids[:start]
