"""Sources as the dispatcher needs them: each sink built, each with its retry policy."""

from __future__ import annotations

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


class StaticSources:
    """The sources of a config file. Replaced whole at a reload; clients of what did not change are kept."""

    def __init__(self, config: Config, context: SinkContext) -> None:
        self._context = context
        self._sources: dict[str, DispatchSource] = {}
        self.reload(config)

    def reload(self, config: Config, context: SinkContext | None = None) -> list[SinkClient]:
        """Take a new config's sources; with a new `context`, build every sink anew.

        Answers the clients no longer in use, for the caller to close once their attempts are over.
        """
        before = self._sources
        old = before if context is None else {}
        self._context = context or self._context
        self._sources = {
            source.source_id: self._build(source, config.dispatch.retry, old.get(source.source_id))
            for source in config.sources.values()
        }
        kept = {id(sink) for source in self._sources.values() for sink in source.sinks}
        return [sink for source in before.values() for sink in source.sinks if id(sink) not in kept]

    def resolve(self, source_id: str) -> DispatchSource | None:
        return self._sources.get(source_id)

    def sinks(self) -> list[SinkClient]:
        return [sink for source in self._sources.values() for sink in source.sinks]

    def _build(self, source: Source, retry: Retry, before: DispatchSource | None) -> DispatchSource:
        sinks = []
        for index, sink in enumerate(source.sinks):
            same = before is not None and index < len(before.sinks) and before.source.sinks[index] == sink
            sinks.append(before.sinks[index] if same and before else build_sink(sink, source.source_id, self._context))
        return DispatchSource(
            source,
            tuple(sink.type for sink in source.sinks),
            tuple(sinks),
            tuple(retry_policy(retry, source.retry, sink.retry) for sink in source.sinks),
        )
