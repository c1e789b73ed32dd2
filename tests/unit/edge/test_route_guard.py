"""The guard at the edge: whose address counts, what a denied request is answered, and what the log says of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from ankusa.edge.replies import Reply
from ankusa.edge.route_guard import LOG_EVERY_MS, RouteGuard
from schemas.config import Routes
from schemas.routes import IpRule, IpRules, Route

AT = 1_700_000_000_000
ORDERS = Route("orders", "/webhooks/orders", ("POST",), True, (IpRule("allow", "192.0.2.0/24"),), {}, 0, 0)


class Clock:
    def __init__(self) -> None:
        self.at = AT

    def __call__(self) -> int:
        return self.at


def guard(clock: Clock | None = None, **settings: Any) -> RouteGuard:
    made = RouteGuard(Routes(enabled=True, **settings), clock or Clock())
    made.take({"orders": ORDERS}, IpRules(), whole=True)
    return made


def scope(
    path: str = "/webhooks/orders", peer: str | None = "192.0.2.7", *forwarded: str, method: str = "POST"
) -> dict[str, Any]:
    headers = [(b"host", b"edge"), *((b"x-forwarded-for", value.encode()) for value in forwarded)]
    client = None if peer is None else (peer, 1234)
    return {"method": method, "raw_path": path.encode("latin-1"), "client": client, "headers": headers}


def answer(reply: Reply | None) -> tuple[int, Any] | None:
    return None if reply is None else (reply.status, json.loads(reply.body["body"]))


NOT_FOUND = (404, {"error": "not_found"})
DENIED = (403, {"error": "ip_denied"})


def test_what_a_request_is_answered() -> None:
    made = guard()
    assert answer(made.refuse(scope())) is None
    assert answer(made.refuse(scope(peer="198.51.100.1"))) == DENIED
    assert answer(made.refuse(scope(peer=None))) == DENIED
    assert answer(made.refuse(scope("/webhooks/other"))) == NOT_FOUND
    assert answer(made.refuse(scope("/webhooks/%6frders"))) == NOT_FOUND
    assert answer(made.refuse(scope("/webhooks/\xff"))) == NOT_FOUND
    assert answer(made.refuse(scope(method="GET"))) == NOT_FOUND


def test_a_denied_address_may_look_like_a_path_that_is_not_there() -> None:
    made = guard(ip_denied_status=404)
    assert answer(made.refuse(scope(peer="198.51.100.1"))) == answer(made.refuse(scope("/webhooks/other"))) == NOT_FOUND


@pytest.mark.parametrize(
    ("peer", "forwarded", "denied"),
    [
        ("10.0.0.1", ("192.0.2.7",), False),
        ("10.0.0.1", ("198.51.100.1, 192.0.2.7",), False),
        ("10.0.0.1", ("192.0.2.7, 198.51.100.1",), True),  # what the sender wrote itself is to the left
        ("10.0.0.1", ("192.0.2.7", "198.51.100.1"), True),  # headers that come apart are one list
        ("10.0.0.1", ("198.51.100.1", "192.0.2.7, 10.0.0.5"), False),
        ("10.0.0.1", (" 192.0.2.7 , ",), False),
        ("10.0.0.1", ("192.0.2.7, nonsense",), True),
        ("10.0.0.1", (), True),
        ("198.51.100.1", ("192.0.2.7",), True),  # no proxy of ours
        ("192.0.2.7", ("198.51.100.1",), False),
    ],
)
def test_forwarded_for_is_read_from_trusted_proxies_alone(peer: str, forwarded: tuple[str, ...], denied: bool) -> None:
    made = guard(trusted_proxies=("10.0.0.0/8",))
    assert answer(made.refuse(scope("/webhooks/orders", peer, *forwarded))) == (DENIED if denied else None)
    assert answer(guard().refuse(scope("/webhooks/orders", "10.0.0.1", "192.0.2.7"))) == DENIED


def test_until_it_was_told_it_lets_nobody_through_and_tells_nobody_404() -> None:
    made = RouteGuard(Routes(enabled=True), Clock())
    reply = made.refuse(scope())
    assert answer(reply) == (503, {"error": "store_unavailable"})
    assert reply is not None and (b"retry-after", b"1") in reply.start["headers"]


def test_changes_are_taken_up_and_the_whole_replaces_all() -> None:
    made = guard()
    other = Route("other", "/webhooks/other", ("POST",), True, (), {}, 0, 0)
    made.take({"other": other}, None, whole=False)
    assert made.refuse(scope()) is None
    assert made.refuse(scope("/webhooks/other")) is None
    made.take({}, IpRules("deny"), whole=False)
    assert answer(made.refuse(scope("/webhooks/other"))) == DENIED
    made.take({"orders": None}, IpRules(), whole=False)
    assert answer(made.refuse(scope())) == NOT_FOUND
    made.take({"orders": ORDERS}, IpRules(), whole=True)
    assert made.refuse(scope()) is None
    assert answer(made.refuse(scope("/webhooks/other"))) == NOT_FOUND


def test_denials_are_counted_into_one_line_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    made = guard(clock)
    caplog.set_level(logging.INFO, "ankusa.edge")
    for _ in range(500):
        made.refuse(scope("/webhooks/scan"))
        made.refuse(scope(peer="198.51.100.1"))
    assert [record.getMessage() for record in caplog.records] == ["event=requests_denied no_route=1"]
    clock.at += LOG_EVERY_MS
    made.refuse(scope(method="GET"))
    assert caplog.records[-1].getMessage() == "event=requests_denied ip_denied=500 method=1 no_route=499"
