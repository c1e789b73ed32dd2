"""The log as an edge on Kafka sees it: submissions grouped by partition into commits, answered when they are durable.

An append: (1) is refused whole when its deadline is over or nothing is acknowledged any more, (2) gives each submission
its partition, (3) refuses those whose partition does not answer, and those over a limit, (4) makes one commit of a
partition's hooks, more where they are many, (5) sends them in order and waits for every report. Held hooks go to
`quarantine` in the same way. Nobody is answered 2xx before every in-sync copy has the record.

A hook that was answered 503 was never sent, and is taken back, but for one case: it was sent, the connection broke
before the broker's answer, and no answer came within `DELIVERY_TIMEOUT_MS` or by the time the cluster was given up.
Then **its fate is unknown**.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ankusa.admission import Admission
from ankusa.store.errors import StoreError
from schemas.append import Answer, Submission
from schemas.config import Config, RateLimit
from schemas.records import Held, encode, encode_commit
from streams.kafka.commits import Append, Commit, Places, unavailable
from streams.kafka.flow import STALL_S, Flow
from streams.kafka.partitioning import Spread, routing_key
from streams.kafka.producer import EdgeProducer
from streams.kafka.topics import TopicNames

log = logging.getLogger("ankusa.edge")

PROBE_FRESH_S = 1.0
"""An acknowledgement this recent says that the log takes writes: no probe is written beside it."""

PROBE_S = 1.0
"""For each of the two steps of a probe."""

OPEN_RETRY_S = 0.25

_NOT_CHECKED = "the topics are not checked yet"
_NOT_OPEN = "no record is acknowledged yet"
_SILENT = "the brokers do not answer"


class KafkaEdgeLog:
    """An `EdgeLog` over a producer. Made and used on one event loop; refuses until `open`."""

    def __init__(
        self,
        config: Config,
        producer: EdgeProducer,
        agreed: Callable[[str], bool],
        clock: Callable[[], int],
        first: int,
    ) -> None:
        """`agreed` says of a source, by id, whether its lanes agree (`partitioning.lanes_agree`); `clock` gives unix
        ms; `first` is drawn, see `Spread`."""
        names = TopicNames(config.kafka.prefix)
        self._hooks, self._pen = names.hooks, names.quarantine
        self._partitions = config.kafka.partitions
        self._producer = producer
        self._admission = Admission(config.rate_limits, config.quarantine, {})
        self.pen_bytes: Callable[[], int] = lambda: 0
        """What the fleet's pen holds, as workers told last (`pen_sizes.py`)."""
        self._agreed = agreed
        self._clock = clock
        self._spread = Spread(self._partitions, first)
        self._loop = asyncio.get_running_loop()
        self._whole = Flow()
        self._flows: dict[tuple[str, int], Flow] = {}
        self._acked_s = float("-inf")
        self._watch: asyncio.TimerHandle | None = None
        self._silent = False
        self._refusing: str | None = _NOT_CHECKED

    async def open(self) -> None:
        """The topics are as they must be: take hooks, once a first record is acknowledged. A new producer asks the
        cluster for its id first, and hooks that waited for that would be refused as those of a silent one."""
        self._refusing = _NOT_OPEN
        while (reason := await self._probe()) is not None:
            if reason != self._refusing:
                log.warning("event=brokers_unavailable reason=%s", reason)
            self._refusing = reason
            await asyncio.sleep(OPEN_RETRY_S)
        self._refusing = None

    def reload(self, config: Config) -> None:
        """Take up the limits of `config`."""
        self._admission.reconfigure(config.rate_limits)

    def override(self, changes: Mapping[str, RateLimit | None]) -> None:
        """Take up the limits that the API has set, or taken back."""
        self._admission.override(changes)

    async def close(self) -> None:
        """Send what waits, if a broker takes it at once, and end. Drain the batcher first."""
        self._refusing = "the edge is stopping"
        if self._watch is not None:
            self._watch.cancel()
        await self._producer.close()

    # -- the port -----------------------------------------------------------

    async def append(self, submissions: Sequence[Submission], deadline_at: int) -> list[Answer]:
        refusing = self._refuses(deadline_at)
        if refusing is not None:
            return [unavailable(refusing)] * len(submissions)
        append = Append(submissions, self._loop.create_future())
        for commit in self._commits(append):
            self._send(commit, append)
        if append.left:
            await append.done
        return [answer or unavailable("internal error") for answer in append.answers]

    async def probe(self) -> str | None:
        return self._refusing or await self._probe()

    async def _probe(self) -> str | None:
        now_s = self._loop.time()
        if not self._whole.admits(now_s):
            return _SILENT
        if now_s - self._acked_s <= PROBE_FRESH_S:
            return None
        writable = await asyncio.to_thread(self._producer.writable, self._hooks, PROBE_S)
        if isinstance(writable, str):
            return writable
        partition = self._spread.turn(number for number in writable if self._admits(self._hooks, number))
        if partition is None:
            return f"no partition of {self._hooks} has a leader and enough copies in sync"
        return await self._write_nothing(partition)

    async def _write_nothing(self, partition: int) -> str | None:
        """A durable write without hooks: a commit of none, which a fold takes as it is."""
        append = Append((), self._loop.create_future())
        self._send(Commit(self._hooks, partition, None), append)
        if append.left:
            try:
                async with asyncio.timeout(PROBE_S):
                    await asyncio.shield(append.done)
            except TimeoutError:
                return _SILENT
        return append.refused

    # -- steps 1 to 4 -------------------------------------------------------

    def _refuses(self, deadline_at: int) -> str | None:
        if self._refusing is not None:
            return self._refusing
        if self._clock() > deadline_at:
            return "deadline passed before the commit"
        return None if self._whole.admits(self._loop.time()) else _SILENT

    def _commits(self, append: Append) -> list[Commit]:
        """The commits of an append, in order of their first hooks; what is refused is answered."""
        at = self._clock()
        commits: list[Commit] = []
        opened: dict[tuple[str, int, bytes | None], Commit] = {}
        places = Places(self._spread, self._partitions, self._admits)
        for place, submission in enumerate(append.submissions):
            entry = submission.entry
            topic = self._pen if isinstance(entry, Held) else self._hooks
            partition = places.find(topic, routing_key(entry, agreed=self._agreed(entry.source_id)))
            if partition is None:
                append.answers[place] = unavailable("the hook's partition does not answer")
                continue
            entry_bytes = encode(entry)
            size_bytes = len(entry_bytes) + len(submission.body)
            refusal = self._admission.admit(entry, size_bytes, self.pen_bytes(), at)
            if refusal is not None:
                append.answers[place] = refusal
                continue
            key = entry.source_id.encode() if isinstance(entry, Held) else None
            commit = opened.get((topic, partition, key))
            rows = 0 if isinstance(entry, Held) else len(entry.sinks)
            if commit is None or not commit.takes(size_bytes, rows):
                commit = opened[topic, partition, key] = Commit(topic, partition, key)
                commits.append(commit)
            commit.add(place, entry_bytes, submission.body, rows)
        return commits

    def _admits(self, topic: str, partition: int) -> bool:
        flow = self._flows.get((topic, partition))
        return flow is None or flow.admits(self._loop.time())

    # -- step 5 -------------------------------------------------------------

    def _send(self, commit: Commit, append: Append) -> None:
        at = self._clock()
        value = encode_commit(at, commit.entries)
        delivered = partial(self._delivered, commit, append)
        try:
            self._producer.send(commit.topic, commit.partition, value, commit.key, at, delivered)
        except StoreError as error:
            append.settle(commit, str(error))
            return
        now_s = self._loop.time()
        append.left += 1
        self._whole.sent(now_s)
        self._flows.setdefault((commit.topic, commit.partition), Flow()).sent(now_s)
        if self._watch is None:
            self._watch = self._loop.call_later(STALL_S, self._look)

    def _delivered(self, commit: Commit, append: Append, offset: int | None, reason: str) -> None:
        now_s = self._loop.time()
        flow = self._flows[commit.topic, commit.partition]
        if offset is None:
            was_failing = flow.failing
            flow.failed(now_s)
            self._whole.failed(now_s)
            if not (was_failing or self._silent):  # else it is known, and one is let in now and then to try
                log.warning(
                    "event=commit_failed topic=%s partition=%d hooks=%d reason=%s",
                    *(commit.topic, commit.partition, len(commit.entries), reason),
                )
        else:
            flow.acked(now_s)
            self._whole.acked(now_s)
            self._acked_s = now_s
            if self._silent:
                self._silent = False
                log.warning("event=brokers_answer")
        append.settle(commit, None if offset is not None else reason)
        append.left -= 1
        if not append.left and not append.done.done():
            append.done.set_result(None)

    def _look(self) -> None:
        """While records are on their way: give up what was not sent when nothing is acknowledged any more."""
        self._watch = None
        if not self._whole.pending:
            return
        now_s = self._loop.time()
        left_s = STALL_S - self._whole.quiet_s(now_s)
        if self._whole.stalled(now_s):
            left_s = STALL_S
            if not self._silent:
                self._silent = True
                log.warning("event=brokers_silent records=%d", self._whole.pending)
            self._producer.take_back()
        self._watch = self._loop.call_later(max(left_s, 0.01), self._look)
