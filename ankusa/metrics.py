"""Prometheus text of one node: named figures, gathered when they are scraped.

The hot path only adds to plain integers; a host gathers them into a `Figures` at each scrape, so nothing is counted
twice and nothing is scanned. Owns the names, the units and the bound on labels; never counts anything itself. No label
holds an id or a URL; sink keys are named up to `NAMED_SINKS`, the rest are summed as `other`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

NAMED_SINKS = 1000
"""Sink keys with labels of their own: 6,000 series, 550 kB of text. A node with more is watched by tenant."""

DURATION_BUCKETS_MS = tuple(1 << power for power in range(23))
"""1 ms to 70 minutes by powers of two: past the longest attempt a configuration allows, an hour."""

OTHER = ("other", "other", "other", "other")
_SINK_LABELS = ("tenant", "source", "sink", "type")


class SinkFigures(Struct):
    """Rows of one sink key. `pending` and `replayed` include claimed ones; of those, `waiting` and `running`. An open
    breaker is 1."""

    pending: int = 0
    replayed: int = 0
    dead: int = 0
    waiting: int = 0
    running: int = 0
    open_breakers: int = 0

    def add(self, other: SinkFigures) -> None:
        self.pending += other.pending
        self.replayed += other.replayed
        self.dead += other.dead
        self.waiting += other.waiting
        self.running += other.running
        self.open_breakers += other.open_breakers


class WindowFigures(Struct, frozen=True):
    rows: int
    max_rows: int
    size_bytes: int
    max_bytes: int


class Attempts(Struct, frozen=True):
    """Attempts since the process started: by result, by duration (the power of two in ms above it), their sum."""

    results: Mapping[str, int]
    durations_ms: Mapping[int, int]
    sum_ms: int


class ClaimCheckFigures(Struct, frozen=True):
    """What the claim check did, by word; bytes stored; packs past their time that a row keeps."""

    counts: Mapping[str, int]
    stored_bytes: int
    kept_packs: int


class FoldFigures(Struct, frozen=True):
    """The fold of a worker's partitions: how many it owns; records and rows folded and records skipped since they came;
    records that were set aside, ever; pages refused of owners of before; records that wait for their changelog."""

    partitions: int
    records: int
    rows: int
    skipped: int
    set_aside: int
    refused_pages: int
    waiting: int


class LaneFigures(Struct, frozen=True):
    """Lanes with rows, members waiting, promotions by the sweep; the rows of the longest lane and how long the oldest
    head has been head, as the last sweep saw them."""

    lanes: int
    members: int
    healed: int
    longest: int
    oldest_head_ms: int | None


class Figures(Struct, frozen=True, kw_only=True):
    """One reading, of its own: nothing in it changes later. Counters count since the process started. None while nobody
    can say."""

    instance: str
    version: str
    store_up: bool
    store_bytes: int
    store_recoveries: int
    next_offset: int
    reclaimed: Mapping[str, int]
    pen_entries: int
    pen_bytes: int
    answered: Mapping[str, int]
    sinks: Mapping[str, SinkFigures]
    lag_ms: int | None
    window: WindowFigures
    attempts: Attempts
    outcomes: Mapping[str, int]
    lanes: LaneFigures
    open_breakers: int
    replays: Mapping[str, int] | None
    gated: Mapping[str, int]
    claim_check: ClaimCheckFigures | None = None
    fold: FoldFigures | None = None


class Metrics:
    """A registry of its own: two nodes in one process (tests) do not share it. Safe to use from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._node = _NodeCollector()
        self._registry.register(self._node)
        ProcessCollector(namespace="ankusa", registry=self._registry)
        self._rendering = threading.Lock()

    def render(self, figures: Figures) -> bytes:
        """The text exposition format, version 0.0.4. Takes a tenth of a second for `NAMED_SINKS` sink keys."""
        with self._rendering:
            self._node.figures = figures
            return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self) -> None:
        self.figures: Figures | None = None
        self._named: dict[str, None] = {}

    def describe(self) -> Iterable[Metric]:
        return ()  # without this the registry would collect once at registration

    def collect(self) -> Iterator[Metric]:
        figures = self.figures
        assert figures is not None  # `render` gives them
        yield _labelled(
            "build_info", "The node and its release.", {"instance": figures.instance, "version": figures.version}
        )
        yield from _store(figures)
        yield from _flow(figures)
        if figures.fold is not None:
            yield from fold_metrics(figures.fold)
        yield from _sinks(figures, self._bounded(figures.sinks))

    def _bounded(self, sinks: Mapping[str, SinkFigures]) -> dict[tuple[str, ...], SinkFigures]:
        """Figures by labels. A named sink key stays named, at zero when it is drained, until its place is needed."""
        named = self._named
        fresh = [key for key in sinks if key not in named]
        if len(named) + len(fresh) > NAMED_SINKS:
            for key in [key for key in named if key not in sinks]:
                del named[key]
        for key in fresh:
            if len(named) >= NAMED_SINKS:
                break
            named[key] = None
        found = {tuple(key.split("/", 3)): sinks.get(key) or SinkFigures() for key in named}
        rest = SinkFigures()
        for key in fresh:
            if key not in named:
                rest.add(sinks[key])
        if len(sinks) > NAMED_SINKS:
            found[OTHER] = rest
        return found


def _store(figures: Figures) -> Iterator[Metric]:
    yield _gauge("store_up", "1 while the store takes durable writes.", int(figures.store_up))
    yield _gauge("store_size_bytes", "Table and blob files on disk, estimated.", figures.store_bytes)
    yield _gauge("log_next_offset", "The offset the next record gets.", figures.next_offset)
    yield _gauge("quarantine_hooks", "Hooks held in the pen.", figures.pen_entries)
    yield _gauge("quarantine_bytes", "Stored bytes of the pen.", figures.pen_bytes)
    yield _total("store_recoveries", "Times the store was opened again after a refusal.", figures.store_recoveries)
    yield _counter("reclaimed_entries", "Entries dropped because nothing needs them.", "family", figures.reclaimed)


def _flow(figures: Figures) -> Iterator[Metric]:
    yield _counter("submissions", "Answers of the log to hooks and held hooks.", "status", figures.answered)
    if figures.lag_ms is not None:
        yield _gauge("lag_seconds", "Age of the oldest due live row.", figures.lag_ms / 1000)
    window = figures.window
    yield _gauge("window_rows", "Claimed, unfinished rows.", window.rows)
    yield _gauge("window_max_rows", "The most rows claimed at once.", window.max_rows)
    yield _gauge("window_bytes", "Stored bytes of claimed, unfinished rows.", window.size_bytes)
    yield _gauge("window_max_bytes", "The budget of stored bytes claimed at once.", window.max_bytes)
    yield from _lanes(figures.lanes)
    yield _gauge("open_breakers", "Sink keys whose breaker is open, or half-open.", figures.open_breakers)
    yield _counter("outcomes", "Outcomes of rows; what replays revive their jobs count.", "outcome", figures.outcomes)
    yield _counter("attempts", "Attempts at sinks, by result.", "result", figures.attempts.results)
    yield _durations(figures.attempts)
    if figures.claim_check is not None:
        yield from _claim_check(figures.claim_check)
    yield _counter("replay_gated", "Replay ticks that moved nothing because of live traffic.", "reason", figures.gated)
    if figures.replays is not None:
        replays = GaugeMetricFamily("ankusa_replays", "Replay jobs that are kept, by state.", labels=("state",))
        for state, count in figures.replays.items():
            replays.add_metric((state,), count)
        yield replays


def fold_metrics(figures: FoldFigures) -> Iterator[Metric]:
    yield _gauge("owned_partitions", "Partitions that this worker owns.", figures.partitions)
    yield _gauge("folded_records", "Records folded into the owned partitions since they came.", figures.records)
    yield _gauge("folded_rows", "Moves of rows by those records.", figures.rows)
    yield _gauge("skipped_records", "Records of the owned partitions that had been folded before.", figures.skipped)
    yield _gauge("set_aside_records", "Records of the followed topics that could not be read.", figures.set_aside)
    yield _gauge("refused_pages", "Replay pages of owners of before.", figures.refused_pages)
    yield _gauge("changelog_waiting_records", "Folded records that the changelog does not have yet.", figures.waiting)


def _lanes(figures: LaneFigures) -> Iterator[Metric]:
    yield _gauge("lanes", "Lanes of ordered sinks with rows.", figures.lanes)
    yield _gauge("lane_member_rows", "Rows that wait in a lane behind its head.", figures.members)
    yield _gauge("lane_longest_rows", "Rows of the longest lane, at the last sweep.", figures.longest)
    age_s = (figures.oldest_head_ms or 0) / 1000
    yield _gauge("lane_oldest_head_seconds", "How long the oldest head with members has been head.", age_s)
    yield _total("lanes_healed", "Lanes that had lost their head, and got the next.", figures.healed)


def _claim_check(figures: ClaimCheckFigures) -> Iterator[Metric]:
    text = "Bodies and packs the claim check stored, puts that failed, packs that retention deleted."
    yield _counter("claim_check", text, "what", figures.counts)
    yield _total("claim_check_stored_bytes", "Bytes of packs stored.", figures.stored_bytes)
    yield _gauge("claim_check_kept_packs", "Packs past their retention that a row is left of.", figures.kept_packs)


def _sinks(figures: Figures, sinks: Mapping[tuple[str, ...], SinkFigures]) -> Iterator[Metric]:
    pending = sum(sink.pending for sink in figures.sinks.values())
    dead = sum(sink.dead for sink in figures.sinks.values())
    rows = GaugeMetricFamily("ankusa_rows", "Delivery rows by state.", labels=("state",))
    rows.add_metric(("pending",), max(0, pending - figures.window.rows))
    rows.add_metric(("claimed",), figures.window.rows)
    rows.add_metric(("dead",), dead)
    yield rows
    families = {
        "pending": "Pending rows of a sink key, claimed ones included.",
        "replayed": "Of the pending rows, those that a replay put back.",
        "dead": "Dead rows of a sink key.",
        "waiting": "Claimed rows that wait for a slot.",
        "running": "Attempts that run now.",
    }
    for name, text in families.items():
        yield _by_sink(f"sink_{name}_rows", text, {labels: getattr(sink, name) for labels, sink in sinks.items()})
    opened = {labels: sink.open_breakers for labels, sink in sinks.items()}
    yield _by_sink("sink_open_breakers", "1 while the breaker of a sink key is open, or half-open.", opened)


def _durations(attempts: Attempts) -> Metric:
    family = HistogramMetricFamily("ankusa_attempt_duration_seconds", "How long attempts took.")
    buckets: list[tuple[str, float]] = []
    count = 0
    for bucket_ms in DURATION_BUCKETS_MS:
        count += attempts.durations_ms.get(bucket_ms, 0)
        buckets.append((str(bucket_ms / 1000), count))
    buckets.append(("+Inf", sum(attempts.durations_ms.values())))
    family.add_metric((), buckets, sum_value=attempts.sum_ms / 1000)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ankusa_{name}", text, value=value)


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"ankusa_{name}", text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _total(name: str, text: str, value: int) -> Metric:
    family = CounterMetricFamily(f"ankusa_{name}", text)
    family.add_metric((), value)
    return family


def _by_sink(name: str, text: str, values: Mapping[tuple[str, ...], int]) -> Metric:
    family = GaugeMetricFamily(f"ankusa_{name}", text, labels=_SINK_LABELS)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _labelled(name: str, text: str, labels: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(f"ankusa_{name}", text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), 1)
    return family
