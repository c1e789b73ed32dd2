"""The wire between an edge and its engine: length-prefixed frames on a Unix socket.

A frame is length (4 bytes, of what follows), kind (1), request id (4) and payload. Both ends are of one release and
one machine; the first frame of each connection says the version all the same, so that a mixed restart is refused
with words instead of being misread.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

from schemas.append import Submission
from schemas.records import Held, decode_envelope, decode_held, encode

VERSION = 2

MAX_FRAME_BYTES = 1 << 30
"""256 hooks of 64 MB would be more; the edge's batcher bounds a batch by bytes long before this refuses it."""

HEAD = struct.Struct(">IBI")
_APPEND = struct.Struct(">QBH")
_ITEM = struct.Struct(">BII")


class Kind(IntEnum):
    HELLO = 1
    APPEND = 2
    ANSWERS = 3
    PROBE = 4
    PROBED = 5
    UPDATE = 6
    TAKEN = 7


def frame(kind: Kind, request_id: int, *payload: bytes) -> bytes:
    size = sum(map(len, payload)) + HEAD.size - 4
    return b"".join((HEAD.pack(size, kind, request_id), *payload))


def append_payload(submissions: Sequence[Submission], deadline_at: int, *, again: bool) -> bytes:
    """`deadline_at` (unix ms), whether it was sent before, count, then each submission framed with its kind."""
    parts = [_APPEND.pack(deadline_at, again, len(submissions))]
    for submission in submissions:
        entry = encode(submission.entry)
        parts.append(_ITEM.pack(isinstance(submission.entry, Held), len(entry), len(submission.body)))
        parts.append(entry)
        parts.append(submission.body)
    return b"".join(parts)


def read_append(payload: bytes) -> tuple[int, bool, list[tuple[Submission, bytes]]]:
    """`(deadline_at, again, [(submission, its entry's bytes)])`. Raises one of `records.DecodeError`."""
    deadline_at, again, count = _APPEND.unpack_from(payload)
    place = _APPEND.size
    found: list[tuple[Submission, bytes]] = []
    for _ in range(count):
        held, entry_length, body_length = _ITEM.unpack_from(payload, place)
        place += _ITEM.size
        body_at = place + entry_length
        end = body_at + body_length
        if end > len(payload):
            raise struct.error("an append shorter than it says")
        entry = payload[place:body_at]
        decoded = decode_held(entry) if held else decode_envelope(entry)
        found.append((Submission(decoded, payload[body_at:end]), entry))
        place = end
    return deadline_at, bool(again), found
