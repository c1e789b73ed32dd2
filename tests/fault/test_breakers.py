"""kill -9 of a node with five open breakers: it still knows them, and sends each dead sink one probe at its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault import breakers
from tests.fault.breaker_report import SINKS, Report, Size

pytestmark = pytest.mark.fault


def check(report: Report) -> None:
    print(report)
    assert report.forgotten == 0
    assert [stage.requests for stage in report.stages] == [[1] * SINKS] * 3
    assert report.changed == 0
    assert report.good, report


@pytest.mark.timeout(900)  # a slow machine needs breakers that are open for longer, and waits for them
def test_open_breakers_survive_kills_and_probe_once_each(tmp_path: Path) -> None:
    check(breakers.run(tmp_path, Size(hooks=40, open_ms=3_000, max_open_ms=48_000)))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_breakers_as_they_are_by_default_survive_kills_and_probe_once_each(tmp_path: Path) -> None:
    check(breakers.run(tmp_path, breakers.FULL))
