"""The whole store: what a crash leaves is opened and is whole; what a crash cannot leave is refused or told."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ankusa.core.fold import Accepted
from ankusa.store import keys
from ankusa.store.errors import StoreDamagedError, StoreError, StoreFormatError, StoreLockedError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import FORMAT_VERSION, Outcome, OutcomeBatch, OutcomeKind, RowState
from streams.local.dispatch_host import LocalDispatchHost
from streams.local.log import LocalLog
from tests.unit.store.entries import AT, held, hook
from tests.unit.store.images import crash_image, damage_table, flip, wal, write_out


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def check_whole(tables: Tables) -> Counter[RowState]:
    """Every row has its hook and one index entry, every index entry its row, and the counts are those of a scan."""
    states: Counter[RowState] = Counter()
    places: dict[str, set[bytes]] = {"due": set(), "dead": set(), "members": set()}
    for key, value in tables.database.items("rows", b"", b"\xff" * 12):
        (seq, sink), row = keys.split_row_key(key), records.decode_row(value)
        states[row.state] += 1
        assert tables.hook(seq) is not None
        if row.state is RowState.DEAD:
            places["dead"].add(keys.dead_key(row.at, seq, sink))
        elif row.state is RowState.PENDING:
            places["due"].add(keys.due_key(row.replay_id is not None, row.tenant_id, row.at, seq, sink))
    for family, expected in places.items():
        assert set(tables.database.keys(family, b"", b"\xff" * 40)) == expected
    assert tables.counts.total() == (states[RowState.PENDING], 0, states[RowState.DEAD])
    return states


async def work(log: LocalLog, hooks: int) -> None:
    """Commits, deliveries, retries, deaths and held hooks."""
    answers = await log.commit(
        [hook(f"{number:04d}", dedupe=f"evt-{number}") for number in range(hooks)], [held("pen")]
    )
    kinds = (OutcomeKind.DELIVERED, OutcomeKind.RETRY, OutcomeKind.DEAD)
    outcomes = [
        Outcome(answer.seq, 0, 0, kinds[place % 3], AT, AT, 1, AT + 1000, "error")
        for place, answer in enumerate(answers)
        if isinstance(answer, Accepted) and place % 4
    ]
    log.publish(OutcomeBatch(tuple(outcomes)))


def test_a_crash_image_opens_whole_with_everything_that_was_written(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        await work(log, 120)
        image = crash_image(tmp_path / "store")
        expected, counts = check_whole(log.tables), log.tables.counts.by_sink
        log.close()
        log = LocalLog(image, lambda: AT)
        assert check_whole(log.tables) == expected
        assert log.tables.counts.by_sink == counts
        assert log.tables.pen_size()[0] == 1
        assert log.next_offset == 4
        page = log.tables.live.page("acme", AT, 1000, lambda *_: True) if log.tables.live.turn(AT) else []
        assert len(page) == 30
        log.close()

    run(body)


@pytest.mark.parametrize("cut", [1, 100, 3000, 20_000])
def test_a_torn_tail_costs_whole_records_and_leaves_the_rest_whole(tmp_path: Path, cut: int) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        for number in range(40):
            await log.commit([hook(f"{number:04d}-{part}", dedupe=f"evt-{number}") for part in range(5)], [])
            await log.commit([hook(f"{number:04d}", body=b"x" * 100)], [])
        image = crash_image(tmp_path / "store")
        log.close()
        file = wal(image)
        file.write_bytes(file.read_bytes()[:-cut])
        log = LocalLog(image, lambda: AT)
        rows = check_whole(log.tables)[RowState.PENDING]
        assert rows < 80
        assert rows == log.next_offset - 1
        await log.commit([hook("after")], [])
        assert check_whole(log.tables)[RowState.PENDING] == rows + 1
        log.close()

    run(body)


def test_a_damaged_store_is_refused_and_names_its_directory(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        await work(log, 200)
        await work(log, 0)
        image = crash_image(tmp_path / "store")
        log.close()
        flip(wal(image), 300)
        with pytest.raises(StoreDamagedError, match=str(image)):
            LocalLog(image, lambda: AT)

    run(body)


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        await work(log, 10)
        database = log.tables.database
        batch = database.batch()
        batch.put(b"format", str(FORMAT_VERSION + 1).encode(), database.handles["meta"])
        database.write(batch)
        log.close()
        for _ in range(2):  # refused again and not only once; and the lock was given back
            with pytest.raises(StoreFormatError) as refused:
                LocalLog(tmp_path / "store", lambda: AT)
        assert str(tmp_path / "store") in str(refused.value)
        assert f"format {FORMAT_VERSION + 1}" in str(refused.value)

    run(body)


@pytest.mark.parametrize("family", ["rows", "due"])
def test_table_files_that_cannot_be_read_are_told_and_no_row_is_passed_over(tmp_path: Path, family: str) -> None:
    async def body() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        for part in range(10):
            await log.commit([hook(f"{part}-{number:04d}") for number in range(250)], [])
        file = write_out(log.tables.database, family)
        log.close()
        damage_table(file)
        log = LocalLog(tmp_path / "store", lambda: AT)
        host = LocalDispatchHost(log)
        assert log.tables.live.turn(AT)
        claimed = 0
        with pytest.raises(StoreError, match="Corruption"):
            for _ in range(100):
                page = log.tables.live.page("acme", AT, 100, lambda *_: True)
                claimed += len([row for row in host.rows([(seq, sink) for _, seq, sink in page]) if row])
        assert claimed < 2500
        log.close()

    run(body)


WRITER = """
import asyncio, sys
from pathlib import Path
from ankusa.clock import now_ms
from streams.local.log import LocalLog
from schemas.records import Outcome, OutcomeBatch, OutcomeKind
from tests.unit.store.entries import hook

async def main():
    log = LocalLog(Path(sys.argv[1]), now_ms)
    number = 0
    while True:
        ids = [f"{number + part:08d}" for part in range(20)]
        number += 20
        answers = await log.commit([hook(hook_id) for hook_id in ids], [])
        print("\\n".join(ids), flush=True)
        done = answers[:10]
        log.publish(OutcomeBatch(tuple(Outcome(one.seq, 0, 0, OutcomeKind.DELIVERED, 1, 1, 1) for one in done)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 500])
def test_a_process_killed_while_it_writes_loses_nothing_that_it_acknowledged(tmp_path: Path, lines: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(lines)]
        with pytest.raises(StoreLockedError):
            Tables(tmp_path / "store")
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read().split()
    tables = Tables(tmp_path / "store")
    seqs = [tables.seq_of(hook_id) for hook_id in acknowledged]
    assert None not in seqs
    assert [seq for seq in seqs if seq is not None and tables.hook(seq) is None] == []
    assert check_whole(tables)[RowState.PENDING] >= len(acknowledged) // 2 - 10
    tables.close()
