"""Sources as the dispatcher needs them: each sink built, each with its retry policy."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ankusa.sinks.contract import SinkClient
from ankusa.sinks.registry import SinkContext, build_sink
from schemas.config import Config, Retry, Source, retry_policy


class DispatchSource(Struct, frozen=True):
    """One source's sinks in order: types for binding, clients, and policies."""

    source: Source
    sink_types: tuple[str, ...]
    sinks: tuple[SinkClient, ...]
    policies: tuple[Retry, ...]

    @property
    def inline_max_bytes(self) -> int | None:
        """The largest body that every sink takes inline; None when none ever wants a reference."""
        return min([sink.inline_max_bytes for sink in self.sinks if sink.inline_max_bytes is not None], default=None)


class NodeSources:
    """The sources of a node as they are now: the file's, replaced whole at a reload, and those of the API, one by one.

    Clients of what did not change are kept. What is no longer in use is answered, for the caller to close once its
    attempts are over.
    """

    def __init__(self, config: Config, context: SinkContext) -> None:
        self._context = context
        self._retry = config.dispatch.retry
        self._sources: dict[str, DispatchSource] = {}
        self._managed: dict[str, Source] = {}
        self.reload(config)

    def reload(self, config: Config, context: SinkContext | None = None) -> list[SinkClient]:
        """Take a new config's sources, and its retry policy for all; with a new `context`, build every sink anew."""
        before = self._sources
        old = before if context is None else {}
        self._context = context or self._context
        self._retry = config.dispatch.retry
        self._sources = {
            source.source_id: self._build(source, old.get(source.source_id))
            for source in (*config.sources.values(), *self._managed.values())
        }
        return _unused(before.values(), self._sources.values())

    def put(self, source: Source) -> list[SinkClient]:
        """Make or replace a source of the API."""
        before = self._sources.get(source.source_id)
        after = self._sources[source.source_id] = self._build(source, before)
        self._managed[source.source_id] = source
        return _unused([] if before is None else [before], [after])

    def drop(self, source_id: str) -> list[SinkClient]:
        """Take a source of the API away."""
        if self._managed.pop(source_id, None) is None:
            return []
        return list(self._sources.pop(source_id).sinks)

    def resolve(self, source_id: str) -> DispatchSource | None:
        return self._sources.get(source_id)

    def sinks(self) -> list[SinkClient]:
        return [sink for source in self._sources.values() for sink in source.sinks]

    def _build(self, source: Source, before: DispatchSource | None) -> DispatchSource:
        sinks = []
        for index, sink in enumerate(source.sinks):
            same = before is not None and index < len(before.sinks) and before.source.sinks[index] == sink
            sinks.append(before.sinks[index] if same and before else build_sink(sink, source.source_id, self._context))
        return DispatchSource(
            source,
            tuple(sink.type for sink in source.sinks),
            tuple(sinks),
            tuple(retry_policy(self._retry, source.retry, sink.retry) for sink in source.sinks),
        )


def _unused(before: Iterable[DispatchSource], after: Iterable[DispatchSource]) -> list[SinkClient]:
    kept = {id(sink) for source in after for sink in source.sinks}
    return [sink for source in before for sink in source.sinks if id(sink) not in kept]
