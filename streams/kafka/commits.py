"""Commits being filled: hooks of one partition that become one record, the append they are of, and its partitions.

Owns how many hooks a commit takes, the answers of an append and what it asks of each partition. It sends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from schemas.append import Answer, AnswerStatus, Submission
from schemas.records import Held
from streams.kafka.partitioning import Spread, partition_of_key
from streams.kafka.topics import COMMIT_BYTES

COMMIT_HOOKS = 256

COMMIT_ROWS = 25_600
"""Delivery rows of a commit's hooks: a worker folds a record in one go, these in an eighth of a second of a core, and
its loop waits. So 256 hooks of up to a hundred sinks go together; of a thousand, 25. A hook of more goes alone."""

RETRY_AFTER_MS = 1000


def unavailable(reason: str) -> Answer:
    return Answer(AnswerStatus.STORE_UNAVAILABLE, retry_after_ms=RETRY_AFTER_MS, reason=reason)


class Commit:
    """Hooks of one partition, on their way to being one record. `places` are theirs in the append."""

    __slots__ = ("entries", "key", "partition", "places", "rows", "size_bytes", "topic")

    def __init__(self, topic: str, partition: int, key: bytes | None) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key
        self.entries: list[tuple[bytes, bytes]] = []
        self.places: list[int] = []
        self.size_bytes = 0
        self.rows = 0

    def takes(self, size_bytes: int, rows: int) -> bool:
        """Whether another hook fits, which has so many rows. The first always does."""
        fits = self.size_bytes + size_bytes <= COMMIT_BYTES and self.rows + rows <= COMMIT_ROWS
        return not self.entries or (fits and len(self.entries) < COMMIT_HOOKS)

    def add(self, place: int, entry: bytes, body: bytes, rows: int) -> None:
        self.rows += rows
        self.entries.append((entry, body))
        self.places.append(place)
        self.size_bytes += len(entry) + len(body)


class Append:
    """One append: its answers as they come, how many commits are on their way, and why one was refused, if one was."""

    __slots__ = ("answers", "done", "left", "refused", "submissions")

    def __init__(self, submissions: Sequence[Submission], done: asyncio.Future[None]) -> None:
        self.submissions = submissions
        self.answers: list[Answer | None] = [None] * len(submissions)
        self.left = 0
        self.refused: str | None = None
        self.done = done

    def settle(self, commit: Commit, reason: str | None) -> None:
        """Answer the hooks of a commit: stored, or refused for `reason`."""
        self.refused = self.refused or reason
        refused = None if reason is None else unavailable(reason)
        for place in commit.places:
            entry = self.submissions[place].entry
            stored = AnswerStatus.QUARANTINED if isinstance(entry, Held) else AnswerStatus.ACCEPTED
            self.answers[place] = refused or Answer(stored, entry.id)


class Places:
    """The partitions of one append: what may go anywhere goes to one, and each is asked once whether it answers."""

    def __init__(self, spread: Spread, partitions: int, admits: Callable[[str, int], bool]) -> None:
        """`admits` says of a topic and a partition whether a record may be sent there now."""
        self._spread = spread
        self._partitions = partitions
        self._admits = admits
        self._asked: dict[tuple[str, int], bool] = {}
        self._anywhere: int | None = None
        self._turned = False

    def find(self, topic: str, key: str | None) -> int | None:
        """The partition of a hook, None when it does not answer, or none does."""
        if key is None:
            if not self._turned:
                self._turned = True
                usable = (number for number in range(self._partitions) if self._may(topic, number))
                self._anywhere = self._spread.turn(usable)
            return self._anywhere
        partition = partition_of_key(key, self._partitions)
        return partition if self._may(topic, partition) else None

    def _may(self, topic: str, partition: int) -> bool:
        found = self._asked.get((topic, partition))
        if found is None:
            found = self._asked[topic, partition] = self._admits(topic, partition)
        return found
