"""The catch URL has one spelling per source; every other path is not found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.edge.target import Routing, Target, parse_target

LONG = b"a" * 64


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/webhooks/stripe", "stripe"),
        (b"/webhooks/S_t-1", "S_t-1"),
        (b"/webhooks/" + LONG, LONG.decode()),
        (b"/webhooks/acme.orders", "acme.orders"),
        (b"/webhooks/" + LONG + b"." + LONG, f"{LONG.decode()}.{LONG.decode()}"),
        (b"/webhooks/-", "-"),
    ],
)
def test_path_routing(path: bytes, name: str) -> None:
    assert parse_target(path, "/webhooks", "path") == Target(tenant=None, name=name)


@pytest.mark.parametrize(
    ("path", "tenant", "name"),
    [
        (b"/webhooks/acme/orders", "acme", "orders"),
        (b"/webhooks/" + LONG + b"/" + LONG, LONG.decode(), LONG.decode()),
    ],
)
def test_tenant_path_routing(path: bytes, tenant: str, name: str) -> None:
    assert parse_target(path, "/webhooks", "tenant_path") == Target(tenant=tenant, name=name)


def test_prefix_of_several_segments() -> None:
    assert parse_target(b"/in/v1/demo", "/in/v1", "path") == Target(None, "demo")
    assert parse_target(b"/in/demo", "/in/v1", "path") is None
    assert parse_target(b"/in/v1/acme/demo", "/in/v1", "tenant_path") == Target("acme", "demo")


NOT_FOUND = [
    b"",
    b"/",
    b"*",
    b"/webhooks",
    b"/webhooks/",
    b"/webhooksx/demo",
    b"/webhook/demo",
    b"/Webhooks/demo",
    b"//webhooks/demo",
    b"/x/webhooks/demo",
    b"/webhooks//demo",
    b"/webhooks/demo/",
    b"/webhooks/demo//",
    b"/webhooks/.",
    b"/webhooks/..",
    b"/webhooks/../demo",
    b"/webhooks/./demo",
    b"/webhooks/../webhooks/demo",
    b"/webhooks/demo/..",
    b"/webhooks%2Fdemo",
    b"/webhooks/acme%2Forders",
    b"/webhooks/acme%2forders",
    b"/webhooks/%2e%2e",
    b"/webhooks/d%65mo",
    b"/webhooks/%64emo",
    b"/webhooks/demo%00",
    b"/webhooks/demo\0",
    b"/webhooks/demo\n",
    b"/webhooks/demo?x=1",
    b"/webhooks/demo#x",
    b"/webhooks/demo;x",
    b"/webhooks/de mo",
    b"/webhooks/demo\\",
    b"/webhooks/d\xc3\xa9mo",
    b"/webhooks/d\xffmo",
    b"/webhooks/" + LONG + b"a",
    b"/webhooks/.orders",
    b"/webhooks/acme.",
    b"/webhooks/acme..orders",
    b"/webhooks/acme.orders.more",
    b"/webhooks/acme/orders/more",
    b"http://host/webhooks/demo",
]


@pytest.mark.parametrize("path", NOT_FOUND)
@pytest.mark.parametrize("routing", ["path", "tenant_path"])
def test_everything_else_is_not_found(path: bytes, routing: Routing) -> None:
    assert parse_target(path, "/webhooks", routing) is None


@pytest.mark.parametrize(
    "path",
    [b"/webhooks/demo", b"/webhooks/acme.orders", b"/webhooks/acme/t.orders", b"/webhooks/acme.x/orders"],
)
def test_not_found_in_tenant_path_routing(path: bytes) -> None:
    assert parse_target(path, "/webhooks", "tenant_path") is None


def test_not_found_in_path_routing() -> None:
    assert parse_target(b"/webhooks/acme/orders", "/webhooks", "path") is None


@given(st.binary(max_size=40) | st.text(alphabet="/.%2Fae-_?", max_size=40).map(str.encode))
def test_a_found_target_spells_the_path_it_came_from(rest: bytes) -> None:
    path = b"/webhooks" + rest
    found = parse_target(path, "/webhooks", "path")
    if found is not None:
        assert b"/webhooks/" + found.name.encode() == path
    both = parse_target(path, "/webhooks", "tenant_path")
    if both is not None:
        assert both.tenant is not None
        assert b"/webhooks/" + both.tenant.encode() + b"/" + both.name.encode() == path
