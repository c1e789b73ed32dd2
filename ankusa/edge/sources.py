"""The sources an edge accepts for, compiled: what a catch URL leads to (spec 02).

Owns the table from catch URL to source and its replacement at a reload. It judges no hook, and a request that has
found its source keeps that one although a reload comes between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from ankusa.edge.dedupe_key import DedupeKey, build_dedupe, build_ordering
from ankusa.edge.forward import forward_names
from ankusa.edge.target import Routing, Target, parse_target
from ankusa.verify import Headers, Verifier, build_verifier
from schemas.config import Sink, Source

Policy = Literal["reject", "quarantine", "accept_flag"]


class EdgeSource(Struct, frozen=True, kw_only=True):
    """One source ready for use. `forward` is None for the default set of headers; `sinks` are the types by index.

    `key_prefix` goes before a dedupe key to make an idempotency key of it. `ordering` is empty unless a sink is
    ordered; then it says by sink index where the ordering key is, True for one lane of all, False for no order.
    """

    source_id: str
    name: str
    tenant_id: str
    verifier: Verifier
    policy: Policy
    dedupe: DedupeKey | None
    dedupe_ttl_ms: int
    forward: frozenset[str] | None
    sinks: tuple[str, ...]
    key_prefix: str
    ordering: tuple[DedupeKey | bool, ...] = ()


def compile_source(source: Source) -> EdgeSource:
    """Raises VerifySpecError or DedupeSpecError on a section that the config's checks would have refused."""
    return EdgeSource(
        source_id=source.source_id,
        name=source.name,
        tenant_id=source.tenant,
        verifier=build_verifier(source.verify),
        policy=source.on_verify_failure,
        dedupe=build_dedupe(source.dedupe) if source.dedupe else None,
        dedupe_ttl_ms=source.dedupe.ttl_seconds * 1000 if source.dedupe else 0,
        forward=forward_names(source.forward_headers),
        sinks=tuple(sink.type for sink in source.sinks),
        key_prefix=f"{source.tenant}:{source.source_id}:",
        ordering=tuple(map(_ordering, source.sinks)) if any(sink.ordered for sink in source.sinks) else (),
    )


def _ordering(sink: Sink) -> DedupeKey | bool:
    return build_ordering(sink.ordering_key) if sink.ordered and sink.ordering_key else sink.ordered


def ordering_keys(source: EdgeSource, headers: Headers, body: bytes) -> tuple[str | None, ...]:
    """By sink index the key whose lane a hook joins. One without the key joins the lane of those without."""
    return tuple(
        (part.extract(headers, body) or "") if not isinstance(part, bool) else "" if part else None
        for part in source.ordering
    )


class Sources:
    """The table of one edge: the file's sources, and those that the API set up.

    `prefix` and `routing` are those of `http` and need a restart to change. `complete` is False until the API's have
    been told once, where there are any to be told.
    """

    def __init__(self, prefix: str, routing: Routing, sources: Iterable[Source], *, complete: bool = True) -> None:
        self._prefix = prefix
        self._routing: Routing = routing
        self._managed: dict[str, EdgeSource] = {}
        self.complete = complete
        self.replace(sources)

    def replace(self, sources: Iterable[Source]) -> None:
        """Take up the file's sources, all at once. Raises as `compile_source` does, and then keeps the old ones."""
        self._of_file = [compile_source(source) for source in sources]
        self._join()

    def manage(self, changes: Mapping[str, Source | None], *, whole: bool) -> None:
        """Take up the API's sources by id, all at once: all there are, or what has changed, None for one that is gone.
        Raises as `replace` does."""
        managed = {} if whole else dict(self._managed)
        for source_id, source in changes.items():
            if source is None:
                managed.pop(source_id, None)
            else:
                managed[source_id] = compile_source(source)
        self._managed, self.complete = managed, True
        self._join()

    def _join(self) -> None:
        every = [*self._managed.values(), *self._of_file]  # of one tenant and name, the file's
        self._by_id: Mapping[str, EdgeSource] = {source.source_id: source for source in every}
        self._by_tenant = {(source.tenant_id, source.name): source for source in every}
        # A source has one spelling, so it is found by its path's bytes alone.
        self._known = {self._path(source): source for source in every}

    def _path(self, source: EdgeSource) -> bytes:
        name = source.source_id if self._routing == "path" else f"{source.tenant_id}/{source.name}"
        return f"{self._prefix}/{name}".encode("ascii")

    def resolve(self, target: Target) -> EdgeSource | None:
        """The source that a catch URL names; None when there is none, or the URL's tenant does not own it."""
        if target.tenant is not None:
            return self._by_tenant.get((target.tenant, target.name))
        return self._by_id.get(target.name)

    def known(self, raw_path: bytes) -> EdgeSource | None:
        """The source at a request path, None for whatever else it may lead to."""
        return self._known.get(raw_path)

    def find(self, raw_path: bytes) -> EdgeSource | Target | None:
        """The source at a request path; its target when no such source exists; None when it is no catch URL."""
        known = self._known.get(raw_path)
        if known is not None:
            return known
        target = parse_target(raw_path, self._prefix, self._routing)
        return None if target is None else self.resolve(target) or target
