"""kill -9 of a node that delivers ordered hooks: each lane keeps its order, nothing is lost, no lane is held."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault import lanes
from tests.fault.lane_report import Report, Size

pytestmark = pytest.mark.fault


def check(report: Report) -> None:
    print(report)
    assert report.total("lost") == 0
    assert report.total("disordered") == 0
    assert report.total("overtaking") == 0
    assert report.dead == report.poison > 0
    assert report.good, report


def test_lanes_keep_their_order_through_two_kills(tmp_path: Path) -> None:
    check(lanes.run(tmp_path, Size(hooks=1_500, keys=50, kills=2)))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_hooks_over_a_hundred_keys_keep_their_order_through_five_kills(tmp_path: Path) -> None:
    check(lanes.run(tmp_path, lanes.FULL))
