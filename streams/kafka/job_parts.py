"""What each partition gets of a job's commands: its share of the rate, and its part where that is missing. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET
from msgspec.structs import replace

from ankusa.core.job import UNFINISHED
from schemas.records import Job, JobPatch, JobRecord, JobStart, JobState
from streams.kafka.job_view import whole_job


def share(rate: int, number: int, partitions: int) -> int:
    """A partition's share of a job's rate; together they are the rate, or one a partition where that is more."""
    return max(1, rate // partitions + (number < rate % partitions))


def part_of(record: JobRecord, number: int, partitions: int) -> JobRecord:
    """A partition's part of a command of a whole job."""
    if isinstance(record, JobStart):
        rate = record.job.rate
        return JobStart(replace(record.job, rate=share(rate, number, partitions), whole_rate=rate))
    if isinstance(record, JobPatch) and record.rate is not None:
        return replace(record, rate=share(record.rate, number, partitions), whole_rate=record.rate)
    return record


def started_again(parts: Mapping[int, Job], partitions: int, at: int) -> JobStart | None:
    """The start, at `at` (unix ms), of what is missing of a job that has `parts`: as they were started, at the rate of
    them all and in the state that they have by now. None where nothing is to begin any more.

    One that is missing of a job that is done here has all its rows to move yet, so it runs.
    """
    whole = whole_job(list(parts.values()))
    if whole.state not in UNFINISHED and whole.state is not JobState.DONE:
        return None
    return JobStart(
        Job(
            id=whole.id,
            kind=whole.kind,
            state=JobState.PAUSED if whole.state is JobState.PAUSED else JobState.RUNNING,
            filter=whole.filter,
            rate=_whole_rate(parts, partitions),
            max_lag_ms=whole.max_lag_ms,
            created_at=whole.created_at,
            updated_at=at,
            sequence=whole.sequence,
        )
    )


def _whole_rate(parts: Mapping[int, Job], partitions: int) -> int:
    """The rate of all parts together. Where one part refused a change of it they differ, until that is sent again and
    sets all. Parts that an older release wrote say only what they have themselves, which is taken for the average."""
    for part in parts.values():
        if part.whole_rate is not UNSET:
            return part.whole_rate
    return round(sum(part.rate for part in parts.values()) * partitions / len(parts))
