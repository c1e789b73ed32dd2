"""The partition rule: which partition a hook, and with it all that ever happens to its rows, belongs to (spec 08).

A lane is in one partition, or its order is nobody's to keep; so is a dedupe key, or two repeats would not meet. All
else may spread. Pure, and never to be changed for a number of partitions in use: it has to say tomorrow what it said
when a lane's first hook came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from schemas.config import Source
from schemas.records import Envelope, Held


def lanes_agree(source: Source) -> bool:
    """Whether the ordered sinks of a source go by one ordering key. It is the source's configuration that says so, not
    the keys of a hook: these may be alike by chance, and the next hook of the lane would go elsewhere."""
    keys = {sink.ordering_key for sink in source.sinks if sink.ordered}
    return len(keys) <= 1


def routing_key(entry: Envelope | Held, *, agreed: bool) -> str | None:
    """What decides on the partition; None when any will do. `agreed` is `lanes_agree` of the entry's source.

    A held hook goes by its source, so that the pen of a source is in one partition.
    """
    source = f"{entry.tenant_id}/{entry.source_id}"
    if isinstance(entry, Held):
        return source
    ordering = next((key for key in entry.ordering_keys if key is not None), None)
    if ordering is not None:
        return f"{source}/{ordering}" if agreed else source
    return None if entry.dedupe_key is None else f"{source}/{entry.dedupe_key}"


def partition_of_key(key: str, partitions: int) -> int:
    """The partition of a routing key: a hash that nobody's release or platform changes."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


class Spread:
    """Where hooks go that may go anywhere: one partition while a commit is open, the next for the next commit, so that
    commits stay large. `first` is drawn by the caller: edges that start together do not move in step."""

    def __init__(self, partitions: int, first: int) -> None:
        self._partitions = partitions
        self._next = first % partitions

    def turn(self, usable: Iterable[int]) -> int | None:
        """The partition of the commit that is opened now: the next that is usable, None when none is."""
        may = set(usable)
        for step in range(self._partitions):
            partition = (self._next + step) % self._partitions
            if partition in may:
                self._next = (partition + 1) % self._partitions
                return partition
        return None
