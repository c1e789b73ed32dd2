"""The socket between edge and engine: a real server, a real client, a real log, and every way to lose a connection."""

from __future__ import annotations

import asyncio
import stat
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ankusa.admission import Admission
from ankusa.clock import now_ms
from schemas import records
from schemas.append import Answer, AnswerStatus, Submission
from schemas.config import Quarantine, RateLimits
from schemas.records import Envelope, Held, Topic
from streams.local import client as client_module
from streams.local import server as server_module
from streams.local.client import SocketLog
from streams.local.direct import DirectLog
from streams.local.frame_reader import hello
from streams.local.frames import Kind, append_payload, frame
from streams.local.intake import Intake
from streams.local.log import LocalLog
from streams.local.server import IntakePort, IntakeServer, Probe, serve, socket_path
from streams.local.updates import Updates
from tests.support.edge import WAIT_S, connect, run, until
from tests.support.edge import serve as serve_edge

Batch = Sequence[tuple[Submission, bytes]]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for a socket, wherever the tests' own are."""
    with tempfile.TemporaryDirectory(prefix="ankusa-") as name:
        yield Path(name)


async def healthy() -> str | None:
    return None


def hook(number: int, *, dedupe: str | None = None, body: bytes | None = None) -> Submission:
    name = f"hook-{number}"
    envelope = Envelope(
        name, "orders", "acme", now_ms(), ("http",), (("x-a", "ü"),), None, name, dedupe, 60_000 if dedupe else 0
    )
    return Submission(envelope, b"body %d \xff" % number if body is None else body)


def held(number: int) -> Submission:
    name = f"held-{number}"
    entry = Held(name, "orders", "acme", now_ms(), "POST", "/webhooks/orders", (("x-a", "1"),), "signature_mismatch", 4)
    return Submission(entry, b"held")


class Engine:
    """An engine's part behind the socket: a log and its intake."""

    def __init__(self, directory: Path) -> None:
        self.log = LocalLog(directory / "store", now_ms)
        self.intake = Intake(self.log, Admission(RateLimits(), Quarantine(), {}), now_ms)

    def bodies(self) -> list[bytes]:
        stored: list[bytes] = []
        for _, _, record in self.log.read(Topic.HOOKS):
            # A place without an envelope is a repeat's: it has no hook.
            stored.extend(body for envelope, body in records.decode_commit(record)[1] if envelope)
        return stored


class FakeIntake:
    """Notes what it is asked and answers when told: each call waits for `gate`, then does as `then` says."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], bool]] = []
        self.gate = asyncio.Event()
        self.then: Callable[[Batch], list[Answer]] = lambda batch: [
            Answer(AnswerStatus.ACCEPTED, submission.entry.id) for submission, _ in batch
        ]

    async def append(self, batch: Batch, deadline_at: int, *, again: bool = False) -> list[Answer]:
        self.calls.append(([submission.entry.id for submission, _ in batch], again))
        await self.gate.wait()
        return self.then(batch)


@asynccontextmanager
async def connecting(path: Path) -> AsyncIterator[SocketLog]:
    log = SocketLog(path, now_ms)
    log.start()
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[SocketLog]:
    async with connecting(path) as log:
        await until(lambda: log.connected)
        yield log


@asynccontextmanager
async def serving(
    path: Path, intake: IntakePort, probe: Probe = healthy, updates: Updates | None = None
) -> AsyncIterator[IntakeServer]:
    """A server that is closed however the block ends: uvloop waits for ever to close a loop in which one is open and
    another process was connected, and no timeout of a test gets through to it."""
    server = await serve(path, intake, probe, updates)
    try:
        yield server
    finally:
        if isinstance(intake, FakeIntake):
            intake.gate.set()
        await server.close()


def soon() -> int:
    return now_ms() + 5000


def statuses(answers: list[Answer]) -> list[AnswerStatus]:
    return [answer.status for answer in answers]


# -- working ----------------------------------------------------------------------


def test_what_an_edge_appends_is_in_the_log_byte_for_byte(place: Path) -> None:
    async def body() -> None:
        engine = Engine(place)
        async with serving(place / "s", engine.intake), connected(place / "s") as log:
            large = hook(3, body=b"\x00\xff" * 4_000_000)
            answers = await log.append([hook(1, dedupe="e"), hook(2, dedupe="e"), held(1), large], soon())
            assert statuses(answers) == [
                AnswerStatus.ACCEPTED,
                AnswerStatus.DUPLICATE,
                AnswerStatus.QUARANTINED,
                AnswerStatus.ACCEPTED,
            ]
            assert [answer.id for answer in answers] == ["hook-1", "hook-1", "held-1", "hook-3"]
            assert engine.bodies() == [b"body 1 \xff", large.body]
            assert await log.probe() is None
            past = await log.append([hook(4)], now_ms() - 1)
            assert statuses(past) == [AnswerStatus.STORE_UNAVAILABLE]
            assert len(engine.bodies()) == 2
        engine.log.close()

    run(body)


def test_appends_and_probes_overlap_on_one_connection(place: Path) -> None:
    async def body() -> None:
        intake = FakeIntake()
        async with serving(place / "s", intake), connected(place / "s") as log:
            appends = [asyncio.create_task(log.append([hook(number)], soon())) for number in range(20)]
            await until(lambda: len(intake.calls) == 20)
            assert await log.probe() is None
            intake.gate.set()
            answers = await asyncio.gather(*appends)
            assert [each[0].id for each in answers] == [f"hook-{number}" for number in range(20)]

    run(body)


@pytest.mark.parametrize("direct", [False, True], ids=["socket", "direct"])
def test_fifty_posts_of_one_dedupe_key_are_one_hook(place: Path, direct: bool) -> None:
    async def body() -> None:
        engine = Engine(place)
        async with serving(place / "s", engine.intake), connected(place / "s") as socket_log:
            log = DirectLog(engine.intake, healthy) if direct else socket_log
            async with serve_edge(log) as edge:

                async def post() -> dict[str, object]:
                    async with connect(edge.port) as client:
                        answer = await client.post("/webhooks/events", b"1", [("X-Event", "e1")])
                        assert answer.status == 201
                        found: dict[str, object] = answer.json
                        return found

                answers = await asyncio.gather(*[post() for _ in range(50)])
            assert len({answer["id"] for answer in answers}) == 1
            assert sum("duplicate" in answer for answer in answers) == 49
            assert engine.bodies() == [b"1"]
        engine.log.close()

    run(body)


def test_a_probe_says_what_the_engine_says(place: Path) -> None:
    async def body() -> None:
        async def broken() -> str | None:
            return "disk füll"

        async with serving(place / "s", FakeIntake(), broken), connected(place / "s") as log:
            assert await log.probe() == "disk füll"

    run(body)


# -- losing the connection ----------------------------------------------------------


def test_without_an_engine_appends_are_refused_at_once_and_it_is_found_when_it_comes(place: Path) -> None:
    async def body() -> None:
        log = SocketLog(place / "s", now_ms)
        log.start()
        (answer,) = await log.append([hook(1)], soon())
        assert answer.status is AnswerStatus.STORE_UNAVAILABLE
        assert answer.retry_after_ms > 0
        reason = await log.probe()
        assert reason is not None
        assert "not connected" in reason
        intake = FakeIntake()
        intake.gate.set()
        async with serving(place / "s", intake):
            await until(lambda: log.connected)
            assert statuses(await log.append([hook(1)], soon())) == [AnswerStatus.ACCEPTED]
        await until(lambda: not log.connected)
        assert statuses(await log.append([hook(2)], soon())) == [AnswerStatus.STORE_UNAVAILABLE]
        assert intake.calls == [(["hook-1"], False)]
        await log.close()

    run(body)


class DyingIntake:
    """Stores a batch, or not, and is cut off before it can answer."""

    def __init__(self, inner: IntakePort, *, stores: bool) -> None:
        self.inner = inner
        self.stores = stores
        self.server: IntakeServer | None = None
        self.again: list[bool] = []

    async def append(self, batch: Batch, deadline_at: int, *, again: bool = False) -> list[Answer]:
        self.again.append(again)
        answers: list[Answer] = []
        if self.stores or again:
            answers = await self.inner.append(batch, deadline_at, again=again)
        if not again:
            assert self.server is not None
            for connection in list(self.server.connections):
                connection.hang_up()
        return answers


@pytest.mark.parametrize("stores", [True, False], ids=["stored", "not-stored"])
def test_an_append_whose_answer_was_lost_is_sent_again_and_answered_right(place: Path, stores: bool) -> None:
    async def body() -> None:
        engine = Engine(place)
        intake = DyingIntake(engine.intake, stores=stores)
        async with serving(place / "s", intake) as intake.server, connected(place / "s") as log:
            answers = await log.append([hook(1), hook(2, dedupe="e"), hook(3, dedupe="e"), held(1)], soon())
            assert statuses(answers) == [
                AnswerStatus.ACCEPTED,
                AnswerStatus.ACCEPTED,
                AnswerStatus.DUPLICATE,
                AnswerStatus.QUARANTINED,
            ]
            assert answers[2].id == "hook-2"
            assert intake.again == [False, True]
            assert engine.bodies() == [b"body 1 \xff", b"body 2 \xff"]
        engine.log.close()

    run(body)


def test_a_resent_append_waits_for_its_first_sending_to_end(place: Path) -> None:
    async def body() -> None:
        intake = FakeIntake()
        async with serving(place / "s", intake) as server, connected(place / "s") as log:
            append = asyncio.create_task(log.append([hook(1)], soon()))
            await until(lambda: len(intake.calls) == 1)
            first = set(server.connections)
            for connection in first:
                connection.hang_up()
            await until(lambda: any(each.unanswered_bytes for each in server.connections - first))
            assert await log.probe() is None
            assert intake.calls == [(["hook-1"], False)]  # the second is there, and held back
            intake.gate.set()
            assert statuses(await append) == [AnswerStatus.ACCEPTED]
            assert intake.calls == [(["hook-1"], False), (["hook-1"], True)]

    run(body)


def test_an_engine_that_stays_away_costs_the_append_after_its_grace(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RESEND_GRACE_MS", 50)

    async def body() -> None:
        intake = FakeIntake()
        async with serving(place / "s", intake), connected(place / "s") as log:
            append = asyncio.create_task(log.append([hook(1), hook(2)], now_ms() + 50))
            await until(lambda: len(intake.calls) == 1)
            probe = asyncio.create_task(log.probe())
            intake.gate.set()
            intake.then = lambda batch: []  # an answer that is none: the edge hangs up
            (place / "s").unlink()
            assert statuses(await append) == [AnswerStatus.STORE_UNAVAILABLE] * 2
            await probe
            assert not log.connected

    run(body)


def test_an_answer_past_the_deadline_is_waited_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RESEND_GRACE_MS", 1)

    async def body() -> None:
        intake = FakeIntake()
        async with serving(place / "s", intake), connected(place / "s") as log:
            append = asyncio.create_task(log.append([hook(1)], now_ms() + 1))
            await until(lambda: len(intake.calls) == 1)
            await asyncio.sleep(0.05)
            assert not append.done()
            intake.gate.set()
            assert statuses(await append) == [AnswerStatus.ACCEPTED]

    run(body)


def test_a_silent_engine_is_given_up_at_the_hard_limit(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "HARD_LIMIT_MS", 50)

    async def body() -> None:
        intake = FakeIntake()
        async with serving(place / "s", intake) as server, connected(place / "s") as log:
            first = list(server.connections)
            assert statuses(await log.append([hook(1)], soon())) == [AnswerStatus.STORE_UNAVAILABLE]
            await until(lambda: log.connected and first[0] not in server.connections)

    run(body)


def test_an_intake_that_fails_is_asked_again_on_a_new_connection(place: Path) -> None:
    async def body() -> None:
        intake = FakeIntake()
        intake.gate.set()
        answer = intake.then

        def fail_once(batch: Batch) -> list[Answer]:
            intake.then = answer
            raise ValueError("a bug")

        intake.then = fail_once
        async with serving(place / "s", intake), connected(place / "s") as log:
            assert statuses(await log.append([hook(1)], soon())) == [AnswerStatus.ACCEPTED]
            assert [again for _, again in intake.calls] == [False, True]

    run(body)


def test_no_201_is_untrue_while_the_engine_comes_and_goes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LASTING_S", 0.0)

    async def body() -> None:
        engine = Engine(place)
        answered: dict[bytes, int] = {}
        stop = asyncio.Event()

        async def post(port: int, worker: int) -> None:
            async with connect(port) as client:
                number = 0
                while not stop.is_set():
                    sent = b"%d-%d" % (worker, number)
                    answered[sent] = (await client.post("/webhooks/open", sent)).status
                    number += 1

        def accepted() -> int:
            return list(answered.values()).count(201)

        async with connecting(place / "s") as log, serve_edge(log) as edge:
            workers = [asyncio.create_task(post(edge.port, worker)) for worker in range(8)]
            for turn in range(8):
                async with serving(place / "s", engine.intake) as server:
                    for _ in range(turn % 3):  # the same engine, another connection
                        enough = accepted() + 20
                        await until(lambda enough=enough: accepted() > enough)  # type: ignore[misc]
                        for connection in list(server.connections):
                            connection.hang_up()
                    enough = accepted() + 20
                    await until(lambda enough=enough: accepted() > enough)  # type: ignore[misc]
            async with serving(place / "s", engine.intake):  # back in time for what the last turn left in flight
                stop.set()
                await asyncio.gather(*workers)
        assert sorted(engine.bodies()) == sorted(sent for sent, status in answered.items() if status == 201)
        assert set(answered.values()) <= {201, 503}
        engine.log.close()

    run(body)


# -- what the server refuses -----------------------------------------------------------


async def ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(WAIT_S):
        try:
            await reader.read()
        except ConnectionError:
            pass
        return True


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(Kind.HELLO, 0, b"\x00\x63"),
        frame(Kind.APPEND, 1, b""),
        hello() + frame(Kind.APPEND, 1, b"short"),
        hello() + frame(Kind.APPEND, 1, append_payload([hook(1)], 1, again=False)[:-1]),
        hello() + frame(Kind.APPEND, 1, struct.pack(">QBHBII", 1, 0, 1, 0, 3, 0) + b"\xff\xff\xff"),
        hello() + frame(Kind.ANSWERS, 1, b""),
    ],
    ids=["http", "version", "no-hello", "short", "cut", "no-envelope", "kind"],
)
def test_an_edge_that_speaks_nonsense_is_hung_up_on_and_nobody_else(
    place: Path, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        intake = FakeIntake()
        intake.gate.set()
        async with serving(place / "s", intake), connected(place / "s") as log:
            reader, writer = await asyncio.open_unix_connection(place / "s")
            writer.write(raw)
            assert await ended(reader)
            writer.close()
            assert intake.calls == []
            assert statuses(await log.append([hook(1)], soon())) == [AnswerStatus.ACCEPTED]
        assert sum("edge_refused" in record.message for record in caplog.records) == 1

    run(body)


def test_an_engine_of_another_release_is_refused_with_words(place: Path) -> None:
    async def body() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(frame(Kind.HELLO, 0, b"\x00\x63"))
            await reader.read()
            writer.close()

        server = await asyncio.start_unix_server(greet, place / "s")
        log = SocketLog(place / "s", now_ms)
        log.start()
        reason = ""
        async with asyncio.timeout(WAIT_S):
            while "version 99" not in reason:
                reason = await log.probe() or ""
                await asyncio.sleep(0.001)
        assert statuses(await log.append([hook(1)], soon())) == [AnswerStatus.STORE_UNAVAILABLE]
        await log.close()
        server.close()

    run(body)


def test_a_connection_with_too_much_unanswered_is_not_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_UNANSWERED_BYTES", 1_000_000)

    async def body() -> None:
        intake = FakeIntake()
        async with serving(place / "s", intake), connected(place / "s") as log:
            appends = [
                asyncio.create_task(log.append([hook(number, body=b"x" * 300_000)], soon())) for number in range(40)
            ]
            await until(lambda: len(intake.calls) >= 4)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(intake.calls) <= 8
            intake.gate.set()
            answers = await asyncio.gather(*appends)
            assert [each[0].status for each in answers] == [AnswerStatus.ACCEPTED] * 40

    run(body)


# -- the socket file ----------------------------------------------------------------


def test_the_socket_is_private_and_replaces_one_left_behind(place: Path) -> None:
    async def body() -> None:
        first = await serve(place / "s", FakeIntake(), healthy)
        assert stat.S_IMODE((place / "s").stat().st_mode) == 0o600
        second = await serve(place / "s", FakeIntake(), healthy)  # as after a kill: the file is there
        await first.close()
        assert (place / "s").exists()  # the successor's
        async with connected(place / "s") as log:
            assert await log.probe() is None
        await second.close()
        assert not (place / "s").exists()

    run(body)


def test_a_file_in_the_way_is_left_alone(place: Path) -> None:
    async def body() -> None:
        (place / "s").write_text("mine")
        with pytest.raises(OSError, match="not a socket"):
            await serve(place / "s", FakeIntake(), healthy)
        assert (place / "s").read_text() == "mine"
        with pytest.raises(OSError, match="cannot listen on"):
            await serve(place / "nowhere" / "s", FakeIntake(), healthy)
        with pytest.raises(OSError, match="longer than"):
            await serve(place / ("s" * 120), FakeIntake(), healthy)

    run(body)


def test_a_long_data_directory_gets_a_short_socket_path(place: Path) -> None:
    assert socket_path(place) == place / "engine.sock"
    long = place / ("d" * 100)
    short = socket_path(long)
    assert len(str(short)) <= 107
    assert short == socket_path(str(long))
    assert short != socket_path(place / ("e" * 100))
