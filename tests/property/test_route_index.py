"""The index against the definition: every route tried, the most specific one taken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ankusa.core.route import RouteIndex
from schemas.routes import Route

SEGMENTS = st.sampled_from(["a", "b", "c", ":p"])
METHODS = st.lists(st.sampled_from(["POST", "PUT"]), min_size=1, max_size=2, unique=True)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    segments = draw(st.lists(SEGMENTS, max_size=4))
    named = [f":p{place}" if segment == ":p" else segment for place, segment in enumerate(segments)]
    return "/" + "/".join([*named, *(["*"] if draw(st.booleans()) else [])])


@st.composite
def tables(draw: st.DrawFn) -> list[Route]:
    made = draw(st.lists(st.tuples(patterns(), METHODS, st.booleans()), max_size=12))
    return [
        Route(f"r{n}", path, tuple(methods), enabled, (), {}, 0, 0) for n, (path, methods, enabled) in enumerate(made)
    ]


PATHS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=5).map(lambda segments: "/" + "/".join(segments))


def parts(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def fits(pattern: str, path: str) -> tuple[int, ...] | None:
    """How specific the fit is, segment by segment (0 literal, 1 param, 2 the rest); None when it does not fit."""
    wanted, given_ = parts(pattern), parts(path)
    rank: list[int] = []
    for place, segment in enumerate(wanted):
        if segment == "*":
            return (*rank, 2) if len(given_) > place else None
        if place >= len(given_) or (not segment.startswith(":") and segment != given_[place]):
            return None
        rank.append(int(segment.startswith(":")))
    return tuple(rank) if len(wanted) == len(given_) else None


def expected(routes: list[Route], method: str, path: str) -> tuple[str | None, bool]:
    fitting = [(rank, route) for route in routes if route.enabled and (rank := fits(route.path, path)) is not None]
    best = min(((rank, route.id) for rank, route in fitting if method in route.methods), default=None)
    return (None if best is None else best[1]), bool(fitting)


def without_conflicts(routes: list[Route]) -> list[Route]:
    kept: list[Route] = []
    table = RouteIndex()
    for route in routes:
        if table.conflict(route) is None:
            kept.append(route)
            table.add(route)
    return kept


@settings(max_examples=300, deadline=None)
@given(tables(), PATHS, st.sampled_from(["POST", "PUT", "GET"]))
def test_the_index_finds_what_the_definition_finds(routes: list[Route], path: str, method: str) -> None:
    kept = without_conflicts(routes)
    route, fits_path = RouteIndex(kept).find(method, path)
    assert (None if route is None else route.id, fits_path) == expected(kept, method, path)


@settings(max_examples=200, deadline=None)
@given(tables(), st.sets(st.integers(0, 11)), st.lists(PATHS, max_size=6))
def test_removing_is_as_never_having_added(routes: list[Route], gone: set[int], paths: list[str]) -> None:
    kept = without_conflicts(routes)
    table = RouteIndex(kept)
    for place in sorted(gone):
        if place < len(kept):
            table.remove(kept[place])
    left = [route for place, route in enumerate(kept) if place not in gone]
    for path in paths:
        for method in ("POST", "PUT"):
            assert table.find(method, path) == RouteIndex(left).find(method, path)


@settings(max_examples=200, deadline=None)
@given(tables())
def test_a_conflict_is_what_would_make_two_routes_of_one_request(routes: list[Route]) -> None:
    table = RouteIndex()
    kept: list[Route] = []

    def shape(path: str) -> list[str]:
        return [":" if segment.startswith(":") else segment for segment in parts(path)]

    for route in routes:
        clashes = [
            other.id
            for other in kept
            if other.enabled
            and route.enabled
            and shape(other.path) == shape(route.path)
            and set(other.methods) & set(route.methods)
        ]
        found = table.conflict(route)
        assert (found is None) == (not clashes)
        assert found is None or found.id in clashes
        if found is None:
            kept.append(route)
            table.add(route)
