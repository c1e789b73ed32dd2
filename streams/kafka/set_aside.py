"""Records that no fold can read: set aside in the tables, counted, and nothing waits for them.

What is kept names the record and why; the record itself stays in its topic for as long as that keeps it. Those of
topics that are followed, not folded, are named in the log and counted. Owns the entries and their bound; never decides
what cannot be read.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct

from ankusa.store import keys
from ankusa.store.database import Database, Target
from schemas.records import Topic, encode

log = logging.getLogger("ankusa.kafka")

KEPT = 100
"""The newest are kept by name, a few kilobytes in all; the number of the last one counts them all."""

REASON_CHARS = 300
"""Of an error's words: enough to know it by, whatever bytes it quotes."""

_PREFIX = b"aside/"
_END = b"aside0"


class SetAside(Struct, frozen=True, array_like=True):
    """A record that could not be folded, or a part of one: where it is, when it came (log time, unix ms), and why."""

    topic: Topic
    offset: int
    at: int
    reason: str


_decode = msgspec.msgpack.Decoder(SetAside).decode


class SetAsides:
    """Those of one partition. `count` is how many there were."""

    def __init__(self, database: Database) -> None:
        self._database = database
        last = database.last_key("meta", _PREFIX, _END)
        self.count = 0 if last is None else keys.read_u64(last[len(_PREFIX) :])

    def put(self, batch: Target, asides: list[SetAside]) -> None:
        """Put more into `batch`; `added` once it is written."""
        meta = self._database.handles["meta"]
        for number, aside in enumerate(asides, self.count + 1):
            batch.put(_PREFIX + keys.u64(number), encode(aside), meta)
            if number > KEPT:
                batch.delete(_PREFIX + keys.u64(number - KEPT), meta)

    def added(self, asides: list[SetAside]) -> None:
        self.count += len(asides)

    def kept(self) -> list[SetAside]:
        """The newest, oldest first."""
        return [_decode(value) for _, value in self._database.items("meta", _PREFIX, _END)]


class PassedOver:
    """Records of a topic that is followed and not folded. `count` is how many there were, whoever reads them again."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        # By partition: records are read in order, and again from the beginning.
        self._last: dict[int, int] = {}
        self.count = 0

    def add(self, partition: int, offset: int | None, reason: str) -> None:
        """One that cannot be read; each is told once in a process' life."""
        if offset is None or offset <= self._last.get(partition, -1):
            return
        self._last[partition] = offset
        self.count += 1
        log.error(
            "event=record_set_aside topic=%s partition=%d offset=%d reason=%s", self._topic, partition, offset, reason
        )


def reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARS]
