"""What a worker tells of its fold: records that cannot be read are counted, and seen."""

from __future__ import annotations

from pathlib import Path

from ankusa import metrics
from schemas.records import Topic
from streams.kafka.operations import fold_figures
from tests.unit.kafka.records import Partition, hooks
from tests.unit.store.entries import AT


def test_the_figures_are_those_of_the_partitions(tmp_path: Path) -> None:
    partitions = [Partition(tmp_path / str(number), number) for number in range(2)]
    for partition in partitions:
        partition.add(Topic.HOOKS, hooks("a", "b"))
        partition.add(Topic.HOOKS, b"\xc1")
        partition.fold.fold(Topic.HOOKS, 0, AT, hooks("a", "b"))
    found = fold_figures([partition.fold for partition in partitions])
    assert found == metrics.FoldFigures(
        partitions=2, records=4, rows=4, skipped=2, set_aside=2, refused_pages=0, waiting=4
    )
    samples = {sample.name: sample.value for family in metrics.fold_metrics(found) for sample in family.samples}
    assert samples["ankusa_set_aside_records"] == 2
    assert samples["ankusa_changelog_waiting_records"] == 4
    for partition in partitions:
        partition.tables.close()
