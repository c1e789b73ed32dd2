"""Records a log on the embedded host: every kind of record and every way of a row, with fixed ids and times."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from schemas import records
from schemas.records import (
    Breaker,
    BreakerMove,
    BreakerState,
    CheckIn,
    Envelope,
    ErrorClass,
    Held,
    Job,
    JobPatch,
    JobStart,
    JobState,
    LimitChange,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    Page,
    PenEntry,
    Purge,
    Revival,
)
from streams.local.log import LocalLog
from tests.property.changelog import Record, recorded
from tests.property.refold import content

FOLDER = Path(__file__).parent
AT = 1_700_000_000_000


class Golden(Struct):
    """A log and the digests of what it came to, by family."""

    log: list[tuple[int, int, int, bytes]]
    digests: dict[str, str]
    sizes: dict[str, int]


def digest(family: Mapping[bytes, bytes]) -> str:
    found = hashlib.sha256()
    for key in sorted(family):
        for part in (key, family[key]):
            found.update(len(part).to_bytes(4, "big") + part)
    return found.hexdigest()


def load(path: Path) -> Golden:
    return msgspec.msgpack.decode(path.read_bytes(), type=Golden)


class _Script:
    """What happens, in order. Time goes on by a second a step."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self.at = AT
        self._number = 0

    async def run(self) -> None:
        first = await self.commit(3, tenant="acme", sinks=2)
        lane = await self.commit(4, tenant="acme", sinks=1, lane="order-1")
        dedupe = await self.commit(2, tenant="beta", sinks=1, key="evt-1")
        assert len(dedupe) == 1
        await self.command(JobStart(_job("job-1", self.at)))
        kind = OutcomeKind
        self.publish(_batch(_outcome(first[0], 0, 0, kind.DELIVERED), _outcome(first[0], 1, 0, kind.RETRY)))
        self.publish(_batch(_outcome(first[0], 1, 1, kind.DELIVERED), _outcome(first[1], 0, 0, kind.PARKED)))
        self.publish(_batch(_outcome(first[1], 1, 0, kind.DEAD), _outcome(lane[0], 0, 0, kind.DEAD)))
        self.publish(_batch(_outcome(lane[1], 0, 0, kind.DELIVERED), _outcome(lane[1], 0, 0, kind.DEAD)))
        self.publish(_batch(_outcome(first[2], 1, 0, kind.DEAD)))
        page = Page("job-1", self.at, b"cursor-1", 2, 0, (Revival(first[1], 1, 1), Revival(lane[0], 0, 1)))
        self.publish(page)
        self.publish(page)  # moves nothing a second time, and counts what it scanned
        self.publish(_batch(_outcome(first[1], 1, 2, kind.DELIVERED)))
        await self.command(JobPatch("job-1", self.at, state=JobState.PAUSED, held=("acme/orders/0/http",)))
        breaker = Breaker(BreakerState.OPEN, 5, 1, self.at + 30_000, self.at)
        self.publish(OutcomeBatch((), (BreakerMove("acme/orders/0/http", breaker),)))
        self.publish(CheckIn("acme", "pack-1", self.at, (first[2], first[1])))
        held = await self.hold(3)
        await self._log.purge(Purge(self.at, (PenEntry(held.received_at, held.id, _held_bytes(held)),)))
        await self._log.limit(LimitChange("acme", self.at, 25.0, 50))
        await self.commit(2, tenant="beta", sinks=3, key="evt-1")
        await self.commit(1, tenant="acme", sinks=1, lane="order-1")

    def _next_at(self) -> None:
        self.at += 1000

    async def commit(
        self, count: int, *, tenant: str, sinks: int, lane: str | None = None, key: str | None = None
    ) -> list[int]:
        self._next_at()
        hooks = []
        for _ in range(count):
            self._number += 1
            hook_id = f"018bcfe5-6800-7000-8000-{self._number:012d}"
            envelope = Envelope(
                hook_id,
                "orders",
                tenant,
                self.at,
                ("http",) * sinks,
                (("x-event", "paid"),),
                "application/json",
                hook_id,
                key,
                60_000 if key else 0,
                ordering_keys=(lane,) * sinks if lane else (),
            )
            hooks.append((envelope, records.encode(envelope), b'{"n": %d}' % self._number))
        answers = await self._log.commit(hooks, [])
        return [answer.seq for answer in answers if hasattr(answer, "seq")]

    async def hold(self, count: int) -> Held:
        """The last one, which may be purged: its body is nowhere else, so it is left out of the recorded log."""
        self._next_at()
        entries = []
        for _ in range(count):
            self._number += 1
            held = Held(
                f"held-{self._number}", "orders", "acme", self.at, "POST", "/webhooks/orders", (), "signature", 9
            )
            entries.append((held, records.encode(held), b"x" * 9))
        await self._log.commit([], entries)
        return entries[-1][0]

    def publish(self, record: records.OutcomeRecord) -> None:
        self._next_at()
        self._log.publish(record)

    async def command(self, record: records.JobRecord) -> None:
        self._next_at()
        await self._log.command(record)


def _job(job_id: str, at: int) -> Job:
    return Job(
        id=job_id,
        kind="dlq",
        state=JobState.RUNNING,
        filter={"source_id": "orders"},
        rate=100,
        max_lag_ms=5000,
        created_at=at,
        updated_at=at,
        total=2,
    )


def _outcome(seq: int, sink: int, generation: int, kind: OutcomeKind) -> Outcome:
    failed = kind is not OutcomeKind.DELIVERED
    error = ("answered 503", ErrorClass.TRANSIENT) if failed else (None, None)
    return Outcome(seq, sink, generation, kind, AT + 50, AT + 40, generation + 1, AT + 90_000, *error)


def _batch(*items: Outcome) -> OutcomeBatch:
    return OutcomeBatch(items)


def _held_bytes(held: Held) -> int:
    return len(records.encode(held)) + 9


async def _recorded(folder: Path) -> tuple[list[Record], dict[str, dict[bytes, bytes]]]:
    log = LocalLog(folder, lambda: script.at)
    script = _Script(log)
    await script.run()
    found = recorded(log), content(log.tables)
    log.close()
    return found


def recorded_to(name: str, log: Sequence[Record], tables: Mapping[str, Mapping[bytes, bytes]]) -> None:
    """Write the file. Raises FileExistsError: a log that was recorded stays as it is."""
    golden = Golden(
        [(int(topic), offset, at, value) for topic, offset, at, value in log],
        {family: digest(entries) for family, entries in tables.items()},
        {family: len(entries) for family, entries in tables.items()},
    )
    path = FOLDER / f"{name}.golden"
    with path.open("xb") as file:
        file.write(msgspec.msgpack.encode(golden))
    print(f"{path}: {len(log)} records, {golden.sizes}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        recorded_to(sys.argv[1], *asyncio.run(_recorded(Path(folder))))


if __name__ == "__main__":
    main()
