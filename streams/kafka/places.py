"""Where a record is in the fleet, as one number: its partition and its offset, and so the seqs of its hooks.

The core counts a log by offsets and makes a seq of an offset and an index (`schemas.records.seq_of`). On Kafka every
partition counts its own, so what the core is given is `partition << 40 | offset`: a seq then holds the partition in its
highest 12 bits, is unique in the fleet, and sorts by commit within its partition. Owns those bits and nothing else.
"""

from __future__ import annotations

from schemas.records import INDEX_BITS, seq_of

OFFSET_BITS = 40
"""An offset of Kafka: 2^40 records in one partition, three years at 10,000 records a second in it."""

PARTITION_BITS = 64 - OFFSET_BITS - INDEX_BITS
"""What an unsigned 64-bit seq leaves: 12 bits."""

MAX_PARTITIONS = 1 << PARTITION_BITS

_OFFSETS = 1 << OFFSET_BITS
_INDEXES = 1 << INDEX_BITS


def log_offset(partition: int, offset: int) -> int:
    """What the core takes as a record's offset. Raises ValueError past the bits there are: a seq that wraps would be
    that of another hook."""
    if not 0 <= partition < MAX_PARTITIONS:
        raise ValueError(f"partition {partition} is not below {MAX_PARTITIONS}: a topic may not have more")
    if not 0 <= offset < _OFFSETS:
        raise ValueError(f"offset {offset} of partition {partition} is not below {_OFFSETS}: begin a new topic")
    return partition << OFFSET_BITS | offset


def partition_of(seq: int) -> int:
    """The partition that owns a hook, its rows and all that happens to them."""
    return seq >> (OFFSET_BITS + INDEX_BITS)


def offset_of(seq: int) -> int:
    """The offset of a hook's commit in its partition of the topic `hooks`."""
    return seq >> INDEX_BITS & (_OFFSETS - 1)


def index_of(seq: int) -> int:
    """A hook's place in its commit."""
    return seq & (_INDEXES - 1)


def first_seq(partition: int) -> int:
    """The least seq of a partition."""
    return seq_of(log_offset(partition, 0), 0)
