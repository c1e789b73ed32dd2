"""One partition's records without a hole: none is folded before all that come before it in its topic.

Faust hands on what it fetched before a rebalance together with what it fetched after, drops what it had no time for,
and takes a jump in the offsets for a hole of the log: it would commit past what nobody has folded. So whoever folds
goes by what was folded: a record beyond the next one is dropped, and read again from there. Compacted topics do have
holes: what may be in one is read by itself (`gap.py`). So it is of another topic where a record comes again as the
first of what was read again: there seems to be none before it. Owns that judgement and how often it is asked for;
reads nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto

from schemas.records import Topic

WHOLE = frozenset((Topic.HOOKS, Topic.OUTCOMES, Topic.QUARANTINE))
"""Topics whose offsets have no holes: they are not compacted, and written without transactions, but by hand."""

COMPACTED = frozenset((Topic.REPLAYS,))
"""Topics that are folded and may have holes."""

AGAIN_S = 5.0
"""What was fetched before a seek may still come after it, and asks for no other seek. A seek that came to nothing is
made again."""


class Asks(Enum):
    """What to do about a record that is missing. NOTHING: it was asked for a moment ago. READ from it on. LOOK: it was
    read for, and the same record came: look whether there is one, then as READ."""

    NOTHING = auto()
    READ = auto()
    LOOK = auto()


class Unbroken:
    """`folded` gives the offset of the last record folded of a topic, -1 for none. `clock` gives seconds."""

    def __init__(self, folded: Callable[[Topic], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._folded = folded
        self._clock = clock
        self._next: dict[Topic, int] = {}
        self._asked: dict[Topic, tuple[int, int, float]] = {}
        self._beyond: dict[Topic, int] = {}
        """The last record that came before its turn."""
        self.watched: set[Topic] = set()
        """Topics of which somebody sees to it that what is missing comes."""

    def missing(self, topic: Topic, offset: int) -> int | None:
        """The offset of the first record that has to come before this one and has not, None when all have."""
        following = self._next.get(topic)
        if following is None:
            following = self._next[topic] = self._folded(topic) + 1
        if offset <= following:
            return None
        self._beyond[topic] = max(offset, self._beyond.get(topic, offset))
        return following

    def waits_for(self, topic: Topic) -> range | None:
        """From the record that has to come next to one that came before its turn, and has to come again; None when
        none has."""
        following, beyond = self._next.get(topic), self._beyond.get(topic, -1)
        return None if following is None or beyond < following else range(following, beyond)

    def taken(self, topic: Topic, offset: int) -> None:
        """A record is folded, or waits for its turn; or all before it are gone."""
        self._next[topic] = max(self._next.get(topic, 0), offset + 1)

    def asks(self, topic: Topic, missing: int, offset: int) -> Asks:
        """What to do about `missing`, now that the record at `offset` has come. What was fetched before a seek comes
        once: its first record a second time is the first of what was fetched after it."""
        asked, at_s = self._asked.get(topic), self._clock()
        again = asked is not None and asked[0] == missing
        if asked is not None and again and offset != asked[1] and at_s - asked[2] < AGAIN_S:
            return Asks.NOTHING
        self._asked[topic] = (missing, offset, at_s)
        return Asks.LOOK if asked is not None and again and offset == asked[1] else Asks.READ
