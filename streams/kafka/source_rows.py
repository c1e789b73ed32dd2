"""What rows of a source there are in the whole fleet: asked of the owners of partitions through the topic `sources`.

Who asks writes `ask/<id>`; every worker follows the topic, and writes `told/<id>/<partition>` for each partition it
owns, and for one that comes to it while the question is open. With every partition's answer the question is taken back.
Owns these records and their sums. A partition that nobody owns now has no answer, and is named.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from ankusa.clock import unguessable
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.store.errors import StoreError
from schemas.records import DecodeError, Topic, encode
from streams.kafka.fleet_log import FleetLog
from streams.kafka.places import partition_of
from streams.kafka.set_aside import reason_of

log = logging.getLogger("ankusa.sources")

ASK, TOLD = "ask/", "told/"

ONLY = 0
"""The topic has one partition."""

ANSWER_S = 15.0
"""How long a question waits, for brokers and answers together: a worker that is killed has its partitions for ten
seconds more."""

OPEN_MS = 600_000
"""A question that is older was left by a worker that was killed: whoever reads it takes it back."""


class Ask(Struct, frozen=True, array_like=True):
    """How many rows a source has; with `kill`, once those that wait are dead. `at` is unix ms."""

    id: str
    source_id: str
    kill: bool
    at: int


class Told(Struct, frozen=True, array_like=True):
    """A partition's rows of the source: that wait, that are claimed, and that died of the question. The worker's death
    count is told once, with the first of its partitions."""

    waiting: int
    claimed: int
    died: int
    at: int


decode_ask = msgspec.msgpack.Decoder(Ask).decode
decode_told = msgspec.msgpack.Decoder(Told).decode


class _Asked:
    """A question of this worker's, on its way."""

    def __init__(self, partitions: int) -> None:
        self.left = set(range(partitions))
        self.told: dict[int, Told] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, number: int, told: Told) -> None:
        self.told.setdefault(number, told)
        self.left.discard(number)
        if not self.left and not self.done.done():
            self.done.set_result(None)


class SourceRows:
    """The rows of sources, for one worker of a fleet of `partitions` partitions."""

    def __init__(self, fleet: FleetLog, dispatcher: Dispatcher, partitions: int) -> None:
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._partitions = partitions
        self._open: dict[str, Ask] = {}
        self._asked: dict[str, _Asked] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self.answer_s = ANSWER_S
        self.set_aside = 0
        """Questions and answers that could not be read."""

    # -- asking -------------------------------------------------------------------

    async def unsettled(self, source_id: str) -> tuple[int, int]:
        """`(waiting, claimed)`. Raises StoreError when some partition has no owner that answers."""
        told = await self._ask(source_id, kill=False)
        return sum(each.waiting for each in told), sum(each.claimed for each in told)

    async def dead_letter(self, source_id: str) -> int:
        """Kill those that wait; how many died. Raises StoreError as `unsettled`: what has died is dead."""
        return sum(each.died for each in await self._ask(source_id, kill=True))

    async def _ask(self, source_id: str, *, kill: bool) -> list[Told]:
        ask = Ask(f"{unguessable():016x}", source_id, kill, self._fleet.now())
        asked = self._asked[ask.id] = _Asked(self._partitions)
        sent = False
        try:
            async with asyncio.timeout(self.answer_s):
                await self._fleet.deliver(Topic.SOURCES, ONLY, encode(ask), f"{ASK}{ask.id}".encode())
                sent = True
                await asked.done
        except TimeoutError:
            if not sent:
                raise StoreError("no broker takes the question what rows the source has") from None
            numbers = ", ".join(map(str, sorted(asked.left)))
            raise StoreError(f"no worker answers for partitions {numbers} of the source's rows now") from None
        finally:
            del self._asked[ask.id]
            self._drop([f"{ASK}{ask.id}", *(f"{TOLD}{ask.id}/{number}" for number in asked.told)])
        return list(asked.told.values())

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._fleet.send(Topic.SOURCES, ONLY, None, _told, key.encode())
            except StoreError as error:
                _told(error)

    # -- answering ----------------------------------------------------------------

    def hear(self, key: str, value: bytes | None) -> None:
        """A question or an answer of the topic."""
        try:
            if key.startswith(ASK):
                self._heard_ask(key, value)
            else:
                self._heard_answer(key, value)
        except (*DecodeError, ValueError) as error:
            self.set_aside += 1
            log.error("event=question_ignored key=%s reason=%s", key, reason_of(error))

    def _heard_ask(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._open.pop(key.removeprefix(ASK), None)
            return
        ask = decode_ask(value)
        if key != f"{ASK}{ask.id}":
            raise ValueError("a question under the key of another")
        if ask.at < self._fleet.now() - OPEN_MS:
            self._drop([key])
            return
        self._open[ask.id] = ask
        self._answer_later(ask, list(self._fleet.partitions))

    def _heard_answer(self, key: str, value: bytes | None) -> None:
        if value is None:
            return
        ask_id, place = key.removeprefix(TOLD).split("/", 1)
        number, told = int(place), decode_told(value)
        if (asked := self._asked.get(ask_id)) is not None:
            asked.take(number, told)
        elif told.at < self._fleet.now() - OPEN_MS:
            self._drop([key])

    def add(self, number: int) -> None:
        """A partition came: it answers what is open. What is older was left by a worker that was killed: the source
        that it would kill may be another by now."""
        old = self._fleet.now() - OPEN_MS
        for ask in list(self._open.values()):
            if ask.at < old:
                del self._open[ask.id]
            else:
                self._answer_later(ask, [number])

    def _answer_later(self, ask: Ask, numbers: list[int]) -> None:
        if numbers:
            task = asyncio.get_running_loop().create_task(self._answer(ask, numbers))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, ask: Ask, numbers: list[int]) -> None:
        """Silent where it cannot: who asked waits for the answers of others, and says who was silent. A question that
        was taken back before brokers had it comes with that, and kills nothing."""
        if ask.id not in self._open:
            return
        died = 0
        if ask.kill:
            killed = await self._dispatcher.dead_letter_source(ask.source_id)
            if killed is None:
                return
            died = killed
        for number in numbers:
            if number in self._fleet.partitions and ask.id in self._open:
                told = Told(*self._count(ask.source_id, number), died, self._fleet.now())
                died = 0
                try:
                    await self._fleet.deliver(Topic.SOURCES, ONLY, encode(told), f"{TOLD}{ask.id}/{number}".encode())
                except StoreError as error:
                    log.warning("event=answer_refused source=%s partition=%d reason=%s", ask.source_id, number, error)

    def _count(self, source_id: str, number: int) -> tuple[int, int]:
        """From kept counts and the window; no row is read."""
        live, replayed, _ = self._fleet.partitions[number].tables.counts.of_source(source_id)
        claims = self._dispatcher.claims.by_place.items()
        claimed = sum(
            1 for place, claim in claims if partition_of(place[0]) == number and claim.row.source_id == source_id
        )
        return max(0, live + replayed - claimed), claimed

    async def stop(self) -> None:
        for task in list(self._answers):
            task.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)


Heard = Callable[[str, bytes | None], None]


def is_question(key: str) -> bool:
    return key.startswith((ASK, TOLD))


def _told(error: StoreError | None) -> None:
    """What is left is taken back by whoever reads it after `OPEN_MS`."""
