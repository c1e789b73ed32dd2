"""The admin API's answers as models: what OpenAPI shows is what is sent (spec 07).

Owns shapes only; what is asked is in `schemas/api_requests.py`. Every answer refuses unknown fields, so one that drifts
from its document fails where it is made. Times are unix ms and end in `_at` or `_ms`; sizes are bytes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ErrorClassName = Literal["permanent", "retry_after", "transient", "timeout"]
JobStateName = Literal["running", "paused", "done", "cancelled", "failed"]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# -- errors ---------------------------------------------------------------------------------------------------------


class Error(Model):
    """Every refusal. `error` is the code; `field` names what was wrong, `message` says why."""

    error: str
    field: str = ""
    message: str = ""
    role: str = ""
    limit: int = 0
    pending: int = 0
    inflight: int = 0
    max_sources: int = 0
    max_routes: int = 0
    conflicting_id: str = ""


class NotReady(Model):
    error: Literal["not_ready"] = "not_ready"
    reasons: dict[str, str] = Field(description="The reason by component.")


# -- the node -------------------------------------------------------------------------------------------------------


class Health(Model):
    status: Literal["ok"] = "ok"
    instance: str
    version: str
    roles: list[str]


class Ready(Model):
    status: Literal["ready"] = "ready"


class Rows(Model):
    """Delivery rows by state. `replayed` are the pending and claimed ones that a replay put back."""

    pending: int
    claimed: int
    dead: int
    replayed: int


class Window(Model):
    """Claimed, unfinished rows and their stored bytes against their budget."""

    rows: int
    max_rows: int
    bytes: int
    max_bytes: int


class TenantStats(Model):
    tenant: str
    pending: int
    claimed: int
    claimed_bytes: int
    dead: int


class SinkStats(Model):
    """One sink key. `pending` counts claimed rows and lane members too; of the claimed, `waiting` wait for a slot and
    `running` have one. `breaker_until` is when an open breaker lets a probe through; `parked` counts the rows that wait
    for that: while it is open, all that are pending and not claimed."""

    tenant: str
    source_id: str
    sink: int
    sink_type: str
    pending: int
    replayed: int
    dead: int
    waiting: int
    running: int
    breaker: Literal["closed", "open", "half_open", "probing"]
    breaker_until: int | None
    parked: int


class Lanes(Model):
    """Lanes with rows, and the members that wait in them behind the heads."""

    lanes: int
    members: int


class LaneHead(Model):
    """The row whose turn it is. `id` is null when its hook is missing or undecodable; `due_at` is when it came due, or
    will; `error` is what its last attempt came to."""

    id: str | None
    seq: int
    state: Literal["pending", "claimed"]
    due_at: int
    attempts: int
    error: str | None
    error_class: ErrorClassName | None
    replay_id: str | None


class Lane(Model):
    """One lane. `depth` counts its head and the members behind it; `head` is null for a moment, when its row was lost
    and the sweep has not yet promoted the next."""

    tenant: str
    source_id: str
    sink: int
    sink_type: str
    ordering_key: str
    depth: int
    head_since_at: int
    head_age_ms: int
    head: LaneHead | None


class LaneList(Model):
    """A page of the lanes with rows, in order of tenant, source, sink and key. `lanes` and `members` count the node's:
    null for a caller limited to tenants. A page may hold fewer than `limit` entries and still have a `next_cursor`: the
    work of one call is bounded."""

    lanes: int | None
    members: int | None
    entries: list[Lane]
    next_cursor: str | None


class Job(Model):
    """A replay. `remaining` and `eta_ms` are null while unknown; `throttled` counts gated ticks by reason."""

    id: str
    kind: str
    state: JobStateName
    filter: dict[str, Any]
    rate: int
    max_lag_ms: int
    created_at: int
    updated_at: int
    finished_at: int | None
    scanned: int
    moved: int
    skipped: int
    delivered: int
    dead: int
    remaining: int | None
    eta_ms: int | None
    throttled: dict[str, int]
    held: list[str]
    error: str | None


class Stats(Model):
    """`lag_ms`, `window` and `lanes` are the node's: null for a caller limited to tenants, or while nobody can say.

    `sinks` is a page of the sink keys with rows or an open breaker, in order; `tenants` those that occur on it, counted
    whole.
    """

    lag_ms: int | None
    window: Window | None
    rows: Rows
    lanes: Lanes | None
    tenants: list[TenantStats]
    sinks: list[SinkStats]
    jobs: list[Job] = Field(description="The unfinished replay jobs, newest first.")
    next_cursor: str | None


# -- dead letters and hooks -----------------------------------------------------------------------------------------


class DeadLetter(Model):
    """One dead row. What only the hook knows is null when the hook is missing or undecodable. `size` is the body's."""

    id: str | None
    source_id: str
    tenant_id: str
    seq: int
    received_at: int | None
    dead_lettered_at: int
    size: int | None
    content_type: str | None
    reason: str | None
    sink: int
    sink_type: str
    error_class: ErrorClassName | None
    attempts: int
    replay_id: str | None


class DeadLetters(Model):
    """`total` counts all dead rows the caller may see, whatever the filters. A page may hold fewer than `limit` entries
    and still have a `next_cursor`: the work of one call is bounded."""

    total: int
    entries: list[DeadLetter]
    next_cursor: str | None


class Header(Model):
    name: str
    value: str


class HookRow(Model):
    """A row that is left. `due_at` is set while it is pending or claimed, `dead_lettered_at` when it is dead; a member
    waits in its lane behind the head. `lane` is the lane's key at a sink that is ordered."""

    sink: int
    sink_type: str
    state: Literal["pending", "claimed", "dead", "member"]
    due_at: int | None
    dead_lettered_at: int | None
    lane: str | None
    attempts: int
    error: str | None
    error_class: ErrorClassName | None
    replay_id: str | None


class HookAttempt(Model):
    """One line of history. `attempt` is 0 and `started_at` null where none was made (revived, parked, buried)."""

    sink: int
    sink_type: str
    outcome: Literal["delivered", "retry", "parked", "dead", "revived", "dropped"]
    attempt: int
    started_at: int | None
    at: int
    error: str | None
    error_class: ErrorClassName | None
    detail: str | None
    replay_id: str | None


class Hook(Model):
    """A hook, its rows that are left and the history of all. Once its body is reclaimed (`stored` false), or when it
    does not decode, what only the body's record knows is null. Headers are redacted. `size` is the body's."""

    id: str
    seq: int
    stored: bool
    source_id: str | None
    tenant_id: str | None
    received_at: int | None
    size: int | None
    content_type: str | None
    idempotency_key: str | None
    dedupe_key: str | None
    flagged: bool | None
    headers: list[Header] | None
    rows: list[HookRow]
    attempts: list[HookAttempt]
    body_base64: str | None = Field(description="The body, when `?body=true` asked for it and it is stored.")


# -- quarantine -----------------------------------------------------------------------------------------------------


class HeldHook(Model):
    """A held hook without its body. `size` is the body's."""

    id: str
    source_id: str
    tenant_id: str
    received_at: int
    reason: str
    size: int
    method: str
    path: str


class HeldHooks(Model):
    """`total` and `bytes` (stored: headers and body) are the whole pen's, null for a caller limited to tenants."""

    entries: list[HeldHook]
    total: int | None
    bytes: int | None
    next_cursor: str | None


class Purged(Model):
    """`bytes` is what the deleted entries counted against the pen's cap: headers and body as stored."""

    deleted: int
    bytes: int


# -- rate limits ----------------------------------------------------------------------------------------------------


class Limit(Model):
    """`rate` hooks per second, `burst` the most at once."""

    rate: Annotated[float, Field(gt=0, le=1_000_000)]
    burst: Annotated[int, Field(ge=1, le=1 << 53)]


class TenantLimit(Model):
    """A tenant's ingest limit and where it comes from. Both figures are null with source `none`: unlimited."""

    tenant: str
    rate: float | None
    burst: int | None
    source: Literal["override", "config", "default", "none"]


class Limits(Model):
    """The default, and every tenant that has a limit of its own."""

    default: Limit | None
    tenants: list[TenantLimit]


# -- sources --------------------------------------------------------------------------------------------------------


class TenantSource(Model):
    """A source that was set up through the API. What it is configured with is as in a file, with every default filled
    in and secrets hidden; `dedupe` and `forward_headers` are null where there is none, `retry` holds what differs."""

    tenant: str
    name: str
    source_id: str
    ingest_path: str
    verify: dict[str, Any]
    on_verify_failure: Literal["reject", "quarantine", "accept_flag"]
    dedupe: dict[str, Any] | None
    forward_headers: list[str] | None
    retry: dict[str, Any]
    sinks: list[dict[str, Any]]
    created_at: int
    updated_at: int


class TenantSources(Model):
    tenant: str
    entries: list[TenantSource]


# -- replays --------------------------------------------------------------------------------------------------------


class Replays(Model):
    """Every kept job that the caller may see, newest first."""

    replays: list[Job]


class Plan(Model):
    """What a start would move; nothing was moved. Times are death times; `duration_ms` is at `rate`, at least."""

    dry_run: Literal[True]
    kind: str
    filter: dict[str, Any]
    rate: int
    at: int
    count: int
    skipped: int
    scanned: int
    by_source: dict[str, int]
    by_sink: dict[str, int]
    oldest_at: int | None
    newest_at: int | None
    duration_ms: int
