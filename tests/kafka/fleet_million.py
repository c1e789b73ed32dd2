"""A million due rows in one worker of 512 MiB, and sinks that hardly take any: memory must not follow what waits.

`python -m tests.kafka.fleet_million --rows 1000000`: one broker, one worker, four sources whose sinks take a second for
each request. All hooks are folded while the sinks are slow, wait for a while, and are drained once the sinks are quick.
The limit is judged by the kernel's high-water mark of the worker's resident size, which misses no peak: a limit of data
or address space would count the stacks of its threads, which are reserved and not used. Exit status 1 unless every hook
came, no partition moved, claiming paused at the window, and memory was flat.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from tests.bench.kafka_fleet import SINK_LINE_BYTES, broker, end, fill_topic, hooks_folded, new_fleet, owns, worker
from tests.bench.node import Sink
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.support.node_process import free_port

PARTITIONS = 4
LIMIT_MIB = 512
FLAT = 1.05
"""Of the first half of a phase, the most that the second may hold."""

WARM_SHARE = 0.2
"""Of a phase: caches and write buffers fill up to their bounds."""

SOURCES = ("slow-0", "slow-1", "slow-2", "slow-3")
WINDOW_ROWS = 2048
DISPATCH = {"concurrency": 32, "max_inflight": WINDOW_ROWS}
PAUSED_SHARE = 0.9
"""Of the window, what one tenant fills at least: it leaves room for whoever comes next."""

SLOW_MS = 1000
SAMPLE_S = 0.1
PHASE_S = 1200.0


class Phase(Struct, frozen=True):
    """What a phase took of memory, MiB: the most in its first half after the warm-up, and in its second."""

    name: str
    seconds: float
    first_mib: float
    second_mib: float

    @property
    def flat(self) -> bool:
        return self.second_mib <= FLAT * self.first_mib

    def __str__(self) -> str:
        return f"{self.name} {self.seconds:.0f} s, {self.first_mib:.0f} then {self.second_mib:.0f} MiB"


class Million(Struct, frozen=True):
    """What was seen. `window_rows` is the most that was claimed at once while the sinks were slow, `waiting` how many
    rows were due at the end of that."""

    rows: int
    waiting: int
    window_rows: int
    phases: tuple[Phase, ...]
    peak_mib: float
    takeovers: int
    lost: int
    duplicates: int

    @property
    def good(self) -> bool:
        """Memory has to be flat in each phase: a phase that delivers fills other caches than one that folds."""
        whole = not self.lost and not self.duplicates and self.takeovers == PARTITIONS
        paused = PAUSED_SHARE * WINDOW_ROWS <= self.window_rows <= WINDOW_ROWS < self.waiting
        return whole and paused and self.peak_mib < LIMIT_MIB and all(phase.flat for phase in self.phases)

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows, {self.waiting:,} of them due at once, {self.window_rows} claimed at most; "
            f"{'; '.join(map(str, self.phases))}; peak {self.peak_mib:.0f} MiB resident "
            f"(limit {LIMIT_MIB}); {self.takeovers} takeovers of {PARTITIONS} partitions, lost {self.lost}, "
            f"delivered twice {self.duplicates}"
        )


class Memory:
    """The resident size of a process, sampled in a thread; `phase` says which part of the run the samples are of."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.phases: list[Phase] = []
        self.peak_mib = 0.0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            try:
                found = status_mib(self._pid)
                self._samples.append(found["VmRSS"])
                self.peak_mib = found["VmHWM"]
            except (OSError, KeyError):  # it has ended, which others see
                return

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        first, began = len(self._samples), time.monotonic()
        yield
        seconds = time.monotonic() - began
        samples = self._samples[first + int(WARM_SHARE * (len(self._samples) - first)) :]
        half = len(samples) // 2
        self.phases.append(Phase(name, seconds, max(samples[:half]), max(samples[half:])))


def status_mib(pid: int) -> Mapping[str, float]:
    """What the kernel says of a process's memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.startswith("Vm"))
    return {name.rstrip(":"): int(kib) / 1024 for name, kib, _ in fields}


def run(folder: Path, rows: int, held_s: float) -> Million:
    """Have `rows` wait for slow sinks for `held_s` once all are folded, then deliver them, and count."""
    sink = Sink(folder)
    try:
        with broker(folder / "broker") as server:
            fleet = new_fleet(server, sink.url, PARTITIONS)
            port = free_port()
            process = worker(fleet, folder / "worker", sink.url, DISPATCH, SOURCES, port)
            try:
                owns(process, PARTITIONS)
                return _measured(fleet, process, port, sink, rows, held_s)
            finally:
                end(process)
    finally:
        sink.stop()


def _measured(fleet: Fleet, process: WorkerProcess, port: int, sink: Sink, rows: int, held_s: float) -> Million:
    sink.behave(delay_ms=SLOW_MS)
    with Memory(process.process.pid) as memory:
        with memory.phase("folded within"):
            ids = fill_topic(fleet, rows, SOURCES)
            _until(process, lambda: hooks_folded(fleet), "all hooks are folded")
        window_rows = 0
        with memory.phase("waited"):
            ends = time.monotonic() + held_s
            while time.monotonic() < ends:
                window_rows = max(window_rows, int(_metric(port, "ankusa_window_rows")))
                time.sleep(1)
        waiting = rows - len(sink.lines())
        sink.behave(delay_ms=0)
        with memory.phase("delivered within"):
            _until(process, lambda: sink.log_bytes() >= rows * SINK_LINE_BYTES, "all hooks came")
        _until(process, fleet.everything_committed, "every outcome is folded")
        return Million(
            rows,
            waiting,
            window_rows,
            tuple(memory.phases),
            memory.peak_mib,
            len(process.said("partition_owned")),
            *_counted(sink, ids),
        )


def _until(process: WorkerProcess, holds: Callable[[], bool], what: str) -> None:
    def held() -> bool:
        assert process.process.poll() is None, process.output()[-3000:]
        return holds()

    until(held, what, PHASE_S)


def _counted(sink: Sink, ids: Sequence[str]) -> tuple[int, int]:
    """Lost and delivered twice."""
    counts = Counter(line[0] for line in sink.lines())
    return sum(hook_id not in counts for hook_id in ids), counts.total() - len(counts)


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.split(" ")[0].split("{")[0] == name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A million due rows in a worker of 512 MiB.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--held-s", type=float, default=60.0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ankusa-fleet-") as folder:
        found = run(Path(folder), given.rows, given.held_s)
    print(f"{found}: {'good' if found.good else 'NOT GOOD'}")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
