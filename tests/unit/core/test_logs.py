"""The log's rate limit: bounded per place in the code, telling what it dropped; deliveries of the `log` sink pass."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from ankusa import logs
from ankusa.logs import BURST, WINDOW_S, RateLimit


def record(name: str = "ankusa.store", line: int = 1, text: str = "event=refused") -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "/code.py", line, text, (), None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [1000.0]
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


def test_a_place_says_it_so_often_and_then_is_counted(clock: list[float]) -> None:
    limit = RateLimit()
    assert [limit.filter(record()) for _ in range(BURST + 100)] == [True] * BURST + [False] * 100
    assert limit.filter(record(line=2))
    clock[0] += WINDOW_S + 0.1
    first, second = record(), record()
    assert limit.filter(first)
    assert limit.filter(second)
    assert first.getMessage() == "event=refused dropped_before=100"
    assert second.getMessage() == "event=refused"


def test_a_window_without_drops_says_nothing_of_them(clock: list[float]) -> None:
    limit = RateLimit()
    for _ in range(5):
        said = record()
        assert limit.filter(said)
        assert said.getMessage() == "event=refused"
        clock[0] += WINDOW_S + 0.1


def test_deliveries_of_the_log_sink_pass(clock: list[float]) -> None:
    limit = RateLimit()
    assert all(limit.filter(record(name="ankusa.sink.log")) for _ in range(10 * BURST))
