"""The fold: what each record does to the tables (spec 08). The only place that decides it, for every host.

A fold reads through `Tables` and returns operations, values that a host writes in one batch with the record.
It does no I/O of its own, knows no keys' bytes and no clock. A stale outcome or revival, and one that has been folded
already, does nothing: it is recognised by the row's generation. That a whole record (a commit, a page's counters) is
folded once is the host's to see to, by its offset: the embedded one writes a record and its fold in one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from ankusa.core import job as jobs
from ankusa.core import row as rows
from ankusa.core.lane import Lanes
from ankusa.core.ops import (
    DropCheckIn,
    DropDedupe,
    DropHeld,
    DropHook,
    DropJob,
    DropPack,
    Op,
    PutAttempt,
    PutBreaker,
    PutCheckIn,
    PutDedupe,
    PutHeld,
    PutHook,
    PutJob,
    PutLane,
    PutLimit,
    PutPack,
    PutRow,
    stored_bytes,
)
from ankusa.core.set_up import DropRecord, PutEntry
from schemas.records import (
    SOURCE_UNAVAILABLE,
    Attempt,
    Breaker,
    BreakerMove,
    CheckIn,
    Envelope,
    Expiry,
    Held,
    HistoryExpiry,
    Job,
    JobDrop,
    JobRecord,
    JobStart,
    Lane,
    LaneHeal,
    LimitChange,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    OutcomeRecord,
    PackExpiry,
    Page,
    Purge,
    Row,
    RowState,
    Takeover,
    lane_key,
    seq_of,
    sink_key,
)


class Tables(Protocol):
    """What a fold may read."""

    def row(self, seq: int, sink: int) -> Row | None: ...
    def job(self, job_id: str) -> Job | None: ...
    def breaker(self, key: str) -> Breaker | None: ...
    def lane(self, key: str) -> Lane | None: ...
    def members(self, key: str, place: int = 0) -> Iterator[tuple[int, int]]:
        """`(place, seq)` of a lane's members, in order, from `place` on."""

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        """`(pack, position)` of a hook's body in the blob store, None when it was not checked in."""

    def pack(self, pack: str) -> CheckIn | None:
        """The check-in that made a pack, None when it is not known."""

    def dedupe(self, key: str) -> tuple[str, int] | None:
        """`(hook id, expires_at)` of a dedupe key, expired ones included."""


class Accepted(Struct, frozen=True, gc=False):
    """A hook that is new: it has a seq."""

    id: str
    seq: int


class Duplicate(Struct, frozen=True, gc=False):
    """A repeat inside the dedupe TTL: `id` is the first hook's."""

    id: str


def dedupe_scope(envelope: Envelope) -> str | None:
    """The dedupe table's key: tenant, source and the provider's event key; None when the hook claims none."""
    if envelope.dedupe_key is None or envelope.flagged:
        return None
    return f"{envelope.tenant_id}\0{envelope.source_id}\0{envelope.dedupe_key}"


def fold_commit(
    offset: int,
    at: int,
    hooks: Sequence[tuple[Envelope, bytes, bytes] | None],
    tables: Tables,
    turn: int | None = None,
) -> tuple[list[Op], list[Accepted | Duplicate]]:
    """A commit of `(envelope, its bytes, body)`: the operations, and one answer per hook in order.

    A repeat inside the TTL, in the table or earlier in this commit, makes no hook and no row. None is a place whose
    hook is no longer in the log: it keeps the seqs of those after it. `turn` counts the records folded, where it is not
    the offset that does so: the turn in a lane is taken from it, which replayed rows join too.
    """
    turn = offset if turn is None else turn
    ops: list[Op] = []
    answers: list[Accepted | Duplicate] = []
    fresh: dict[str, str] = {}
    lanes = Lanes(tables)
    for index, hook in enumerate(hooks):
        if hook is None:
            continue
        envelope, envelope_bytes, body = hook
        scope = dedupe_scope(envelope)
        if scope is not None:
            first = fresh.get(scope)
            known = tables.dedupe(scope) if first is None else None
            if known is not None and known[1] > at:
                first = known[0]
            if first is not None:
                answers.append(Duplicate(first))
                continue
            fresh[scope] = envelope.id
            ops.append(PutDedupe(scope, envelope.id, at + envelope.dedupe_ttl_ms, known[1] if known else None))
        seq = seq_of(offset, index)
        ops.append(PutHook(seq, envelope.id, envelope_bytes, body))
        size_bytes = len(envelope_bytes) + len(body)
        for sink, sink_type in enumerate(envelope.sinks):
            row = rows.new_row(envelope.tenant_id, envelope.source_id, sink_type, at, size_bytes)
            if envelope.ordering_keys and (key := envelope.ordering_keys[sink]) is not None:
                lane = lane_key(envelope.tenant_id, envelope.source_id, sink, sink_type, key)
                row = lanes.join(replace(row, lane=lane, place=seq_of(turn, index)), seq, at)
            ops.append(PutRow(seq, sink, row, None))
        answers.append(Accepted(envelope.id, seq))
    ops.extend(_lane_ops(lanes))
    return ops, answers


def _lane_ops(lanes: Lanes) -> Iterator[Op]:
    for key, was, lane in lanes.changed():
        yield PutLane(key, lane, was)


def fold_outcomes(record: OutcomeRecord, turn: int, at: int, tables: Tables) -> list[Op]:
    """Outcomes, a replay page, a healing, a check-in or what is past its time. `turn` counts the records folded; `at`
    is the record's log time, which never runs backwards and which death times take."""
    if isinstance(record, Page):
        return _fold_page(record, turn, at, tables)
    if isinstance(record, LaneHeal):
        return _fold_heal(record, at, tables)
    if isinstance(record, CheckIn):
        return _fold_check_in(record, tables)
    if isinstance(record, Expiry):
        return _fold_expiry(record, tables)
    if isinstance(record, PackExpiry):
        return _fold_pack_expiry(record, tables)
    if isinstance(record, Takeover | HistoryExpiry):
        return []  # the host's to judge: it knows offsets, and which record wrote what
    return _fold_batch(record, at, tables)


def _fold_batch(record: OutcomeBatch, at: int, tables: Tables) -> list[Op]:
    ops: list[Op] = []
    done: dict[tuple[int, int], Row | None] = {}
    counts: dict[str, jobs.Settled] = {}
    lanes = Lanes(tables)
    for outcome in record.items:
        place = (outcome.seq, outcome.sink)
        row = done[place] if place in done else tables.row(*place)
        if row is None or row.generation != outcome.generation or not _applies(row, outcome):
            continue
        after = rows.settle(row, outcome, at)
        done[place] = after
        ops.append(PutRow(outcome.seq, outcome.sink, after, row))
        traceless = outcome.kind is OutcomeKind.PARKED and outcome.detail == SOURCE_UNAVAILABLE
        if not traceless:
            ops.append(PutAttempt(outcome.seq, outcome.sink, outcome.generation, _attempt(row, outcome)))
        if row.lane is not None and (after is None or after.state is RowState.DEAD):
            promotion = lanes.leave(row, outcome.seq, outcome.sink, at)
            if promotion is not None:
                seq, member, head = promotion
                done[seq, outcome.sink] = head
                ops.append(PutRow(seq, outcome.sink, head, member))
        if row.replay_id is not None and not traceless:
            _count(counts.setdefault(row.replay_id, jobs.Settled()), row, outcome)
    ops.extend(_lane_ops(lanes))
    ops.extend(_fold_breakers(record.breakers, tables))
    for job_id, settled in counts.items():
        job = tables.job(job_id)
        if job is not None:
            ops.append(PutJob(jobs.settled(job, settled, at)))
    return ops


def _fold_breakers(moves: Iterable[BreakerMove], tables: Tables) -> Iterable[Op]:
    for move in moves:
        known = tables.breaker(move.key)
        if known is None or known.at <= move.breaker.at:
            yield PutBreaker(move.key, move.breaker)


def _applies(row: Row, outcome: Outcome) -> bool:
    place = rows.STORED_PLACE[row.state]
    return outcome.kind is not OutcomeKind.REVIVED and rows.move(place, rows.EVENT_OF[outcome.kind]) is not None


def _attempt(row: Row, outcome: Outcome) -> Attempt:
    return Attempt(
        outcome.kind,
        outcome.at,
        outcome.started_at,
        outcome.attempt,
        row.source_id,
        row.sink_type,
        outcome.error,
        outcome.error_class,
        outcome.detail,
        row.replay_id,
    )


def _count(settled: jobs.Settled, row: Row, outcome: Outcome) -> None:
    tables = {
        OutcomeKind.DELIVERED: settled.delivered,
        OutcomeKind.DEAD: settled.dead,
        OutcomeKind.DROPPED: settled.dead,
        OutcomeKind.PARKED: settled.parked,
    }
    counts = tables.get(outcome.kind)
    if counts is not None:
        key = sink_key(row.tenant_id, row.source_id, outcome.sink, row.sink_type)
        counts[key] = counts.get(key, 0) + 1


def _fold_heal(record: LaneHeal, at: int, tables: Tables) -> list[Op]:
    ops: list[Op] = []
    lanes = Lanes(tables)
    for key in record.lanes:
        sink = int(key.split("/")[2])
        promotion = lanes.heal(key, sink, at)
        if promotion is not None:
            seq, member, head = promotion
            ops.append(PutRow(seq, sink, head, member))
    ops.extend(_lane_ops(lanes))
    return ops


def _fold_check_in(record: CheckIn, tables: Tables) -> list[Op]:
    """A body keeps the first reference it got: it may have been sent."""
    ops: list[Op] = [PutPack(record)]
    for position, seq in enumerate(record.seqs):
        if tables.checked_in(seq) is None:
            ops.append(PutCheckIn(seq, record.pack, position))
    return ops


def _fold_expiry(record: Expiry, tables: Tables) -> list[Op]:
    ops: list[Op] = []
    for key, expires_at in dict.fromkeys(record.keys):
        known = tables.dedupe(key)
        if known is not None and known[1] == expires_at:
            ops.append(DropDedupe(key, expires_at))
    return ops


def _fold_pack_expiry(record: PackExpiry, tables: Tables) -> list[Op]:
    """A hook whose reference leads to another pack keeps it."""
    ops: list[Op] = []
    for pack in dict.fromkeys(record.packs):
        known = tables.pack(pack)
        if known is not None:
            held = [seq for place, seq in enumerate(known.seqs) if tables.checked_in(seq) == (pack, place)]
            ops += (DropPack(pack), *map(DropCheckIn, held))
    return ops


def _fold_page(page: Page, turn: int, at: int, tables: Tables) -> list[Op]:
    job = tables.job(page.job_id)
    if job is None:
        return []
    ops: list[Op] = []
    moved: dict[str, int] = {}
    lanes = Lanes(tables)
    done: set[tuple[int, int]] = set()
    for index, revival in enumerate(page.revivals):
        place = (revival.seq, revival.sink)
        row = None if place in done else tables.row(*place)
        if row is None or row.state is not RowState.DEAD or row.generation != revival.generation:
            continue
        done.add(place)
        revived = rows.revive(row, page.job_id, at)
        if revived.lane is not None:
            revived = lanes.join(replace(revived, place=seq_of(turn, index)), revival.seq, at)
        ops.append(PutRow(revival.seq, revival.sink, revived, row))
        attempt = Attempt(OutcomeKind.REVIVED, at, 0, 0, row.source_id, row.sink_type, replay_id=page.job_id)
        ops.append(PutAttempt(revival.seq, revival.sink, row.generation, attempt))
        key = sink_key(row.tenant_id, row.source_id, revival.sink, row.sink_type)
        moved[key] = moved.get(key, 0) + 1
    ops.extend(_lane_ops(lanes))
    ops.append(PutJob(jobs.paged(job, page, moved)))
    return ops


def fold_job(record: JobRecord, tables: Tables) -> list[Op]:
    """A replay command. A start of a known id, a patch of an unknown or a drop of an unfinished one does nothing."""
    if isinstance(record, JobStart):
        return [] if tables.job(record.job.id) is not None else [PutJob(record.job)]
    job = tables.job(record.id)
    if job is None:
        return []
    if isinstance(record, JobDrop):
        return [] if job.state in jobs.UNFINISHED else [DropJob(job.id)]
    return [PutJob(jobs.patched(job, record))]


def fold_held(holds: Iterable[tuple[Held, bytes, bytes]]) -> list[Op]:
    """Hooks put into the pen: `(held, its bytes, body)`."""
    return [PutHeld(held, held_bytes, body) for held, held_bytes, body in holds]


def fold_purge(purge: Purge) -> list[Op]:
    return [DropHeld(entry.received_at, entry.id, entry.stored_bytes) for entry in purge.entries]


def fold_limit(change: LimitChange) -> list[Op]:
    return [PutLimit(change)]


def undo(ops: Iterable[Op]) -> list[Op]:
    """What takes back a commit, held hooks or a job's start whose durability failed after they were applied, the latest
    first. `take_back` makes operations of it.

    Their callers were told that nothing is stored, so nothing of them may be delivered or run later.
    """
    reverse: list[Op] = []
    for op in reversed(list(ops)):
        if isinstance(op, PutHook):
            reverse.append(DropHook(op.seq, op.hook_id))
        elif isinstance(op, PutRow) and op.was is None and op.row is not None:
            reverse.append(PutRow(op.seq, op.sink, None, op.row))
        elif isinstance(op, PutDedupe):
            reverse.append(DropDedupe(op.key, op.expires_at))
        elif isinstance(op, PutHeld):
            reverse.append(DropHeld(op.held.received_at, op.held.id, stored_bytes(op)))
        elif isinstance(op, PutJob):
            reverse.append(DropJob(op.job.id))
        elif isinstance(op, PutEntry):
            reverse.append(PutEntry(op.table, op.key, op.was, op.value))
        elif isinstance(op, DropRecord):
            reverse.append(op)
    return reverse


def take_back(undone: Iterable[Op], at: int, tables: Tables) -> list[Op]:
    """The operations of `undo`, against the tables as they are now: a row may not have reached the store at all, or may
    have been promoted in its lane meanwhile, which then goes to the next."""
    ops: list[Op] = []
    lanes = Lanes(tables)
    promoted: dict[tuple[int, int], Row] = {}
    for op in undone:
        if not isinstance(op, PutRow):
            ops.append(op)
            continue
        row = promoted.pop((op.seq, op.sink), None) or tables.row(op.seq, op.sink)
        if row is None:
            continue
        ops.append(PutRow(op.seq, op.sink, None, row))
        promotion = lanes.leave(row, op.seq, op.sink, at) if row.lane is not None else None
        if promotion is not None:
            seq, member, head = promotion
            promoted[seq, op.sink] = head
            ops.append(PutRow(seq, op.sink, head, member))
    ops.extend(_lane_ops(lanes))
    return ops
