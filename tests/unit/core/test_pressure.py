"""The replay gate: what pressure lets a page through."""

from __future__ import annotations

import pytest

from ankusa.core.pressure import Pressure, gate


@pytest.mark.parametrize(
    ("pressure", "reason"),
    [
        (None, "unavailable"),
        (Pressure(0, True), "window_full"),
        (Pressure(10_000, True), "window_full"),
        (Pressure(2001, False), "lag"),
        (Pressure(2000, False), None),
        (Pressure(0, False), None),
    ],
)
def test_a_page_waits_for_live_rows(pressure: Pressure | None, reason: str | None) -> None:
    assert gate(pressure, 2000) == reason
