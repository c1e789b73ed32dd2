"""Patterns and the index: what fits, what goes first, and that no spelling slips by."""

from __future__ import annotations

import pytest

from ankusa.core.route import MAX_PATH_CHARS, MAX_SEGMENTS, PatternError, RouteIndex, normal_pattern, segments_of
from schemas.routes import Route


def route(path: str, *methods: str, id: str = "", enabled: bool = True) -> Route:
    return Route(id or path, normal_pattern(path), methods or ("POST",), enabled, (), {}, 0, 0)


def index(*paths: str) -> RouteIndex:
    return RouteIndex(route(path) for path in paths)


def found(table: RouteIndex, path: str, method: str = "POST") -> str | None:
    hit, _ = table.find(method, path)
    return None if hit is None else hit.id


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("/webhooks/stripe", "/webhooks/stripe"),
        ("/webhooks//stripe/", "/webhooks/stripe"),
        ("/", "/"),
        ("/webhooks/:tenant/:name", "/webhooks/:tenant/:name"),
        ("/webhooks/*", "/webhooks/*"),
        ("/*", "/*"),
        ("/a.b/c~d/_e-", "/a.b/c~d/_e-"),
    ],
)
def test_patterns(text: str, normal: str) -> None:
    assert normal_pattern(text) == normal == normal_pattern(normal)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "begin with a slash"),
        ("webhooks", "begin with a slash"),
        ("/a/*/b", "last segment"),
        ("/a*", "neither a literal"),
        ("/a/..", "neither a literal"),
        ("/a/./b", "neither a literal"),
        ("/a%2Fb", "neither a literal"),
        ("/a b", "neither a literal"),
        ("/a?x=1", "neither a literal"),
        ("/ä", "neither a literal"),
        ("/a\n", "neither a literal"),
        ("/:", "param"),
        ("/:1", "param"),
        ("/:a-b", "param"),
        ("/:a/:a", "twice"),
        ("/" + "a" * MAX_PATH_CHARS, "longer"),
        ("/a" * (MAX_SEGMENTS + 1), "segments"),
    ],
)
def test_what_is_no_pattern(text: str, words: str) -> None:
    with pytest.raises(PatternError, match=words):
        normal_pattern(text)


def test_literals_params_and_the_rest() -> None:
    table = index("/webhooks/stripe", "/webhooks/:name", "/webhooks/:tenant/:name", "/other/*")
    assert found(table, "/webhooks/stripe") == "/webhooks/stripe"
    assert found(table, "/webhooks/github") == "/webhooks/:name"
    assert found(table, "/webhooks/acme/orders") == "/webhooks/:tenant/:name"
    assert found(table, "/webhooks") is None
    assert found(table, "/webhooks/a/b/c") is None
    assert found(table, "/other") is None  # the rest is one segment or more
    assert found(table, "/other/a") == found(table, "/other/a/b/c") == "/other/*"
    assert found(table, "/WEBHOOKS/stripe") is None


def test_the_more_specific_goes_first_and_a_dead_end_goes_back() -> None:
    table = index("/a/b/c", "/a/:x/d", "/a/*", "/:y/b/e", "/*")
    assert found(table, "/a/b/c") == "/a/b/c"
    assert found(table, "/a/b/d") == "/a/:x/d"
    assert found(table, "/a/b/e") == "/a/*"
    assert found(table, "/z/b/e") == "/:y/b/e"
    assert found(table, "/z") == "/*"


@pytest.mark.parametrize("path", ["/webhooks/stripe/", "//webhooks//stripe", "/webhooks///stripe//"])
def test_slashes_too_many_are_taken_away(path: str) -> None:
    assert found(index("/webhooks/stripe"), path) == "/webhooks/stripe"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "webhooks/stripe",
        "/webhooks/%73tripe",
        "/webhooks%2Fstripe",
        "/webhooks/../webhooks/stripe",
        "/webhooks/./stripe",
        "/webhooks/stripe\0",
        "/webhooks/str ipe",
        "/webhooks/stripe;x=1",
        "/webhooks\\stripe",
        "/webhooks/strip\xe9",
        "/a" * (MAX_SEGMENTS + 1),
        "/" + "a" * MAX_PATH_CHARS,
    ],
)
def test_what_has_no_normal_form_fits_nothing_not_even_the_rest(path: str) -> None:
    assert segments_of(path) is None
    assert index("/webhooks/stripe", "/:a/:b", "/*").find("POST", path) == (None, False)


def test_methods() -> None:
    table = RouteIndex([route("/a", "POST", "PUT"), route("/:x", "GET")])
    assert found(table, "/a", "PUT") == "/a"
    assert found(table, "/a", "GET") == "/:x"
    assert table.find("DELETE", "/a") == (None, True)
    assert table.find("POST", "/b") == (None, True)
    assert table.find("POST", "/b/c") == (None, False)


def test_a_route_that_is_not_enabled_is_not_there() -> None:
    table = RouteIndex([route("/a", enabled=False)])
    assert table.find("POST", "/a") == (None, False)
    assert table.conflict(route("/a", id="other")) is None


def test_conflicts_are_of_one_method_and_shape() -> None:
    table = RouteIndex([route("/a/:x", "POST", id="one")])
    other = table.conflict(route("/a/:y", "GET", "POST", id="two"))
    assert other is not None and other.id == "one"
    for free in (
        route("/a/:y", "GET", id="two"),
        route("/a/b", id="two"),
        route("/a/*", id="two"),
        route("/a/:y", id="two", enabled=False),
        route("/a/:z", id="one"),
    ):
        assert table.conflict(free) is None


def test_what_is_removed_is_gone_and_leaves_the_others() -> None:
    table = index("/a/b", "/a/:x", "/a")
    table.remove(route("/a/b"))
    assert found(table, "/a/b") == "/a/:x"
    table.remove(route("/a/:x"))
    table.remove(route("/never/there"))
    table.remove(route("/a", id="another"))
    assert found(table, "/a/b") is None
    assert found(table, "/a") == "/a"
    table.remove(route("/a"))
    assert not table._root.following  # nothing is left of them
