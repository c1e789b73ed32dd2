"""A changelog that was cut, or made again, on a real broker: nothing is restored in part, and no store is emptied."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from schemas.records import Topic
from streams.kafka.topic_admin import TopicAdmin
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.unit.kafka.records import hooks


def folded(fleet: Fleet, worker: WorkerProcess, *names: str) -> None:
    """The worker has folded commits of these hooks, and ended."""
    fleet.send(Topic.HOOKS, [(0, hooks(name)) for name in names])
    until(fleet.everything_committed, "hooks are folded")
    assert worker.stop() == 0, worker.output()


def cut(fleet: Fleet, begins: int) -> None:
    """Delete what is before offset `begins` of the changelog, as an operator might who takes it for an old log."""
    name = fleet.names.changelog
    admin = AdminClient({"bootstrap.servers": fleet.broker})
    deletes = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[deletes])
    admin.incremental_alter_configs([resource])[resource].result(20)
    (future,) = admin.delete_records([TopicPartition(name, 0, begins)]).values()
    assert future.result(20).low_watermark == begins
    until(lambda: TopicAdmin(fleet.config).create() != [], "it is compacted again")


def test_a_changelog_that_was_cut_restores_nothing_in_part(broker: str, tmp_path: Path) -> None:
    """An empty disk needs its beginning, a kept one what came since; one that has all that is gone reads on."""
    fleet = Fleet(broker, partitions=1)
    older = WorkerProcess(fleet, tmp_path / "older")
    folded(fleet, older, "a", "b")
    newer = WorkerProcess(fleet, tmp_path / "newer")
    folded(fleet, newer, "c", "d")
    end = max(record.offset for record in fleet.read(fleet.names.changelog))
    cut(fleet, end - 1)
    told = f"{fleet.names.changelog}[0] begins at offset {end - 1}"
    empty = WorkerProcess(fleet, tmp_path / "empty")
    assert told in empty.failed()
    before = older.tables()[0]["rows"]
    older.start()
    assert told in older.failed()
    assert older.tables()[0]["rows"] == before
    newer.start()
    until(lambda: len(newer.said("partition_owned")) == 2, "the newer disk reads on")
    folded(fleet, newer, "e")
    assert {b"a", b"b", b"c", b"d", b"e"} <= set(newer.tables()[0]["ids"])


def test_a_changelog_that_was_made_again_does_not_empty_a_kept_disk(broker: str, tmp_path: Path) -> None:
    """The disk may be the last copy: whoever removes it goes by what the topics have."""
    fleet = Fleet(broker, partitions=1)
    worker = WorkerProcess(fleet, tmp_path / "worker")
    folded(fleet, worker, "a", "b")
    before = worker.tables()[0]["rows"]
    fleet.make_again(fleet.names.changelog)
    worker.start()
    assert f"{fleet.names.changelog}[0] was made again" in worker.failed()
    assert worker.tables()[0]["rows"] == before
    shutil.rmtree(worker.data / "partitions" / "0")
    worker.start()
    until(lambda: len(worker.said("partition_owned")) == 2, "it begins anew")
    until(fleet.everything_committed, "everything is folded again")
    assert worker.stop() == 0, worker.output()
    assert worker.tables()[0]["rows"].keys() == before.keys()


def test_a_changelog_without_its_first_entries_restores_nothing(broker: str, tmp_path: Path) -> None:
    """It begins at 0, as one that was made again while its owner wrote on: its tables would lack what was before."""
    fleet = Fleet(broker, partitions=1)
    folded(fleet, WorkerProcess(fleet, tmp_path / "worker"), "a", "b")
    entries = fleet.read(fleet.names.changelog)
    fleet.make_again(fleet.names.changelog)
    for entry in entries[2:]:
        fleet.producer.produce(fleet.names.changelog, entry.value, entry.key, 0)
    assert fleet.producer.flush(20) == 0
    empty = WorkerProcess(fleet, tmp_path / "empty")
    assert f"{fleet.names.changelog}[0] does not begin with its first owner" in empty.failed()


def test_a_changelog_that_is_made_again_under_a_worker_ends_it(broker: str, tmp_path: Path) -> None:
    fleet = Fleet(broker, partitions=1)
    worker = WorkerProcess(fleet, tmp_path / "worker")
    fleet.send(Topic.HOOKS, [(0, hooks("a"))])
    until(fleet.everything_committed, "it is folded")
    fleet.make_again(fleet.names.changelog)
    assert "changelog was made again" in worker.failed()
    worker.start()
    assert f"{fleet.names.changelog}[0] was made again" in worker.failed(2)
