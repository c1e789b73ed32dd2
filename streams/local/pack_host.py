"""The embedded host of the claim check's retention: what one local log knows of packs."""

from __future__ import annotations

from ankusa.claim_check.retention import KnownPack
from ankusa.store import keys
from schemas.records import decode_check_in
from streams.local.log import LocalLog

PAGE = 10
"""Packs looked at in one go: each is a seek for each of its hooks, up to 128 as a rule. Two or three milliseconds."""


class LocalPackHost:
    """Implements `ankusa.claim_check.retention.PackHost`."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log

    def now(self) -> int:
        return self._log.now()

    def packs(self, start: str, end: str) -> list[KnownPack]:
        database = self._log.tables.database
        scan = database.items("packs", start.encode(), end.encode())
        page = [decode_check_in(stored) for (_, stored), _ in zip(scan, range(PAGE), strict=False)]
        scan.close()  # type: ignore[attr-defined]
        return [
            KnownPack(found.pack, found.tenant_id, bool(database.present("rows", sorted(map(keys.u64, found.seqs)))))
            for found in page
        ]

    def has_pack(self, pack: str) -> bool:
        return self._log.tables.has_pack(pack)

    def forget(self, packs: list[str]) -> None:
        if packs:
            self._log.drop([("packs", pack.encode()) for pack in packs])
