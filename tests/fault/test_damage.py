"""A store that must not be opened: damaged, or another node's. `ankusa serve` says which and ends with status 65."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ankusa.supervisor import FATAL_EXIT
from tests.support.dead_rows import bury, bury_and_die
from tests.support.node import Node

pytestmark = pytest.mark.fault

NOBODY = {"type": "http", "url": "http://127.0.0.1:9/"}
CONFIG: dict[str, Any] = {"sources": {"hooks": {"verify": {"type": "none"}, "sinks": [NOBODY]}}}
ENDS_WITHIN_S = 120.0


def refused(node: Node) -> str:
    """Start a node that must end by itself; what it said."""
    node.launch()
    assert node.process is not None
    try:
        assert node.process.wait(ENDS_WITHIN_S) == FATAL_EXIT == 65, node.log()
        assert not node.pids()
    finally:
        node.kill()
    return node.log()


def damage(path: Path, at_byte: int) -> None:
    """Flip 64 bytes."""
    with path.open("r+b") as file:
        file.seek(at_byte)
        before = file.read(64)
        file.seek(at_byte)
        file.write(bytes(byte ^ 0xFF for byte in before))


def largest(store: Path, suffix: str) -> Path:
    return max(store.glob(f"*{suffix}"), key=lambda path: path.stat().st_size)


@pytest.fixture
def left(tmp_path: Path) -> Node:
    """A node that was left behind: all that it stored is in its write-ahead log."""
    bury_and_die(tmp_path / "data", "hooks", 100)
    return Node(tmp_path, CONFIG)


def check_damaged(node: Node) -> None:
    said = refused(node)
    assert "event=store_refused" in said
    assert f"{node.folder / 'data' / 'store'} is damaged and was not opened" in said
    assert "restore it from a backup" in said
    assert "Traceback" not in said


def test_a_log_that_is_damaged_in_its_middle_is_refused(left: Node) -> None:
    wal = largest(left.folder / "data" / "store", ".log")
    before = wal.read_bytes()
    damage(wal, len(before.rstrip(b"\0")) // 2)
    check_damaged(left)
    wal.write_bytes(before)  # and the try has made nothing worse
    with left:
        assert left.get("/v1/dlq?limit=0")["total"] == 100


def test_a_torn_tail_is_dropped(left: Node) -> None:
    """What a power cut leaves of a write that nobody was answered for."""
    wal = largest(left.folder / "data" / "store", ".log")
    with wal.open("r+b") as file:
        file.truncate(len(wal.read_bytes().rstrip(b"\0")) - 5)
    with left:
        rows = left.get("/v1/stats")["rows"]
        # The last write was the death of all: they live again.
        assert (rows["pending"] + rows["claimed"], rows["dead"]) == (100, 0)
        assert left.post("hooks").status == 201


def test_a_damaged_description_of_the_store_is_refused(left: Node) -> None:
    damage(next((left.folder / "data" / "store").glob("MANIFEST*")), 0)
    check_damaged(left)


def test_a_damaged_table_is_refused(left: Node) -> None:
    """A table of RocksDB that has rotted where it is read at the start."""
    store = left.folder / "data" / "store"
    bury(left.folder / "data", "hooks", 1)  # an opening flushes what the last one left in its log
    table = largest(store, ".sst")
    damage(table, table.stat().st_size - 64)  # its footer
    check_damaged(left)


@pytest.mark.parametrize("edges", [0, 1])
def test_a_second_node_on_one_directory_is_refused(tmp_path: Path, edges: int) -> None:
    with Node(tmp_path, CONFIG) as node:
        (tmp_path / "second").mkdir()
        second = Node(tmp_path / "second", {**CONFIG, "node": {"edges": edges}}, data_dir=str(tmp_path / "data"))
        said = refused(second)
        assert "node.data_dir" in said and str(tmp_path / "data") in said
        assert "Traceback" not in said
        assert node.post("hooks").status == 201  # the first has not noticed
