"""A source store that a test fills."""

from __future__ import annotations

from typing import Any

from ankusa.dispatch.ports import SourcesUnavailableError
from ankusa.dispatch.sources import DispatchSource
from schemas.config import Retry, Source, Verify


class FakeSources:
    """Implements `ankusa.dispatch.ports.Sources`."""

    def __init__(self) -> None:
        self._by_id: dict[str, DispatchSource] = {}
        self.answer = True
        self.broken: set[str] = set()

    def put(self, name: str, *sinks: Any, retry: Retry) -> None:
        self.broken.discard(name)
        source = Source(name=name, verify=Verify(type="none"))
        types = tuple(sink.type for sink in sinks)
        self._by_id[name] = DispatchSource(source, types, sinks, (retry,) * len(sinks))

    def remove(self, name: str) -> None:
        del self._by_id[name]

    def resolve(self, source_id: str) -> DispatchSource | None:
        if not self.answer:
            raise SourcesUnavailableError("the source store does not answer")
        if source_id in self.broken:
            raise ValueError("a secret that does not decrypt")
        return self._by_id.get(source_id)
