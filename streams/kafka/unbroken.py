"""One partition's records without a hole: none is folded before all that come before it in its topic.

Faust hands on what it fetched before a rebalance together with what it fetched after, drops what it had no time for,
and takes a jump in the offsets for a hole of the log: it would commit past what nobody has folded. So whoever folds
goes by what was folded: a record beyond the next one is dropped, and read again from there. Compacted topics do have
holes: what may be in one is read by itself (`gap.py`). Owns that judgement and how often it is asked for; reads
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from schemas.records import Topic

WHOLE = frozenset((Topic.HOOKS, Topic.OUTCOMES, Topic.QUARANTINE))
"""Topics whose offsets have no holes: they are not compacted, and written without transactions."""

COMPACTED = frozenset((Topic.REPLAYS,))
"""Topics that are folded and may have holes."""

AGAIN_S = 5.0
"""What was fetched before a seek may still come after it, and asks for no other seek. A seek that came to nothing is
made again."""


class Unbroken:
    """`folded` gives the offset of the last record folded of a topic, -1 for none. `clock` gives seconds."""

    def __init__(self, folded: Callable[[Topic], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._folded = folded
        self._clock = clock
        self._next: dict[Topic, int] = {}
        self._asked: dict[Topic, tuple[int, float]] = {}

    def missing(self, topic: Topic, offset: int) -> int | None:
        """The offset of the first record that has to come before this one and has not, None when all have."""
        following = self._next.get(topic)
        if following is None:
            following = self._next[topic] = self._folded(topic) + 1
        return following if offset > following else None

    def taken(self, topic: Topic, offset: int) -> None:
        """A record is folded, or waits for its turn; or all before it are gone."""
        self._next[topic] = max(self._next.get(topic, 0), offset + 1)

    def asks(self, topic: Topic, missing: int) -> bool:
        """Whether to read from `missing` on now: not when that was asked for a moment ago."""
        asked = self._asked.get(topic)
        if asked is not None and asked[0] == missing and self._clock() - asked[1] < AGAIN_S:
            return False
        self._asked[topic] = (missing, self._clock())
        return True
