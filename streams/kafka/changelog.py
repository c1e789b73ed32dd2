"""The changelog of one partition's tables: what of a batch goes into it, and the bytes of its keys.

An entry is a key and its value, None when it is gone. Only what nothing else can tell is an entry: rows, lanes,
breakers, jobs, dedupe keys, references, the pen, limits, ids, history, and how far the fold is. Indexes and counts are
not (they follow from the rows), nor are bodies (the topic `hooks` has them). Ids and history are never changed and
leave together, so those of one record are one entry, a pack, under the record's turn.

| key | value |
|---|---|
| letter of the family (1), key in the family | value in the family |
| `i` or `a`, turn (8) | when it was written (log time), and pairs of key and value, of ids or of attempts |

Owns those bytes; never sends them (`sender.py`), never makes tables of them (`restoring.py`) and never decides when a
pack goes (`history.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ankusa.store import keys
from ankusa.store.database import Batch
from schemas import records

Entry = tuple[bytes, bytes | None]
Pair = tuple[bytes, bytes]

LETTERS: Mapping[str, bytes] = {
    "rows": b"r",
    "lanes": b"l",
    "breakers": b"b",
    "jobs": b"j",
    "dedupe": b"d",
    "checkins": b"c",
    "packs": b"k",
    "pen": b"p",
    "limits": b"t",
    "meta": b"m",
}
"""Families of which each key is an entry. A letter is never given to another family: changelogs outlive releases."""

PACKED: Mapping[str, bytes] = {"ids": b"i", "attempts": b"a"}
"""Families of which what one record wrote is one entry."""

FAMILY_OF = {letter: family for family, letter in (*LETTERS.items(), *PACKED.items())}


class Pack(Struct, frozen=True, array_like=True):
    """What one record wrote of ids, or of attempts, at `at` (log time, unix ms)."""

    at: int
    pairs: list[Pair]


decode_pack = msgspec.msgpack.Decoder(Pack).decode
decode_entries = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode
encode_entries = records.encode


class Letters:
    """Which family a handle of one open database is of, as a batch is given them."""

    __slots__ = ("packed", "single")

    def __init__(self, handles: Mapping[str, Any]) -> None:
        """The database keeps its handles alive as long as it is open, so their identities are theirs alone."""
        self.single = {id(handles[family]): letter for family, letter in LETTERS.items()}
        self.packed = {id(handles[family]): letter for family, letter in PACKED.items()}


class Recorder:
    """Fills a batch, and writes down the entries of what goes into it. The last of a key is its entry."""

    __slots__ = ("_batch", "_dropped", "_entries", "_letters", "packs")

    def __init__(self, batch: Batch, letters: Letters) -> None:
        self._batch = batch
        self._letters = letters
        self._entries: dict[bytes, bytes | None] = {}
        self._dropped: list[bytes] = []
        self.packs: dict[bytes, list[Pair]] = {}
        """What was written of ids and attempts, by letter."""

    def put(self, key: bytes, value: bytes, column_family: Any, /) -> None:
        self._batch.put(key, value, column_family)
        family = id(column_family)
        letter = self._letters.single.get(family)
        if letter is not None:
            self._entries[letter + key] = value
        elif (letter := self._letters.packed.get(family)) is not None:
            self.packs.setdefault(letter, []).append((key, value))

    def delete(self, key: bytes, column_family: Any, /) -> None:
        self._batch.delete(key, column_family)
        letter = self._letters.single.get(id(column_family))
        if letter is not None:
            self._entries[letter + key] = None

    def drop_pack(self, pack_key: bytes) -> None:
        """The pack of another record is gone from the changelog; its keys are for the caller to delete."""
        self._dropped.append(pack_key)

    def entries(self, turn: int, at: int) -> list[Entry]:
        """What was written so far. `turn` and `at` are the record's. Packs that are gone come first: what they held and
        stays is in a pack behind."""
        gone: list[Entry] = [(pack_key, None) for pack_key in self._dropped]
        packs = [(letter + keys.u64(turn), records.encode(Pack(at, pairs))) for letter, pairs in self.packs.items()]
        return [*gone, *packs, *self._entries.items()]
