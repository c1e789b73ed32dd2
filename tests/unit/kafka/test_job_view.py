"""A job as the sum of its parts, and the shares that it is made of."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from schemas.records import Job, JobDrop, JobPatch, JobStart, JobState, SinkTally
from streams.kafka.job_parts import share
from streams.kafka.job_view import whole_job
from streams.kafka.replay_host import command_key


def part(state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    return Job(
        id="j", kind="dlq", state=state, filter={}, rate=100, max_lag_ms=2000, created_at=10, updated_at=20, **fields
    )


def test_counters_rates_and_tallies_add_up() -> None:
    key = "acme/orders/0/http"
    whole = whole_job(
        [
            part(moved=3, scanned=5, delivered=2, total=4, tallies={key: SinkTally(3, 2, 0)}, throttled={"lag": 2}),
            part(moved=1, scanned=1, dead=1, total=1, tallies={key: SinkTally(1, 0, 1)}, held=(key,), error="why"),
        ]
    )
    assert (whole.moved, whole.scanned, whole.delivered, whole.dead, whole.total) == (4, 6, 2, 1, 5)
    assert (whole.rate, whole.tallies, whole.held, whole.error) == (200, {key: SinkTally(4, 2, 1)}, (key,), "why")
    assert whole.throttled == {"lag": 2}


def test_a_total_that_one_part_does_not_know_is_not_known() -> None:
    assert whole_job([part(total=4), part(total=None)]).total is None


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ((JobState.DONE, JobState.RUNNING), JobState.RUNNING),
        ((JobState.DONE, JobState.PAUSED), JobState.PAUSED),
        ((JobState.DONE, JobState.FAILED, JobState.CANCELLED), JobState.FAILED),
        ((JobState.DONE, JobState.CANCELLED), JobState.CANCELLED),
        ((JobState.DONE, JobState.DONE), JobState.DONE),
    ],
)
def test_a_job_runs_while_a_part_does_and_is_done_when_all_are(states: tuple[JobState, ...], whole: JobState) -> None:
    finished = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
    parts = [part(state, finished_at=30 + n if state in finished else None) for n, state in enumerate(states)]
    found = whole_job(parts)
    assert found.state is whole
    ends = [one.finished_at for one in parts if one.finished_at is not None]
    assert found.finished_at == (max(ends) if whole in finished else None)


@pytest.mark.parametrize(("rate", "partitions"), [(1000, 12), (13, 12), (12, 12), (5, 5), (100, 1)])
def test_shares_are_the_rate(rate: int, partitions: int) -> None:
    shares = [share(rate, number, partitions) for number in range(partitions)]
    assert sum(shares) == rate
    assert max(shares) - min(shares) <= 1


def test_a_rate_below_one_a_partition_is_one() -> None:
    assert [share(2, number, 4) for number in range(4)] == [1, 1, 1, 1]


def test_no_command_of_a_job_compacts_another_away() -> None:
    commands = [
        JobStart(part()),
        JobStart(replace(part(), updated_at=30)),
        JobPatch("j", 1),
        JobPatch("j", 2),
        JobDrop("j", 2),
    ]
    assert len({command_key(command) for command in commands}) == len(commands)
