"""One source set up through the API: the mapping that a file has at a source's name, built and checked alike.

Owns what differs from a file: fields are named from the source on, `verify` may be left out, and a reference to the
environment is refused, not resolved. Who may set up a source must not read the node's environment through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ankusa.config.build import Part, build
from ankusa.config.checks import check_parts, check_retries
from ankusa.config.problems import Problems, at_index, join
from ankusa.config.spelling import respell
from ankusa.config.unbuilt import settle
from ankusa.config.yaml_file import MAX_DEPTH, is_text
from ankusa.redact import secret_values
from schemas.config import Egress, ManagedSource, Retry

MAX_VALUES = 10_000
"""Keys and values in one source. A source has some thirty; this bounds what a body of a megabyte makes of itself."""

NO_VERIFY = {"type": "none"}


def managed_source(
    tenant: str, name: str, spec: Mapping[str, Any], retry: Retry, egress: Egress | None
) -> ManagedSource:
    """The source `name` of `tenant` that `spec` describes; a `name` and `tenant` in it count for nothing.

    `retry` is `dispatch.retry`; `egress` judges the destinations, None lets all through (a source that is loaded was
    judged when it was set up, and is judged again at each delivery). Raises ConfigError, its fields relative to `spec`.
    """
    problems = Problems()
    raw = {key: value for key, value in spec.items() if key not in ("name", "tenant")}
    if raw.get("verify") is None:
        raw["verify"] = dict(NO_VERIFY)
    _Walk(problems).value(raw, "", 1)
    problems.raise_if_any()
    source = _build(tenant, name, raw, retry, egress, problems)
    problems.raise_if_any(set(secret_values(raw)))
    assert source is not None  # or there was a problem
    return source


def _build(
    tenant: str, name: str, raw: dict[str, Any], retry: Retry, egress: Egress | None, problems: Problems
) -> ManagedSource | None:
    inner = Problems()
    document = {"sources": {name: raw}}
    settle(document, inner)
    respell(document, inner)
    path, parts = join("sources", name), list[Part]()
    named = {**document["sources"][name], "name": name, "tenant": tenant}
    source = build(ManagedSource, named, path, inner, parts)
    check_parts(parts, egress, inner)
    if source is not None:
        check_retries(retry, source, path, inner)
    for field, message in ((one.field, one.message) for one in inner.listed()):
        problems.add(field.removeprefix(f"{path}."), message)
    return source


class _Walk:
    """What a file's reader checks before anything is built, and no references."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._left = MAX_VALUES

    def value(self, value: Any, path: str, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            self._problems.add("source", f"holds more than {MAX_VALUES} values")
        elif depth > MAX_DEPTH:
            self._problems.add("source", f"is nested more than {MAX_DEPTH} levels deep")
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                self.value(inner, join(path, key), depth + 1)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                self.value(inner, at_index(path, index), depth + 1)
        elif isinstance(value, str) and "${" in value:
            self._problems.add(path, "holds a `${`: references are not resolved here; give the value itself")
        elif isinstance(value, str) and not is_text(value):
            self._problems.add(path, "holds half a character (a lone surrogate)")
