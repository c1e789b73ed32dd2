"""The numbers of a node: for `/v1/stats` by page, for `/metrics` whole. From kept counts, never a scan.

Owns the gathering; the counts are kept by the tables, the dispatcher, the intake and the replayer.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ankusa.core.breaker import Phase
from ankusa.dispatch.breakers import Breakers
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.metrics import Attempts, ClaimCheckFigures, SinkFigures, WindowFigures
from ankusa.operations import BadCursor, Tenants
from ankusa.store.counts import Counts
from ankusa.store.tables import Tables
from schemas import records
from schemas.api import Job, Lanes, Rows, SinkStats, Stats, TenantStats, Window
from schemas.api_requests import PAGE_LIMIT, StatsQuery
from schemas.records import Breaker, JobState, OutcomeKind
from streams.operations import cursor as cursors
from streams.operations.names import OUTCOMES

_PHASES: dict[Phase, Literal["closed", "open", "half_open", "probing"]] = {
    Phase.CLOSED: "closed",
    Phase.OPEN: "open",
    Phase.HALF_OPEN: "half_open",
    Phase.PROBING: "probing",
}


class Claimed(Struct):
    rows: int = 0
    size_bytes: int = 0


def sink_figures(counts: Counts, dispatcher: Dispatcher) -> dict[str, SinkFigures]:
    """Rows, waiting claims, running attempts and open breakers by sink key text."""
    found = {key: SinkFigures(live + replayed, replayed, dead) for key, (live, replayed, dead) in counts.sinks()}
    for key, waiting in dispatcher.slots.depth().items():
        found.setdefault(key, SinkFigures()).waiting = waiting
    for key, running in dispatcher.slots.running_by_sink().items():
        found.setdefault(key, SinkFigures()).running = running
    for key in dispatcher.breakers.open():
        found.setdefault(key, SinkFigures()).open_breakers = 1
    return found


def window(dispatcher: Dispatcher) -> WindowFigures:
    window = dispatcher.claims.window
    return WindowFigures(window.used.rows, window.limits.rows, window.used.size_bytes, window.limits.size_bytes)


def attempts(dispatcher: Dispatcher) -> Attempts:
    stats = dispatcher.stats
    return Attempts(dict(stats.results), dict(stats.durations_ms), stats.duration_sum_ms)


def claim_check(dispatcher: Dispatcher) -> ClaimCheckFigures | None:
    if dispatcher.check_ins is None:
        return None
    stats = dispatcher.check_ins.stats
    counts = {"body": stats.bodies, "pack": stats.packs, "failed": stats.failed, "deleted_pack": stats.deleted}
    return ClaimCheckFigures(counts, stats.stored_bytes, stats.kept)


def outcomes(dispatcher: Dispatcher) -> dict[str, int]:
    """By kind, but for what replays revive: no dispatcher sees that, and a count that stays 0 would be a lie."""
    counts = dispatcher.stats.outcomes.items()
    return {OUTCOMES[kind]: count for kind, count in counts if kind is not OutcomeKind.REVIVED}


def jobs_by_state(kept: Sequence[records.Job]) -> dict[str, int]:
    found = {state.name.lower(): 0 for state in JobState}
    for job in kept:
        found[job.state.name.lower()] += 1
    return found


class Gated:
    """Replay ticks that moved nothing, by reason, since the process started. Jobs carry counts of their own and are
    dropped in the end; this adds up what each gained between two readings, so that the sum never goes back."""

    def __init__(self) -> None:
        self.total: dict[str, int] = {"lag": 0, "window_full": 0, "unavailable": 0}
        self._seen: dict[str, dict[str, int]] | None = None

    def count(self, kept: Sequence[records.Job]) -> dict[str, int]:
        """The sum, after a reading of every kept job. What jobs carried at the first one is from before."""
        seen = {job.id: dict(job.throttled) for job in kept}
        if self._seen is not None:
            for job_id, counts in seen.items():
                before = self._seen.get(job_id, {})
                for reason, count in counts.items():
                    self.total[reason] = self.total.get(reason, 0) + count - before.get(reason, 0)
        self._seen = seen
        return dict(self.total)


def stats(
    tables: Tables, dispatcher: Dispatcher, jobs: list[Job], query: StatsQuery, tenants: Tenants, at: int
) -> Stats | BadCursor:
    """The page of sink keys after the query's cursor, with the totals of the caller's tenants."""
    after = cursors.decode(query.cursor) if query.cursor is not None else b""
    if after is None:
        return BadCursor()
    limit = min(max(query.limit, 0), PAGE_LIMIT)
    figures = {
        key: figure
        for key, figure in sink_figures(tables.counts, dispatcher).items()
        if tenants is None or key.split("/", 1)[0] in tenants
    }
    opened = dispatcher.breakers.open()
    claimed = _claimed_by_tenant(dispatcher, tenants)
    taken = Counter(claim.key for claim in dispatcher.claims.by_place.values()) if opened else Counter[str]()
    asked = figures.keys() if query.breaker is None else figures.keys() & opened.keys()
    rest = heapq.nsmallest(limit + 1, (key for key in asked if key.encode() > after))
    page = rest[:limit]
    pressure = dispatcher.pressure() if tenants is None else None
    return Stats(
        lag_ms=None if pressure is None else pressure.lag_ms,
        window=_window(window(dispatcher)) if tenants is None else None,
        rows=_rows(figures, claimed),
        lanes=_lanes(tables) if tenants is None else None,
        tenants=_tenants(page, figures, claimed),
        sinks=[_sink(key, figures[key], dispatcher.breakers, opened.get(key), taken[key], at) for key in page],
        jobs=jobs,
        next_cursor=cursors.encode(page[-1].encode()) if page and len(rest) > limit else None,
    )


def _claimed_by_tenant(dispatcher: Dispatcher, tenants: Tenants) -> dict[str, Claimed]:
    """One walk over the window, which is bounded by its configuration."""
    found: dict[str, Claimed] = {}
    for claim in dispatcher.claims.by_place.values():
        row = claim.row
        if tenants is None or row.tenant_id in tenants:
            claimed = found.setdefault(row.tenant_id, Claimed())
            claimed.rows += 1
            claimed.size_bytes += row.size_bytes
    return found


def _rows(figures: Mapping[str, SinkFigures], claimed: Mapping[str, Claimed]) -> Rows:
    pending = sum(figure.pending for figure in figures.values())
    taken = sum(tenant.rows for tenant in claimed.values())
    return Rows(
        pending=max(0, pending - taken),
        claimed=taken,
        dead=sum(figure.dead for figure in figures.values()),
        replayed=sum(figure.replayed for figure in figures.values()),
    )


def _tenants(page: list[str], figures: Mapping[str, SinkFigures], claimed: Mapping[str, Claimed]) -> list[TenantStats]:
    sums = {key.split("/", 1)[0]: SinkFigures() for key in page}
    for key, figure in figures.items():
        of_tenant = sums.get(key.split("/", 1)[0])
        if of_tenant is not None:
            of_tenant.add(figure)
    none = Claimed()
    found = []
    for tenant_id, figure in sums.items():
        taken = claimed.get(tenant_id, none)
        found.append(
            TenantStats(
                tenant=tenant_id,
                pending=max(0, figure.pending - taken.rows),
                claimed=taken.rows,
                claimed_bytes=taken.size_bytes,
                dead=figure.dead,
            )
        )
    return found


def _sink(
    key: str, figure: SinkFigures, breakers: Breakers, opened: Breaker | None, claimed: int, at: int
) -> SinkStats:
    tenant_id, source_id, sink, sink_type = key.split("/", 3)
    return SinkStats(
        tenant=tenant_id,
        source_id=source_id,
        sink=int(sink),
        sink_type=sink_type,
        pending=figure.pending,
        replayed=figure.replayed,
        dead=figure.dead,
        waiting=figure.waiting,
        running=figure.running,
        breaker=_PHASES[breakers.phase(key, at)],
        breaker_until=None if opened is None else opened.until,
        parked=0 if opened is None else max(0, figure.pending - claimed),
    )


def _lanes(tables: Tables) -> Lanes:
    lanes, members = tables.lane_counts()
    return Lanes(lanes=lanes, members=members)


def _window(window: WindowFigures) -> Window:
    return Window(rows=window.rows, max_rows=window.max_rows, bytes=window.size_bytes, max_bytes=window.max_bytes)
