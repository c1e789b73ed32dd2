"""A real node from the sender's socket to the sink's: what goes in, what comes out, and what a stop, a reload and a
restart change about it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from standardwebhooks import Webhook, WebhookVerificationError

from ankusa import supervisor
from tests.support.http_sink import Received, SinkServer
from tests.support.load import Load
from tests.support.marked_sink import SinkProcess
from tests.support.node import Answer, Node
from tests.support.node_process import poll
from tests.support.tally import settle

NEW_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
MAX_BODY_BYTES = 8_000_000
STOP_WITHIN_S = 2 * supervisor.STOP_S


class Running(Struct):
    """The node that the tests share, and its one sink."""

    node: Node
    sink: SinkServer

    def delivered(self, hook_id: str) -> Received:
        """The hook's delivery, once it has come."""
        poll(f"the delivery of {hook_id}", lambda: self.sink.counts[hook_id])
        return next(request for request in self.sink.requests if request.header("x-ankusa-id") == hook_id)

    def wait_idle(self) -> None:
        """Until no row is left that is not dead."""
        poll("no row left", lambda: not any(self.node.get("/v1/stats")["rows"][k] for k in ("pending", "claimed")))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with SinkServer() as sink:
        plain = [{"type": "http", "url": sink.url}]
        none = {"type": "none"}
        config: dict[str, Any] = {
            "rate_limits": {"tenants": {"slow": {"rate": 0.001, "burst": 2}}},
            "sources": {
                "plain": {"verify": none, "sinks": plain},
                "events": {"verify": none, "dedupe": {"header": "X-Event"}, "sinks": plain},
                "signed": {"verify": none, "sinks": [{**plain[0], "secret": [NEW_SECRET, OLD_SECRET]}]},
                "guarded": {
                    "verify": {"type": "github", "secret": "s3cret"},
                    "on_verify_failure": "quarantine",
                    "sinks": plain,
                },
                "slow": {"verify": none, "tenant": "slow", "sinks": plain},
            },
        }
        with Node(tmp_path_factory.mktemp("node"), config) as node:
            yield Running(node, sink)


# -- one node, nothing going wrong ------------------------------------------------------------------------------------


def test_fifty_posts_of_one_event_at_once_are_one_hook(running: Running) -> None:
    together = threading.Barrier(50)

    def post(_: int) -> Answer:
        together.wait()
        return running.node.post("events", b'{"event": 1}', {"X-Event": "evt_1"})

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(post, range(50)))
    assert {answer.status for answer in answers} == {201}
    (hook_id,) = {answer.json["id"] for answer in answers}
    assert sum("duplicate" not in answer.json for answer in answers) == 1
    delivery = running.delivered(hook_id)
    assert delivery.header("x-ankusa-dedupe-key") == "evt_1"
    assert delivery.header("x-ankusa-idempotency-key") == "default:events:evt_1"
    running.wait_idle()
    events = [request for request in running.sink.requests if request.header("x-ankusa-source") == "events"]
    assert len(events) == 1
    other = running.node.post("events", b'{"event": 2}', {"X-Event": "evt_2"})
    assert other.json["id"] != hook_id and "duplicate" not in other.json


def test_deliveries_verify_with_the_library_of_standard_webhooks(running: Running) -> None:
    body = b'{"type": "invoice.paid", "note": "\xc3\xa4"}'
    delivery = running.delivered(running.node.post("signed", body).json["id"])
    headers = dict(delivery.headers)
    assert headers["webhook-id"] == headers["x-ankusa-id"]
    for secret in (NEW_SECRET, OLD_SECRET):
        assert Webhook(secret).verify(delivery.body, headers) == {"type": "invoice.paid", "note": "ä"}
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(delivery.body.replace(b"paid", b"void"), headers)
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "A" * 32).verify(delivery.body, headers)


@pytest.mark.parametrize(
    "body",
    [b"", bytes(range(256)) * 5, b"\r\n\r\n0\r\n\r\n", os.urandom(MAX_BODY_BYTES)],
    ids=["empty", "binary", "framing", "largest"],
)
def test_a_body_arrives_byte_for_byte(running: Running, body: bytes) -> None:
    note = "ä".encode().decode("latin-1")  # what a client that speaks UTF-8 puts on the wire
    answer = running.node.post("plain", body, {"content-type": "application/x-odd", "x-note": note})
    assert answer.status == 201, answer
    delivery = running.delivered(answer.json["id"])
    assert delivery.body == body
    assert delivery.header("content-length") == str(len(body))
    assert (delivery.header("content-type"), delivery.header("x-note")) == ("application/x-odd", note)
    assert running.node.get(f"/v1/hooks/{answer.json['id']}")["size"] == len(body)


def test_a_body_that_is_one_byte_too_large_is_refused(running: Running) -> None:
    before = running.sink.total
    answer = running.node.post("plain", b"x" * (MAX_BODY_BYTES + 1))
    assert (answer.status, answer.json) == (413, {"error": "payload_too_large", "limit": MAX_BODY_BYTES})
    running.wait_idle()
    assert running.sink.total == before


def test_what_does_not_verify_is_held_listed_and_purged(running: Running) -> None:
    before = running.sink.total
    answers = [running.node.post("guarded", b'{"n": %d}' % n, {"x-hub-signature-256": "sha256=00"}) for n in range(3)]
    assert {answer.status for answer in answers} == {202}
    assert {answer.json["status"] for answer in answers} == {"quarantined"}
    held = running.node.get("/v1/quarantine?source_id=guarded")
    assert (held["total"], len(held["entries"])) == (3, 3)
    assert all(entry["reason"] == answers[0].json["reason"] and entry["size"] == 8 for entry in held["entries"])
    assert held["bytes"] > 0
    newest_first = [entry["received_at"] for entry in held["entries"]]
    assert newest_first == sorted(newest_first, reverse=True)
    assert running.node.admin("DELETE", "/v1/quarantine?source_id=plain").json == {"deleted": 0, "bytes": 0}
    assert running.node.admin("DELETE", "/v1/quarantine?source_id=guarded&limit=1").json["deleted"] == 1
    left = running.node.get("/v1/quarantine")["entries"]
    assert [entry["id"] for entry in left] == [entry["id"] for entry in held["entries"]][:2]  # the oldest went
    assert running.node.admin("DELETE", "/v1/quarantine").json["deleted"] == 2
    empty = running.node.get("/v1/quarantine")
    assert (empty["entries"], empty["total"], empty["bytes"]) == ([], 0, 0)
    assert running.sink.total == before


def test_a_tenants_rate_limit_refuses_and_is_overridden_at_run_time(running: Running) -> None:
    node, path = running.node, "/v1/tenants/slow/rate-limit"
    assert [node.post("slow").status for _ in range(3)] == [201, 201, 429]
    limited = node.post("slow")
    assert limited.json == {"error": "rate_limited"}
    assert int(limited.headers["retry-after"]) >= 1
    assert node.post("plain").status == 201  # another tenant's
    assert node.get(path) == {"tenant": "slow", "rate": 0.001, "burst": 2, "source": "config"}
    assert node.admin("PUT", path, {"rate": 1000, "burst": 100}).status == 200
    assert node.get(path)["source"] == "override"
    assert {node.post("slow").status for _ in range(20)} == {201}
    assert node.admin("DELETE", path).status == 204
    assert 429 in [node.post("slow").status for _ in range(3)]
    running.wait_idle()


# -- a node that stops, reloads and starts again ----------------------------------------------------------------------


def config_for(url: str, **dispatch: Any) -> dict[str, Any]:
    return {
        "dispatch": {"breaker_failures": 0, **dispatch},
        "sources": {"hooks": {"verify": {"type": "none"}, "sinks": [{"type": "http", "url": url}]}},
    }


def test_sigterm_drains_without_a_loss_or_a_double(tmp_path: Path) -> None:
    with SinkProcess(tmp_path) as sink, Node(tmp_path, config_for(sink.url)) as node:
        sink.behave(delay_ms=1_000)
        with Load(node.http_port, "/webhooks/hooks") as load:
            load.wait_accepted(300)
            node.signal(signal.SIGTERM)  # under load, and with attempts running
            began = time.monotonic()
            assert node.process is not None
            assert node.process.wait(STOP_WITHIN_S) == 0
            print(f"stopped within {time.monotonic() - began:.1f} s")
        assert not node.pids()
        arrived = set(sink.refresh().by_id)
        assert 0 < len(arrived) < len(load.ids)
        sink.behave()
        node.start()
        tally = settle([load], sink)
        print(tally)
        assert tally.lost == 0, tally
        # Attempts that ran at the signal have finished, and their outcomes were kept: none ran again.
        assert tally.duplicates == 0, tally
        assert tally.refused_delivered == 0, tally


def test_sighup_takes_a_new_sink_url_for_new_hooks_and_for_waiting_ones(tmp_path: Path) -> None:
    with SinkServer() as first, SinkServer() as second:
        first.behave(status=500)
        retry = {"base_ms": 1_000, "max_ms": 1_000}
        with Node(tmp_path, config_for(first.url, retry=retry)) as node:
            waiting = node.post("hooks").json["id"]
            poll("a failed attempt", lambda: first.total > 0)
            node.write(config_for(second.url, retry=retry))
            node.signal(signal.SIGHUP)
            poll("the waiting hook at the new sink", lambda: second.counts[waiting])
            tried = first.total
            new = node.post("hooks").json["id"]
            poll("the new hook at the new sink", lambda: second.counts[new])
            assert (first.total, first.counts.total()) == (tried, 0)
            assert (second.counts[waiting], second.counts[new]) == (1, 1)


def test_a_restart_keeps_what_a_row_in_backoff_has_behind_it(tmp_path: Path) -> None:
    backoff_ms = 12_000  # longer than a busy machine takes from the first failure to the end of the node
    with SinkServer() as sink:
        sink.behave(status=500)
        retry = {"base_ms": backoff_ms, "max_ms": backoff_ms, "jitter": False, "max_attempts": 2}
        with Node(tmp_path, config_for(sink.url, retry=retry)) as node:
            hooks = [node.post("hooks").json["id"] for _ in range(5)]

            def histories() -> list[list[dict[str, Any]]]:
                return [node.get(f"/v1/hooks/{hook_id}")["attempts"] for hook_id in hooks]

            poll("a failed attempt of each", lambda: all(histories()))
            assert node.stop() == 0
            sink.behave()
            node.start()
            poll("every hook at the sink", lambda: sink.counts.keys() >= set(hooks))
            poll("the outcomes", lambda: all(len(attempts) == 2 for attempts in histories()))
            for failed, delivered in histories():
                assert (failed["outcome"], failed["attempt"]) == ("retry", 1)
                assert (delivered["outcome"], delivered["attempt"]) == ("delivered", 2)  # of two that it has
                assert delivered["started_at"] - failed["at"] >= backoff_ms
            assert sink.counts.total() == len(hooks)
