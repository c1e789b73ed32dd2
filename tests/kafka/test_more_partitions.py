"""A topic that is given more partitions by hand: workers end and say so, and nothing that was accepted is lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from ankusa.supervisor import FATAL_EXIT
from streams.kafka.topics import topic_specs
from streams.kafka.worker import FAILED_EXIT
from tests.kafka.delivering import arrived, delivering_fleet, edge, ending, owns, worker
from tests.kafka.folding import DEADLINE_S, Fleet, until
from tests.kafka.nodes import Served
from tests.support.marked_sink import SinkProcess

BEFORE, AFTER = 2, 3


def grow(fleet: Fleet, topics: Iterable[str]) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.broker})
    for grown in admin.create_partitions([NewPartitions(topic, AFTER) for topic in topics]).values():
        grown.result(DEADLINE_S)


def posted(served: Served, count: int) -> set[str]:
    return {served.accepted() for _ in range(count)}


def test_workers_end_and_lose_nothing(broker: str, tmp_path: Path) -> None:
    fleet = delivering_fleet(broker, partitions=BEFORE)
    partitioned = {spec.name for spec in topic_specs(fleet.config) if spec.partitions == BEFORE}
    with SinkProcess(tmp_path) as sink, edge(fleet, tmp_path / "edge") as served:
        sink.behave(status=503)
        process = worker(fleet, tmp_path / "worker", sink.url)
        processes = [process]
        with ending(processes):
            owns(process, BEFORE)
            ids = posted(served, 8)
            until(lambda: sink.statuses().get("503", 0) >= 8, "all are tried")

            grow(fleet, [fleet.names.hooks])
            until(lambda: process.process.poll() is not None, "the worker ends")
            assert process.process.poll() == FAILED_EXIT, process.output()
            (reason,) = process.said("worker_failed")
            assert f"{fleet.names.hooks} has 3 partitions, wanted 2" in reason
            process.start()
            assert process.process.wait(DEADLINE_S) == FATAL_EXIT, process.output()
            assert process.said("topic_wrong")
            ids |= posted(served, 8)  # the edge goes on, by the partitions it knows

            # The way out: all topics alike, and every node told so.
            grow(fleet, partitioned - {fleet.names.hooks})
            kafka = msgspec.structs.replace(fleet.config.kafka, partitions=AFTER)
            fleet.config = msgspec.structs.replace(fleet.config, kafka=kafka)
            sink.behave(status=200)
            processes.append(worker(fleet, tmp_path / "worker", sink.url))
            with edge(fleet, tmp_path / "second") as second:
                ids |= posted(second, 3 * AFTER)
                arrived(sink, ids)
            assert processes[1].stop() == 0, processes[1].output()
