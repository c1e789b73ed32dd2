"""The claim check on a host (spec 03 "Claim check"): stored once a hook, before its sinks run, and never in the way."""

from __future__ import annotations

from typing import Any

import pytest

from ankusa.claim_check.blobs import BlobError
from ankusa.claim_check.check_ins import REST_MS, STORE_MS
from ankusa.claim_check.reference import PREFIX
from ankusa.claim_check.retention import DAY_MS
from ankusa.sinks.contract import Delivery
from schemas.records import ErrorClass, OutcomeKind, RowState
from tests.contract.conftest import Start
from tests.contract.host import Hook, Host, hooks
from tests.contract.sinks import OK, PERMANENT, TRANSIENT, ScriptedSink, cling, hang, slow

LIMIT = 65_536
LARGE = b"x" * (LIMIT + 1)
THREE_MB = bytes(range(256)) * 12_000
AWAY = BlobError("connection refused")


def queue(*script: Any, type: str = "sqs", **fields: Any) -> ScriptedSink:
    return ScriptedSink(*script, type=type, inline_max_bytes=LIMIT, **fields)


def large(hook_id: str, *sinks: str, body: bytes = LARGE, **fields: Any) -> Hook:
    return Hook(hook_id, sinks=sinks or ("sqs",), body=body, **fields)


def claims(sink: ScriptedSink) -> list[str | None]:
    return [delivery.claim for delivery in sink.got]


def test_a_body_over_the_limit_goes_by_reference_and_one_at_the_limit_inline(host: Host) -> None:
    sink = queue()
    host.source("orders", sink)
    host.commit([large("a"), large("b", body=LARGE[:-1]), large("c", body=b"{}")])
    host.settle()
    by_id = {delivery.id: delivery for delivery in sink.got}
    assert by_id["b"].claim is by_id["c"].claim is None
    reference = by_id["a"].claim
    assert reference is not None
    assert reference.startswith(f"{PREFIX}acme:")
    assert host.redeem(reference) == by_id["a"].body == LARGE
    ((_, size_bytes),) = host.blobs.puts
    assert size_bytes < 2 * LIMIT


def test_three_megabytes_on_two_queue_sinks_and_a_failing_retry_are_stored_once(host: Host) -> None:
    first, second, http = queue(), queue(TRANSIENT, TRANSIENT, OK, type="kafka"), ScriptedSink()
    host.source("orders", first, second, http)
    host.commit([large("a", "sqs", "kafka", "http", body=THREE_MB)])
    host.advance(10_000)
    assert host.counts() == (0, 0, 0)
    assert second.attempts_of("a") == [1, 2, 3]
    assert len(host.blobs.puts) == len(host.blobs.packs) == 1
    (reference,) = {*claims(first), *claims(second)}
    assert reference is not None
    assert host.redeem(reference) == THREE_MB
    assert claims(http) == [None]
    assert http.got[0].body == THREE_MB


def test_without_a_sink_that_wants_references_nothing_is_stored(host: Host) -> None:
    host.source("orders", ScriptedSink())
    host.commit([large("a", "http", body=THREE_MB)])
    host.settle()
    assert host.blobs.puts == []
    assert host.counts() == (0, 0, 0)


def test_the_smallest_limit_of_a_source_decides_and_each_sink_is_handed_what_it_wants(host: Host) -> None:
    small, roomy = queue(), ScriptedSink(type="nats", inline_max_bytes=1_000_000)
    host.source("orders", roomy, small)
    host.commit([large("a", "nats", "sqs")])
    host.settle()
    assert len(host.blobs.puts) == 1
    assert claims(roomy) == [None]
    assert claims(small) != [None]


def test_no_sink_of_the_hook_runs_before_it_is_checked_in_and_others_do_not_wait(host: Host) -> None:
    host.blobs.script(slow(500))
    sink, http = queue(), ScriptedSink()
    host.source("orders", sink, http)
    host.commit([large("a", "sqs", "http"), Hook("b", sinks=("sqs", "http"))])
    host.advance(400)
    assert sink.ids == http.ids == ["b"]
    assert host.rows("a").keys() == {0, 1}
    host.advance(200)
    assert sink.ids == http.ids == ["b", "a"]


def test_the_bodies_of_a_scan_are_packed_per_tenant(host: Host) -> None:
    sink = queue()
    host.source("orders", sink)
    bodies = {f"{tenant}-{n}": b"%d" % n * (LIMIT + 1 + n) for tenant in ("acme", "globex") for n in range(5)}
    host.commit([large(hook_id, body=body, tenant_id=hook_id.split("-")[0]) for hook_id, body in bodies.items()])
    host.settle()
    assert sorted(tenant for tenant, _ in host.blobs.puts) == ["acme", "globex"]
    assert len(sink.got) == len(set(claims(sink))) == 10
    for delivery in sink.got:
        assert delivery.claim is not None
        assert delivery.claim.startswith(f"{PREFIX}{delivery.tenant_id}:")
        assert host.redeem(delivery.claim) == bodies[delivery.id]


def test_a_pack_ends_at_its_size_and_a_larger_body_is_one_of_its_own(start: Start) -> None:
    host = start(pack_max_bytes=200_000)
    sink = queue()
    host.source("orders", sink)
    host.commit([large("a"), large("b"), large("big", body=b"y" * 300_000), large("c"), large("d")])
    host.settle()
    sizes = sorted(size for _, size in host.blobs.puts)
    assert [size // LIMIT for size in sizes] == [2, 2, 4]
    assert host.counts() == (0, 0, 0)
    bodies = [host.redeem(delivery.claim or "") == delivery.body for delivery in sink.got]
    assert bodies == [True] * 5


@pytest.mark.parametrize("fault", [AWAY, OSError("No space left on device"), RuntimeError("boom"), MemoryError()])
def test_when_the_pack_fails_the_attempts_run_and_check_in_their_own_once(host: Host, fault: Exception) -> None:
    host.blobs.script(fault, slow(100))
    sinks = [queue(slow(20)), queue(slow(20), type="kafka")]
    http = ScriptedSink()
    host.source("orders", *sinks, http)
    host.commit([large("a", "sqs", "kafka", "http")])
    host.settle()
    assert http.ids == ["a"]
    host.advance(1_000)
    assert host.counts() == (0, 0, 0)
    assert len(host.blobs.puts) == 2
    assert len(host.blobs.packs) == 1
    assert [sink.attempts_of("a") for sink in sinks] == [[1], [1]]
    assert claims(sinks[0]) == claims(sinks[1]) != [None]


def test_an_own_check_in_that_fails_is_a_transient_failure_of_the_attempt(host: Host) -> None:
    host.blobs.script(AWAY)
    sink = queue()
    host.source("orders", sink)
    host.commit([large("a")])
    host.settle()
    row = host.rows("a")[0]
    assert (row.state, row.attempts, row.error_class) == (RowState.PENDING, 1, ErrorClass.TRANSIENT)
    assert row.error == "claim_check: connection refused"
    assert row.at >= host.at
    assert sink.got == []
    assert [line.kind for line in host.attempts("a")] == [OutcomeKind.RETRY]
    host.blobs.script(None)
    host.advance(2_000)
    assert host.counts() == (0, 0, 0)
    assert [(delivery.attempt, delivery.claim is None) for delivery in sink.got] == [(2, False)]


def test_a_store_that_is_away_opens_no_breaker_and_what_goes_inline_goes_on(start: Start) -> None:
    host = start(breaker_failures=5, concurrency=4)
    host.blobs.script(AWAY)
    sink = queue()
    host.source("orders", sink)
    host.commit([large(f"large-{n}") for n in range(20)])
    host.advance(1_000)
    host.commit(hooks(50, sinks=("sqs",)))
    host.settle()
    assert len(sink.got) == 50
    assert all(host.rows(f"large-{n}")[0].attempts >= 1 for n in range(20))
    host.blobs.script(None)
    host.advance(20_000)
    assert host.counts() == (0, 0, 0)


def test_a_probe_whose_body_could_not_be_checked_in_says_nothing_of_the_sink(start: Start) -> None:
    host = start(breaker_failures=1, breaker_open_ms=3_000, concurrency=1)  # less than a rest: the probe is not held
    host.blobs.script(AWAY)
    sink = queue(TRANSIENT, OK)
    host.source("orders", sink)
    host.commit([large("large")])
    host.settle()
    host.commit([Hook("small", sinks=("sqs",))])
    host.settle()
    assert sink.ids == ["small"]
    host.advance(20_000)
    assert sink.ids == ["small", "small"]
    host.blobs.script(None)
    host.advance(60_000)
    assert sink.ids == ["small", "small", "large"]


def test_a_store_that_hangs_holds_its_rows_for_a_while_and_nobody_else(host: Host) -> None:
    host.blobs.script(hang)
    sink, http, other = queue(), ScriptedSink(), ScriptedSink()
    host.source("orders", sink, http)
    host.source("other", other)
    host.commit([large("a", "sqs", "http")])
    host.commit(hooks(100, source_id="other", tenant_id="globex"))
    host.settle()
    assert len(other.got) == 100
    host.advance(STORE_MS - 100)
    assert http.ids == []
    host.advance(200)
    assert http.ids == ["a"]
    host.advance(STORE_MS)
    row = host.rows("a")[0]
    assert (row.attempts, row.error_class) == (1, ErrorClass.TRANSIENT)
    assert row.error == f"claim_check: the store did not answer within {STORE_MS} ms"
    host.blobs.script(None)
    host.advance(60_000)
    assert sink.ids == ["a"]
    assert host.counts() == (0, 0, 0)


def test_a_store_that_will_not_be_cancelled_stops_nothing(host: Host) -> None:
    host.blobs.script(cling)
    sink, http = queue(), ScriptedSink()
    host.source("orders", sink, http)
    host.commit([large("a", "sqs", "http")])
    host.advance(STORE_MS + 100)
    assert http.ids == ["a"]
    host.blobs.script(None)
    host.advance(STORE_MS * 3)
    assert sink.ids == ["a"]


def test_an_own_check_in_runs_inside_the_attempts_deadline(start: Start) -> None:
    host = start(attempt_timeout_ms=1_000, concurrency=1)
    host.blobs.script(AWAY, slow(3_000))
    sink = queue()
    host.source("orders", sink)
    host.commit([large("a")])
    host.advance(1_100)
    row = host.rows("a")[0]
    assert (row.attempts, row.error_class) == (1, ErrorClass.TIMEOUT)
    assert row.error == "attempt_timeout: no result within 1000 ms"
    # It went on meanwhile: the next attempts join it or find what it left.
    host.advance(10_000)
    assert host.counts() == (0, 0, 0)
    assert len(host.blobs.puts) == 2
    assert len(host.blobs.packs) == 1


def test_after_a_refusal_rows_do_not_wait_for_a_store_that_hangs(host: Host) -> None:
    host.blobs.script(hang)
    sink, http = queue(), ScriptedSink()
    host.source("orders", sink, http)
    host.commit([large("first", "sqs", "http")])
    host.advance(STORE_MS + 100)
    host.commit([large("second", "sqs", "http")])
    host.settle()
    assert http.ids == ["first", "second"]
    host.advance(REST_MS + STORE_MS)
    host.blobs.script(None)
    host.advance(120_000)
    assert sorted(sink.ids) == ["first", "second"]
    assert host.counts() == (0, 0, 0)


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_a_reference_outlives_the_node(host: Host, end: str) -> None:
    sink = queue(TRANSIENT, OK)
    host.source("orders", sink)
    host.commit([large("a")])
    host.settle()
    getattr(host, end)()
    host.advance(5_000)
    assert host.counts() == (0, 0, 0)
    first, second = claims(sink)
    assert first == second is not None
    assert len(host.blobs.puts) == 1


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_a_node_that_ends_while_it_stores_a_pack_loses_nothing(host: Host, end: str) -> None:
    host.blobs.script(hang)
    sink = queue()
    host.source("orders", sink)
    host.commit([large(f"hook-{n}") for n in range(5)])
    host.advance(1_000)
    getattr(host, end)()
    host.blobs.script(None)
    host.advance(STORE_MS * 3)
    assert sorted(sink.ids) == [f"hook-{n}" for n in range(5)]
    assert {delivery.attempt for delivery in sink.got} <= {1, 2}
    assert all(delivery.claim for delivery in sink.got)
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_a_revived_row_is_sent_with_the_reference_it_had(host: Host) -> None:
    sink = queue(PERMANENT, OK)
    host.source("orders", sink)
    host.commit([large("a")])
    host.settle()
    host.start_job("job")
    host.revive("job", "a")
    host.settle()
    first, second = claims(sink)
    assert first == second is not None
    assert len(host.blobs.puts) == 1


def test_a_hook_that_cannot_be_read_dies_alone(host: Host) -> None:
    sink = queue()
    host.source("orders", sink)
    host.sources_answer(False)
    host.commit([large("a"), large("gone"), large("broken"), large("b")])
    host.lose("gone")
    host.corrupt("broken")
    host.sources_answer(True)
    host.advance(2_000)
    assert sorted(sink.ids) == ["a", "b"]
    assert [host.rows(hook_id)[0].error for hook_id in ("gone", "broken")] == ["hook_missing", "undecodable"]
    assert len(host.blobs.puts) == 1


def test_a_scan_that_ends_in_trouble_starts_the_packs_it_found(host: Host) -> None:
    sink = queue()
    host.source("orders", sink)
    host.sources_answer(False)
    host.commit([large("a"), Hook("unreadable", sinks=("sqs",), tenant_id="globex")])
    host.refuse_row_reads(1_000, "unreadable")
    host.sources_answer(True)
    host.advance(3_000)
    assert sink.ids == ["a"]


def test_while_the_log_takes_no_writes_no_reference_is_sent(host: Host) -> None:
    sink = queue()
    host.source("orders", sink)
    host.blobs.script(slow(100))
    host.commit([large("a")])
    host.refuse_writes(True)
    host.advance(5_000)
    assert sink.got == []
    host.refuse_writes(False)
    host.advance(60_000)
    assert sink.ids == ["a"]
    assert host.redeem(claims(sink)[0] or "") == LARGE
    assert host.counts() == host.scanned_counts() == (0, 0, 0)


def test_rows_that_wait_for_a_pack_are_in_the_window_and_the_node_settles(start: Start) -> None:
    host = start(max_inflight=10)
    host.blobs.script(slow(1_000))
    sink = queue(slow(5))
    host.source("orders", sink)
    host.commit([large(f"hook-{n:02d}") for n in range(35)])
    host.advance(500)
    pressure = host.pressure()
    assert pressure is not None
    assert pressure.window_full
    assert host.tick() == 35
    assert len(host.blobs.puts) == 4
    assert sorted(sink.ids) == [f"hook-{n:02d}" for n in range(35)]


def test_a_row_that_is_killed_while_it_waits_for_its_pack_stays_dead(host: Host) -> None:
    host.blobs.script(slow(1_000))
    sink = queue()
    host.source("orders", sink)
    host.commit([large("a"), large("b")])
    host.advance(500)
    assert host.dead_letter_source("orders") == 2
    host.advance(5_000)
    assert sink.got == []
    assert host.counts() == host.scanned_counts() == (0, 0, 2)


def test_a_row_claimed_while_its_hook_is_being_checked_in_starts_no_second_check_in(host: Host) -> None:
    host.blobs.script(AWAY, slow(9_000), None)
    sink, http = queue(), ScriptedSink(TRANSIENT, TRANSIENT, TRANSIENT, OK)
    host.source("orders", sink, http)
    host.commit([large("a", "sqs", "http")])
    host.advance(8_000)
    assert http.attempts_of("a") == [1, 2, 3, 4]
    assert http.times()[-1] - http.times()[0] > REST_MS
    host.advance(2_000)
    assert host.counts() == (0, 0, 0)
    assert len(host.blobs.puts) == 2


def test_a_sink_that_no_longer_wants_references_gets_the_body(host: Host) -> None:
    before, after = queue(TRANSIENT), ScriptedSink(type="sqs")
    host.source("orders", before)
    host.commit([large("a")])
    host.settle()
    host.source("orders", after)
    host.advance(2_000)
    (delivery,) = after.got
    assert (delivery.claim, delivery.body) == (None, LARGE)


def test_ordered_rows_keep_their_order(host: Host) -> None:
    sink = queue(slow(5))
    host.source("orders", sink)
    host.blobs.script(slow(50))
    batch = [Hook(f"hook-{n}", sinks=("sqs",), body=LARGE if n % 2 else b"{}", ordering_keys=("k",)) for n in range(8)]
    host.commit(batch)
    host.advance(5_000)
    assert sink.ids == [f"hook-{n}" for n in range(8)]
    assert [delivery.claim is not None for delivery in sink.got] == [bool(n % 2) for n in range(8)]


def test_a_batching_sink_takes_references_too(host: Host) -> None:
    sink = queue(slow(100), batching=True)
    host.source("orders", sink)
    host.commit([large(f"hook-{n}") for n in range(50)])
    host.settle()
    assert sink.running == 50
    assert all(claims(sink))
    assert len(host.blobs.puts) == 1


def test_a_delivery_holds_the_body_beside_the_reference(host: Host) -> None:
    """A message carries the body's size and sha256 in either form."""
    seen: list[Delivery] = []

    async def act(delivery: Delivery) -> Any:
        seen.append(delivery)
        return OK

    host.source("orders", queue(act))
    host.commit([large("a", body=THREE_MB)])
    host.settle()
    assert seen[0].body == THREE_MB
    assert seen[0].claim is not None


@pytest.mark.parametrize("dies", [False, True])
def test_an_old_pack_goes_when_no_row_of_its_hooks_is_left(start: Start, *, dies: bool) -> None:
    host = start(pack_max_bytes=1)  # each body a pack of its own
    host.source("orders", queue(OK), queue(PERMANENT, OK, type="kafka"))
    host.commit([large("gone", "sqs"), large("dead", "sqs", "kafka")])
    host.settle()
    assert host.counts() == (0, 0, 1)
    host.sweep_packs(7)
    assert len(host.blobs.packs) == 2
    host.advance(8 * DAY_MS)
    host.sweep_packs(7)
    assert len(host.blobs.packs) == 1
    if dies:
        host.crash()
    replacing = queue(OK, type="kafka")
    host.source("orders", queue(OK), replacing)
    host.start_job("again")
    host.revive("again", "dead")
    host.settle()
    (reference,) = claims(replacing)
    assert reference is not None
    assert host.redeem(reference) == LARGE  # the same one, eight days later
    assert len(host.blobs.puts) == 2
    host.sweep_packs(7)
    assert host.blobs.packs == {}
    assert host.counts() == (0, 0, 0)
