"""The blob store on local files: one directory a tenant, one file a pack, in threads of its own.

A pack is written beside its place, fsynced and renamed into it, so it is there whole or not at all. A mark in the
root tells a pack that is gone from a file system that is: with the mark missing nothing is answered and nothing is
written. Owns the layout; never knows what is in a pack.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ankusa.claim_check.blobs import BlobError
from ankusa.claim_check.reference import is_pack, is_tenant

RESERVE_BYTES = 64 << 20
"""Free space that no pack may take: the log on the same disk needs it to settle what it holds."""

WRITERS, READERS = 2, 4
"""Threads. Apart, and not the loop's own: readers that hang must not keep a body from being checked in, nor either of
them the node's health from being probed."""

_LISTED = 1000
"""Names read in one go: a directory of a million packs must not hold a reader for a second."""

_MARK = ".ankusa-claim-check"
_PART = ".part"

T = TypeVar("T")


class LocalBlobs:
    """Implements `ankusa.claim_check.blobs.BlobStore` in `root`, which is made when it is missing."""

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        """`shared`: other nodes store there too. Raises BlobError when the directory cannot be had."""
        self._root = root
        self._shared = shared
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / _MARK).touch(0o600)
        except OSError as error:
            raise _refusal(root, error) from error
        self._writers = ThreadPoolExecutor(WRITERS, "claim-check-write")
        self._readers = ThreadPoolExecutor(READERS, "claim-check-read")

    async def put(self, tenant_id: str, pack: str, parts: Sequence[bytes]) -> None:
        given_up = threading.Event()
        try:
            await self._run(self._writers, lambda: self._put(self._path(tenant_id, pack), parts, given_up))
        except asyncio.CancelledError:
            given_up.set()  # the thread goes on; what it wrote must not stay for nobody
            raise

    async def read(self, tenant_id: str, pack: str, start: int, length: int) -> bytes | None:
        return await self._run(self._readers, lambda: self._read(self._path(tenant_id, pack), start, length))

    async def delete(self, tenant_id: str, pack: str) -> None:
        await self._run(self._writers, lambda: self._delete(self._path(tenant_id, pack)))

    async def older(self, pack: str) -> AsyncIterator[tuple[str, str]]:
        for tenant_id in () if self._shared else await self._run(self._readers, self._tenants):
            names = self._names(tenant_id)
            while page := await self._run(self._readers, partial(_next, names)):
                for name in page:
                    if name < pack and is_pack(name):
                        yield tenant_id, name

    async def close(self) -> None:
        for threads in (self._writers, self._readers):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except OSError as error:
            raise _refusal(self._root, error) from error
        except RuntimeError as error:  # its threads have been shut down
            raise BlobError(f"{self._root} is closed") from error

    def _path(self, tenant_id: str, pack: str) -> Path:
        """The only place where a path is made of a name. Raises ValueError for what is no name of ours."""
        if not is_tenant(tenant_id) or not is_pack(pack):
            raise ValueError("not the name of a pack")
        return self._root / tenant_id / pack

    def _check_mark(self) -> None:
        if not (self._root / _MARK).exists():
            raise BlobError(f"{self._root} is not the claim check's directory: is its file system mounted?")

    # -- in a thread ----------------------------------------------------------

    def _put(self, path: Path, parts: Sequence[bytes], given_up: threading.Event) -> None:
        self._check_mark()
        free = shutil.disk_usage(self._root).free
        if free < RESERVE_BYTES + sum(map(len, parts)):
            raise BlobError(f"disk full: {free >> 20} MiB free at {self._root}, {RESERVE_BYTES >> 20} are kept")
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _sync(self._root)
        part = path.with_name(path.name + _PART)
        try:
            with open(part, "xb", opener=_private) as file:
                for piece in parts:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            if given_up.is_set():
                part.unlink()
                return
            part.rename(path)
            _sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise

    def _read(self, path: Path, start: int, length: int) -> bytes | None:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._check_mark()
            return None
        try:
            return os.pread(descriptor, length, start)
        finally:
            os.close(descriptor)

    def _delete(self, path: Path) -> None:
        for found in (path, path.with_name(path.name + _PART)):
            found.unlink(missing_ok=True)

    def _tenants(self) -> list[str]:
        self._check_mark()
        return [entry.name for entry in self._root.iterdir() if is_tenant(entry.name)]

    def _names(self, tenant_id: str) -> Iterator[str]:
        with os.scandir(self._root / tenant_id) as entries:
            for entry in entries:
                yield entry.name.removesuffix(_PART)


def _next(names: Iterator[str]) -> list[str]:
    return list(itertools.islice(names, _LISTED))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refusal(root: Path, error: OSError) -> BlobError:
    return BlobError(f"{root}: {error.strerror or type(error).__name__}")
