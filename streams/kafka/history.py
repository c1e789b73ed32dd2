"""Ids and attempts by the record that wrote them, so that they leave the tables and the changelog together.

The changelog has what one record wrote of them as one entry, a pack. Which keys a pack holds, and when it was written,
is noted in the store (`local/pack/<entry's key>`; a restore notes it again). A record in the outcomes says how old a
pack may be: the oldest before that are taken apart, what is of a hook with a row goes into the pack of that record, and
the rest is gone, with the packs. What goes hangs on ages and rows alone, so any order of folding ends in the same
tables. Owns the notes and that step; never decides when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ankusa.store import keys
from ankusa.store.database import Database, Target
from schemas import records
from streams.kafka.changelog import PACKED, Pair, Recorder

PACKS, MARKS = 256, 2000
"""Taken apart by one record, of each family: no more packs, and none that begins behind so many keys. Some ten
milliseconds, which the fold of a partition stands still."""

PACK_BYTES = 512 << 10
"""What the packs that one record takes apart may hold, but for a single one: what is kept of them is one entry of the
changelog, which takes no more than the largest hook's."""

SEQ_BYTES = 8

_PREFIX = b"local/pack/"


class Note(Struct, frozen=True, array_like=True):
    """When a pack was written (log time, unix ms), and a mark for each key in it, the hook's seq first: the key of an
    attempt, or the seq and the id."""

    at: int
    marks: Sequence[bytes]


_decode = msgspec.msgpack.Decoder(Note).decode


def note(batch: Target, meta: Any, pack_key: bytes, at: int, pairs: Iterable[Pair]) -> None:
    """Into `batch`, what is in the pack under `pack_key`."""
    is_ids = pack_key[:1] == PACKED["ids"]
    marks = [value + key if is_ids else key for key, value in pairs]
    batch.put(_PREFIX + pack_key, records.encode(Note(at, marks)), meta)


def oldest(database: Database, family: str) -> Iterator[tuple[bytes, Note]]:
    """`(key of the changelog, note)` of a family's packs, in the order in which they were written."""
    start = _PREFIX + PACKED[family]
    for key, value in database.items("meta", start, keys.prefix_end(start)):
        yield key[len(_PREFIX) :], _decode(value)


def due(database: Database, before: int) -> bool:
    """Whether a pack is older than `before`."""
    for family in PACKED:
        first = next(oldest(database, family), None)
        if first is not None and first[1].at < before:
            return True
    return False


def expire(database: Database, batch: Target, recorder: Recorder, before: int) -> dict[str, int]:
    """Take apart the oldest packs written before `before`; how many keys of each family are gone. `recorder` fills
    `batch`, which is given too since notes are no entries."""
    return {family: _expire(database, batch, recorder, family, before) for family in PACKED}


def _expire(database: Database, batch: Target, recorder: Recorder, family: str, before: int) -> int:
    meta, handle = database.handles["meta"], database.handles[family]
    there: dict[bytes, Pair] = {}
    marks = size_bytes = 0
    for taken, (pack_key, found) in enumerate(oldest(database, family)):
        if found.at >= before or taken == PACKS or marks >= MARKS:
            break
        held = _there(database, family, found.marks)
        size_bytes += sum(len(key) + len(value) for key, value in held.values())
        if taken and size_bytes > PACK_BYTES:
            break
        marks += len(found.marks)
        there |= held
        recorder.drop_pack(pack_key)
        batch.delete(_PREFIX + pack_key, meta)
    kept = database.present("rows", sorted({mark[:SEQ_BYTES] for mark in there}))
    for mark, (key, value) in there.items():
        if mark[:SEQ_BYTES] in kept:
            recorder.put(key, value, handle)
        else:
            recorder.delete(key, handle)
    return sum(mark[:SEQ_BYTES] not in kept for mark in there)


def _there(database: Database, family: str, marks: Sequence[bytes]) -> dict[bytes, Pair]:
    """Key and value of each mark whose key is the pack's own: an id that was written twice is the later pack's."""
    is_ids = family == "ids"
    named = [mark[SEQ_BYTES:] if is_ids else mark for mark in marks]
    found = database.get_many(family, named)
    return {
        mark: (key, value)
        for mark, key, value in zip(marks, named, found, strict=True)
        if value is not None and (not is_ids or value == mark[:SEQ_BYTES])
    }


def forget(database: Database, batch: Target, pack_key: bytes, family: str) -> None:
    """Into `batch`, that a pack is gone, as the changelog says. What it held that stays is in an entry behind."""
    stored = database.get("meta", _PREFIX + pack_key)
    if stored is None:
        return
    batch.delete(_PREFIX + pack_key, database.handles["meta"])
    for key, _ in _there(database, family, _decode(stored).marks).values():
        batch.delete(key, database.handles[family])
