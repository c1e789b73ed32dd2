"""An edge as a process of its own: it serves, reloads, stops without losing a request, and ends with its parent."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api.serving import bind
from schemas.config import Batcher, Config, Http, Node
from schemas.edge_update import EdgeUpdate
from streams.edge import CONFIG_EXIT, run_edge
from streams.local.updates import Updates
from tests.integration.test_socket import FakeIntake, serving
from tests.support.edge import WAIT_S, MemoryLog, connect, request, run, source, until

CONFIG = """
http: {{port: {port}}}
node: {{edges: {edges}, data_dir: {place}}}
sources:
  {name}: {{verify: {{type: none}}, sinks: [{{type: log}}]}}
"""
LISTENING = re.compile(rb"event=listening listener=http address=127\.0\.0\.1:(\d+)")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ankusa-") as name:
        yield Path(name)


def configure(place: Path, name: str = "orders", *, port: int = 0, edges: int = 1) -> Path:
    file = place / "ankusa.yaml"
    file.write_text(CONFIG.format(name=name, port=port, edges=edges, place=place))
    return file


def command(place: Path) -> list[str]:
    parts = ["-m", "streams.local.edge_process", "--config", str(place / "ankusa.yaml"), "--socket", str(place / "s")]
    return [sys.executable, *parts]


class Process:
    """A started edge and what it has written to stderr so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.written = b""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(4096):
            self.written += data

    async def port(self) -> int:
        await until(lambda: LISTENING.search(self.written) is not None)
        found = LISTENING.search(self.written)
        assert found is not None
        return int(found[1])

    async def ended(self) -> int:
        """The exit status, once everything that was started has let go of stderr."""
        async with asyncio.timeout(WAIT_S):
            await self._reading
            return await self.process.wait()


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)
    edge = Process(process)
    try:
        yield edge
    finally:
        if process.returncode is None:
            process.kill()
        await edge.ended()


def test_it_serves_reloads_and_finishes_what_it_began(place: Path) -> None:
    async def body() -> None:
        configure(place)
        intake = FakeIntake()
        async with serving(place / "s", intake) as server, started(*command(place)) as edge:
            port = await edge.port()
            async with connect(port) as client:
                intake.gate.set()
                await until(lambda: bool(server.connections))
                assert (await client.ask(request("GET", "/ready"))).status == 200
                assert (await client.post("/webhooks/orders", b"1")).status == 201
                configure(place, "fresh")
                edge.process.send_signal(signal.SIGHUP)
                await until(lambda: b"event=config_reloaded" in edge.written)
                assert (await client.post("/webhooks/fresh", b"2")).status == 201
                assert (await client.post("/webhooks/orders", b"3")).status == 404
                (place / "ankusa.yaml").write_text("sources: {fresh: {verify: {type: none}, sinks: []}}")
                edge.process.send_signal(signal.SIGHUP)
                await until(lambda: b"event=reload_refused" in edge.written)
                assert (await client.post("/webhooks/fresh", b"4")).status == 201
                intake.gate.clear()
                calls = len(intake.calls)
                last = asyncio.create_task(client.post("/webhooks/fresh", b"5"))
                await until(lambda: len(intake.calls) == calls + 1)
                edge.process.send_signal(signal.SIGTERM)
                await until(lambda: b"event=edge_stopping" in edge.written)
                assert not last.done()
                intake.gate.set()
                assert (await last).status == 201
            assert await edge.ended() == 0
            assert b"Traceback" not in edge.written

    run(body)


def test_it_ends_with_the_process_that_started_it(place: Path) -> None:
    async def body() -> None:
        configure(place)
        async with started("/bin/sh", "-c", '"$@" & wait', "sh", *command(place)) as shell:
            await shell.port()
            shell.process.kill()
            await shell.ended()  # the edge holds the shell's stderr open while it lives
            assert b"event=edge_stopping" in shell.written

    run(body)


def test_it_listens_once_it_knows_its_engine_and_its_sources(place: Path) -> None:
    """Of several edges one may come up late: who meets it must not be told 503 for a source that the others know."""

    async def body() -> None:
        configure(place)
        key = b64encode(bytes(32)).decode()
        with (place / "ankusa.yaml").open("a") as file:
            file.write(f"source_store: {{type: persistent, secret_key: {key}}}\n")
        everything = EdgeUpdate(True, (("default.late", source("late")),))
        intake = FakeIntake()
        intake.gate.set()
        async with started(*command(place)) as edge:
            await until(lambda: b"event=engine_unavailable" in edge.written)
            updates = Updates(lambda: everything)
            async with serving(place / "s", intake, updates=updates), connect(await edge.port()) as client:
                assert edge.written.index(b"event=engine_connected") < edge.written.index(b"event=listening")
                assert (await client.post("/webhooks/default.late", b"1")).status == 201

    run(body)


def test_without_an_engine_it_says_so_and_answers_503(place: Path) -> None:
    async def body() -> None:
        configure(place)
        async with started(*command(place)) as edge, connect(await edge.port()) as client:
            assert b"event=listening_untold" in edge.written
            assert (await client.post("/webhooks/orders", b"1")).status == 503

    run(body)


def test_edges_share_a_port_only_when_there_are_several(place: Path) -> None:
    async def body() -> None:
        shared = bind("127.0.0.1", 0, shared=True)
        configure(place, port=shared.getsockname()[1], edges=2)
        async with started(*command(place)) as edge:
            assert await edge.port() == shared.getsockname()[1]
        configure(place, port=shared.getsockname()[1], edges=1)
        async with started(*command(place)) as edge:
            assert await edge.ended() == 1
            assert b"http.port: cannot listen on 127.0.0.1" in edge.written
        shared.close()

    run(body)


def test_a_broken_config_is_named_and_ends_it(place: Path) -> None:
    async def body() -> None:
        configure(place, "bad/name")
        async with started(*command(place)) as edge:
            assert await edge.ended() == CONFIG_EXIT
            assert b"sources.bad/name" in edge.written

    run(body)


def test_an_edge_inside_another_process_drains_its_queue_when_it_closes() -> None:
    async def body() -> None:
        log = MemoryLog()
        config = Config(
            http=Http(port=0), node=Node(edges=0), batcher=Batcher(max_delay_ms=60_000), sources={"a": source("a")}
        )
        edge = await run_edge(config, log)
        async with connect(edge.port) as here, connect(edge.port) as gone:
            gone.writer.write(request("POST", "/webhooks/a", body=b"nobody waits"))
            await until(lambda: edge.queued == 1)
            gone.writer.close()
            asking = asyncio.create_task(here.post("/webhooks/a", b"one waits"))
            await until(lambda: edge.queued == 2)
            async with asyncio.timeout(WAIT_S):  # not the minute of the delay
                await edge.close()
            assert (await asking).status == 201
        assert [hook.body for hook in log.stored] == [b"nobody waits", b"one waits"]

    run(body)


def test_the_process_id_given_as_parent_is_watched(place: Path) -> None:
    async def body() -> None:
        configure(place)
        async with started(*command(place), "--parent", str(os.getpid() + 1)) as edge:
            assert await edge.ended() == 0  # that one is not its parent (any more)
            assert b"parent_gone=True" in edge.written

    run(body)
