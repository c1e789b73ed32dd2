"""The bytes of a pack: a head that says where each body is, and the bodies one after the other.

Owns the format. The head comes first, so one short read finds a body, and a pack needs no table to be read. Never
reads or writes a store.

| bytes | |
|---|---|
| 8 | `ANKPACK1` |
| 4 | count of bodies |
| 8 each | where each body ends, from the start of the pack |
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

MAGIC = b"ANKPACK1"
_HEAD = struct.Struct(">8sI")
_END = struct.Struct(">Q")


class PackError(Exception):
    """Bytes that are no pack, or a pack that is cut."""


def head(lengths: Sequence[int]) -> bytes:
    """What stands before bodies of these lengths, in bytes."""
    size = head_bytes(len(lengths))
    ends = b"".join(map(_END.pack, (size + end for end in accumulate(lengths))))
    return _HEAD.pack(MAGIC, len(lengths)) + ends


def head_bytes(count: int) -> int:
    """How much to read to find the first `count` bodies."""
    return _HEAD.size + _END.size * count


def place(stored: bytes, position: int) -> tuple[int, int] | None:
    """`(start, length)` of the body at `position`, None when the pack has none there.

    `stored` is the pack's first `head_bytes(position + 1)` bytes, or all of it when that is less. Raises PackError.
    """
    if len(stored) < _HEAD.size:
        raise PackError("shorter than the head of a pack")
    magic, count = _HEAD.unpack_from(stored)
    if magic != MAGIC:
        raise PackError("not a pack")
    if position >= count:
        return None
    if len(stored) < head_bytes(position + 1):
        raise PackError("cut within its head")
    start = _end(stored, position - 1) if position else head_bytes(count)
    end = _end(stored, position)
    if end < start:
        raise PackError("a body ends before it starts")
    return start, end - start


def _end(stored: bytes, position: int) -> int:
    (end,) = _END.unpack_from(stored, head_bytes(position))
    return int(end)
