"""Route patterns and the index that finds the route of a path (spec 02 "Route guard").

A pattern is segments: literals, `:param` for any one segment, a trailing `*` for one or more. Of several that fit the
more specific goes first: segment by segment a literal before a param before the rest. Pure: no request, no clock.

A path is matched in its normal form: one slash between segments, none at the end. What has no normal form (a percent
sign, a dot segment, anything that no catch URL holds) matches nothing, so that no spelling slips by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from schemas.routes import Route

MAX_PATH_CHARS = 512
MAX_SEGMENTS = 16
"""A catch URL has three or four segments. It bounds the walk: at most two ways on from each."""

_LITERAL = re.compile(r"[A-Za-z0-9._~-]+")
_PARAM = re.compile(r":[A-Za-z_][A-Za-z0-9_]{0,63}")
_PARAM_KEY, _REST_KEY = ":", "*"
_DOTS = (".", "..")


class PatternError(ValueError):
    """A text is no pattern; the message says why."""


def normal_pattern(text: str) -> str:
    """A pattern's normal spelling, the one it is kept in. Raises PatternError."""
    if not text.startswith("/"):
        raise PatternError("must begin with a slash")
    if len(text) > MAX_PATH_CHARS:
        raise PatternError(f"is longer than {MAX_PATH_CHARS} characters")
    segments = [segment for segment in text.split("/") if segment]
    if len(segments) > MAX_SEGMENTS:
        raise PatternError(f"has more than {MAX_SEGMENTS} segments")
    names: set[str] = set()
    for place, segment in enumerate(segments):
        if segment == "*":
            if place != len(segments) - 1:
                raise PatternError("may hold `*` only as its last segment")
        elif segment.startswith(":"):
            if not _PARAM.fullmatch(segment):
                raise PatternError("has a param that is not `:name`")
            if segment in names:
                raise PatternError(f"names `{segment}` twice")
            names.add(segment)
        elif not _LITERAL.fullmatch(segment) or segment in _DOTS:
            raise PatternError("has a segment that is neither a literal of A-Z a-z 0-9 . _ ~ -, nor `:name`, nor `*`")
    return "/" + "/".join(segments)


def segments_of(path: str) -> tuple[str, ...] | None:
    """The segments of a request path in normal form; None when it has none. `path` is without its query."""
    if not path.startswith("/") or len(path) > MAX_PATH_CHARS:
        return None
    segments = tuple(segment for segment in path.split("/") if segment)
    if len(segments) > MAX_SEGMENTS:
        return None
    if any(not _LITERAL.fullmatch(segment) or segment in _DOTS for segment in segments):
        return None
    return segments


class _Step:
    """One place in the index: where each kind of next segment leads, and the routes that end here by method."""

    __slots__ = ("following", "routes")

    def __init__(self) -> None:
        self.following: dict[str, _Step] = {}
        self.routes: dict[str, Route] = {}


class RouteIndex:
    """Enabled routes by method and path. Two of one method and shape cannot be in it: see `conflict`."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._root = _Step()
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        """Take a route up; one that is not enabled is passed over."""
        if not route.enabled:
            return
        step = self._root
        for key in _keys(route.path):
            step = step.following.setdefault(key, _Step())
        for method in route.methods:
            step.routes[method] = route

    def remove(self, route: Route) -> None:
        """Take a route out as it was added; what is not in the index does nothing."""
        steps = [self._root]
        keys = list(_keys(route.path))
        for key in keys:
            following = steps[-1].following.get(key)
            if following is None:
                return
            steps.append(following)
        for method in route.methods:
            held = steps[-1].routes.get(method)
            if held is not None and held.id == route.id:
                del steps[-1].routes[method]
        for step, key in zip(reversed(steps[:-1]), reversed(keys), strict=True):
            inner = step.following[key]
            if inner.routes or inner.following:
                break
            del step.following[key]

    def conflict(self, route: Route) -> Route | None:
        """The other route that has one of its methods at its shape already. Params are alike, whatever their names."""
        step: _Step | None = self._root
        for key in _keys(route.path):
            step = step.following.get(key) if step is not None else None
        if step is None or not route.enabled:
            return None
        held = (step.routes.get(method) for method in route.methods)
        return next((other for other in held if other is not None and other.id != route.id), None)

    def find(self, method: str, path: str) -> tuple[Route | None, bool]:
        """The route of a request, and whether the path alone fits some route. `path` is without its query."""
        segments = segments_of(path)
        fits = False
        for step in () if segments is None else _walk(self._root, segments, 0):
            route = step.routes.get(method)
            if route is not None:
                return route, True
            fits = True
        return None, fits


def _walk(step: _Step, segments: tuple[str, ...], place: int) -> Iterator[_Step]:
    """The places with routes that a path leads to, the most specific first."""
    if place == len(segments):
        if step.routes:
            yield step
        return
    for key in (segments[place], _PARAM_KEY):
        following = step.following.get(key)
        if following is not None:
            yield from _walk(following, segments, place + 1)
    rest = step.following.get(_REST_KEY)
    if rest is not None and rest.routes:
        yield rest


def _keys(pattern: str) -> Iterator[str]:
    return (_PARAM_KEY if segment.startswith(":") else segment for segment in pattern.split("/") if segment)
