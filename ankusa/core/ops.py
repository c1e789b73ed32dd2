"""Operations: what a fold answers and a host writes. Values only; `ankusa/store/batch.py` knows their keys' bytes."""

from __future__ import annotations

from msgspec import Struct

from ankusa.core.set_up import DropRecord, PutEntry
from schemas.records import Attempt, Breaker, CheckIn, Held, Job, Lane, LimitChange, Row


class PutHook(Struct, frozen=True, gc=False):
    seq: int
    hook_id: str
    envelope: bytes
    body: bytes


class DropHook(Struct, frozen=True, gc=False):
    seq: int
    hook_id: str


class PutRow(Struct, frozen=True, gc=False):
    """Store `row` and move its index entry from where `was` had it; `row` None drops it."""

    seq: int
    sink: int
    row: Row | None
    was: Row | None


class PutAttempt(Struct, frozen=True, gc=False):
    seq: int
    sink: int
    generation: int
    attempt: Attempt


class PutDedupe(Struct, frozen=True, gc=False):
    key: str
    hook_id: str
    expires_at: int
    was_expires_at: int | None


class DropDedupe(Struct, frozen=True, gc=False):
    key: str
    expires_at: int


class PutJob(Struct, frozen=True):
    job: Job


class DropJob(Struct, frozen=True, gc=False):
    job_id: str


class PutLane(Struct, frozen=True, gc=False):
    """A lane as it is now and as it was; None has no rows."""

    key: str
    lane: Lane | None
    was: Lane | None


class PutBreaker(Struct, frozen=True, gc=False):
    """Store a sink key's breaker; a closed one without failures needs no entry."""

    key: str
    breaker: Breaker


class PutCheckIn(Struct, frozen=True, gc=False):
    """The body of hook `seq` is in the blob store, at `position` of `pack`."""

    seq: int
    pack: str
    position: int


class PutPack(Struct, frozen=True, gc=False):
    """A pack holds the bodies of these hooks."""

    check_in: CheckIn


class DropPack(Struct, frozen=True, gc=False):
    """A pack is known no longer."""

    pack: str


class DropCheckIn(Struct, frozen=True, gc=False):
    """Where the body of hook `seq` is, is known no longer."""

    seq: int


class PutHeld(Struct, frozen=True, gc=False):
    held: Held
    envelope: bytes
    body: bytes


class DropHeld(Struct, frozen=True, gc=False):
    received_at: int
    hook_id: str
    size_bytes: int


class PutLimit(Struct, frozen=True, gc=False):
    change: LimitChange


Op = (
    PutBreaker
    | PutLane
    | PutHook
    | DropHook
    | PutRow
    | PutAttempt
    | PutDedupe
    | DropDedupe
    | PutJob
    | DropJob
    | PutCheckIn
    | PutPack
    | DropCheckIn
    | DropPack
    | PutHeld
    | DropHeld
    | PutLimit
    | PutEntry
    | DropRecord
)


def stored_bytes(op: PutHeld) -> int:
    """What a held hook counts against the pen's cap: envelope and body."""
    return len(op.envelope) + len(op.body)
