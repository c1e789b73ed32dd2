"""The records of the log and the rows of its tables, with their bytes (spec 08).

Owns shapes and codecs. A record says what happened; the fold (`ankusa/core/fold.py`) says what follows.
Values are msgspec arrays: field order is the wire order, new fields go last with a default, and a
field is never reused for another meaning. Hook bodies are framed as they came and never re-encoded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from schemas.routes import IpRules, Route

FORMAT_VERSION = 1
"""Written into every store; a store of a newer format is refused, never guessed at."""

INDEX_BITS = 12
"""A seq is `offset << 12 | index`: 4,096 places in one record (a commit has 256, a page 2,000), and 2^51
records before an unsigned 64-bit key would overflow: 7,000 years at 10,000 records a second."""


class Topic(IntEnum):
    """Topics of the log. The number is the first byte of a record's key in the embedded log."""

    HOOKS = 1
    OUTCOMES = 2
    REPLAYS = 3
    AUDIT = 4
    QUARANTINE = 5
    LIMITS = 6
    SOURCES = 7
    ROUTES = 8


def seq_of(offset: int, index: int) -> int:
    """The commit order of a hook: its record's offset and its place in the record."""
    return offset << INDEX_BITS | index


class Envelope(Struct, frozen=True, array_like=True, gc=False):
    """Everything about a hook but its body. Times are unix ms; `sinks` are the sink types by index at commit.

    `headers` are the forwarded request headers, lower-cased. `dedupe_ttl_ms` is 0 without a dedupe key.
    `flagged` marks a hook that failed verification under policy `accept_flag`. `ordering_keys` are, by sink index, the
    key whose lane the hook joins, None for a sink that is not ordered; empty when none is.
    """

    id: str
    source_id: str
    tenant_id: str
    received_at: int
    sinks: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    content_type: str | None
    idempotency_key: str
    dedupe_key: str | None = None
    dedupe_ttl_ms: int = 0
    flagged: bool = False
    ordering_keys: tuple[str | None, ...] = ()


class Held(Struct, frozen=True, array_like=True, gc=False):
    """A hook that failed verification and is held. `headers` are all request headers, for a later re-verification."""

    id: str
    source_id: str
    tenant_id: str
    received_at: int
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    reason: str
    size_bytes: int


class ErrorClass(IntEnum):
    """How an attempt failed, as stored and filtered on (spec 03)."""

    PERMANENT = 1
    RETRY_AFTER = 2
    TRANSIENT = 3
    TIMEOUT = 4


class RowState(IntEnum):
    """Where a stored row is. A claim is not stored: a restart makes every claimed row due again.

    A MEMBER waits in a lane behind its head, which alone is PENDING.
    """

    PENDING = 1
    DEAD = 2
    MEMBER = 3


class Row(Struct, frozen=True, array_like=True, gc=False):
    """One hook for one sink. `at` is the due time while pending and the death time when dead.

    `generation` counts the outcomes folded into the row; an outcome that saw another one is stale.
    `first_at` is when its first attempt started, or it first parked, 0 before; a revived row starts again at 0.
    `lane` is the lane's key of an ordered sink, and `place` its turn in it (0 without a lane): lower goes first.
    """

    state: RowState
    tenant_id: str
    source_id: str
    sink_type: str
    at: int
    size_bytes: int
    attempts: int = 0
    generation: int = 0
    first_at: int = 0
    error: str | None = None
    error_class: ErrorClass | None = None
    replay_id: str | None = None
    lane: str | None = None
    place: int = 0


class Lane(Struct, frozen=True, array_like=True, gc=False):
    """A lane with rows: the seq of its head, how many rows it holds (the head and its members), since when the head is
    head (unix ms)."""

    head: int
    depth: int
    since: int


class OutcomeKind(IntEnum):
    """What an attempt or a decision did to a row (spec 01). A row is DROPPED when its source's rows are killed and its
    hook is gone: there is nothing to keep it for."""

    DELIVERED = 1
    RETRY = 2
    PARKED = 3
    DEAD = 4
    REVIVED = 5
    DROPPED = 6


SOURCE_UNAVAILABLE = "source_unavailable"
"""The `detail` of a row parked because its source could not be asked. That is nobody's failure: it may happen to every
row every second, so it leaves no line in the history and counts for no job."""


class Outcome(Struct, frozen=True, array_like=True, gc=False):
    """One move of one row. `attempt` is its number, 0 when none was made; `due_at` is set for RETRY and PARKED.

    `generation` is the row's when it was claimed. `started_at` and `at` are unix ms around the attempt.
    """

    seq: int
    sink: int
    generation: int
    kind: OutcomeKind
    at: int
    started_at: int = 0
    attempt: int = 0
    due_at: int = 0
    error: str | None = None
    error_class: ErrorClass | None = None
    detail: str | None = None


class JobState(IntEnum):
    RUNNING = 1
    PAUSED = 2
    DONE = 3
    CANCELLED = 4
    FAILED = 5


class SinkTally(Struct, frozen=True, array_like=True):
    """What became of a job's rows at one sink key since the job last resumed: the auto-pause rule reads it."""

    moved: int = 0
    delivered: int = 0
    failed: int = 0


class Job(Struct, frozen=True, kw_only=True):
    """A replay's record. Encoded by name: it is rare, and long-lived across versions.

    `filter` holds the validated filter, keys as the API spells them. `cursor` is the last index key
    taken, None at the start. `tallies` is keyed by sink key text, and bounded. `sequence` orders jobs made in one ms.

    Where a job has a part in each partition, this is one part, and `whole_rate` the rate of all of them together.
    """

    id: str
    kind: str
    state: JobState
    filter: dict[str, Any]
    rate: int
    max_lag_ms: int
    created_at: int
    updated_at: int
    sequence: int = 0
    finished_at: int | None = None
    cursor: bytes | None = None
    scanned: int = 0
    moved: int = 0
    skipped: int = 0
    delivered: int = 0
    dead: int = 0
    total: int | None = None
    tallies: dict[str, SinkTally] = {}
    held: tuple[str, ...] = ()
    error: str | None = None
    throttled: dict[str, int] = {}
    whole_rate: int | UnsetType = UNSET


class JobStart(Struct, frozen=True, tag="start"):
    """A new job, as validated. Folding it twice makes it once."""

    job: Job


class JobPatch(Struct, frozen=True, tag="patch"):
    """An operator's or the replayer's change of a job's state, rate or lag. Absent means unchanged. `whole_rate` goes
    with `rate`, where a job has parts."""

    id: str
    at: int
    state: JobState | None = None
    rate: int | None = None
    max_lag_ms: int | None = None
    error: str | None = None
    held: tuple[str, ...] | None = None
    throttled: dict[str, int] | None = None
    whole_rate: int | UnsetType = UNSET


class JobDrop(Struct, frozen=True, tag="drop"):
    """A finished job that is kept no longer. Folding it on a job that is not finished does nothing."""

    id: str
    at: int


JobRecord = JobStart | JobPatch | JobDrop


class Revival(Struct, frozen=True, array_like=True, gc=False):
    """A dead row that a page puts back: its row id and the generation the page saw."""

    seq: int
    sink: int
    generation: int


class Page(Struct, frozen=True, array_like=True, tag="page"):
    """What one replay page did: rows moved and the job's new cursor, one value, so they cannot come apart.

    `epoch` is the owner's who read the rows, where partitions change owners (see `Takeover`); 0 where none does.
    """

    job_id: str
    at: int
    cursor: bytes
    scanned: int
    skipped: int
    revivals: tuple[Revival, ...]
    finished: bool = False
    throttled: dict[str, int] = {}
    epoch: int = 0


class BreakerState(IntEnum):
    CLOSED = 1
    OPEN = 2


class Breaker(Struct, frozen=True, array_like=True, gc=False):
    """A stored breaker of one sink key. `failures` in a row while closed; `openings` in a row; open until `until`.

    Times are unix ms; `at` is when it last changed, and an older one never replaces a newer.
    """

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    openings: int = 0
    until: int = 0
    at: int = 0


class BreakerMove(Struct, frozen=True, array_like=True, gc=False):
    """What became of the breaker of one sink key (its text)."""

    key: str
    breaker: Breaker


class OutcomeBatch(Struct, frozen=True, array_like=True, tag="outcomes"):
    """Outcomes and the breaker moves they led to."""

    items: tuple[Outcome, ...]
    breakers: tuple[BreakerMove, ...] = ()


class LaneHeal(Struct, frozen=True, array_like=True, tag="heal"):
    """Lanes that a sweep found without a head: their first members are promoted."""

    lanes: tuple[str, ...]


class CheckIn(Struct, frozen=True, array_like=True, tag="check_in"):
    """Bodies that the claim check stored as one pack: that of hook `seqs[n]` is at position `n`. `at` is unix ms."""

    tenant_id: str
    pack: str
    at: int
    seqs: tuple[int, ...]


class Takeover(Struct, frozen=True, array_like=True, tag="takeover"):
    """A worker begins to act for the record's partition. Where it is in the log is the owner's epoch: a page that
    carries another one was read by an owner of before, and is refused. `at` is unix ms."""

    owner: str
    at: int


class Expiry(Struct, frozen=True, array_like=True, tag="expiry"):
    """Dedupe keys past their time, each with when (unix ms) it expired: one that was claimed again meanwhile stays."""

    keys: tuple[tuple[str, int], ...]


class PackExpiry(Struct, frozen=True, array_like=True, tag="pack_expiry"):
    """Packs that no row needs any more: they, and which hooks' bodies they hold, are known no longer."""

    packs: tuple[str, ...]


class HistoryExpiry(Struct, frozen=True, array_like=True, tag="history_expiry"):
    """On Kafka: ids and attempts that a partition's records wrote before `before` (log time, unix ms) are kept no
    longer, but those of hooks with a row. The oldest go, as many as one record may take."""

    before: int


OutcomeRecord = OutcomeBatch | Page | LaneHeal | CheckIn | Takeover | Expiry | PackExpiry | HistoryExpiry


class PenEntry(Struct, frozen=True, array_like=True, gc=False):
    """Where a held hook is, and what it counts against the pen's cap."""

    received_at: int
    id: str
    stored_bytes: int


class Purge(Struct, frozen=True, array_like=True, tag="purge"):
    """Pen entries an operator deleted."""

    at: int
    entries: tuple[PenEntry, ...]


class LimitChange(Struct, frozen=True, array_like=True):
    """A tenant's ingest limit set (`rate` per second, `burst`) or, with both None, taken back to the config's."""

    tenant_id: str
    at: int
    rate: float | None
    burst: int | None


class SourceChange(Struct, frozen=True, array_like=True):
    """An API-managed source put or, with `spec` None, deleted. `spec` is its document, sealed when the node has a key.

    `created_at` and `at` are unix ms; a source that was never changed has both alike.
    """

    source_id: str
    tenant_id: str
    name: str
    at: int
    created_at: int
    spec: bytes | None


class RouteChange(Struct, frozen=True, array_like=True, tag="route"):
    """A route of the guard put or, with `route` None, deleted."""

    id: str
    at: int
    route: Route | None


class IpRulesChange(Struct, frozen=True, array_like=True, tag="ip_rules"):
    """The guard's global rules replaced."""

    at: int
    rules: IpRules


RouteRecord = RouteChange | IpRulesChange


class ChangeKind(IntEnum):
    SOURCE = 1
    ROUTE = 2
    IP_RULES = 3


class ChangeAction(IntEnum):
    CREATED = 1
    UPDATED = 2
    DELETED = 3


class Change(Struct, frozen=True, array_like=True):
    """An audit record: what was done to a source, a route or the global ip rules, written in the change's own batch.

    `subject` is the id of what changed, `entity` its JSON as the API shows it, redacted: after the change, or before a
    deletion.
    """

    kind: ChangeKind
    subject: str
    action: ChangeAction
    at: int
    entity: bytes


class Attempt(Struct, frozen=True, array_like=True, gc=False):
    """One line of a row's history, kept past the row itself."""

    kind: OutcomeKind
    at: int
    started_at: int
    attempt: int
    source_id: str
    sink_type: str
    error: str | None = None
    error_class: ErrorClass | None = None
    detail: str | None = None
    replay_id: str | None = None


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
decode_held = msgspec.msgpack.Decoder(Held).decode
decode_row = msgspec.msgpack.Decoder(Row).decode
decode_lane = msgspec.msgpack.Decoder(Lane).decode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_job_record = msgspec.msgpack.Decoder(JobRecord).decode
decode_check_in = msgspec.msgpack.Decoder(CheckIn).decode
decode_outcome_record = msgspec.msgpack.Decoder(OutcomeRecord).decode
decode_breaker = msgspec.msgpack.Decoder(Breaker).decode
decode_attempt = msgspec.msgpack.Decoder(Attempt).decode
decode_purge = msgspec.msgpack.Decoder(Purge).decode
decode_limit_change = msgspec.msgpack.Decoder(LimitChange).decode
decode_source_change = msgspec.msgpack.Decoder(SourceChange).decode
decode_route_record = msgspec.msgpack.Decoder(RouteRecord).decode
decode_change = msgspec.msgpack.Decoder(Change).decode

DecodeError = (msgspec.DecodeError, msgspec.ValidationError, struct.error, UnicodeDecodeError, RecursionError)
"""What decoding bytes that are not ours may raise."""

_HOOK = struct.Struct(">I")
_COMMIT = struct.Struct(">BQH")
_ITEM = struct.Struct(">II")


def frame_hook(envelope: bytes, body: bytes) -> bytes:
    """A stored hook: envelope length (4 bytes), envelope, body."""
    return _HOOK.pack(len(envelope)) + envelope + body


def unframe_hook(stored: bytes) -> tuple[bytes, bytes]:
    """The envelope's and the body's bytes. Raises struct.error or ValueError on bytes that are not a hook."""
    (length,) = _HOOK.unpack_from(stored)
    end = _HOOK.size + length
    if end > len(stored):
        raise struct.error("a hook shorter than its envelope")
    return stored[_HOOK.size : end], stored[end:]


def encode_commit(at: int, hooks: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A commit of 1 to 256 hooks as one record: version, `at` (unix ms), count, then each envelope and body framed."""
    parts: list[bytes] = [_COMMIT.pack(FORMAT_VERSION, at, len(hooks))]
    for envelope, body in hooks:
        parts.append(_ITEM.pack(len(envelope), len(body)))
        parts.append(envelope)
        parts.append(body)
    return b"".join(parts)


def decode_commit(record: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """`(at, [(envelope bytes, body bytes)])`. Raises struct.error on a record that is cut or of another version."""
    version, at, count = _COMMIT.unpack_from(record)
    if version != FORMAT_VERSION:
        raise struct.error(f"commit version {version}, this release reads {FORMAT_VERSION}")
    place = _COMMIT.size
    hooks: list[tuple[bytes, bytes]] = []
    for _ in range(count):
        envelope_length, body_length = _ITEM.unpack_from(record, place)
        place += _ITEM.size
        body_at = place + envelope_length
        end = body_at + body_length
        if end > len(record):
            raise struct.error("a commit shorter than it says")
        hooks.append((record[place:body_at], record[body_at:end]))
        place = end
    return at, hooks


def sink_key(tenant_id: str, source_id: str, sink: int, sink_type: str) -> str:
    """The text of a sink key, the unit of isolation: `tenant/source/index/type`. Names hold no slash."""
    return f"{tenant_id}/{source_id}/{sink}/{sink_type}"


def lane_key(tenant_id: str, source_id: str, sink: int, sink_type: str, ordering_key: str) -> str:
    """The text of a lane: its sink key and its ordering key."""
    return f"{tenant_id}/{source_id}/{sink}/{sink_type}/{ordering_key}"
