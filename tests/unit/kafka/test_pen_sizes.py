"""What workers tell of the pen, and when: few records, and a sum that is near."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from ankusa.store.errors import StoreError
from schemas.config import Config, Kafka, Quarantine
from schemas.records import DecodeError, Topic, encode
from streams.kafka.pen_sizes import PenSize, PenSizes, TellingPens, is_pen, read_size

PARTITIONS, MAX_BYTES = 4, 40_000
STEP_BYTES = 100


class Fleet:
    """Two partitions of four, and what was written."""

    def __init__(self) -> None:
        self.sizes = {0: 0, 3: 0}
        self.written: list[tuple[str, bytes]] = []
        self.refuses = False

    @property
    def partitions(self) -> dict[int, Any]:
        def tables(size_bytes: int) -> Any:
            return SimpleNamespace(tables=SimpleNamespace(pen_size=lambda: (1, size_bytes)))

        return {number: tables(size_bytes) for number, size_bytes in self.sizes.items()}

    async def deliver(self, topic: Topic, number: int, value: bytes, key: bytes) -> None:
        assert (topic, number) == (Topic.SOURCES, 0)
        if self.refuses:
            raise StoreError("no broker answers")
        self.written.append((key.decode(), value))


def telling(fleet: Fleet, told: PenSizes) -> TellingPens:
    kafka = Kafka(brokers=("b:1",), partitions=PARTITIONS)
    config = msgspec.structs.replace(Config(), kafka=kafka, quarantine=Quarantine(max_bytes=MAX_BYTES))
    return TellingPens(config, cast(Any, fleet), told)


def test_a_change_that_matters_is_told_once() -> None:
    async def body() -> None:
        fleet, told = Fleet(), PenSizes()
        pens = telling(fleet, told)
        fleet.sizes[3] = STEP_BYTES - 1
        await pens.tell()
        assert fleet.written == []
        fleet.sizes[3] = STEP_BYTES
        await pens.tell()
        await pens.tell()
        assert fleet.written == [("pen/3", encode(STEP_BYTES))]
        assert told.total_bytes == STEP_BYTES
        fleet.sizes |= {0: 5000, 3: 1}
        await pens.tell()
        assert told.by_partition == {0: 5000, 3: STEP_BYTES}  # 99 bytes less do not matter
        fleet.sizes[3] = 0
        await pens.tell()
        assert told.total_bytes == 5000  # but none at all does
        del fleet.sizes[0]
        await pens.tell()
        assert told.total_bytes == 5000  # its next owner says what becomes of it

    asyncio.run(body())


def test_what_is_refused_is_told_later() -> None:
    async def body() -> None:
        fleet, told = Fleet(), PenSizes()
        pens = telling(fleet, told)
        fleet.sizes[0], fleet.refuses = 5000, True
        with pytest.raises(StoreError):
            await pens.tell()
        assert told.total_bytes == 0
        fleet.refuses = False
        await pens.tell()
        assert told.total_bytes == 5000

    asyncio.run(body())


def test_an_owner_corrects_what_the_topic_says() -> None:
    async def body() -> None:
        fleet, told = Fleet(), PenSizes()
        told.take(PenSize(0, 1 << 60))
        await telling(fleet, told).tell()
        assert fleet.written == [("pen/0", encode(0))]
        assert told.total_bytes == 0

    asyncio.run(body())


def test_records_are_read_or_refused() -> None:
    assert is_pen("pen/1")
    assert not is_pen("acme.pen")
    assert read_size("pen/3", encode(7), PARTITIONS) == PenSize(3, 7)
    assert read_size("pen/3", None, PARTITIONS) == PenSize(3, 0)
    for key, value in (("pen/4", encode(7)), ("pen/-1", encode(7)), ("pen/x", encode(7)), ("pen/1", encode(-1))):
        with pytest.raises(ValueError, match=r"a pen of|invalid literal"):
            read_size(key, value, PARTITIONS)
    with pytest.raises(DecodeError):
        read_size("pen/1", b"\xc1", PARTITIONS)
