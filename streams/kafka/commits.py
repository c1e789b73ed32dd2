"""Commits being filled: hooks of one partition that become one record, and the partitions of one append.

Owns how many hooks a commit takes and what an append asks of each partition. It sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from streams.kafka.partitioning import Spread, partition_of_key
from streams.kafka.topics import COMMIT_BYTES

COMMIT_HOOKS = 256


class Commit:
    """Hooks of one partition, on their way to being one record. `places` are theirs in the append."""

    __slots__ = ("entries", "key", "partition", "places", "size_bytes", "topic")

    def __init__(self, topic: str, partition: int, key: bytes | None) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key
        self.entries: list[tuple[bytes, bytes]] = []
        self.places: list[int] = []
        self.size_bytes = 0

    def takes(self, size_bytes: int) -> bool:
        """Whether another hook fits. The first always does."""
        fits = self.size_bytes + size_bytes <= COMMIT_BYTES
        return not self.entries or (fits and len(self.entries) < COMMIT_HOOKS)

    def add(self, place: int, entry: bytes, body: bytes) -> None:
        self.entries.append((entry, body))
        self.places.append(place)
        self.size_bytes += len(entry) + len(body)


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
