"""What releases recorded on the embedded host comes to the same tables as a partition of the Kafka host."""

from __future__ import annotations

from pathlib import Path

import pytest

from ankusa.store.tables import Tables
from schemas.records import Topic
from streams.kafka.folding import PartitionFold
from tests.golden.record import FOLDER, digest, load
from tests.property.refold import content

GOLDEN = sorted(FOLDER.glob("*.golden"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_recorded_log_folds_to_what_it_was(path: Path, tmp_path: Path) -> None:
    """By the fold of a partition, whose number is 0: then a seq is what it is on the embedded host."""
    golden = load(path)
    tables = Tables(tmp_path / "0")
    fold = PartitionFold(0, tables)
    for topic, offset, at, value in golden.log:
        assert not fold.fold(Topic(topic), offset, at, value).skipped
    found = content(tables)
    assert {family: len(found[family]) for family in golden.sizes} == golden.sizes
    assert {family: digest(found[family]) for family in golden.digests} == golden.digests
    tables.close()


def test_a_recorded_log_has_every_kind_of_record() -> None:
    assert GOLDEN
    topics = {topic for path in GOLDEN for topic, *_ in load(path).log}
    assert topics >= {Topic.HOOKS, Topic.OUTCOMES, Topic.REPLAYS, Topic.QUARANTINE, Topic.LIMITS}
    sizes = load(GOLDEN[0]).sizes
    empty = {family for family, size in sizes.items() if not size}
    assert empty <= {"sources", "routes"}
