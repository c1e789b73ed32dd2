"""A worker process that folds, on a real broker: killed, without its disk, and beside another."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ankusa.clock import now_ms
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import HistoryExpiry, Outcome, OutcomeBatch, OutcomeKind, Topic
from streams.kafka import places
from tests.kafka.folding import Fleet, WorkerProcess, same, until
from tests.unit.kafka.records import hooks
from tests.unit.store.entries import AT

COMMITS, HOOKS = 60, 64
"""Of each partition, and of each commit."""


def commits(fleet: Fleet, count: int = COMMITS, size: int = HOOKS) -> None:
    fleet.send(
        Topic.HOOKS,
        (
            (
                number,
                hooks(
                    *(f"{number}-{commit}-{index}" for index in range(size)),
                    sinks=2,
                    lane="k" if commit % 7 == 0 else None,
                ),
            )
            for commit in range(count)
            for number in range(fleet.partitions)
        ),
    )


def outcomes(fleet: Fleet, count: int = COMMITS, size: int = HOOKS) -> None:
    """Of the first sink of every hook: most are delivered, some dead, some tried again."""
    kinds = (OutcomeKind.DELIVERED, OutcomeKind.DELIVERED, OutcomeKind.DEAD, OutcomeKind.RETRY)
    fleet.send(
        Topic.OUTCOMES,
        (
            (
                number,
                records.encode(OutcomeBatch(tuple(_outcome(number, commit, index, kinds) for index in range(size)))),
            )
            for commit in range(count)
            for number in range(fleet.partitions)
        ),
    )


def _outcome(number: int, commit: int, index: int, kinds: tuple[OutcomeKind, ...]) -> Outcome:
    seq = records.seq_of(places.log_offset(number, commit), index)
    return Outcome(seq, 0, 0, kinds[index % len(kinds)], AT, AT, 1, AT + 5000)


def test_a_killed_worker_leaves_what_a_refold_makes(broker: str, tmp_path: Path) -> None:
    """Killed while it folds hooks, and again while it folds outcomes; its disk is kept, and a copy is lost."""
    fleet = Fleet(broker)
    worker = WorkerProcess(fleet, tmp_path / "worker")
    for send in (commits, outcomes):
        send(fleet)
        until(lambda: any(offset for offset, _ in fleet.committed().values()), "something is committed")
        worker.kill()
        fleet.end_sessions()
        worker.start()
        until(fleet.everything_committed, "everything is committed")
    assert worker.stop() == 0, worker.output()
    kept, wanted = worker.tables(), fleet.refolded(tmp_path / "refolded")
    without_disk = WorkerProcess(fleet, tmp_path / "other")
    until(lambda: len(without_disk.said("partition_owned")) == fleet.partitions, "it owns all partitions")
    assert without_disk.stop() == 0, without_disk.output()
    restored = without_disk.tables()
    for number in range(fleet.partitions):
        same(kept[number], wanted[number])
        same(restored[number], wanted[number])


def test_ids_and_attempts_past_their_time_are_gone_from_every_copy(broker: str, tmp_path: Path) -> None:
    """From a worker's disk, from one that is restored of the changelog, and from a refold of the topics."""
    fleet = Fleet(broker, partitions=1)
    commits(fleet, count=4, size=8)
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(fleet.everything_committed, "hooks are folded")
    outcomes(fleet, count=4, size=8)
    until(fleet.everything_committed, "outcomes are folded")
    settled = Outcome(records.seq_of(places.log_offset(0, 0), 0), 1, 0, OutcomeKind.DELIVERED, AT, AT, 1)
    ending = records.encode(OutcomeBatch((settled,))), records.encode(HistoryExpiry(now_ms() + 60_000))
    fleet.send(Topic.OUTCOMES, [(0, value) for value in ending])
    until(fleet.everything_committed, "what is old is gone")
    assert worker.stop() == 0, worker.output()
    kept = worker.tables()[0]
    assert b"0-0-0" not in kept["ids"]
    assert len(kept["ids"]) == 4 * 8 - 1  # each other one has a row left of its second sink
    assert {key[:8] for key in kept["attempts"]} <= {key[:8] for key in kept["rows"]}
    same(kept, fleet.refolded(tmp_path / "refolded")[0])
    without_disk = WorkerProcess(fleet, tmp_path / "other")
    until(lambda: len(without_disk.said("partition_owned")) == 1, "it owns the partition")
    assert without_disk.stop() == 0, without_disk.output()
    same(without_disk.tables()[0], kept)


def test_a_replayed_insert_does_not_bring_back_what_was_settled(broker: str, tmp_path: Path) -> None:
    """The group's offsets are lost: everything is read again, and skipped by the markers."""
    fleet = Fleet(broker, partitions=1)
    commits(fleet, count=3)
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(fleet.everything_committed, "hooks are folded")
    outcomes(fleet, count=3)
    until(fleet.everything_committed, "outcomes are folded")
    assert worker.stop() == 0, worker.output()
    before = worker.tables()[0]
    fleet.rewind()
    assert not fleet.everything_committed()
    worker.start()
    until(fleet.everything_committed, "everything is read again")
    assert worker.stop() == 0, worker.output()
    same(worker.tables()[0], before)


def test_an_unreadable_changelog_ends_the_worker_loudly(broker: str, tmp_path: Path) -> None:
    fleet = Fleet(broker, partitions=1)
    fleet.producer.produce(fleet.names.changelog, b"\xc1", b"r" + b"\0" * 10, 0)
    assert fleet.producer.flush(20) == 0
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(lambda: worker.process.poll() is not None, "it ends")
    assert worker.process.returncode == 1
    assert "an entry of rows cannot be decoded" in worker.said("worker_failed")[0]


@pytest.mark.soak
def test_partitions_are_shared_and_taken_over(broker: str, tmp_path: Path) -> None:
    """Two workers; one is killed while both fold. Nobody keeps a copy of what he does not own."""
    fleet = Fleet(broker, partitions=4)
    first = WorkerProcess(fleet, tmp_path / "first")
    until(lambda: len(first.said("partition_owned")) == 4, "the first owns all")
    second = WorkerProcess(fleet, tmp_path / "second")
    until(lambda: len(second.said("partition_owned")) == 2, "the second owns its half")
    assert len(list((second.data / "partitions").iterdir())) == 2
    commits(fleet)
    killed_at = time.monotonic()
    first.kill()
    until(lambda: len(second.said("partition_owned")) == 4, "the survivor owns all")
    print(f"\nthe survivor owned all partitions {time.monotonic() - killed_at:.1f} s after the kill")
    until(fleet.everything_committed, "hooks are folded")
    outcomes(fleet)
    until(fleet.everything_committed, "outcomes are folded")
    assert second.stop() == 0, second.output()
    found, wanted = second.tables(), fleet.refolded(tmp_path / "refolded")
    for number in range(4):
        same(found[number], wanted[number])


@pytest.mark.soak  # `test_faust_facts.py` has the fence itself
def test_an_owner_that_slept_through_a_takeover_writes_nothing_more(broker: str, tmp_path: Path) -> None:
    fleet = Fleet(broker, partitions=1)
    sleeper = WorkerProcess(fleet, tmp_path / "sleeper")
    until(lambda: len(sleeper.said("partition_owned")) == 1, "it owns the partition")
    commits(fleet)
    until(lambda: any(offset for offset, _ in fleet.committed().values()), "something is folded")
    sleeper.signal(signal.SIGSTOP)
    heir = WorkerProcess(fleet, tmp_path / "heir")
    until(lambda: len(heir.said("partition_owned")) == 1, "the heir owns the partition")
    outcomes(fleet)
    until(fleet.everything_committed, "everything is folded")
    sleeper.signal(signal.SIGCONT)
    # Both are there now: whoever has the partition in the end, its changelog is one history.
    commits_again = [(0, hooks(f"late-{index}")) for index in range(20)]
    fleet.send(Topic.HOOKS, commits_again)
    until(fleet.everything_committed, "what came after is folded")
    sleeper.stop()
    assert heir.stop() == 0, heir.output()
    last = WorkerProcess(fleet, tmp_path / "last")
    until(lambda: len(last.said("partition_owned")) == 1, "a third one owns it")
    assert last.stop() == 0, last.output()
    same(last.tables()[0], fleet.refolded(tmp_path / "refolded")[0])


@pytest.mark.parametrize(
    "rows", [pytest.param(50_000, id="50k"), pytest.param(1_000_000, id="1M", marks=pytest.mark.soak)]
)
def test_a_worker_that_lost_its_disk_is_restored_in_bulk(broker: str, tmp_path: Path, rows: int) -> None:
    fleet = Fleet(broker, partitions=4)
    per_commit = 250
    fleet.send(
        Topic.HOOKS,
        (
            (commit % 4, hooks(*(f"{commit}-{index}" for index in range(per_commit))))
            for commit in range(rows // per_commit)
        ),
    )
    began = time.monotonic()
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(fleet.everything_committed, "all is folded", 900)
    print(f"\n{rows:,} rows folded by a worker in {time.monotonic() - began:.1f} s, its start included")
    assert worker.stop() == 0, worker.output()
    began = time.monotonic()
    worker.start()
    until(lambda: len(worker.said("partition_owned")) == 8, "it owns all again")
    print(f"with its disk, ready after {time.monotonic() - began:.1f} s")
    assert worker.stop() == 0, worker.output()
    again = worker.said("partition_restored")[4:]
    assert sum(_figure(line, "entries") for line in again) < 100, again
    began = time.monotonic()
    other = WorkerProcess(fleet, tmp_path / "other")
    until(lambda: len(other.said("partition_owned")) == 4, "it owns all", 900)
    lines = other.said("partition_restored")
    seconds = max(_figure(line, "ms") for line in lines) / 1000
    entries = sum(_figure(line, "entries") for line in lines)
    print(
        f"without, ready after {time.monotonic() - began:.1f} s: {entries:,} entries restored in {seconds:.1f} s "
        f"({entries / seconds:,.0f}/s)"
    )
    assert other.stop() == 0, other.output()
    total = 0
    for number in range(4):
        tables = Tables(other.data / "partitions" / str(number))
        total += tables.counts.total()[0]
        tables.close()
    assert total == rows


def _figure(line: str, name: str) -> int:
    return int(next(word for word in line.split() if word.startswith(f"{name}=")).split("=")[1])
