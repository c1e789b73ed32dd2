"""What each host recorded comes to the same tables on the other, and on itself, today as when it was recorded.

A seq is a place in the log of hooks. On the embedded host one offset counts the records of all topics, on Kafka each
topic has its own: so a log is refolded with the offsets that it was recorded with, and partition 0 makes the same seq
of one. Of places in lanes the order counts alone (`record_kafka.comparable`). The store's own entries (`meta`, `log`)
are no fold and may differ, and bodies are in no changelog. All else is the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ankusa.core import fold
from ankusa.core.ops import Op
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Held, OutcomeBatch, OutcomeKind, Topic
from streams.kafka.changelog import Entry
from streams.kafka.folding import PartitionFold
from streams.kafka.places import log_offset
from tests.golden.record import FOLDER, Golden, digest, load
from tests.golden.record_kafka import comparable
from tests.property.changelog import Worker
from tests.property.refold import content

EMBEDDED = sorted(FOLDER.glob("embedded-*.golden"))
KAFKA = sorted(FOLDER.glob("kafka-*.golden"))
Contents = dict[str, dict[bytes, bytes]]


def on_kafka(golden: Golden, folder: Path) -> Contents:
    """By the fold of a partition, whose number is 0: then a seq is what it is on the embedded host."""
    tables = Tables(folder / "0")
    partition = PartitionFold(0, tables)
    for topic, offset, at, value in golden.log:
        assert not partition.fold(Topic(topic), offset, at, value).skipped
    found = content(tables)
    tables.close()
    return found


def restored_on_kafka(golden: Golden, folder: Path) -> Contents:
    """The same, by a worker that loses its disk in the middle and at the end."""
    changelog: list[Entry] = []
    for part in (golden.log[: len(golden.log) // 2], golden.log[len(golden.log) // 2 :]):
        one = Worker(folder / "worker", changelog, "one")
        one.start()
        for topic, offset, at, value in part:
            one.take((Topic(topic), offset, at, value))
        one.send(len(golden.log))
        one.die(disk_lost=True)
    last = Worker(folder / "worker", changelog, "last")
    last.start()
    found = content(last.tables)
    last.die()
    return found


def on_embedded(golden: Golden, folder: Path) -> Contents:
    """By the folds and the store of the embedded host, whose codecs these are."""
    tables = Tables(folder / "embedded")
    for turn, (topic, offset, at, value) in enumerate(golden.log, 1):
        batch = tables.database.batch()
        applied = tables.apply(batch, _operations(tables, Topic(topic), offset, at, value, turn))
        tables.database.write(batch)
        applied.written()
        applied.announce()
    found = content(tables)
    tables.close()
    return found


def _operations(tables: Tables, topic: Topic, offset: int, at: int, value: bytes, turn: int) -> list[Op]:
    if topic is Topic.HOOKS:
        hooks = [(records.decode_envelope(entry), entry, body) for entry, body in records.decode_commit(value)[1]]
        return fold.fold_commit(log_offset(0, offset), at, hooks, tables, turn)[0]
    if topic is Topic.LIMITS:
        return list(fold.fold_limit(records.decode_limit_change(value)))
    if topic is Topic.OUTCOMES:
        return list(fold.fold_outcomes(records.decode_outcome_record(value), turn, at, tables))
    if topic is Topic.REPLAYS:
        return list(fold.fold_job(records.decode_job_record(value), tables))
    assert topic is Topic.QUARANTINE
    try:
        held: list[tuple[Held, bytes, bytes]] = [
            (records.decode_held(entry), entry, body) for entry, body in records.decode_commit(value)[1]
        ]
    except records.DecodeError:
        purge = records.decode_purge(value)
        # What is held alone is purged. A log of the embedded host lacks what was: its body was in the pen alone.
        there = tuple(entry for entry in purge.entries if tables.held(entry.received_at, entry.id))
        return list(fold.fold_purge(records.msgspec.structs.replace(purge, entries=there)))
    return list(fold.fold_held(held))


def check(golden: Golden, found: Contents, *, bodies: bool = True) -> None:
    families = set(golden.sizes) if bodies else set(golden.sizes) - {"hooks"}  # bodies are no part of a changelog
    assert {family: len(found[family]) for family in families} == {family: golden.sizes[family] for family in families}
    assert {family for family in families if digest(found[family]) != golden.digests[family]} == set()


@pytest.mark.parametrize("fold_it", [on_kafka, on_embedded])
@pytest.mark.parametrize("path", EMBEDDED, ids=lambda path: path.stem)
def test_what_the_embedded_host_recorded_comes_to_the_same_on_both(
    path: Path, tmp_path: Path, fold_it: Callable[[Golden, Path], Contents]
) -> None:
    golden = load(path)
    check(golden, fold_it(golden, tmp_path))


@pytest.mark.parametrize("path", EMBEDDED, ids=lambda path: path.stem)
def test_what_the_embedded_host_recorded_comes_to_the_same_from_a_changelog(path: Path, tmp_path: Path) -> None:
    golden = load(path)
    check(golden, restored_on_kafka(golden, tmp_path), bodies=False)


@pytest.mark.parametrize("path", [*EMBEDDED, *KAFKA], ids=lambda path: path.stem)
def test_both_hosts_come_to_the_same_entries(path: Path, tmp_path: Path) -> None:
    """Entry by entry, so that what differs is shown."""
    golden = load(path)
    found, wanted = comparable(on_kafka(golden, tmp_path)), comparable(on_embedded(golden, tmp_path))
    for family in golden.sizes:
        assert found[family] == wanted[family], family


@pytest.mark.parametrize("fold_it", [on_kafka, on_embedded])
@pytest.mark.parametrize("path", KAFKA, ids=lambda path: path.stem)
def test_what_a_worker_recorded_comes_to_the_same_on_both(
    path: Path, tmp_path: Path, fold_it: Callable[[Golden, Path], Contents]
) -> None:
    golden = load(path)
    check(golden, comparable(fold_it(golden, tmp_path)))


@pytest.mark.parametrize("path", KAFKA, ids=lambda path: path.stem)
def test_what_a_worker_recorded_comes_to_the_same_from_its_changelog(path: Path, tmp_path: Path) -> None:
    golden = load(path)
    check(golden, comparable(restored_on_kafka(golden, tmp_path)), bodies=False)


@pytest.mark.parametrize("fold_it", [on_kafka, on_embedded])
@pytest.mark.parametrize("path", [*EMBEDDED, *KAFKA], ids=lambda path: path.stem)
def test_outcomes_that_come_again_change_nothing(
    path: Path, tmp_path: Path, fold_it: Callable[[Golden, Path], Contents]
) -> None:
    """They are stale: of rows that are gone, and of rows that wait with another generation."""
    golden = load(path)
    wanted = fold_it(golden, tmp_path / "once")
    offset, latest = max(offset for _, offset, _, _ in golden.log), golden.log[-1][2]
    batches = [value for topic, _, _, value in golden.log if topic == Topic.OUTCOMES and _is_batch(value)]
    assert batches
    golden.log += [(int(Topic.OUTCOMES), offset + number, latest, value) for number, value in enumerate(batches, 1)]
    assert fold_it(golden, tmp_path / "again") == wanted


def _is_batch(value: bytes) -> bool:
    return isinstance(records.decode_outcome_record(value), OutcomeBatch)


@pytest.mark.parametrize("fold_it", [on_kafka, on_embedded])
def test_another_log_comes_to_something_else(tmp_path: Path, fold_it: Callable[[Golden, Path], Contents]) -> None:
    """One outcome of another kind, and the comparison says so."""
    golden = load(KAFKA[0])
    for place, (topic, offset, at, value) in enumerate(golden.log):
        record = records.decode_outcome_record(value) if topic == Topic.OUTCOMES else None
        if isinstance(record, OutcomeBatch) and record.items[0].kind is OutcomeKind.DELIVERED:
            changed = records.msgspec.structs.replace(record.items[0], kind=OutcomeKind.DEAD)
            golden.log[place] = (topic, offset, at, records.encode(OutcomeBatch((changed, *record.items[1:]))))
            break
    with pytest.raises(AssertionError):
        check(golden, comparable(fold_it(golden, tmp_path)))


def test_recorded_logs_have_every_kind_of_record() -> None:
    topics = {topic for path in EMBEDDED for topic, *_ in load(path).log}
    assert topics >= {Topic.HOOKS, Topic.OUTCOMES, Topic.REPLAYS, Topic.QUARANTINE, Topic.LIMITS}
    assert {topic for path in KAFKA for topic, *_ in load(path).log} == topics - {Topic.LIMITS}
    for path, without in ((EMBEDDED[0], {"sources", "routes"}), (KAFKA[0], {"sources", "routes", "limits"})):
        assert {family for family, size in load(path).sizes.items() if not size} <= without
