"""A fleet as processes, under load, while workers and brokers are taken from it: see `fleet.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka import fleet_blocked, fleet_replay
from tests.kafka.fleet import FULL, SHORT, Plan, run, worker_stood_still
from tests.kafka.fleet_stack import Size


@pytest.mark.fault
@pytest.mark.soak
def test_a_small_fleet_goes_on_through_all_of_it(tmp_path: Path) -> None:
    """One broker: a worker killed and another added at once, and the broker away, which is the group's coordinator."""
    size = Size(brokers=1, partitions=4, per_second=120)
    found = run(tmp_path, size, Plan(hooks=1500, events=SHORT, unlucky=10, outage_s=3, calm_ms=2000))
    print(f"\n{found}")
    assert found.good, found
    assert found.accepted >= 1500


@pytest.mark.fault
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_worker_that_stood_still_past_its_session_delivers_nothing_of_others(tmp_path: Path) -> None:
    found = run(tmp_path, Size(per_second=300), Plan(hooks=4000, events=(worker_stood_still,), unlucky=10))
    print(f"\n{found}")
    assert found.good, found


@pytest.mark.soak
@pytest.mark.fault
@pytest.mark.timeout(1800)
def test_a_fleet_of_three_brokers_goes_on_through_all_of_it(tmp_path: Path) -> None:
    """Fifty thousand hooks, and all brokers away for two minutes."""
    found = run(tmp_path, Size(), Plan(hooks=50_000, events=FULL))
    print(f"\n{found}")
    assert found.good, found
    assert found.accepted >= 50_000


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_sink_that_holds_for_ten_minutes_moves_no_partition(tmp_path: Path) -> None:
    """Longer than a session of the group and than any limit between two polls."""
    found = fleet_blocked.run(tmp_path, blocked_s=600)
    print(f"\n{found}")
    assert found.good, found


@pytest.mark.soak
@pytest.mark.fault
@pytest.mark.timeout(600)
def test_a_replay_moves_every_dead_row_once_through_a_kill(tmp_path: Path) -> None:
    found = fleet_replay.run(tmp_path, dead=2000)
    print(f"\n{found}")
    assert found.good, found
