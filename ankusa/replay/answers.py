"""What the replay operator answers, as values: expected trouble is one of them and never an exception.

Owns shapes and how a job and a plan read in JSON (spec 07). Decides nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ankusa.core import job as jobs
from schemas.records import Job


class Started(Struct, frozen=True):
    """A start: `created` is False when the job was there already."""

    created: bool
    job: Job


class Plan(Struct, frozen=True):
    """What a start would move, counted entry by entry at `at` (unix ms); nothing was moved.

    `by_source` and `by_sink` count by source id and by sink key text; `oldest_at` and `newest_at` are death times,
    None without entries; `skipped` is how many entries do not decode and would be left; `scanned` what was read.
    """

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


class Invalid(Struct, frozen=True):
    """The start or patch was refused for `field`; `message` says what it must be."""

    field: str
    message: str


class TooManyReplays(Struct, frozen=True):
    """`limit` jobs are unfinished already."""

    limit: int


class RoleNotEnabled(Struct, frozen=True):
    """This node does not run `role`; ask another one."""

    role: str


class StoreUnavailable(Struct, frozen=True):
    """The store cannot answer now, for `reason`. Nothing is known of what was asked."""

    reason: str


class NotFound(Struct, frozen=True):
    """No such job, or none that this caller may see."""

    id: str


class Finished(Struct, frozen=True):
    """The job is done, cancelled or failed: it changes no more."""

    job: Job


def job_json(job: Job) -> dict[str, Any]:
    """The job object of the API."""
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state.name.lower(),
        "filter": dict(job.filter),
        "rate": job.rate,
        "max_lag_ms": job.max_lag_ms,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "finished_at": job.finished_at,
        "scanned": job.scanned,
        "moved": job.moved,
        "skipped": job.skipped,
        "delivered": job.delivered,
        "dead": job.dead,
        "remaining": jobs.remaining(job),
        "eta_ms": jobs.eta_ms(job),
        "throttled": dict(job.throttled),
        "held": list(job.held),
        "error": job.error,
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as the API answers it: its fields, and `dry_run` to tell it from a job."""
    return {"dry_run": True} | {name: getattr(plan, name) for name in plan.__struct_fields__}
