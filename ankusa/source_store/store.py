"""The source store of a node whose sources the API may set up (spec 07).

A write is judged, stored with its audit record in one durable batch, then announced to whoever takes hooks and delivers
them, then answered: in that order, and one at a time. It is carried through although its caller goes away. Owns the
sources of the API and the rules of changing them; those of the file are the file's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ankusa import lifecycle
from ankusa.changing import Changing
from ankusa.config import ConfigError
from ankusa.config.managed import managed_source
from ankusa.seal import Seal
from ankusa.source_store import spec as specs
from ankusa.source_store.answers import (
    Exists,
    HasDeliveries,
    Invalid,
    NotFound,
    ReadOnly,
    Refused,
    TooMany,
    Unavailable,
)
from ankusa.source_store.ports import Announce, Deliveries, SourceLog
from ankusa.source_store.spec import Entry, SecretsNeedKeyError, UnreadableError
from schemas.config import Config, ManagedSource
from schemas.records import ChangeAction, ChangeKind, SourceChange

log = logging.getLogger("ankusa.sources")

NEEDS_KEY = (
    "holds a secret, and this node has no key to seal it with: set source_store.secret_key (`openssl rand -base64 32`)"
)


class UnreadableSourcesError(Exception):
    """Stored sources cannot be read, so that the node must not start without saying so."""


class SourceStore:
    """One node's store. `config` gives the configuration as it is now."""

    def __init__(
        self, source_log: SourceLog, config: Callable[[], Config], deliveries: Deliveries, announce: Announce
    ) -> None:
        """Reads what is kept. Raises UnreadableSourcesError naming the sources, and StoreError."""
        self._log = source_log
        self._config = config
        self._deliveries = deliveries
        self._announce = announce
        settings = config().source_store
        self._http = config().http  # a reload does not change it
        self._writable = settings.type == "persistent"
        self._seal = Seal(settings.secret_key)
        self._entries: dict[str, Entry] = {}
        self._stale: list[str] = []
        self._lock = asyncio.Lock()
        self._changing = Changing("source", log)
        if self._writable:
            self._read(ignore=settings.ignore_unreadable)
        elif kept := len(source_log.kept_sources()):
            log.warning("event=sources_off count=%d reason=source_store.type is static: their rows die", kept)

    def _read(self, *, ignore: bool) -> None:
        unreadable: list[str] = []
        for kept in self._log.kept_sources():
            try:
                self._entries[kept.source_id] = specs.read(kept, self._seal, self._config().dispatch.retry)
            except UnreadableError as error:
                unreadable.append(f"{kept.source_id} {error}")
                continue
            if self._seal.has_key and not self._seal.is_current(kept.spec or b""):
                self._stale.append(kept.source_id)
        if unreadable and not ignore:
            raise UnreadableSourcesError(f"stored sources cannot be read: {', '.join(unreadable)}")
        for reason in unreadable:
            log.error("event=source_ignored source=%s", reason.replace(" ", " reason=", 1))

    def follow(self, changes: Mapping[str, SourceChange | None]) -> None:
        """Take up what was stored since, here or by another node: the last change of each source, None of one that is
        gone. One that cannot be read stays as it was."""
        for source_id, change in changes.items():
            if change is None:
                self._entries.pop(source_id, None)
                continue
            try:
                self._entries[source_id] = specs.read(change, self._seal, self._config().dispatch.retry)
            except UnreadableError as error:
                log.error("event=source_ignored source=%s reason=%s", source_id, error)

    async def reseal(self) -> None:
        """Seal with the first key what an older one sealed, or none did. Raises StoreError."""
        stale, self._stale = self._stale, []
        for source_id in stale:
            await self._changing.tried(partial(self._reseal, source_id))
        if stale:
            log.info("event=sources_resealed count=%d", len(stale))

    async def _reseal(self, source_id: str) -> None:
        async with self._lock:
            await self._log.begin()
            if (entry := self._entries.get(source_id)) is not None:
                await self._log.change(specs.keep(entry, self._seal), None)

    # -- reading ------------------------------------------------------------------

    @property
    def sources(self) -> list[ManagedSource]:
        return [entry.source for entry in self._entries.values()]

    def source(self, source_id: str) -> ManagedSource | None:
        entry = self._entries.get(source_id)
        return None if entry is None else entry.source

    def of_tenant(self, tenant: str) -> list[dict[str, Any]]:
        """A tenant's sources as they are shown, in order of their names."""
        found = [entry for entry in self._entries.values() if entry.source.tenant == tenant]
        return [self._shown(entry) for entry in sorted(found, key=lambda entry: entry.source.name)]

    def get(self, tenant: str, name: str) -> dict[str, Any] | NotFound:
        entry = self._entries.get(f"{tenant}.{name}")
        return NotFound() if entry is None else self._shown(entry)

    def _shown(self, entry: Entry) -> dict[str, Any]:
        return specs.shown(entry, self._http)

    # -- writing ------------------------------------------------------------------

    async def create(self, tenant: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any] | Refused:
        """A new source from its whole spec; as it is shown. Raises StoreError."""
        return await self._changing.carried(lambda: self._put(tenant, name, spec, new=True))

    async def replace(self, tenant: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any] | Refused:
        """Another spec for a source there is; as it is shown. Raises StoreError."""
        return await self._changing.carried(lambda: self._put(tenant, name, spec, new=False))

    async def delete(self, tenant: str, name: str, *, dead_letter: bool) -> Refused | None:
        """A source that has no unsettled row, or with `dead_letter` one whose waiting rows are killed first.

        A hook that is accepted meanwhile dies as `source_gone`. Raises StoreError.
        """
        return await self._changing.carried(lambda: self._delete(tenant, name, dead_letter=dead_letter))

    async def _put(self, tenant: str, name: str, spec: Mapping[str, Any], *, new: bool) -> dict[str, Any] | Refused:
        if not self._writable:
            return ReadOnly()
        async with self._lock:
            await self._log.begin()
            source_id = f"{tenant}.{name}"
            before = self._entries.get(source_id)
            if (refused := self._refused(tenant, name, before, new=new)) is not None:
                return refused
            at = self._log.now()
            try:
                source = managed_source(tenant, name, spec, self._config().dispatch.retry, self._config().egress)
                entry = Entry(source, before.created_at if before else at, at)
                record = specs.keep(entry, self._seal)
            except ConfigError as error:
                return Invalid(error.problems[0].field, "; ".join(map(str, error.problems)))
            except SecretsNeedKeyError as error:
                return Invalid(error.field, f"{error.field}: {NEEDS_KEY}")
            action = ChangeAction.CREATED if before is None else ChangeAction.UPDATED
            await self._change(record, action, self._shown(entry))
            self._entries[source_id] = entry
            await self._announce(source_id, source)
            log.info("event=source_%s source=%s", action.name.lower(), source_id)
            return self._shown(entry)

    def _refused(self, tenant: str, name: str, before: Entry | None, *, new: bool) -> Refused | None:
        config = self._config()
        if not new:
            return NotFound() if before is None else None
        # A catch URL with the tenant in it leads to one source: the file's, when it has one of that name.
        taken = self._http.routing == "tenant_path" and any(
            source.tenant == tenant and source.name == name for source in config.sources.values()
        )
        if before is not None or taken:
            return Exists()
        limit = config.source_store.max_sources
        return TooMany(limit) if len(self._entries) >= limit else None

    async def _delete(self, tenant: str, name: str, *, dead_letter: bool) -> Refused | None:
        source_id = f"{tenant}.{name}"
        if not self._writable:
            return ReadOnly()
        if source_id not in self._entries:
            async with self._lock:
                await self._log.begin()  # another node may have made it
        if source_id not in self._entries:
            return NotFound()
        if dead_letter and await self._deliveries.dead_letter_source(source_id) is None:
            return Unavailable("the dispatcher cannot kill the source's rows now")
        async with self._lock:
            await self._log.begin()
            entry = self._entries.get(source_id)
            if entry is None:
                return NotFound()
            pending, inflight = await self._deliveries.unsettled(source_id)
            if not dead_letter and (pending or inflight):
                return HasDeliveries(pending, inflight)
            gone = SourceChange(source_id, tenant, name, self._log.now(), entry.created_at, None)
            await self._change(gone, ChangeAction.DELETED, self._shown(entry))
            self._entries.pop(source_id, None)  # a log that is followed may have told it already
            await self._announce(source_id, None)
            log.info("event=source_deleted source=%s pending=%d inflight=%d", source_id, pending, inflight)
            return None

    async def _change(self, record: SourceChange, action: ChangeAction, shown: dict[str, Any]) -> None:
        audit = lifecycle.change(ChangeKind.SOURCE, record.source_id, action, record.at, shown)
        await self._log.change(record, audit)
