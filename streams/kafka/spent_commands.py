"""Commands of jobs that are kept no longer, let go of in the topic `replays` by the owner of their partition.

Each command has a key of its own, so the topic's compaction alone would keep them all for ever. A pass of a partition,
in order: (1) its topic is read to the end, (2) all that was read is folded, (3) spent are the commands of jobs that
the tables do not have, once the latest of a job is older than `KEEP_MS`: each was folded, and the job dropped since,
(4) the brokers say that the partition is still owned, so the changelog has that too and no later owner reads a command
again, (5) each gets a record without a value. No other command has its key, so none can be lost with it.

A job's latest start goes first and its drop last: whatever a compaction has taken by then, a start that is left has its
patches and its drop behind it. Pages of the job are older than `outcomes` keeps them, so that a refold of the topics
misses no command of one that it still reads. Owns what is spent and when; never decides which jobs are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.records import Topic
from streams.kafka.dead_hooks import Read
from streams.kafka.fleet_log import FleetLog
from streams.kafka.topics import HISTORY_KEEP_MS

log = logging.getLogger("ankusa.sweeper")

KEEP_MS = HISTORY_KEEP_MS
"""As long as `outcomes` keeps the job's pages."""

PASS_S = 3600.0
"""Between passes. Each reads what is left of the topic: some commands of each of the hundred jobs that are kept."""

FOLDED_S = 10.0
"""How long a pass waits for what it has read to be folded. A partition that is behind is for the next one."""

LOOK_S = 0.1

_KINDS = {"start": 0, "patch": 1, "drop": 2}


class Command(NamedTuple):
    """A command as its key names it. `at` is when it was given, unix ms; 0 where an older release did not say."""

    job_id: str
    kind: str
    at: int


def command_of(key: bytes) -> Command | None:
    """None for a key that is no command's."""
    try:
        job_id, kind, *rest = key.decode().split("/")
    except ValueError:  # UnicodeDecodeError is one
        return None
    if kind not in _KINDS or len(rest) > 1 or not all(part.isdecimal() for part in rest):
        return None
    return Command(job_id, kind, int(rest[0]) if rest else 0)


def spent(keys: Iterable[bytes], kept: Callable[[str], bool], before: int) -> list[list[bytes]]:
    """Of the commands of one partition, as their topic has them in order, those that are spent: by job, in the order in
    which they are to go. `kept` says of a job id whether the tables have it; `before` is unix ms."""
    by_job: dict[str, list[tuple[Command, bytes]]] = {}
    for key in keys:
        command = command_of(key)
        if command is not None:
            by_job.setdefault(command.job_id, []).append((command, key))
    found: list[list[bytes]] = []
    for job_id, commands in by_job.items():
        if all(command.at < before for command, _ in commands) and not kept(job_id):
            starts = [key for command, key in commands if command.kind == "start"]
            others = sorted((one for one in commands if one[0].kind != "start"), key=lambda one: _KINDS[one[0].kind])
            found.append([*reversed(starts), *(key for _, key in others)])
    return found


class SpentCommands:
    """Those of one node's partitions. `read` reads `replays`, `still_owned` asks the brokers."""

    def __init__(
        self, fleet: FleetLog, read: Read, still_owned: Callable[[int], Awaitable[bool]], keep_ms: int = KEEP_MS
    ) -> None:
        self._fleet = fleet
        self._read = read
        self._still_owned = still_owned
        self._keep_ms = keep_ms
        self._let_go = 0

    def counts(self) -> dict[str, int]:
        """Commands that were let go of since the process started."""
        return {"replays_topic": self._let_go}

    async def run_for_ever(self) -> None:
        while True:
            for number in list(self._fleet.partitions):
                try:
                    await self.run(number)
                except StoreError as error:
                    log.warning("event=commands_kept partition=%d reason=%s", number, error)
                except Exception:
                    log.exception("event=commands_kept partition=%d", number)
            await asyncio.sleep(PASS_S)

    async def run(self, number: int) -> None:
        """A pass of a partition. Raises StoreError; what is left is found by the next one."""
        keys, following = await self._keys(number)
        if not keys or not await self._folded(number, following):
            return
        gone = spent(
            keys, lambda job_id: self._tables(number).job(job_id) is not None, self._fleet.now() - self._keep_ms
        )
        if not gone or not await self._still_owned(number):
            return
        for commands in gone:
            for key in commands:
                await self._fleet.deliver(Topic.REPLAYS, number, None, key)
                self._let_go += 1

    async def _keys(self, number: int) -> tuple[list[bytes], int]:
        """What the topic has, each once and where it is last; and the offset after all."""
        found: dict[bytes, None] = {}
        following, ended = 0, False
        while not ended:
            some, following, ended = await self._read(number, following)
            for key, value in some:
                found.pop(key, None)
                if value is not None:
                    found[key] = None
        return list(found), following

    async def _folded(self, number: int, following: int) -> bool:
        """Whether the partition's tables have all before `following`, within `FOLDED_S`."""
        for _ in range(round(FOLDED_S / LOOK_S)):
            partition = self._fleet.partitions.get(number)
            if partition is None:
                return False
            if partition.offset(Topic.REPLAYS) >= following - 1:
                return True
            await asyncio.sleep(LOOK_S)
        return False

    def _tables(self, number: int) -> Tables:
        tables = self._fleet.tables(number)
        if tables is None:
            raise StoreError(f"partition {number} is not this node's any more")
        return tables


def take_all(number: int, key: bytes | None, value: bytes | None) -> None:
    """What is no command is left where it is: the fold has told of it."""
