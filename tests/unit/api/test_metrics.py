"""The scrape: names, units, bounded labels, counts that agree with the store, and no table read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ankusa import metrics
from ankusa.metrics import Attempts, Figures, LaneFigures, Metrics, SinkFigures, WindowFigures
from ankusa.store.database import Database
from schemas.config import Config, Sink, Source, Verify
from schemas.records import Job, JobState, OutcomeKind
from streams.operations.figures import Gated
from tests.unit.api.node import Node

CONFIG = Config(
    sources={"orders": Source(name="orders", tenant="acme", verify=Verify(type="none"), sinks=(Sink(type="http"),))}
)
UNITS = (
    "_seconds",
    "_bytes",
    "_rows",
    "_total",
    "_hooks",
    "_info",
    "_up",
    "_offset",
    "_replays",
    "_fds",
    "_lanes",
    "_breakers",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config=CONFIG) as made:
        yield made


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def figures(sinks: dict[str, SinkFigures], attempts: Attempts | None = None) -> Figures:
    return Figures(
        instance="default",
        version="1",
        store_up=True,
        store_bytes=1,
        store_recoveries=0,
        next_offset=1,
        reclaimed={},
        pen_entries=0,
        pen_bytes=0,
        answered={},
        sinks=sinks,
        lag_ms=None,
        window=WindowFigures(0, 1, 0, 1),
        attempts=attempts or Attempts({}, {}, 0),
        outcomes={},
        lanes=LaneFigures(0, 0, 0, 0, None),
        open_breakers=0,
        replays=None,
        gated={},
    )


def test_the_scrape_is_prometheus_text_with_our_names_and_units(node: Node) -> None:
    node.dead()
    reply = node.ask("GET", "/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(reply.body.decode()))
    for family in families:
        assert family.name.startswith("ankusa_"), family.name
        assert family.documentation, family.name
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        else:
            assert family.name.endswith(UNITS), family.name
    names = {family.name for family in families}
    assert names >= {"ankusa_lag_seconds", "ankusa_window_rows", "ankusa_attempt_duration_seconds", "ankusa_rows"}


def test_counts_agree_with_the_store(node: Node) -> None:
    for _ in range(3):
        node.accept(tenant="acme", source="orders")
    node.dead(tenant="acme", source="orders")
    node.dead(tenant="globex", source="bills")
    node.settle(node.accept(), OutcomeKind.DELIVERED)
    node.hold()
    node.claim(3)
    found = samples(node.ask("GET", "/metrics").body)
    rows = {dict(labels)["state"]: value for (name, labels), value in found.items() if name == "ankusa_rows"}
    assert rows == {"pending": 0, "claimed": 3, "dead": 2}
    acme = (("sink", "0"), ("source", "orders"), ("tenant", "acme"), ("type", "http"))
    assert found["ankusa_sink_pending_rows", acme] == 3
    assert found["ankusa_sink_dead_rows", acme] == 1
    assert found["ankusa_quarantine_hooks", ()] == 1
    assert found["ankusa_window_rows", ()] == 3
    assert found["ankusa_store_up", ()] == 1


def test_a_delivery_is_counted_as_attempt_outcome_and_duration(node: Node) -> None:
    node.accept()

    async def deliver() -> None:
        node.parts.sink.let_go.set()
        await node.parts.dispatcher.tick()

    node.run(deliver)
    found = samples(node.ask("GET", "/metrics").body)
    assert found["ankusa_attempts_total", (("result", "ok"),)] == 1
    assert found["ankusa_outcomes_total", (("outcome", "delivered"),)] == 1
    assert found["ankusa_attempt_duration_seconds_count", ()] == 1


def test_a_scrape_reads_no_row_no_hook_and_no_index(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.dead()
    node.hold()
    read: list[str] = []
    for name in ("get", "get_many", "keys", "items", "items_back", "first_key", "last_key"):
        original = getattr(Database, name)

        def spy(self: Database, family: str, *rest: object, original: object = original) -> object:
            read.append(family)
            return original(self, family, *rest)  # type: ignore[operator]

        monkeypatch.setattr(Database, name, spy)
    assert node.ask("GET", "/metrics").status == 200
    # The job records are few (116 at most); everything else comes from counts in memory.
    assert set(read) <= {"jobs"}


def test_labels_never_hold_an_id_or_a_url(node: Node) -> None:
    hook_id = node.dead(error="https://example.com/secret refused")
    text = node.ask("GET", "/metrics").body.decode()
    assert hook_id not in text
    assert "://" not in text
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", text)


def test_sink_keys_past_the_bound_are_summed_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "NAMED_SINKS", 3)
    sinks = {f"t{number}/s/0/http": SinkFigures(pending=1, dead=10) for number in range(5)}
    found = samples(Metrics().render(figures(sinks)))
    dead = {dict(labels)["tenant"]: value for (name, labels), value in found.items() if name == "ankusa_sink_dead_rows"}
    assert dead == {"t0": 10, "t1": 10, "t2": 10, "other": 20}
    assert found["ankusa_rows", (("state", "dead"),)] == 50


def test_a_named_sink_key_stays_at_zero_until_its_place_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "NAMED_SINKS", 2)
    sinks = {"a/s/0/http": SinkFigures(dead=1), "b/s/0/http": SinkFigures(dead=2)}
    scrape = Metrics()

    def dead() -> dict[str, float]:
        found = samples(scrape.render(figures(sinks)))
        return {
            dict(labels)["tenant"]: value for (name, labels), value in found.items() if name == "ankusa_sink_dead_rows"
        }

    assert dead() == {"a": 1, "b": 2}
    del sinks["a/s/0/http"]
    assert dead() == {"a": 0, "b": 2}
    sinks["c/s/0/http"] = SinkFigures(dead=3)
    assert dead() == {"b": 2, "c": 3}


def test_durations_are_cumulative_buckets_in_seconds() -> None:
    attempts = Attempts({"ok": 4}, {1: 1, 8: 2, 1 << 40: 1}, 5000)
    found = samples(Metrics().render(figures({}, attempts)))
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name.endswith("_bucket")}
    assert (buckets["0.001"], buckets["0.004"], buckets["0.008"], buckets["4194.304"], buckets["+Inf"]) == (
        1,
        1,
        3,
        3,
        4,
    )
    assert found["ankusa_attempt_duration_seconds_count", ()] == 4
    assert found["ankusa_attempt_duration_seconds_sum", ()] == 5


def _job(job_id: str, **throttled: int) -> Job:
    return Job(
        id=job_id, kind="dlq", state=JobState.RUNNING, filter={}, rate=1, max_lag_ms=1, created_at=1, updated_at=1,
        throttled=throttled,
    )  # fmt: skip


def test_gated_ticks_add_up_over_jobs_that_come_and_go() -> None:
    gated = Gated()
    assert gated.count([_job("a", lag=5)])["lag"] == 0
    assert gated.count([_job("a", lag=7), _job("b", window_full=2)]) == {"lag": 2, "window_full": 2, "unavailable": 0}
    assert gated.count([_job("b", window_full=3)]) == {"lag": 2, "window_full": 3, "unavailable": 0}
    assert gated.count([]) == {"lag": 2, "window_full": 3, "unavailable": 0}
