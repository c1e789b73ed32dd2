"""The agents: one for each topic that is folded, each the same loop. They fold and never wait for a sink.

A record that cannot be folded because the store refuses ends the worker: an agent that went on with the next one would
leave a gap in the tables. Owns that rule; what a record does is the fold's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import faust
from faust.types import StreamT, TopicT

from schemas.records import Topic
from streams.kafka.table import FoldTable

Failed = Callable[[str], None]


def add_agents(app: faust.App, topics: Mapping[Topic, TopicT], table: FoldTable, failed: Failed) -> None:
    """One agent for each of `topics`. `failed` is told, once, why nothing may be folded any more."""
    for topic, source in topics.items():
        app.agent(source, name=f"fold_{topic.name.lower()}")(_folding(topic, table, failed))


def _folding(topic: Topic, table: FoldTable, failed: Failed) -> Callable[[StreamT[Any]], Any]:
    async def fold(stream: StreamT[Any]) -> None:
        assert isinstance(stream, faust.Stream)
        # Acknowledged by the changelog's transaction, not by the stream's going on.
        async for event in stream.noack().events():
            try:
                await table.apply(topic, event)
            except Exception as error:
                failed(f"{topic.name.lower()}[{event.message.partition}] at {event.message.offset}: {error}")
                await asyncio.Event().wait()  # Faust would start a failed agent again, behind the record

    return fold
