"""What a lane's members cost the embedded host: no memory, no scan, and one member read for each that is promoted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ankusa.store import keys
from ankusa.store.database import Database
from schemas.records import OutcomeKind, RowState, lane_key
from tests.bench import lane as bench
from tests.contract.embedded import EmbeddedHost, embedded
from tests.contract.host import Hook
from tests.contract.sinks import OK, ScriptedSink, hang

KEY = lane_key("acme", "orders", 0, "http", "k")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[EmbeddedHost]:
    with embedded(tmp_path) as made:
        yield made


def ordered(count: int, prefix: str = "hook") -> list[Hook]:
    return [Hook(f"{prefix}-{number:05d}", ordering_keys=("k",)) for number in range(count)]


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """Where each range that is read of the due index and of members begins."""
    read: list[tuple[str, bytes]] = []
    original = Database.keys

    def spy(self: Database, family: str, start: bytes, end: bytes) -> Iterator[bytes]:
        if family in ("due", "members"):
            read.append((family, start))
        return original(self, family, start, end)

    monkeypatch.setattr(Database, "keys", spy)
    return read


@pytest.mark.parametrize("members", [10, 5_000])
def test_a_scan_reads_as_little_beside_many_members_as_beside_few(
    host: EmbeddedHost, begins: list[tuple[str, bytes]], members: int
) -> None:
    stuck, free = ScriptedSink(hang), ScriptedSink(OK)
    host.source("orders", stuck)
    host.source("other", free)
    host.commit(ordered(members + 1))
    host.settle()
    begins.clear()
    turns = host.turns
    host.commit([Hook(f"o-{number}", source_id="other") for number in range(100)])
    host.settle()
    assert len(free.got) == 100
    assert len(stuck.got) == 1
    assert [family for family, _ in begins] == ["due"] * len(begins)
    assert len(begins) <= 3
    assert host.turns - turns <= 3
    # Nothing in memory for members: the due index knows of tenants, the dispatcher of the claimed head.
    assert len(host.dispatcher.claims.by_place) == 1
    assert len(host.log.tables.live._heads) <= 1
    assert host.log.tables.recent.rows() == []
    assert host.log.tables.lane_counts() == (1, members)


def test_each_promotion_begins_behind_what_has_gone(host: EmbeddedHost, begins: list[tuple[str, bytes]]) -> None:
    sink = ScriptedSink(OK)
    host.source("orders", sink)
    host.commit(ordered(500))
    host.advance(60_000)
    assert len(sink.got) == 500
    starts = [start for family, start in begins if family == "members"]
    places = [keys.split_member_key(start)[0] for start in starts]
    assert places == sorted(set(places)), "a range was begun before the place of a head that had gone"
    assert places[0] > 0
    # A head that joined an empty lane has its place too: what went before it is not walked over again.
    begins.clear()
    host.commit(ordered(2, "later"))
    host.advance(1000)
    (first, *_) = [keys.split_member_key(start)[0] for family, start in begins if family == "members"]
    assert first > places[-1]
    assert host.lane("k") is None


def test_the_head_of_a_revived_row_is_promoted_behind_too(host: EmbeddedHost, begins: list[tuple[str, bytes]]) -> None:
    sink = ScriptedSink(OK)
    host.source("orders", sink)
    host.commit(ordered(2))
    host.remove_source("orders")
    host.commit(ordered(2, "dies"))
    host.advance(2000)
    host.source("orders", ScriptedSink(OK))
    host.start_job("job")
    begins.clear()
    host.revive("job", "dies-00000", "dies-00001")
    assert host.rows("dies-00001")[0].state is RowState.MEMBER
    host.advance(1000)
    places = [keys.split_member_key(start)[0] for family, start in begins if family == "members"]
    assert places == sorted(places)
    assert places[0] > 0
    assert [line.kind for line in host.attempts("dies-00001")][-1] is OutcomeKind.DELIVERED


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_million_members_cost_no_memory_and_no_scan_time(tmp_path: Path) -> None:
    """Times are printed; what is held to is memory, of which a million would take hundreds of MiB."""
    found = {size: bench.measured(tmp_path / str(size), size) for size in bench.SIZES}
    print(json.dumps(found, indent=2))
    few, many = (found[size]["MiB resident, opened"] for size in bench.SIZES)
    assert many < few + 48


def test_the_figures_of_a_lane_are_measured(tmp_path: Path) -> None:
    """The benchmark at a size for every run: it ends, and it has all its figures."""
    asyncio.run(bench._store(tmp_path, 1000, others=1000))
    found = asyncio.run(bench._measure(tmp_path, 1000))
    assert all(value > 0 for value in found.values())
    assert set(found) >= {"claims/s of others", "us a promotion", "us a sweep's longest slice"}
