"""A job in several partitions of which one refuses a command: what the next try of the same command comes to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ankusa.replay.answers import Finished, Started, StoreUnavailable
from schemas import records
from schemas.records import Job, JobPatch, JobStart, JobState, Page, Topic
from tests.unit.kafka.replaying import PARTITIONS, Log, Node
from tests.unit.store.entries import AT

EVERY = range(PARTITIONS)
JOB = "00000000-0000-7000-8000-0000000000aa"
BODY = {"kind": "dlq", "rate": 10, "source_id": "orders"}
NAMED = BODY | {"job_id": JOB}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.close()


def run(test: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    async def within() -> Any:
        return await test(*given)

    return asyncio.run(within())


def start(node: Node, body: dict[str, Any]) -> Any:
    return run(node.operator.start, body)


def update(node: Node, patch: dict[str, Any], job_id: str = JOB) -> Any:
    return run(node.operator.update, job_id, patch)


def refuse_start(log: Log, node: Node, number: int, body: dict[str, Any] = NAMED) -> None:
    """A start that partition `number` refuses, and all others take."""
    log.refuses = {number}
    assert isinstance(start(node, body), StoreUnavailable)
    log.refuses = set()


def ended(log: Log, number: int, job_id: str = JOB) -> None:
    """A partition's part of the job comes to its end."""
    partition = log.partitions[number]
    page = Page(job_id, log.at, b"\xff", 0, 0, (), finished=True, epoch=partition.fold.epoch)
    partition.add(Topic.OUTCOMES, records.encode(page), log.at)
    assert log.part(number, job_id).state is JobState.DONE


def existing(answer: Any) -> Job:
    assert isinstance(answer, Started), answer
    assert not answer.created
    return answer.job


# -- a start -----------------------------------------------------------------------


@pytest.mark.parametrize("body", [NAMED, BODY], ids=["by its id", "by its filter"])
@pytest.mark.parametrize("number", EVERY)
def test_a_start_that_was_refused_reaches_its_partition_with_the_next_one(
    log: Log, number: int, body: dict[str, Any]
) -> None:
    node = Node(log, EVERY)
    refuse_start(log, node, number, body)
    (job_id,) = {job.id for other in EVERY if other != number for job in log.partitions[other].tables.jobs()}
    log.at += 5000
    job = existing(start(node, body))
    assert (job.id, job.rate, job.state) == (job_id, 10, JobState.RUNNING)
    assert log.having(job_id) == list(EVERY)
    part = log.part(number, job_id)
    assert (part.rate, part.created_at, part.filter) == ([3, 3, 2, 2][number], AT, {"source_id": "orders"})
    assert (part.state, part.kind, part.cursor) == (JobState.RUNNING, "dlq", None)


def test_whoever_is_asked_next_sends_it(log: Log) -> None:
    first, second = Node(log, (0, 1)), Node(log, (2, 3))
    refuse_start(log, first, 1)
    existing(start(second, NAMED))
    assert log.having(JOB) == list(EVERY)
    assert [log.part(number, JOB).rate for number in EVERY] == [3, 3, 2, 2]


@pytest.mark.parametrize("body", [NAMED, BODY], ids=["by its id", "by its filter"])
def test_a_node_that_has_no_part_of_a_job_remembers_what_it_started(log: Log, body: dict[str, Any]) -> None:
    node = Node(log, (3,))
    refuse_start(log, node, 3, body)
    job_id = log.partitions[0].tables.jobs()[0].id
    log.at += 5000
    job = existing(start(node, body))
    assert (job.id, job.created_at) == (job_id, AT)
    assert [log.part(number, job_id).created_at for number in EVERY] == [AT] * PARTITIONS
    assert [len(partition.tables.jobs()) for partition in log.partitions] == [1] * PARTITIONS


def test_a_start_that_nobody_took_is_forgotten(log: Log) -> None:
    node = Node(log, (3,))
    log.refuses = set(EVERY)
    assert isinstance(start(node, BODY), StoreUnavailable)
    log.refuses = set()
    log.at += 5000
    answer = start(node, BODY)
    assert isinstance(answer, Started) and answer.created
    assert answer.job.created_at == AT + 5000


@pytest.mark.parametrize("silent", [{2}, set(EVERY)], ids=["one partition", "all of them"])
@pytest.mark.parametrize("body", [NAMED, BODY], ids=["by its id", "by its filter"])
def test_a_start_that_is_not_answered_is_safe_to_send_again(
    log: Log, body: dict[str, Any], silent: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may arrive later, before or behind what was sent again: there is one job, once in each partition."""
    monkeypatch.setattr("streams.kafka.replay_host.ANSWER_S", 0.05)
    node = Node(log, (1, 2))
    log.silent = silent
    answer = start(node, body)
    assert isinstance(answer, StoreUnavailable)
    assert "has not answered within 0.05 s; it may still arrive" in str(answer.reason)
    log.at += 5000
    assert isinstance(start(node, body), StoreUnavailable)
    log.answer()
    log.at += 5000
    job = existing(start(node, body))
    assert [[job.id for job in partition.tables.jobs()] for partition in log.partitions] == [[job.id]] * PARTITIONS
    assert sum(log.part(number, job.id).rate for number in EVERY) == 10


def test_a_change_that_is_not_answered_is_refused_in_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.kafka.replay_host.ANSWER_S", 0.05)
    node = Node(log, EVERY)
    start(node, NAMED)
    log.silent = {1}
    assert isinstance(update(node, {"state": "paused"}), StoreUnavailable)
    assert log.part(1, JOB).state is JobState.RUNNING
    log.answer()
    assert {log.part(number, JOB).state for number in EVERY} == {JobState.PAUSED}


def test_a_start_is_not_remembered_for_ever(log: Log) -> None:
    """Elsewhere the job has ended by then, and the same filter means another one."""
    node = Node(log, (3,))
    refuse_start(log, node, 3, BODY)
    log.at += 601_000
    answer = start(node, BODY)
    assert isinstance(answer, Started) and answer.created


def test_all_parts_that_take_a_start_have_it_when_it_is_refused(log: Log) -> None:
    """Otherwise the next one, without an id, may not find it and make a second job."""
    node = Node(log, EVERY)
    refuse_start(log, node, 0, BODY)
    assert [len(partition.tables.jobs()) for partition in log.partitions] == [0, 1, 1, 1]


def test_a_part_gets_its_share_of_the_rate_that_the_job_has_by_now(log: Log) -> None:
    node = Node(log, EVERY)
    refuse_start(log, node, 1)
    assert isinstance(update(node, {"rate": 102}), Job)
    log.at += 5000
    job = existing(start(node, NAMED))
    assert [log.part(number, JOB).rate for number in EVERY] == [26, 26, 25, 25]
    assert job.rate == 102


def test_a_node_with_few_parts_knows_the_rate_of_all(log: Log) -> None:
    first, second = Node(log, (0, 1, 2)), Node(log, (3,))
    refuse_start(log, first, 1)
    update(second, {"rate": 102})
    existing(start(second, NAMED))
    assert [log.part(number, JOB).rate for number in EVERY] == [26, 26, 25, 25]


def test_parts_of_an_older_release_do_not_tell_the_rate_of_all(log: Log) -> None:
    """Then it is taken for what they have on average: a row a second apart, at most."""
    node = Node(log, EVERY)
    for number, rate in ((0, 3), (2, 2), (3, 2)):
        made = Job(
            id=JOB,
            kind="dlq",
            state=JobState.RUNNING,
            filter={"source_id": "orders"},
            rate=rate,
            max_lag_ms=2000,
            created_at=AT,
            updated_at=AT,
        )
        log.partitions[number].add(Topic.REPLAYS, records.encode(JobStart(made)))
    existing(start(node, NAMED))
    assert log.part(1, JOB).rate in (2, 3)


def test_a_part_of_a_paused_job_is_paused_and_goes_on_with_the_others(log: Log) -> None:
    node = Node(log, EVERY)
    refuse_start(log, node, 2)
    update(node, {"state": "paused", "max_lag_ms": 500})
    existing(start(node, NAMED))
    part = log.part(2, JOB)
    assert (part.state, part.max_lag_ms) == (JobState.PAUSED, 500)
    update(node, {"state": "running"})
    assert {log.part(number, JOB).state for number in EVERY} == {JobState.RUNNING}


def test_a_part_that_was_missed_runs_when_all_others_are_done(log: Log) -> None:
    node = Node(log, EVERY)
    refuse_start(log, node, 2)
    for number in (0, 1, 3):
        ended(log, number)
    assert existing(start(node, NAMED)).state is JobState.RUNNING
    assert log.part(2, JOB).state is JobState.RUNNING


def test_a_cancelled_job_is_not_begun_anywhere(log: Log) -> None:
    node = Node(log, EVERY)
    refuse_start(log, node, 2)
    update(node, {"state": "cancelled"})
    assert existing(start(node, NAMED)).state is JobState.CANCELLED
    assert log.having(JOB) == [0, 1, 3]


def test_parts_that_are_there_keep_what_they_have(log: Log) -> None:
    first, second = Node(log, (0, 1)), Node(log, (2, 3))
    start(first, NAMED)
    ended(log, 0)
    before = [log.part(number, JOB) for number in EVERY]
    log.at += 5000
    for node in (first, second):
        existing(start(node, NAMED))
    assert [log.part(number, JOB) for number in EVERY] == before
    # What a node has itself it does not send.
    assert sorted(number for number, _, _ in log.sent[PARTITIONS:]) == [*EVERY]


def test_rows_that_a_part_has_to_move_are_counted_for_it(log: Log) -> None:
    log.dead(1, "lost-1")
    log.dead(1, "lost-2")
    log.dead(0, "lost-3")
    log.at += 10
    node = Node(log, EVERY)
    refuse_start(log, node, 1, {"kind": "dlq", "job_id": JOB})
    job = existing(start(node, {"kind": "dlq", "job_id": JOB}))
    assert (log.part(1, JOB).total, job.total) == (2, 3)


def test_a_start_that_is_refused_again_says_so(log: Log) -> None:
    node = Node(log, EVERY)
    refuse_start(log, node, 1)
    refuse_start(log, node, 1)
    existing(start(node, NAMED))
    assert log.having(JOB) == list(EVERY)


# -- a patch -----------------------------------------------------------------------


@pytest.mark.parametrize("owns", [EVERY, (0, 1), (2, 3)], ids=str)
@pytest.mark.parametrize(
    ("patch", "wanted"),
    [({"state": "paused"}, JobState.PAUSED), ({"rate": 40}, 10), ({"state": "cancelled"}, JobState.CANCELLED)],
    ids=["paused", "rate", "cancelled"],
)
def test_a_patch_that_one_partition_refused_reaches_it_with_the_next_one(
    log: Log, owns: tuple[int, ...], patch: dict[str, Any], wanted: object
) -> None:
    """Asked at a node that has the part, and at one that has not and shows a job that is as it should be."""
    node = Node(log, owns)
    start(node, NAMED)
    log.refuses = {1}
    assert isinstance(update(node, patch), StoreUnavailable)
    log.refuses = set()
    answer = update(node, patch)
    parts = [log.part(number, JOB) for number in EVERY]
    assert [part.rate if "rate" in patch else part.state for part in parts] == [wanted] * PARTITIONS
    if wanted is JobState.CANCELLED and 1 not in owns:
        assert isinstance(answer, Finished) and answer.job.state is JobState.CANCELLED
    else:
        assert isinstance(answer, Job)


def test_a_refused_patch_of_a_finished_job_is_refused_again_while_it_cannot_be_sent(log: Log) -> None:
    node = Node(log, (0,))
    start(node, NAMED)
    log.refuses = {1}
    for _ in range(2):
        assert isinstance(update(node, {"state": "cancelled"}), StoreUnavailable)
    assert log.part(1, JOB).state is JobState.RUNNING


def test_a_job_whose_part_here_is_done_is_changed_elsewhere(log: Log) -> None:
    node = Node(log, (0,))
    start(node, NAMED)
    ended(log, 0)
    assert isinstance(update(node, {"state": "paused"}), Finished)
    assert [log.part(number, JOB).state for number in EVERY] == [JobState.DONE, *[JobState.PAUSED] * 3]


def test_parts_that_disagree_show_as_running_and_are_brought_together(log: Log) -> None:
    node = Node(log, EVERY)
    start(node, NAMED)
    log.partitions[1].add(Topic.REPLAYS, records.encode(JobPatch(JOB, AT, JobState.PAUSED)))
    shown = node.operator.get(JOB)
    assert isinstance(shown, Job) and shown.state is JobState.RUNNING
    for wanted in ("paused", "running"):
        answer = update(node, {"state": wanted})
        assert isinstance(answer, Job)
        assert {log.part(number, JOB).state.name.lower() for number in EVERY} == {wanted}
