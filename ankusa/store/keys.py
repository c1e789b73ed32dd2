"""The bytes of every key. Numbers are big-endian, so that byte order is the order of the numbers.

| family | key | value |
|---|---|---|
| `log` | topic (1), offset (8) | log time (8), record |
| `hooks` | seq (8) | framed envelope and body |
| `ids` | hook id | seq (8) |
| `rows` | seq (8), sink (2) | row |
| `due` | class (1), tenant, 0, due_at (8), seq (8), sink (2) | - |
| `dead` | died_at (8), seq (8), sink (2) | - |
| `attempts` | seq (8), sink (2), generation (4) | attempt |
| `dedupe` | tenant, 0, source, 0, key | expires_at (8), hook id |
| `expiry` | expires_at (8), dedupe key | - |
| `jobs` | job id | job |
| `breakers` | sink key | breaker |
| `lanes` | lane | lane |
| `members` | lane, 0, place (8), seq (8) | - |
| `checkins` | seq (8) | position (2), pack |
| `packs` | pack | check-in |
| `pen` | received_at (8), hook id | framed envelope and body |
| `limits` | tenant | limit |
| `sources` | source id | its last change |
| `routes` | route id, or `/ip-rules` | its last change |
| `counts` | sink key | counts |
| `meta` | name | value |
"""

from __future__ import annotations

import struct

_U64 = struct.Struct(">Q")
_ROW = struct.Struct(">QH")
_DUE_TAIL = struct.Struct(">QQH")
_ATTEMPT = struct.Struct(">QHI")
_MEMBER = struct.Struct(">QQ")
_LOG = struct.Struct(">BQ")

DUE_TAIL_BYTES = _DUE_TAIL.size
LIVE, REPLAYED = 0, 1
"""The class of a due row: live traffic, or put back by a replay. Two ranges, so that neither hides the other."""

u64 = _U64.pack
row_key = _ROW.pack
split_row_key = _ROW.unpack
dead_key = _DUE_TAIL.pack
split_dead_key = _DUE_TAIL.unpack
attempt_key = _ATTEMPT.pack


def read_u64(value: bytes) -> int:
    (number,) = _U64.unpack_from(value)
    return int(number)


def log_key(topic: int, offset: int) -> bytes:
    return _LOG.pack(topic, offset)


def log_offset(key: bytes) -> int:
    return int(_LOG.unpack(key)[1])


def due_prefix(row_class: int, tenant_id: str) -> bytes:
    return bytes((row_class,)) + tenant_id.encode() + b"\0"


def due_key(row_class: int, tenant_id: str, due_at: int, seq: int, sink: int) -> bytes:
    return due_prefix(row_class, tenant_id) + _DUE_TAIL.pack(due_at, seq, sink)


def split_due_key(key: bytes) -> tuple[int, int, int]:
    """`(due_at, seq, sink)` of a due key."""
    due_at, seq, sink = _DUE_TAIL.unpack_from(key, len(key) - DUE_TAIL_BYTES)
    return due_at, seq, sink


def due_tenant(key: bytes) -> str:
    return key[1 : len(key) - DUE_TAIL_BYTES - 1].decode()


def expiry_key(expires_at: int, dedupe_key: str) -> bytes:
    return _U64.pack(expires_at) + dedupe_key.encode()


def pen_key(received_at: int, hook_id: str) -> bytes:
    return _U64.pack(received_at) + hook_id.encode()


def member_prefix(lane: str) -> bytes:
    return lane.encode() + b"\0"


def member_prefix_of(tenant_id: str, source_id: str) -> bytes:
    """Of the members of all lanes of a source. Names hold no slash."""
    return f"{tenant_id}/{source_id}/".encode()


def member_key(lane: str, place: int, seq: int) -> bytes:
    return member_prefix(lane) + _MEMBER.pack(place, seq)


def split_member_key(key: bytes) -> tuple[int, int]:
    """`(place, seq)` of a member key."""
    place, seq = _MEMBER.unpack_from(key, len(key) - _MEMBER.size)
    return place, seq


def member_lane(key: bytes) -> str:
    return key[: len(key) - _MEMBER.size - 1].decode()


def after(key: bytes) -> bytes:
    """The least key greater than `key`."""
    return key + b"\0"


def prefix_end(prefix: bytes) -> bytes:
    """The least key greater than every key with this prefix. The prefix must not be all 0xff."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,))
