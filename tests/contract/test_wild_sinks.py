"""Sinks that keep no contract: whatever one does costs its own row an attempt, and nobody else anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ankusa.sinks.contract import Delivery, Failed, Ok
from schemas.records import ErrorClass, OutcomeKind
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, ScriptedSink, cling, hang


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def cancel_itself(_: Delivery) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


WILD: dict[str, Any] = {
    "raises": ValueError("boom"),
    "raises without a text": SpeechlessError(),
    "raises cancelled": asyncio.CancelledError(),
    "raises a group": ExceptionGroup("many", [ValueError("one")]),
    "raises what no UTF-8 holds": ValueError("\udcff"),
    "cancels itself": cancel_itself,
    "answers None": None,
    "answers True": True,
    "answers a string": "ok",
    "answers the class": Ok,
    "fails in a class of its own": Failed("weather", "rain"),  # type: ignore[arg-type]
    "fails in no class": Failed(None, "rain"),  # type: ignore[arg-type]
    "fails in a list": Failed(["permanent"], "rain"),  # type: ignore[arg-type]
    "fails without a reason": Failed("transient", None),  # type: ignore[arg-type]
    "fails with bytes": Failed("transient", b"\xff"),  # type: ignore[arg-type]
    "fails with what no UTF-8 holds": Failed("transient", "caf\udce9"),
    "fails mute": Failed("transient", Mute()),  # type: ignore[arg-type]
    "waits a fraction": Failed("retry_after", "429", 1.5),  # type: ignore[arg-type]
    "waits for ever": Failed("retry_after", "429", float("inf")),  # type: ignore[arg-type]
    "waits backwards": Failed("retry_after", "429", -5000),
    "waits None": Failed("retry_after", "429", None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wild", WILD)
def test_it_costs_one_attempt_and_the_next_may_succeed(host: Host, wild: str) -> None:
    step = WILD[wild]
    if callable(step) and step is Ok:

        async def step(_: Delivery) -> Any:
            return Ok

    sink = ScriptedSink(step, OK)
    host.source("orders", sink)
    host.commit([Hook("a")])
    host.settle()
    row = host.rows("a")[0]
    assert row.attempts == 1
    assert row.error_class in (ErrorClass.TRANSIENT, ErrorClass.RETRY_AFTER)
    assert row.error
    host.advance(1000)
    assert sink.attempts_of("a") == [1, 2]
    assert host.counts() == (0, 0, 0)
    assert host.tick() == 0


@pytest.mark.parametrize("detail", [None, b"\xff", "caf\udce9", Mute(), "x" * 100_000])
def test_an_ok_with_a_strange_detail_is_an_ok(host: Host, detail: Any) -> None:
    host.source("orders", ScriptedSink(Ok(detail)))
    host.commit([Hook("a")])
    host.settle()
    (line,) = host.attempts("a")
    assert line.kind is OutcomeKind.DELIVERED
    assert line.detail is not None
    assert len(line.detail) <= 500


def test_one_wild_answer_spoils_no_batch(start: Start) -> None:
    host = start(concurrency=100)
    wild, well = ScriptedSink(Failed("transient", "\ud800")), ScriptedSink()
    host.source("wild", wild)
    host.source("orders", well)
    host.commit([*hooks(20, prefix="wild", source_id="wild"), *hooks(20)])
    host.settle()
    assert host.counts() == host.scanned_counts() == (20, 0, 0)


def test_a_sink_that_clings_to_its_cancelled_attempt_holds_no_slot(start: Start) -> None:
    host = start(concurrency=2, attempt_timeout_ms=1000)
    clinging, well = ScriptedSink(cling), ScriptedSink()
    host.source("bad", clinging)
    host.source("orders", well)
    host.commit([*hooks(2, prefix="bad", source_id="bad"), *hooks(5)])
    host.advance(1000)
    assert len(well.got) == 5


def test_a_hung_sink_leaves_the_others_their_slots(start: Start) -> None:
    host = start(concurrency=10, sink_concurrency=4)
    hung, well = ScriptedSink(hang), ScriptedSink()
    host.source("bad", hung)
    host.source("orders", well)
    host.commit([*hooks(100, prefix="bad", source_id="bad"), *hooks(100)])
    host.settle()
    assert len(well.got) == 100
    assert hung.running == hung.most_running == 4


def test_hung_sinks_of_one_source_leave_its_healthy_one_its_slots(start: Start) -> None:
    host = start(concurrency=20, sink_concurrency=4)
    hung, well = ScriptedSink(hang, type="http"), ScriptedSink(type="log")
    host.source("orders", hung, well)
    host.commit(hooks(100, sinks=("http", "log")))
    host.settle()
    assert len(well.got) == 100
    assert hung.most_running == 4


class Unfinished:
    """A sink that is not one: asking what it is raises."""

    type = "http"

    @property
    def batching(self) -> bool:
        raise AttributeError("batching")

    @property
    def inline_max_bytes(self) -> int | None:
        raise AttributeError("inline_max_bytes")


def test_a_sink_that_is_none_stops_nobody_and_its_rows_wait_unspent(host: Host) -> None:
    well, mended = ScriptedSink(), ScriptedSink()
    host.source("broken", Unfinished())
    host.source("orders", well)
    host.commit([*hooks(20, prefix="bad", source_id="broken"), *hooks(20)])
    host.settle()
    assert len(well.got) == 20
    host.advance(3000)
    assert host.rows("bad-0000")[0].attempts == 0
    assert host.counts() == host.scanned_counts() == (20, 0, 0)
    host.source("broken", mended)
    host.advance(1100)
    assert len(mended.got) == 20
    assert host.tick() == 0
    assert host.counts() == (0, 0, 0)
