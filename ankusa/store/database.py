"""One RocksDB: opened with its families, written by batches, read by key and by bounded range, made durable by a sync.

Owns the handles and their closing. Never knows what a row or a record is. Writes run on the caller's thread and
are not durable; `flush` (meant for a thread of its own, since it alone releases the GIL) makes all of them so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from rocksdict import (
    BlockBasedOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from ankusa.store.errors import StoreDamagedError, StoreError, StoreFormatError, StoreLockedError
from ankusa.store.keys import prefix_end
from ankusa.store.memory import MEMTABLES_BYTES, StoreMemory

Batch = WriteBatch


class Target(Protocol):
    """What keys are written to: a batch, or what writes down beside it what goes into one."""

    def put(self, key: bytes, value: bytes, column_family: Any, /) -> None: ...
    def delete(self, key: bytes, column_family: Any, /) -> None: ...


BLOB_BYTES = 4096
"""Hooks at least this large live in blob files, so that compaction does not copy bodies again and again."""

DELETION_WINDOW, DELETION_TRIGGER = 1024, 512
"""A file of the due family with this many deletions in a row of that many entries is compacted: settled entries must
not make a long-drained index slow to enter."""


class Database:
    """An open database. Not for use after `close`; every method raises StoreError when RocksDB refuses."""

    def __init__(
        self,
        path: Path,
        families: Sequence[str],
        *,
        blobs: str,
        churning: Sequence[str],
        memory: StoreMemory | None = None,
    ) -> None:
        """Open `path`, making it and missing families. `blobs` is the family with large values, `churning` those
        whose entries are deleted soon after they are written, `memory` what it may take (None: what one alone may).

        Raises a kind of StoreError that names the directory and the way out.
        """
        self.path = path
        memory = memory or StoreMemory.alone()
        options = {name: _family_options(memory, blobs=name == blobs, churning=name in churning) for name in families}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(path), options=_database_options(memory), column_families=options)
        except Exception as error:
            raise _open_error(path, error) from error
        self._families = {name: self._db.get_column_family(name) for name in families}
        self.handles: dict[str, Any] = {name: self._db.get_column_family_handle(name) for name in families}
        try:
            self._look_at_tables()
        except Exception as error:
            self.close()
            raise _open_error(path, error) from error

    def _look_at_tables(self) -> None:
        """Open the newest tables of every family: RocksDB looks at some of its files alone as it opens, whichever come
        first, and a rotten one would be met by whoever reads it. Walks no entry; raises what RocksDB does."""
        for family in self._families.values():
            bounds = _below(_LAST)
            place = family.iter(bounds)
            place.seek(_LAST)
            place.status()

    def batch(self) -> Batch:
        return WriteBatch(raw_mode=True)

    def write(self, batch: Batch) -> None:
        """Apply a batch whole. Visible at once, durable after the next `flush`."""
        try:
            self._db.write(batch)
        except Exception as error:
            _refuse(self.path, error)

    def flush(self) -> None:
        """Make everything written so far durable (fsync of the WAL)."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            _refuse(self.path, error)

    def get(self, family: str, key: bytes) -> bytes | None:
        rocks = self._family(family)
        try:
            value: bytes | None = rocks.get(key)
        except Exception as error:
            _refuse(self.path, error)
        return value

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        rocks = self._family(family)
        try:
            values: Any = rocks.get(keys)  # type: ignore[arg-type]
        except Exception as error:
            _refuse(self.path, error)
        return list(values)

    # Scans go by RdictIter: rocksdict's own `keys` and `items` end at a block that cannot be read as they do at the end
    # of the range, and what lies behind it would be taken for gone. `status` tells the two apart.

    def keys(self, family: str, start: bytes, end: bytes) -> Iterator[bytes]:
        """Keys in [start, end), in order. Close it or let it go before the database closes."""
        with _refusals(self.path):
            bounds = _below(end)
            place = self._family(family).iter(bounds)
            place.seek(start)
            while place.valid():
                yield place.key()
                place.next()
            place.status()

    def items(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """`(key, value)` in [start, end), in order."""
        with _refusals(self.path):
            bounds = _below(end)
            place = self._family(family).iter(bounds)
            place.seek(start)
            while place.valid():
                yield place.key(), place.value()
                place.next()
            place.status()

    def items_back(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """`(key, value)` in [start, end), greatest first."""
        with _refusals(self.path):
            bounds = _below(end)
            place = self._family(family).iter(bounds)
            place.seek_to_last()
            while place.valid() and (key := place.key()) >= start:
                yield key, place.value()
                place.prev()
            place.status()

    def first_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        """The least key in [start, end)."""
        iterator = self.keys(family, start, end)
        key = next(iterator, None)
        iterator.close()  # type: ignore[attr-defined]
        return key

    def last_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        """The greatest key in [start, end)."""
        iterator = self.items_back(family, start, end)
        item = next(iterator, None)
        iterator.close()  # type: ignore[attr-defined]
        return item[0] if item else None

    def present(self, family: str, prefixes: Sequence[bytes]) -> set[bytes]:
        """Those of `prefixes` (ascending) that some key of the family begins with: one seek for each that is there, and
        one for each gap, so that settled entries between them are walked once and not once a prefix."""
        found: set[bytes] = set()
        if not prefixes:
            return found
        with _refusals(self.path):
            bounds = _below(prefix_end(prefixes[-1]))
            place = self._family(family).iter(bounds)
            key = b""
            for prefix in prefixes:
                if key < prefix:
                    place.seek(prefix)
                    if not place.valid():
                        break
                    key = place.key()
                if key.startswith(prefix):
                    found.add(prefix)
            place.status()
        return found

    def _family(self, name: str) -> Rdict:
        """The handle of a family. Raises StoreError on a closed database, as one that is being recovered is."""
        family = self._families.get(name)
        if family is None:
            raise StoreError(f"{self.path} is closed")
        return family

    def size_bytes(self) -> int:
        """What the live table and blob files take on disk, an estimate that costs nothing."""
        total = 0
        for family in self._families.values():
            for name in ("rocksdb.live-sst-files-size", "rocksdb.live-blob-file-size"):
                total += family.property_int_value(name) or 0
        return total

    def background(self) -> dict[str, int]:
        """What RocksDB does or has to do beside us, by kind: flushes and compactions, running and pending."""
        names = ("num-running-flushes", "mem-table-flush-pending", "num-running-compactions", "compaction-pending")
        return {
            name: max(
                (family.property_int_value(f"rocksdb.{name}") or 0 for family in self._families.values()), default=0
            )
            for name in names
        }

    def close(self) -> None:
        """Release every handle, then the lock (a handle that is still alive would keep it). Idempotent."""
        self._families.clear()
        self.handles.clear()
        with contextlib.suppress(Exception):  # closing a store that already failed has nothing more to tell
            self._db.close()


def _database_options(memory: StoreMemory) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # A torn last record (a crash in the middle of a write) is dropped; any other damage refuses to open.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_max_total_wal_size(memory.wal_bytes)
    if memory.buffers is None:
        options.set_db_write_buffer_size(MEMTABLES_BYTES)
    else:
        options.set_write_buffer_manager(memory.buffers)
    options.set_max_background_jobs(2)
    options.set_max_open_files(memory.open_files)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 << 20)
    options.set_bytes_per_sync(1 << 20)
    return options


def _family_options(memory: StoreMemory, *, blobs: bool, churning: bool) -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(memory.memtable_bytes * (2 if blobs else 1))
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    if blobs:
        options.set_enable_blob_files(True)
        options.set_min_blob_size(BLOB_BYTES)
        options.set_blob_compression_type(DBCompressionType.lz4())
        options.set_enable_blob_gc(True)
    if churning:
        options.add_compact_on_deletion_collector_factory(DELETION_WINDOW, DELETION_TRIGGER, 0.5)
    return options


_LAST = b"\xff" * 32
"""Behind every key."""


def _below(end: bytes) -> ReadOptions:
    """An iterator's upper bound; the caller keeps it as long as the iterator, which reads its bytes in place. There is
    no lower bound: rocksdict 0.3.29 sets the upper one in its stead."""
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(end)
    return bounds


def _refuse(path: Path, error: Exception) -> NoReturn:
    """RocksDB's errors have no type of their own: everything it raises becomes a StoreError with its words. What no
    store raises, a mistake of ours, stays what it is."""
    if isinstance(error, StoreError | AttributeError | TypeError):
        raise error
    raise StoreError(f"{path}: {error}") from error


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """`_refuse` around a scan; for a single read it would cost as much as the read."""
    try:
        yield
    except Exception as error:
        _refuse(path, error)


def _open_error(path: Path, error: Exception) -> StoreError:
    text = str(error)
    if "lock" in text.lower() and ("LOCK" in text or "No locks available" in text):
        return StoreLockedError(
            f"{path} is open in another process; stop that one, or give this node its own node.data_dir"
        )
    if "families not opened" in text:
        return StoreFormatError(
            f"{path} was written by a newer release ({text}); run that one, or give this node an empty node.data_dir"
        )
    if "Corruption" in text or "corruption" in text:
        return StoreDamagedError(
            f"{path} is damaged and was not opened ({text}); restore it from a backup, or move it away to start empty"
        )
    return StoreError(f"{path} cannot be opened: {text}")
