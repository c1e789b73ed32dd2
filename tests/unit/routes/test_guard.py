"""The decision: deny by default, a global deny before everything, a route's own rules in place of the global ones."""

from __future__ import annotations

import pytest

from ankusa.core.ip_rules import address
from ankusa.routes.guard import Decision, Guard
from schemas.routes import Action, IpRule, IpRules, Route

DENY_BAD = IpRule("deny", "203.0.113.0/24")
ALLOW_OFFICE = IpRule("allow", "192.0.2.0/24")
OFFICE, BAD, ELSEWHERE = "192.0.2.7", "203.0.113.9", "198.51.100.1"


def route(id: str, path: str, *rules: IpRule, methods: tuple[str, ...] = ("POST",), enabled: bool = True) -> Route:
    return Route(id, path, methods, enabled, rules, {}, 0, 0)


def guard(*routes: Route, default: Action = "allow", rules: tuple[IpRule, ...] = ()) -> Guard:
    return Guard({route.id: route for route in routes}, IpRules(default, rules))


def decide(made: Guard, ip: str | None, path: str = "/webhooks/orders", method: str = "POST") -> Decision:
    return made.decide(method, path, None if ip is None else address(ip))


OPEN = route("open", "/webhooks/orders")
OWN = route("own", "/webhooks/orders", IpRule("deny", "192.0.2.200/32"), ALLOW_OFFICE)
SELF_HARM = route("own", "/webhooks/orders", IpRule("allow", "203.0.113.9/32"))


def test_without_a_route_nothing_is_let_through() -> None:
    assert decide(guard(), OFFICE) == Decision(False, "no_route")
    assert decide(guard(route("off", "/webhooks/orders", enabled=False)), OFFICE) == Decision(False, "no_route")
    assert decide(guard(OPEN), OFFICE, path="/webhooks/other") == Decision(False, "no_route")
    assert decide(guard(OPEN), OFFICE, method="PUT") == Decision(False, "method")
    assert decide(guard(OPEN), OFFICE) == Decision(True, "matched", "open")


@pytest.mark.parametrize(
    ("made", "ip", "expected"),
    [
        # The global rules, where a route has none of its own.
        (guard(OPEN, rules=(DENY_BAD,)), BAD, Decision(False, "ip_denied", None, DENY_BAD, "global")),
        (guard(OPEN, rules=(DENY_BAD,)), OFFICE, Decision(True, "matched", "open")),
        (guard(OPEN, default="deny"), OFFICE, Decision(False, "ip_denied", "open")),
        (
            guard(OPEN, default="deny", rules=(ALLOW_OFFICE,)),
            OFFICE,
            Decision(True, "matched", "open", ALLOW_OFFICE, "global"),
        ),
        (guard(OPEN, default="deny", rules=(ALLOW_OFFICE,)), ELSEWHERE, Decision(False, "ip_denied", "open")),
        # A route's own list, in place of them; who is in none of it is denied.
        (guard(OWN), OFFICE, Decision(True, "matched", "own", ALLOW_OFFICE, "route")),
        (guard(OWN), "192.0.2.200", Decision(False, "ip_denied", "own", OWN.ip_rules[0], "route")),
        (guard(OWN), ELSEWHERE, Decision(False, "ip_denied", "own")),
        (guard(OWN, default="deny"), OFFICE, Decision(True, "matched", "own", ALLOW_OFFICE, "route")),
        (
            guard(OWN, rules=(IpRule("allow", "198.51.100.0/24"),)),
            ELSEWHERE,
            Decision(False, "ip_denied", "own"),
        ),
        # A global deny beats it, but not one that an earlier global rule keeps from being reached.
        (guard(SELF_HARM, rules=(DENY_BAD,)), BAD, Decision(False, "ip_denied", None, DENY_BAD, "global")),
        (
            guard(SELF_HARM, rules=(IpRule("allow", "203.0.113.9/32"), DENY_BAD)),
            BAD,
            Decision(True, "matched", "own", SELF_HARM.ip_rules[0], "route"),
        ),
        # And is said before the route is looked for: nobody denied learns which paths there are.
        (guard(rules=(DENY_BAD,)), BAD, Decision(False, "ip_denied", None, DENY_BAD, "global")),
        # Nobody knows who it is.
        (guard(OPEN), None, Decision(False, "ip_denied")),
    ],
)
def test_who_may_from_where(made: Guard, ip: str | None, expected: Decision) -> None:
    assert decide(made, ip) == expected


def test_changes_hold_at_once() -> None:
    made = guard(OPEN)
    made.put(route("open", "/webhooks/moved"))
    assert decide(made, OFFICE) == Decision(False, "no_route")
    assert decide(made, OFFICE, path="/webhooks/moved").allowed
    made.put(route("open", "/webhooks/moved", ALLOW_OFFICE))
    assert not decide(made, ELSEWHERE, path="/webhooks/moved").allowed
    made.put(route("open", "/webhooks/moved"))
    assert decide(made, ELSEWHERE, path="/webhooks/moved").allowed
    made.set_rules(IpRules("deny"))
    assert not decide(made, ELSEWHERE, path="/webhooks/moved").allowed
    made.set_rules(IpRules())
    made.drop("open")
    made.drop("open")
    assert decide(made, OFFICE, path="/webhooks/moved") == Decision(False, "no_route")
    made.put(route("open", "/webhooks/moved", enabled=False))
    assert decide(made, OFFICE, path="/webhooks/moved") == Decision(False, "no_route")
