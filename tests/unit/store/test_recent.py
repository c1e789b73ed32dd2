"""Hooks remembered for their next attempts: never more than the bound, never one that the store has no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ankusa.core.fold import Accepted
from ankusa.store import keys
from ankusa.store.recent import HEADER_BYTES, HOOK_OVERHEAD_BYTES, ROW_BYTES
from ankusa.store.tables import READ_AHEAD_BYTES, Tables
from schemas import records
from schemas.records import Envelope, Outcome, OutcomeBatch, OutcomeKind
from streams.local.log import LocalLog
from tests.unit.store.entries import AT, hook


@contextmanager
def opened(path: Path) -> Iterator[LocalLog]:
    async def make() -> LocalLog:
        return LocalLog(path, lambda: AT)

    with asyncio.Runner() as runner:
        one = runner.run(make())
        one.runner = runner  # type: ignore[attr-defined]
        yield one
        one.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    with opened(tmp_path / "store") as one:
        yield one


def commit(log: LocalLog, *hooks: tuple[Envelope, bytes, bytes]) -> list[int]:
    """Store hooks durably; their seqs."""
    answers = log.runner.run(log.commit(hooks, []))  # type: ignore[attr-defined]
    return [answer.seq for answer in answers if isinstance(answer, Accepted)]


def cold(log: LocalLog) -> Tables:
    """The tables of the log, opened again: they remember nothing."""
    log.recover()
    assert not log.tables.recent
    return log.tables


def publish(log: LocalLog, kind: OutcomeKind, *places: tuple[int, int]) -> None:
    outcomes = []
    for seq, sink in places:
        row = log.tables.row(seq, sink)
        if row is not None:
            outcomes.append(Outcome(seq, sink, row.generation, kind, AT, AT, 1, AT + 1000, "error"))
    log.publish(OutcomeBatch(tuple(outcomes)))


def with_headers(entry: tuple[Envelope, bytes, bytes], *headers: tuple[str, str]) -> tuple[Envelope, bytes, bytes]:
    envelope = msgspec.structs.replace(entry[0], headers=headers)
    return envelope, records.encode(envelope), entry[2]


def held_bytes(one: Tables) -> int:
    """What is remembered, without what objects cost."""
    return sum(
        len(body) + sum(len(name) + len(value) for name, value in envelope.headers)
        for envelope, body in (one.recent.hook(seq) for seq in one.recent.seqs())
    )


def test_headers_count_against_the_bound_as_bodies_do(log: LocalLog) -> None:
    log.tables.recent.limit_bytes = 200_000
    long = [with_headers(hook(f"l{number}"), ("x-long", "h" * 50_000)) for number in range(20)]
    seqs = commit(log, *long)
    assert held_bytes(log.tables) <= 200_000
    assert len(log.tables.recent) == 3
    many = [with_headers(hook(f"m{number}"), *[("ab", "c")] * 5000) for number in range(20)]
    seqs += commit(log, *many)
    assert len(log.tables.recent) == 0  # each takes more memory than there is for all
    seqs += commit(log, *(hook(f"r{number}", sinks=100) for number in range(20)))
    assert len(log.tables.recent) <= 200_000 // (100 * ROW_BYTES)
    small = [with_headers(hook(f"s{number}"), ("x-long", "h" * 7000)) for number in range(100)]
    seqs += commit(log, *small)
    cold(log).recent.limit_bytes = 200_000
    for start in range(0, len(seqs), 10):
        log.tables.claim_rows([(seq, 0) for seq in seqs[start : start + 10]])
        assert held_bytes(log.tables) <= 200_000
    assert log.tables.recent


def test_a_claimed_page_brings_its_small_hooks_once_whatever_their_sinks(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = hook("small", sinks=3), hook("large", body=b"b" * READ_AHEAD_BYTES)
    first, second = commit(log, small, large)
    one = cold(log)
    read: list[tuple[str, list[bytes]]] = []
    get_many = one.database.get_many

    def counted(family: str, wanted: list[bytes]) -> list[bytes | None]:
        read.append((family, wanted))
        return get_many(family, wanted)

    monkeypatch.setattr(one.database, "get_many", counted)
    places = [(first, 0), (first, 1), (second, 0), (first, 2), (99 << 20, 0)]
    assert [row is not None for row in one.claim_rows(places)] == [True, True, True, True, False]
    assert read[1:] == [("hooks", [keys.u64(first)])]
    assert one.recent.seqs() == [first]
    assert one.hook(first) == (small[0], small[2])
    assert one.hook(second) == (large[0], large[2])


def test_a_page_larger_than_the_bound_brings_the_first_that_stay(log: LocalLog) -> None:
    seqs = commit(log, *(hook(f"{number:03d}", body=b"b" * 4000) for number in range(100)))
    cold(log).recent.limit_bytes = 100_000
    log.tables.claim_rows([(seq, 0) for seq in seqs])
    assert log.tables.recent.seqs() == seqs[: len(log.tables.recent)]
    assert 4 <= len(log.tables.recent) <= 6


def test_what_cannot_be_decoded_is_said_when_it_is_asked_for_and_costs_no_other(log: LocalLog) -> None:
    seqs = commit(log, *(hook(f"{number}") for number in range(6)))
    one = cold(log)
    batch = one.database.batch()
    for seq, damaged in zip(seqs, (b"", b"\0", b"\xff" * 9, b"\0\0\0\1\xc1", b"\0\0\0\2{}"), strict=False):
        batch.put(keys.u64(seq), damaged, one.database.handles["hooks"])
    one.database.write(batch)
    assert all(one.claim_rows([(seq, 0) for seq in seqs]))
    assert one.recent.seqs() == seqs[5:]
    for seq in seqs[:5]:
        with pytest.raises(records.DecodeError):
            one.hook(seq)


@pytest.mark.parametrize("kind", [OutcomeKind.DELIVERED, OutcomeKind.DEAD])
def test_a_hook_that_was_read_ahead_is_forgotten_when_it_is_settled(log: LocalLog, kind: OutcomeKind) -> None:
    (seq,) = commit(log, hook("a", sinks=2))
    one = cold(log)
    one.claim_rows([(seq, 0), (seq, 1)])
    assert seq in one.recent
    publish(log, kind, (seq, 0))
    assert seq not in one.recent
    one.claim_rows([(seq, 1)])
    publish(log, kind, (seq, 1))
    assert (len(one.recent), one.recent.held_bytes, one.recent.rows()) == (0, 0, [])
    log.drop([("hooks", keys.u64(seq))])
    assert one.hook(seq) is None


STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "claim", "retry", "deliver", "die", "cold"]), st.integers(0, 11)), max_size=25
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_memory_is_counted_right_and_agrees_with_the_store(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    kinds = {"retry": OutcomeKind.RETRY, "deliver": OutcomeKind.DELIVERED, "die": OutcomeKind.DEAD}
    places: list[tuple[int, int]] = []
    with opened(tmp_path_factory.mktemp("recent") / "store") as log:
        for number, (step, size) in enumerate(steps):
            log.tables.recent.limit_bytes = 20_000
            if step == "commit":
                new = [hook(f"{number}-{one}", sinks=1 + one, body=b"b" * 1000 * size) for one in range(3)]
                for seq, sinks in zip(commit(log, *new), (1, 2, 3), strict=True):
                    places += [(seq, sink) for sink in range(sinks)]
            elif step == "claim":
                rows = log.tables.claim_rows(places[size:])
                assert rows == [log.tables.row(*place) for place in places[size:]]
            elif step == "cold":
                cold(log)
            else:
                publish(log, kinds[step], *places[size : size + 3])
            one = log.tables
            recent = one.recent
            assert recent.held_bytes <= 20_000
            assert set(recent.rows()) <= {place for place in places if one.row(*place) is not None}
            least = 0
            for seq in recent.seqs():
                envelope, body = recent.hook(seq) or pytest.fail("a hook that is kept and is not there")
                stored = one.database.get("hooks", keys.u64(seq))
                assert stored == records.frame_hook(records.encode(envelope), body)
                least += len(stored) + HOOK_OVERHEAD_BYTES + HEADER_BYTES * len(envelope.headers)
            assert recent.held_bytes >= least - 8 * len(recent)  # a stored hook is framed by a few bytes
        recent = log.tables.recent
        for seq in recent.seqs():
            recent.forget(seq)
        assert (recent.held_bytes, recent.rows()) == (0, [])
