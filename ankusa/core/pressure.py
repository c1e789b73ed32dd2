"""Pressure: what a replay asks before every page, and what the answer lets it do (spec 05 "Gate")."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

GateReason = Literal["lag", "window_full", "unavailable"]


class Pressure(Struct, frozen=True):
    """`lag_ms` is the age of the oldest due live row, 0 when none is due; `window_full` that no row can be claimed."""

    lag_ms: int
    window_full: bool


def gate(pressure: Pressure | None, max_lag_ms: int) -> GateReason | None:
    """Why no page may run now, None when one may. None for `pressure` means that nobody could say."""
    if pressure is None:
        return "unavailable"
    if pressure.window_full:
        return "window_full"
    return "lag" if pressure.lag_ms > max_lag_ms else None
