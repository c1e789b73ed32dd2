"""How far a partition's tables are folded: one marker for each topic, in the batch of the record it speaks of.

Owns the markers' bytes and what follows from them: the log time and the turn of the next record. A record at or below
its topic's marker has been folded, whatever offset the group committed.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ankusa.store.database import Database
from schemas.records import Topic, encode

_PREFIX = b"marker/"
_END = b"marker0"


class Marker(Struct, frozen=True, array_like=True, gc=False):
    """The last record folded of a topic: its offset, its log time (unix ms), its turn among all topics' records, and
    the owner's epoch that held when it was folded."""

    offset: int
    at: int
    turn: int
    epoch: int = 0


decode_marker = msgspec.msgpack.Decoder(Marker).decode
encode_marker = encode
_NONE = Marker(-1, 0, 0)


def marker_key(topic: Topic) -> bytes:
    """A marker's key in the family `meta`."""
    return _PREFIX + bytes((topic,))


def is_marker_key(key: bytes) -> bool:
    return key.startswith(_PREFIX)


def check_marker(key: bytes, value: bytes) -> None:
    """Raises ValueError, or one of `records.DecodeError`, where an entry is no marker of a topic that is known."""
    if key[:-1] != _PREFIX:
        raise ValueError("no marker's key")
    Topic(key[-1])
    decode_marker(value)


class Markers:
    """The markers of one partition. Raises one of `records.DecodeError` on bytes that are no marker."""

    def __init__(self, database: Database) -> None:
        self._by_topic: dict[Topic, Marker] = {
            Topic(key[-1]): decode_marker(value) for key, value in database.items("meta", _PREFIX, _END)
        }
        self.last = max(self._by_topic.values(), key=lambda marker: marker.turn, default=_NONE)

    def offset(self, topic: Topic) -> int:
        """The offset of the last record folded of `topic`, -1 when none is."""
        return self._by_topic.get(topic, _NONE).offset

    def following(self, topic: Topic, offset: int, timestamp_ms: int) -> Marker:
        """The marker of the next record. A topic's log time never runs backwards, whatever clock gave the timestamp;
        that of another topic is nothing to it, or when a row is due would hang on which was read first."""
        before, last = self._by_topic.get(topic, _NONE), self.last
        assert offset > before.offset
        return Marker(offset, max(timestamp_ms, before.at), last.turn + 1, last.epoch)

    @property
    def at(self) -> int:
        """The log time of the latest record of any topic, unix ms."""
        return max((marker.at for marker in self._by_topic.values()), default=0)

    def folded(self, topic: Topic, marker: Marker) -> None:
        """The record of `marker` is in the store."""
        self._by_topic[topic] = self.last = marker
