"""What the API set up, as a node reads it: sources, routes and limits, in the compacted topic `sources`.

Owns one consumer and its thread. Everything up to the topic's end is told at once, as the whole; each change after it
as it comes. A source that cannot be read at the start ends the edge, unless `source_store.ignore_unreadable` says
otherwise; one that changes to something unreadable later stays as it was. What is no record of this topic at all is
passed over. It writes nothing, and commits no offset.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from ankusa.seal import Seal
from ankusa.source_store import spec as specs
from ankusa.source_store.spec import UnreadableError
from ankusa.source_store.store import UnreadableSourcesError
from schemas.config import Config, ManagedSource, RateLimit
from schemas.edge_update import EdgeUpdate
from schemas.records import DecodeError, SourceChange, decode_source_change
from streams.kafka import limits
from streams.kafka.clients import client_log, client_settings
from streams.kafka.pen_sizes import PenSizes, is_pen, read_size
from streams.kafka.route_host import PREFIX as ROUTE
from streams.kafka.route_host import FollowedRoutes
from streams.kafka.set_aside import PassedOver, reason_of
from streams.kafka.source_rows import Heard, is_question
from streams.kafka.topic_end import TopicEnd
from streams.kafka.topics import TopicNames

log = logging.getLogger("ankusa.edge")

Stored = Callable[[Mapping[str, SourceChange | None]], None]

_SOURCE_ID = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\Z")
"""Of a tenant and a name (`schemas.config.Name`). What is under another key was never a source."""

POLL_S = 0.5
"""How long the thread waits for a change in one go, and so a close for the thread."""

BATCH = 500

ANSWER_S = 3.0
"""How long the thread waits for the broker when it is asked for the end."""


class SourceFeed:
    """The feed of one process, in the event loop that makes it. `take` is given each update there; before it, `stored`
    the changes as they are kept, None for what is gone."""

    def __init__(
        self,
        config: Config,
        take: Callable[[EdgeUpdate], None],
        override: Callable[[Mapping[str, RateLimit | None]], None],
        stored: Stored = lambda changes: None,
        heard: Heard = lambda key, value: None,
    ) -> None:
        """`override` is given the limits that were set, or taken back (None); `heard` what workers ask each other."""
        self._take = take
        self._override = override
        self._managed = config.source_store.type == "persistent"
        self._stored = stored
        self._heard = heard
        self._topic = TopicNames(config.kafka.prefix).sources
        self._seal = Seal(config.source_store.secret_key)
        self._retry = config.dispatch.retry
        self._lenient = config.source_store.ignore_unreadable
        self._settings = client_settings(config.kafka, "sources") | {
            "group.id": f"{config.kafka.prefix}sources",  # asked for, and never joined
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        self._loop = asyncio.get_running_loop()
        self._closing = threading.Event()
        self._told = False
        self._changes: dict[str, ManagedSource | None] = {}
        self._kept: dict[str, SourceChange | None] = {}
        self._limits: dict[str, RateLimit | None] = {}
        self._unreadable: dict[str, str] = {}
        self._routes = FollowedRoutes(config.routes)
        self.pens = PenSizes()
        """What the pen holds."""
        self._partitions = config.kafka.partitions
        self.passed = PassedOver(self._topic)
        self.end = TopicEnd(self._topic)
        self.read: asyncio.Future[None] = self._loop.create_future()
        """Done when the topic has been read to its end."""
        self.failed: asyncio.Future[UnreadableSourcesError] = self._loop.create_future()
        """Done when the edge must not go on."""
        self._thread = threading.Thread(target=self._run, name="ankusa-sources", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End the thread."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join)

    # -- the thread ---------------------------------------------------------

    def _run(self) -> None:
        consumer = Consumer(self._settings, logger=client_log)
        try:
            consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            while not self._closing.is_set():
                end = None
                for message in _messages(consumer):
                    end = self._read(message)
                changed = bool(self._changes or self._limits or self._routes)
                if changed if self._told else end is not None:
                    self._tell()
                if end is not None:
                    self._hand(self.end.is_at, end)
                if self.end.asked.is_set():
                    self.end.asked.clear()
                    self._hand(self.end.answered, self._ends(consumer))
        except Exception as error:
            log.exception("event=sources_feed_failed")
            self._hand(self._fail, UnreadableSourcesError(f"{self._topic} cannot be read: {error}"))
        finally:
            consumer.close()

    def _ends(self, consumer: Consumer) -> int | None:
        """Where the topic ends; None when no broker says it."""
        try:
            ends = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=ANSWER_S, cached=False)
        except KafkaException:
            return None
        return None if ends is None else ends[1]

    def _read(self, message: Message) -> int | None:
        """The topic's end, when the message says that it is here."""
        error = message.error()
        if error is not None:  # of all but the end it tries again by itself
            return message.offset() if error.code() == KafkaError._PARTITION_EOF else None
        self._take_record(message)
        return None

    def _take_record(self, message: Message) -> None:
        try:
            self._take_entry((message.key() or b"").decode(), message.value())
        except Exception as error:  # whatever it is, it is this record's alone: the one before holds
            self.passed.add(0, message.offset(), reason_of(error))

    def _take_entry(self, key: str, value: bytes | None) -> None:
        """What a key says now. Raises what reading it raises."""
        if (tenant_id := limits.tenant_of(key)) is not None:
            self._limits[tenant_id] = limits.read_limit(value)
        elif is_question(key):
            self._hand(partial(self._heard, key), value)
        elif is_pen(key):
            self._hand(self.pens.take, read_size(key, value, self._partitions))
        elif key.startswith(ROUTE):
            self._routes.take(key, value)
        elif self._managed:
            self._take_source(key, value)

    def _take_source(self, source_id: str, value: bytes | None) -> None:
        if _SOURCE_ID.match(source_id) is None:
            raise ValueError("its key is no source's")
        self._unreadable.pop(source_id, None)
        try:
            change = None if value is None else decode_source_change(value)
            if change is not None and change.source_id != source_id:
                raise ValueError("a source under the key of another")
            self._changes[source_id] = None if change is None else self._source(change)
            self._kept[source_id] = None if change is None or change.spec is None else change
        except UnreadableError as unread:
            self._unreadable[source_id] = str(unread)
            raise
        except (*DecodeError, ValueError):
            if source_id not in self._changes:
                self._unreadable[source_id] = "is damaged"
            raise

    def _source(self, change: SourceChange) -> ManagedSource | None:
        return None if change.spec is None else specs.read(change, self._seal, self._retry).source

    def _tell(self) -> None:
        unreadable = [f"{source_id} {reason}" for source_id, reason in self._unreadable.items()]
        self._unreadable = {}
        guard = [] if self._told else sorted(self._routes.unreadable)  # without one of them too much may be let through
        if guard or (unreadable and not self._told and not self._lenient):
            reason = ", ".join([*unreadable, *(f"{key} is damaged" for key in guard)])
            self._hand(self._fail, UnreadableSourcesError(f"stored sources cannot be read: {reason}"))
            self._closing.set()
            return
        for reason in unreadable:
            log.error("event=source_ignored source=%s", reason.replace(" ", " reason=", 1))
        overrides, self._limits = self._limits, {}
        self._hand(self._overridden, overrides)
        if self._changes or self._routes or (self._managed and not self._told):
            self._tell_update()
        self._told = True

    def _tell_update(self) -> None:
        routes, rules = self._routes.told()
        update = EdgeUpdate(not self._told, tuple(self._changes.items()), routes, rules)
        kept = self._kept
        self._changes, self._kept = {}, {}
        if self._managed:
            self._hand(self._stored, kept)
        self._hand(self._taken, update)

    def _hand(self, call: Callable[..., object], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, value)
        except RuntimeError:  # the loop has ended: nobody goes by it any more
            self._closing.set()

    # -- in the loop --------------------------------------------------------

    def _overridden(self, overrides: Mapping[str, RateLimit | None]) -> None:
        self._override(overrides)
        if overrides:
            log.info("event=limits_taken tenants=%d", len(overrides))
        if not self.read.done():
            self.read.set_result(None)

    def _taken(self, update: EdgeUpdate) -> None:
        try:
            self._take(update)
        except Exception:
            log.exception("event=update_refused sources=%d", len(update.sources))  # the last one stands
        else:
            counts = len(update.sources), len(update.routes)
            log.info("event=sources_taken sources=%d routes=%d whole=%s", *counts, update.whole)

    def _fail(self, error: UnreadableSourcesError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


def _messages(consumer: Consumer) -> list[Message]:
    """What there is, as soon as there is something."""
    first = consumer.poll(POLL_S)
    return [] if first is None else [first, *consumer.consume(BATCH, 0)]
