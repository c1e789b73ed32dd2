"""A job as a whole, made of its parts in several partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ankusa.core.job import UNFINISHED
from schemas.records import Job, JobState, SinkTally

_RANK = (JobState.RUNNING, JobState.PAUSED, JobState.FAILED, JobState.CANCELLED, JobState.DONE)
"""What a job is whose parts differ: it runs while any part does, and is done when all are."""


def whole_job(parts: Sequence[Job]) -> Job:
    """The sum of at least one part: counters and rates add up; a total that one part does not know is not known."""
    first = parts[0]
    state = min((part.state for part in parts), key=_RANK.index)
    ends = [part.finished_at for part in parts if part.finished_at is not None]
    totals = [part.total for part in parts if part.total is not None]
    return replace(
        first,
        state=state,
        rate=sum(part.rate for part in parts),
        updated_at=max(part.updated_at for part in parts),
        finished_at=None if state in UNFINISHED else max(ends, default=None),
        cursor=None,
        scanned=sum(part.scanned for part in parts),
        moved=sum(part.moved for part in parts),
        skipped=sum(part.skipped for part in parts),
        delivered=sum(part.delivered for part in parts),
        dead=sum(part.dead for part in parts),
        total=sum(totals) if len(totals) == len(parts) else None,
        tallies=_tallies(parts),
        held=tuple(sorted({key for part in parts for key in part.held})),
        error=next((part.error for part in parts if part.error is not None), None),
        throttled=_sum(part.throttled for part in parts),
    )


def _tallies(parts: Iterable[Job]) -> dict[str, SinkTally]:
    found: dict[str, SinkTally] = {}
    for part in parts:
        for key, tally in part.tallies.items():
            known = found.get(key, SinkTally())
            found[key] = SinkTally(
                known.moved + tally.moved, known.delivered + tally.delivered, known.failed + tally.failed
            )
    return found


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, number in each.items():
            total[name] = total.get(name, 0) + number
    return total
