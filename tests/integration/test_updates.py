"""What the API set up on its way to the edges: whole at a connection, each change at once, and who is waited for."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ankusa.clock import now_ms
from ankusa.edge.tables import EdgeTables
from schemas.config import Config, ManagedSource, Sink, Source, SourceStore, Verify
from schemas.edge_update import EdgeUpdate, decode_update, encode_update
from schemas.routes import IpRule, IpRules, Route
from streams.local import updates as updates_module
from streams.local.client import SocketLog
from streams.local.server import serve
from streams.local.updates import Updates
from tests.integration.test_socket import FakeIntake, healthy
from tests.support.edge import WAIT_S, MemoryLog, connect, run, until
from tests.support.edge import serve as serve_edge

SINK = Sink(type="http", options={"url": "https://example.com/", "headers": {"x": "1"}})


def managed(name: str, secret: str = "s3cret") -> ManagedSource:
    return ManagedSource(name=name, tenant="acme", verify=Verify(type="github", secret=(secret, "old")), sinks=(SINK,))


def change(*sources: ManagedSource) -> EdgeUpdate:
    return EdgeUpdate(False, tuple((source.source_id, source) for source in sources))


class Edge:
    """An edge's end of the socket, noting what it is told."""

    def __init__(self, path: Path) -> None:
        self.told: list[EdgeUpdate] = []
        self.refuse = False
        self.log = SocketLog(path, now_ms, self._take)

    def _take(self, update: EdgeUpdate) -> None:
        if self.refuse:
            raise ValueError("no")
        self.told.append(update)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ankusa-") as name:
        yield Path(name) / "s"


@asynccontextmanager
async def node(path: Path, edges: int) -> AsyncIterator[tuple[Updates, dict[str, ManagedSource], list[Edge]]]:
    kept = {"acme.first": managed("first")}
    updates = Updates(lambda: EdgeUpdate(True, tuple(kept.items())))
    server = await serve(path, FakeIntake(), healthy, updates)
    made = [Edge(path) for _ in range(edges)]
    for edge in made:
        edge.log.start()
    try:
        await until(lambda: all(edge.told for edge in made))
        yield updates, kept, made
    finally:
        for edge in made:
            await edge.log.close()
        await server.close()


def test_an_update_comes_back_as_it_was() -> None:
    route = Route("r", "/webhooks/:id", ("POST",), True, (IpRule("deny", "10.0.0.0/8"),), {"a": [1, None]}, 1, 2)
    for update in (
        change(managed("first")),
        EdgeUpdate(False, (("acme.first", None),)),
        EdgeUpdate(True, (), (("r", route), ("gone", None)), IpRules("deny", (IpRule("allow", "::/0"),))),
    ):
        found = decode_update(encode_update(update))
        assert found == update
        assert all(source is None or source.source_id == source_id for source_id, source in found.sources)


def test_an_edge_is_told_everything_when_it_connects_and_each_change(place: Path) -> None:
    async def body() -> None:
        async with node(place, 2) as (updates, _, edges):
            await updates.push(change(managed("second")))
            for edge in edges:  # told already: nobody waits any more
                assert [update.whole for update in edge.told] == [True, False]
                assert edge.told[0].sources == (("acme.first", managed("first")),)
                assert edge.told[1] == change(managed("second"))
            await asyncio.gather(*(updates.push(change(managed(f"n{number}"))) for number in range(50)))
            for edge in edges:
                assert [update.sources[0][0] for update in edge.told[2:]] == [f"acme.n{n}" for n in range(50)]

    run(body)


def test_a_push_without_an_edge_is_done_at_once(place: Path) -> None:
    async def body() -> None:
        async with node(place, 0) as (updates, _, _):
            await updates.push(change(managed("second")))

    run(body)


def test_an_edge_that_cannot_take_an_update_keeps_nobody_for_long(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(updates_module, "TAKEN_MS", 50)

    async def body() -> None:
        async with node(place, 2) as (updates, kept, (bad, good)):
            bad.refuse = True
            await updates.push(change(managed("second")))
            assert "edges_late" in caplog.text
            await until(lambda: len(good.told) == 2 and "update_refused" in caplog.text)
            # It is told everything again when it has reconnected.
            bad.refuse = False
            kept["acme.second"] = managed("second")
            assert bad.log._link is not None
            bad.log._link.abort()
            await until(lambda: len(bad.told) == 2)
            assert bad.told[-1].whole
            assert len(bad.told[-1].sources) == 2

    run(body)


def test_an_edge_that_goes_while_it_is_waited_for_is_waited_for_no_longer(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates_module, "TAKEN_MS", 600_000)

    async def body() -> None:
        async with node(place, 1) as (updates, _, (edge,)):
            link = edge.log._link
            assert link is not None
            link.send = lambda *_: None  # type: ignore[method-assign]
            pushed = asyncio.create_task(updates.push(change(managed("second"))))
            await until(lambda: len(edge.told) == 2)
            link.abort()
            async with asyncio.timeout(WAIT_S):
                await pushed

    run(body)


# -- at the edge --------------------------------------------------------------------------


def tables(**config: object) -> EdgeTables:
    source = Source(name="static", tenant="acme", verify=Verify(type="none"), sinks=(Sink(type="log"),))
    return EdgeTables(Config(sources={"static": source}, **config), now_ms)  # type: ignore[arg-type]


PERSISTENT = SourceStore(type="persistent")


def found(made: EdgeTables, name: str) -> str | None:
    source = made.sources.find(f"/webhooks/{name}".encode())
    return getattr(source, "source_id", None)


def test_the_files_and_the_apis_sources_change_apart() -> None:
    made = tables(source_store=PERSISTENT)
    made.take(EdgeUpdate(True, change(managed("a"), managed("b")).sources))
    assert [found(made, name) for name in ("static", "acme.a", "acme.b", "acme.c")] == [
        "static",
        "acme.a",
        "acme.b",
        None,
    ]
    made.take(EdgeUpdate(False, (("acme.a", None), ("acme.c", managed("c")))))
    assert [found(made, name) for name in ("acme.a", "acme.b", "acme.c")] == [None, "acme.b", "acme.c"]
    made.reload(Config(sources={}))
    assert [found(made, name) for name in ("static", "acme.b")] == [None, "acme.b"]
    made.take(EdgeUpdate(True, ()))
    assert found(made, "acme.b") is None


def test_a_changed_secret_holds_for_the_next_hook() -> None:
    made = tables(source_store=PERSISTENT)
    made.take(EdgeUpdate(True, change(managed("a")).sources))
    before = made.sources.find(b"/webhooks/acme.a")
    made.take(change(managed("a", secret="other")))
    assert made.sources.find(b"/webhooks/acme.a") is not before


def test_until_it_was_told_an_edge_says_503_and_not_that_there_is_no_such_source() -> None:
    async def body() -> None:
        async with serve_edge(MemoryLog()) as edge, connect(edge.port) as client:
            edge.sources.complete = False
            first = await client.post("/webhooks/acme.a")
            assert (first.status, first.json) == (503, {"error": "store_unavailable"})
            assert first.headers["retry-after"] == "1"
            assert (await client.post("/webhooks/open")).status == 201
            edge.sources.manage({"acme.b": managed("b")}, whole=True)
            assert (await client.post("/webhooks/acme.a")).json == {"error": "unknown_source"}

    run(body)


def test_without_a_source_store_an_edge_knows_everything_from_its_file() -> None:
    assert tables().sources.complete
    assert not tables(source_store=PERSISTENT).sources.complete
