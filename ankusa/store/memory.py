"""What one store may take of memory, files and WAL; and, where a process has many stores, all of them together.

Owns the numbers and what is shared between stores. A store of its own has the defaults; stores that share have one
block cache and one bound on write buffers, however many there are.
"""

from __future__ import annotations

from msgspec import Struct
from rocksdict import Cache, WriteBufferManager

BLOCK_CACHE_BYTES = 64 << 20

MEMTABLES_BYTES = 96 << 20
"""All write buffers together: past it the largest is flushed. It bounds memory, and what a restart must replay."""

MEMTABLE_BYTES = 16 << 20
"""A family's write buffer. Twenty families could reach more, so the sum is capped above."""

SHARED_MEMTABLE_BYTES = 4 << 20
"""A family's write buffer where many stores share the cap: one busy partition must not flush the rest all the time."""

WAL_BYTES = 256 << 20
"""The WAL is kept until every family that wrote to it is flushed: past this the oldest are flushed."""

LEAST_WAL_BYTES = 32 << 20

RECENT_BYTES = 32 << 20
"""Hooks just stored stay in memory up to this much: most are delivered at once, and a read and decode is saved."""

LEAST_RECENT_BYTES = 1 << 20
OPEN_FILES = 512
LEAST_OPEN_FILES = 64


class StoreMemory(Struct, frozen=True):
    """The bounds of a store. `buffers` is the cap on write buffers that it shares, None when it has one of its own."""

    cache: Cache
    buffers: WriteBufferManager | None = None
    memtable_bytes: int = MEMTABLE_BYTES
    wal_bytes: int = WAL_BYTES
    recent_bytes: int = RECENT_BYTES
    open_files: int = OPEN_FILES

    @classmethod
    def alone(cls) -> StoreMemory:
        """For the one store of a process."""
        return cls(Cache(BLOCK_CACHE_BYTES))

    @classmethod
    def shared(cls, stores: int) -> StoreMemory:
        """For each of up to `stores` stores: give all of them this one."""
        return cls(
            Cache(BLOCK_CACHE_BYTES),
            WriteBufferManager(MEMTABLES_BYTES, False),
            SHARED_MEMTABLE_BYTES,
            max(LEAST_WAL_BYTES, WAL_BYTES // stores),
            max(LEAST_RECENT_BYTES, RECENT_BYTES // stores),
            max(LEAST_OPEN_FILES, 8 * OPEN_FILES // stores),
        )
