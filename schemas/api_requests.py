"""What may be asked of the admin API: query parameters, and request bodies as OpenAPI shows them (spec 07).

Owns shapes and bounds only. An unknown parameter is refused: a mistyped filter would widen what is listed or deleted.
Limits are clamped, not refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.api import ErrorClassName, Model

MAX_TIME_MS = 1 << 53
"""The largest time a filter takes: every JSON reader keeps it exact, and the year is far past 200,000."""

PAGE_LIMIT, PAGE_DEFAULT = 1000, 100
PURGE_LIMIT, PURGE_DEFAULT = 10_000, 1000

Text = Annotated[str, Field(min_length=1, max_length=256)]
Cursor = Annotated[str, Field(min_length=1, max_length=512, description="`next_cursor` of the page before.")]
LaneCursor = Annotated[str, Field(min_length=1, max_length=1024, description="`next_cursor` of the page before.")]
"""An ordering key has up to 512 bytes, and a cursor of lanes holds one."""

TimeMs = Annotated[int, Field(ge=0, le=MAX_TIME_MS)]


class DeadLetterQuery(Model):
    """All filters must match; `since` and `until` are on the death time, both inclusive. `limit` is clamped."""

    source_id: Text | None = None
    tenant: Text | None = None
    sink: Annotated[int, Field(ge=0, le=65_535)] | None = None
    error_class: ErrorClassName | None = None
    id: Text | None = None
    since: TimeMs | None = None
    until: TimeMs | None = None
    limit: int = Field(PAGE_DEFAULT, description=f"Clamped to 0..{PAGE_LIMIT}.")
    cursor: Cursor | None = None


class HeldQuery(Model):
    """All filters must match; `since` and `until` are on the receive time, both inclusive. `limit` is clamped."""

    source_id: Text | None = None
    since: TimeMs | None = None
    until: TimeMs | None = None
    limit: int = Field(PAGE_DEFAULT, description=f"Clamped to 0..{PAGE_LIMIT}.")
    cursor: Cursor | None = None


class PurgeQuery(Model):
    """Which held hooks to delete, oldest first. `limit` is clamped."""

    source_id: Text | None = None
    since: TimeMs | None = None
    until: TimeMs | None = None
    limit: int = Field(PURGE_DEFAULT, description=f"Clamped to 0..{PURGE_LIMIT}.")


class StatsQuery(Model):
    breaker: Literal["open"] | None = Field(None, description="Only sink keys whose breaker is open or half-open.")
    limit: int = Field(PAGE_DEFAULT, description=f"Sink keys on a page, clamped to 0..{PAGE_LIMIT}.")
    cursor: Cursor | None = None


class LaneQuery(Model):
    """All filters must match. `limit` is clamped."""

    tenant: Text | None = None
    source_id: Text | None = None
    sink: Annotated[int, Field(ge=0, le=65_535)] | None = None
    limit: int = Field(PAGE_DEFAULT, description=f"Clamped to 0..{PAGE_LIMIT}.")
    cursor: LaneCursor | None = None


class HookQuery(Model):
    body: bool = Field(False, description="Answer the body too: scope `admin`, or the hook's tenant.")


class SourceDeletion(Model):
    deliveries: Literal["dead_letter"] | None = Field(None, description="Kill the rows that wait, then delete.")


# -- bodies: checked where they are used (`ankusa/replay/spec.py`), described here ----------------------------------


class StartRequest(Model):
    """A replay's start: `kind`, that kind's filter keys (all must match, unknown ones are refused), how to run it."""

    kind: Literal["dlq"]
    source_id: str | None = None
    id: str | None = None
    since: TimeMs | None = None
    until: TimeMs | None = None
    sink: Annotated[int, Field(ge=0, le=65_535)] | None = None
    error_class: ErrorClassName | None = None
    tenants: Annotated[list[str], Field(min_length=1, max_length=1000)] | None = None
    rate: Annotated[int, Field(ge=1, le=100_000)] = 1000
    max_lag_ms: Annotated[int, Field(ge=100, le=600_000)] = 2000
    job_id: str | None = Field(None, description="A lower-case UUID that names the job.")
    dry_run: bool = False


class PatchRequest(Model):
    """A replay's change; at least one key."""

    state: Literal["running", "paused", "cancelled"] | None = None
    rate: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_lag_ms: Annotated[int, Field(ge=100, le=600_000)] | None = None


class SourceSpec(Model):
    """A source as it is written in a file: all of it, with its secrets. `tenant` and `name` are the URL's."""

    sinks: Annotated[list[dict[str, Any]], Field(min_length=1)]
    verify: dict[str, Any] | None = Field(None, description="Absent: `{type: none}`.")
    on_verify_failure: Literal["reject", "quarantine", "accept_flag"] = "reject"
    dedupe: str | dict[str, Any] | None = None
    forward_headers: list[str] | None = None
    retry: dict[str, Any] | None = None


class SourceRequest(SourceSpec):
    """A new source: its spec and its name."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
