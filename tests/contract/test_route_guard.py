"""The route guard on a host: routes and rules that are kept, told to edges, and judged by one set of rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ankusa.routes.answers import Duplicate, NotFound, TooMany
from schemas.records import ChangeAction, ChangeKind
from schemas.routes import Route
from tests.contract.conftest import MakeGuarded
from tests.contract.guarded import Guarded, answer, soon

ORDERS, BILLS = "/webhooks/orders", "/webhooks/bills"
ELSEWHERE = {"action": "allow", "cidr": "198.51.100.0/24"}


def run(node: Guarded, *lives: Callable[[Guarded], Awaitable[None]]) -> None:
    """Each of `lives` from a start to a stop of the node."""

    async def main() -> None:
        for live in lives:
            await node.open()
            try:
                await live(node)
            finally:
                await node.close()

    asyncio.run(main())


async def made(node: Guarded, **body: Any) -> Route:
    found = await node.store.create(body)
    assert isinstance(found, Route), found
    return found


async def answers(node: Guarded, path: str, status: int) -> None:
    await soon(lambda: answer(node.edge, path) == status, f"{path} is answered {status}")


def test_nothing_is_let_through_but_by_a_route_and_edges_follow_every_change(guarded: MakeGuarded) -> None:
    async def live(node: Guarded) -> None:
        await answers(node, ORDERS, 404)
        await made(node, id="orders", path=ORDERS)
        await answers(node, ORDERS, 0)
        assert answer(node.edge, BILLS) == answer(node.edge, ORDERS, "PUT") == 404
        replaced = await node.store.replace("all", {"path": "/webhooks/:source"})
        assert isinstance(replaced, tuple)
        assert replaced[1]
        await answers(node, BILLS, 0)
        assert isinstance(await node.store.patch("orders", {"ip_rules": [ELSEWHERE]}), Route)
        await answers(node, ORDERS, 403)
        assert answer(node.edge, ORDERS, ip="198.51.100.7") == answer(node.edge, BILLS) == 0
        await node.store.set_ip_rules({"rules": [{"action": "deny", "cidr": "192.0.2.0/24"}]})
        await answers(node, BILLS, 403)
        await node.store.set_ip_rules({})
        await answers(node, BILLS, 0)
        assert await node.store.delete("all") is None
        await answers(node, BILLS, 404)
        assert await node.store.delete("all") == NotFound()

    run(guarded(), live)


def test_routes_and_rules_are_there_after_a_restart(guarded: MakeGuarded) -> None:
    async def first(node: Guarded) -> None:
        await made(node, id="orders", path=ORDERS)
        await made(node, id="bills", path=BILLS)
        assert await node.store.delete("bills") is None
        await node.store.set_ip_rules({"default": "deny", "rules": [ELSEWHERE]})

    async def second(node: Guarded) -> None:
        assert [route.id for route in node.store.routes()] == ["orders"]
        assert node.store.ip_rules.default == "deny"
        await answers(node, ORDERS, 403)
        assert answer(node.edge, ORDERS, ip="198.51.100.7") == 0
        assert answer(node.edge, BILLS, ip="198.51.100.7") == 404

    run(guarded(ip_rules={"default": "allow", "rules": [{"action": "deny", "cidr": "192.0.2.0/24"}]}), first, second)


def test_the_files_rules_hold_until_the_api_has_put_others_in_their_place(guarded: MakeGuarded) -> None:
    async def live(node: Guarded) -> None:
        await made(node, id="orders", path=ORDERS)
        await answers(node, ORDERS, 403)
        await soon(lambda: answer(node.edge, ORDERS, ip="203.0.113.1") == 0, "others are let through")
        await node.store.set_ip_rules({})
        await answers(node, ORDERS, 0)

    run(guarded(ip_rules={"default": "allow", "rules": [{"action": "deny", "cidr": "192.0.2.0/24"}]}), live)


def test_seeds_are_there_from_the_start_and_what_the_api_changed_stands(guarded: MakeGuarded) -> None:
    async def first(node: Guarded) -> None:
        await answers(node, ORDERS, 0)
        await answers(node, BILLS, 0)
        assert isinstance(await node.store.patch("orders", {"enabled": False}), Route)
        assert await node.store.delete("bills") is None

    async def second(node: Guarded) -> None:
        await answers(node, ORDERS, 404)
        await answers(node, BILLS, 0)  # it is the file's: made at each start that does not find it
        told = [(change.subject, change.action) for change in await node.audit()]
        assert told == [
            ("orders", ChangeAction.CREATED),
            ("bills", ChangeAction.CREATED),
            ("orders", ChangeAction.UPDATED),
            ("bills", ChangeAction.DELETED),
            ("bills", ChangeAction.CREATED),
        ]

    run(guarded(seed=({"id": "orders", "path": ORDERS}, {"id": "bills", "path": BILLS})), first, second)


def test_routes_of_one_path_and_more_than_may_be_are_refused_and_stored_nowhere(guarded: MakeGuarded) -> None:
    async def live(node: Guarded) -> None:
        await made(node, id="orders", path=ORDERS)
        assert await node.store.create({"id": "orders", "path": BILLS}) == Duplicate("orders")
        assert await node.store.create({"path": ORDERS}) == Duplicate("orders")
        await made(node, id="bills", path=BILLS)
        assert await node.store.create({"path": "/webhooks/third"}) == TooMany(2)
        rules = await node.store.set_ip_rules({"default": "deny"})
        assert rules == node.store.ip_rules
        told = [(change.kind, change.subject, change.action) for change in await node.audit()]
        assert told == [
            (ChangeKind.ROUTE, "orders", ChangeAction.CREATED),
            (ChangeKind.ROUTE, "bills", ChangeAction.CREATED),
            (ChangeKind.IP_RULES, "ip-rules", ChangeAction.UPDATED),
        ]

    run(guarded(max_routes=2), live)
