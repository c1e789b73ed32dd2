"""Whether the lanes of a source agree (`partitioning.lanes_agree`), by source id, for every source an edge goes by."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.config import Source
from schemas.edge_update import EdgeUpdate
from streams.kafka.partitioning import lanes_agree


class Lanes:
    """The sources of one edge: the file's, and those that the API set up."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._managed: dict[str, bool] = {}
        self.replace(sources)

    def agreed(self, source_id: str) -> bool:
        """Of a source that is gone by now too: its last hooks are on their way, and a single key is the rule."""
        found = self._of_file.get(source_id)
        return self._managed.get(source_id, True) if found is None else found

    def replace(self, sources: Iterable[Source]) -> None:
        """Take up the file's sources."""
        self._of_file = {source.source_id: lanes_agree(source) for source in sources}

    def take(self, update: EdgeUpdate) -> None:
        """Take up what the API set up: all there are, or what has changed. What is gone is kept for its last hooks."""
        self._managed |= {source_id: lanes_agree(source) for source_id, source in update.sources if source is not None}
