"""Tables of changelog entries again: a partition's store brought up to the end of its changelog.

A store that was kept is read on from where its last transaction ended. What it holds beyond the changelog is its own to
send, unless somebody else owned the partition meanwhile and went on from less: then the two have parted, and the store
is emptied and restored from the beginning. Compaction never moves where a changelog begins, so one that begins behind
offset 0 was cut, and one whose first entry is not its first owner's was made again under an owner who wrote on: whoever
needs what is gone is refused, and no store is emptied for it. Nor is one of a changelog that was made again: it may be
the last copy. Owns those decisions and how entries become operations; reads no topic.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ankusa.core import ops as operations
from ankusa.store import keys
from ankusa.store.database import Batch
from ankusa.store.errors import StoreDamagedError, StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import DecodeError, Row
from streams.kafka import history
from streams.kafka.changelog import FAMILY_OF, PACKED, Entry, decode_pack
from streams.kafka.marker import Marker, Markers, check_marker, decode_marker, is_marker_key

log = logging.getLogger("ankusa.kafka")

OWNER = b"o"
"""An owner's entry: this letter, the turn it went on from (8), its name. It stays in the changelog for ever, one of
some forty bytes for each time that the partition changed hands."""

PACK_KEY_BYTES = 8

_STATE = b"local/changelog"

DAY_MS = 86_400_000
SEE = '(see "A changelog that was cut" in docs/kafka.md)'

STALE_MS = 6 * DAY_MS
"""The changelog keeps tombstones for seven days (`topics.TOMBSTONE_KEEP_MS`): a store that was away for nearly as long
is not read on."""


class ChangelogState(Struct, frozen=True, array_like=True):
    """What a store knows of its changelog: the offset to read on from, the turn up to which the changelog has
    everything, the owner who wrote the tables last, when this was so (unix ms), and the id of its topic, empty where
    brokers gave none. The store's own word: entries may have been copied from a topic of another id."""

    offset: int = 0
    turn: int = 0
    owner: str = ""
    at: int = 0
    topic_id: str = ""


class UnreadableChangelogError(StoreError):
    """An entry that this release cannot read: guessing would lose rows."""


class CutChangelogError(StoreError):
    """What a store needs of its changelog is gone: restored from the rest it would lack rows, or bring some back."""


class Changelog(NamedTuple):
    """A partition's changelog as the brokers tell of it: its name, the offset of its first entry, and its topic's id,
    None where it has none."""

    name: str
    begins: int = 0
    id: str | None = None


_decode_state = msgspec.msgpack.Decoder(ChangelogState).decode


def read_state(tables: Tables) -> ChangelogState:
    stored = tables.database.get("meta", _STATE)
    return ChangelogState() if stored is None else _decode_state(stored)


def put_state(tables: Tables, batch: Batch, state: ChangelogState) -> None:
    """Into `batch`, with what makes it true. It says nothing about the fold, so no entry is made of it."""
    batch.put(_STATE, records.encode(state), tables.database.handles["meta"])


def owner_entry(turn: int, owner: str) -> Entry:
    """Says that `owner` goes on from `turn`: the first entry of its first transaction."""
    return OWNER + keys.u64(turn) + owner.encode(), b""


UNCUT = Changelog("changelog")
"""One that begins where it must."""


def is_first_owner(key: bytes) -> bool:
    """Whether a key is that of the entry with which a changelog begins: compaction keeps it, since no other has it."""
    return key.startswith(OWNER + keys.u64(0))


class Restore:
    """One partition's restore. Give `take` the changelog from `start` on, then `finish`. For any thread, one at a
    time; nobody else may have the store open."""

    def __init__(
        self, path: Path, open_tables: Callable[[Path], Tables], at: int, changelog: Changelog = UNCUT
    ) -> None:
        """`at` is now, unix ms. Raises StoreError when the store cannot be opened, or not be restored from `changelog`.
        One that is damaged, or was away for so long that it may have missed what was deleted, is emptied: the changelog
        has it all."""
        self._path = path
        self._at = at
        self._open_tables = open_tables
        self._changelog = changelog
        self.applied = 0
        try:
            self.tables = open_tables(path)
        except StoreDamagedError as error:
            self._need(0, "is damaged")
            log.error("event=store_emptied path=%s reason=%s", path, error)
            shutil.rmtree(path)
            self.tables = open_tables(path)
        try:
            self._begin()
            self._check()
        except BaseException:
            self.tables.close()
            raise

    def _check(self) -> None:
        """Raises StoreError where the changelog is another one, or lacks what the store needs."""
        name, _, found = self._changelog
        known = self._state.topic_id
        if known and found not in (None, known):
            raise StoreError(f"{name} was made again: its id is {found}, and {self._path} is a store of {known} {SEE}")
        if self._state.offset > 0 and (away_ms := self._at - self._state.at) > STALE_MS:
            self.empty(f"was away for {away_ms // DAY_MS} days")
        self._need(self._next, "was kept" if self._next else "is empty")

    def _need(self, offset: int, state: str) -> None:
        """Raises CutChangelogError where what is at `offset` and behind it is not all there; `state` says why the store
        needs it."""
        if offset < self._changelog.begins:
            raise CutChangelogError(
                f"{self._changelog.name} begins at offset {self._changelog.begins}, and {self._path}, which {state}, "
                f"has to read it from {offset} on: entries were cut from it {SEE}"
            )

    def _begin(self) -> None:
        self._state = read_state(self.tables)
        self._turn = Markers(self.tables.database).last.turn
        self._sent_turn = self._state.turn
        self._next = self._state.offset
        self._whole = self._next > 0  # then its beginning was read before
        # Entries that may be what the tables hold already, until it is clear that the changelog has more.
        self._held_back: list[Entry] | None = []

    @property
    def start(self) -> int:
        """The offset to read from."""
        return self._next

    def take(self, entries: Sequence[tuple[bytes, bytes | None]], following: int) -> bool:
        """The next entries; `following` is the offset after them. False when the store had to be emptied: read again
        from `start`. Raises StoreError, UnreadableChangelogError among them."""
        if self._next == 0 and entries:
            self._whole = is_first_owner(entries[0][0])
        for key, value in entries:
            if key[:1] == OWNER and value is not None and self._parted(key):
                self.empty("has parted from it")
                return False
            if key[:1] == b"m" and is_marker_key(key[1:]) and value is not None:
                self._sent_turn = max(self._sent_turn, _marker(value).turn)
        if self._held_back is not None:
            self._held_back.extend(entries)
            if not self._behind():
                self._next = following
                return True
            entries, self._held_back = self._held_back, None
        self._apply(dict(entries), following)
        return True

    def _parted(self, key: bytes) -> bool:
        """Whether the entry says that another owner went on from less than these tables hold."""
        try:
            owner, went_on_from = key[9:].decode(), keys.read_u64(key[1:])
        except DecodeError as error:
            raise UnreadableChangelogError(f"an owner's entry cannot be decoded: {error}") from error
        if owner == self._state.owner:
            return False
        if went_on_from < self._turn and self._held_back is not None:
            log.warning("event=store_parted path=%s turn=%d went_on_from=%d", self._path, self._turn, went_on_from)
            return True
        return False

    def _behind(self) -> bool:
        """Whether the changelog has more than the tables."""
        return self._sent_turn > self._turn or (self._turn == 0 and bool(self._held_back))

    def _apply(self, entries: Mapping[bytes, bytes | None], following: int) -> None:
        batch = self.tables.database.batch()
        applied = self.tables.apply(batch, put_entries(self.tables, batch, entries))
        if not self._whole:
            raise CutChangelogError(f"{self._changelog.name} does not begin with its first owner: it was cut {SEE}")
        self._state = self._read_to(following, self._state.owner)
        put_state(self.tables, batch, self._state)
        self.tables.database.write(batch)
        applied.written()
        applied.announce()
        self._next = following
        self.applied += len(entries)

    def _read_to(self, following: int, owner: str) -> ChangelogState:
        topic_id = self._changelog.id or self._state.topic_id
        return ChangelogState(following, self._sent_turn, owner, self._at, topic_id)

    def out_of_range(self, begins: int) -> None:
        """There is no entry at `start`: the changelog, which begins at `begins`, was cut meanwhile, or brokers have
        lost its end. What was in that is made of the topics again. Raises CutChangelogError."""
        self._changelog = self._changelog._replace(begins=begins)
        self._need(self._next, "is being restored")
        self.empty("has more than it")

    def empty(self, state: str) -> None:
        """Throw the store away, which `state` says why, and begin again. Raises CutChangelogError where there is
        nothing to begin from."""
        self._need(0, state)
        log.warning("event=store_emptied path=%s reason=it %s", self._path, state)
        self.tables.close()
        shutil.rmtree(self._path)
        self.tables = self._open_tables(self._path)
        self._begin()

    def finish(self, owner: str) -> Tables:
        """The changelog was read to its end: `owner` goes on from here. Records that the tables hold and the changelog
        does not are left as unsent."""
        batch = self.tables.database.batch()
        put_state(self.tables, batch, self._read_to(self._next, owner))
        for key in self.tables.database.keys("log", b"", keys.u64(self._sent_turn + 1)):
            batch.delete(key, self.tables.database.handles["log"])
        self.tables.database.write(batch)
        return self.tables


def _marker(value: bytes) -> Marker:
    try:
        return decode_marker(value)
    except DecodeError as error:
        raise UnreadableChangelogError(f"a marker of the changelog cannot be decoded: {error}") from error


def put_entries(tables: Tables, batch: Batch, entries: Mapping[bytes, bytes | None]) -> list[operations.Op]:
    """Entries as operations, where indexes or counts follow from them; a mere key goes into `batch` as it is."""
    by_family: dict[str, list[Entry]] = {}
    for key, value in entries.items():
        if key[:1] == OWNER:
            continue
        family = FAMILY_OF.get(key[:1])
        if family is None and value is None:
            continue  # whatever it was, it is gone
        if family is None:
            raise UnreadableChangelogError(
                f"the changelog holds {key[:1]!r} entries: a newer release wrote it, and has to read it"
            )
        by_family.setdefault(family, []).append((key[1:], value))
    ops: list[operations.Op] = []
    for family, found in by_family.items():
        try:
            if family in _OPERATIONS:
                was = tables.database.get_many(family, [key for key, _ in found])
                for (key, value), before in zip(found, was, strict=True):
                    if value is None and before is None:
                        continue
                    ops.extend(_OPERATIONS[family](key, value, before))
            else:
                _put_plain(tables, batch, family, found)
        except (*DecodeError, ValueError) as error:
            raise UnreadableChangelogError(f"an entry of {family} cannot be decoded: {error}") from error
    return ops


def _put_plain(tables: Tables, batch: Batch, family: str, found: Sequence[Entry]) -> None:
    handle = tables.database.handles[family]
    if family in PACKED:
        _put_packs(tables, batch, family, found)
        return
    for key, value in found:
        if value is None:
            batch.delete(key, handle)
        else:
            if family in _READ:
                _READ[family](value)
            if family == "meta" and is_marker_key(key):
                check_marker(key, value)
            batch.put(key, value, handle)


def _put_packs(tables: Tables, batch: Batch, family: str, found: Sequence[Entry]) -> None:
    """Those that are gone first: what they held and stays is in a pack behind."""
    database, letter = tables.database, PACKED[family]
    for key, value in found:
        if value is None:
            history.forget(database, batch, letter + key, family)
    for key, value in found:
        if value is not None:
            pack = decode_pack(value)
            if len(key) != PACK_KEY_BYTES:
                raise ValueError("a pack under a key that is no turn")
            for packed_key, packed in pack.pairs:
                batch.put(packed_key, packed, database.handles[family])
            history.note(batch, database.handles["meta"], letter + key, pack.at, pack.pairs)


def _row(key: bytes, value: bytes | None, before: bytes | None) -> list[operations.Op]:
    seq, sink = keys.split_row_key(key)
    was: Row | None = None if before is None else records.decode_row(before)
    row = None if value is None else records.decode_row(value)
    return [operations.PutRow(seq, sink, row, was)]


def _lane(key: bytes, value: bytes | None, before: bytes | None) -> list[operations.Op]:
    lane = None if value is None else records.decode_lane(value)
    was = None if before is None else records.decode_lane(before)
    return [operations.PutLane(key.decode(), lane, was)]


def _dedupe(key: bytes, value: bytes | None, before: bytes | None) -> list[operations.Op]:
    name = key.decode()
    if value is None:
        return [operations.DropDedupe(name, keys.read_u64(before or b""))]
    was = None if before is None else keys.read_u64(before)
    return [operations.PutDedupe(name, value[8:].decode(), keys.read_u64(value), was)]


def _held(key: bytes, value: bytes | None, before: bytes | None) -> list[operations.Op]:
    if value is None:
        size_bytes = sum(len(part) for part in records.unframe_hook(before or b""))
        return [operations.DropHeld(keys.read_u64(key), key[8:].decode(), size_bytes)]
    if before is not None:
        return []  # a held hook never changes, and is counted
    envelope, body = records.unframe_hook(value)
    return [operations.PutHeld(records.decode_held(envelope), envelope, body)]


_READ: Mapping[str, Callable[[bytes], object]] = {
    "jobs": records.decode_job,
    "breakers": records.decode_breaker,
    "packs": records.decode_check_in,
    "limits": records.decode_limit_change,
}
"""What is rare, and would be found to be unreadable when it is too late to say so."""

_OPERATIONS: Mapping[str, Callable[[bytes, bytes | None, bytes | None], list[operations.Op]]] = {
    "rows": _row,
    "lanes": _lane,
    "dedupe": _dedupe,
    "pen": _held,
}
