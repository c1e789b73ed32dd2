"""The node's breakers at run time: what is said of one that opens and closes."""

from __future__ import annotations

import logging

import pytest

from ankusa.dispatch.breakers import Breakers
from schemas.config import Dispatch

KEY = "acme/orders/0/http"


def test_a_breaker_that_closes_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ankusa.dispatch")
    breakers = Breakers({}, Dispatch(breaker_failures=2, breaker_open_ms=1000))
    assert not breakers.resulted(KEY, 1, alive=False, probe=False)
    assert not breakers.resulted(KEY, 2, alive=True, probe=False)  # failures are forgotten: it was never open
    assert not breakers.resulted(KEY, 3, alive=False, probe=False)
    assert breakers.resulted(KEY, 4, alive=False, probe=False)
    assert KEY in breakers.open()
    assert not caplog.messages
    assert not breakers.resulted(KEY, 2000, alive=True, probe=True)
    assert not breakers.resulted(KEY, 2001, alive=True, probe=False)
    assert caplog.messages == [f"event=breaker_closed key={KEY}"]
    assert not breakers.open()
