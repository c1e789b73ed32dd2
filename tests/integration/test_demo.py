"""The demo, run for real: it ends well only if its counts add up, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ankusa import supervisor
from ankusa.demo import processes
from ankusa.demo.provider import Accepted, Hook
from ankusa.demo.tally import Tally, count, faults
from tests.support.node_process import children, is_running, poll

START_S, ENDS_S = 120.0, 150.0
"""The demo bounds its own steps, and says which took too long: it is given as long as they may take here."""


@contextlib.contextmanager
def running(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The demo with its files under `directory` and its output in `said` there; all of it ends with the block."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANKUSA_") and name != "PORT"}
    with (directory / "said").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ankusa.cli", "demo", *arguments],
            env=env | {"TMPDIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    finally:
        for pid in [*family(process.pid), process.pid] if process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def family(pid: int) -> list[int]:
    found = children(pid)
    return found + [inner for child in found for inner in family(child)]


def left(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name != "said"]


def test_once_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    started: list[int] = []
    with running(tmp_path, "--once") as process:
        poll("a running node", lambda: started.extend(family(process.pid)) or len(started) >= 4, START_S)
        status = process.wait(ENDS_S)
    said = (tmp_path / "said").read_text()
    assert status == 0, said
    figures = dict(re.findall(r"│ (\w+) +│ +\d+ │ +\d+ │ +(\d+) │", said))
    assert figures == {
        "accepted": "300",
        "delivered": "300",
        "retried": "60",
        "dead": "120",
        "replayed": "120",
        "lost": "0",
        "duplicates": "0",
    }
    assert "10 of them sent once more: 10 recognised" in said
    assert "answered 401" in said
    assert left(tmp_path) == []
    assert not any(map(is_running, started))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_its_processes_and_removes_its_files(tmp_path: Path, number: int) -> None:
    with running(tmp_path) as process:
        poll("the first act", lambda: "1. Two tenants" in (tmp_path / "said").read_text(), START_S)
        started = family(process.pid)
        assert len(started) == 4  # a sink, a supervisor, an engine, an edge
        process.send_signal(number)
        assert process.wait(ENDS_S) == 130
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert left(tmp_path) == []
    assert not any(map(is_running, started))


def test_its_node_is_given_as_long_to_end_as_its_supervisor_gives_an_edge_and_an_engine() -> None:
    """Killed before, the supervisor would leave them running in a directory that is being removed."""
    assert processes.STOP_S > 2 * supervisor.STOP_S


def entry(tries: int = 1, ok: int = 1, replayed: int = 0, sha256: str = "s") -> dict[str, Any]:
    return {"tries": tries, "ok": ok, "replayed": replayed, "sha256": sha256}


ACCEPTED = {name: Accepted("acme", "s", Hook("acme", "/", {}, b"")) for name in "abcd"}
GOOD: Mapping[str, Any] = {"a": entry(), "b": entry(3), "c": entry(5, 1, 1), "d": entry()}
JOB = {"moved": 1, "delivered": 1}


def test_the_tally_counts_what_the_sink_recorded() -> None:
    tally = count(ACCEPTED, {"c"}, GOOD)
    assert tally == Tally(
        accepted=4, delivered=4, retried=1, dead=1, replayed=1, lost=0, duplicates=0, altered=0, unknown=0
    )
    assert faults(tally, JOB, 0) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": entry(3, 0)}, "lost: 1"),
        ({"a": entry(2, 2)}, "duplicates: 1"),
        ({"a": entry(sha256="other")}, "altered: 1"),
        ({"x": entry()}, "delivered without a 201: 1"),
        ({"c": entry(5, 1)}, "replayed: 0"),
        ({"b": entry()}, "retried: none"),
    ],
)
def test_whatever_goes_wrong_is_a_fault(change: dict[str, Any], words: str) -> None:
    found = faults(count(ACCEPTED, {"c"}, {**GOOD, **change}), JOB, 0)
    assert any(fault.startswith(words) for fault in found), found


def test_a_hook_that_never_came_is_lost() -> None:
    tally = count(ACCEPTED, {"c"}, {name: each for name, each in GOOD.items() if name != "d"})
    assert (tally.lost, tally.delivered) == (1, 3)


def test_a_job_or_a_dlq_that_disagrees_is_a_fault() -> None:
    tally = count(ACCEPTED, {"c"}, GOOD)
    assert faults(tally, {"moved": 2, "delivered": 1}, 0) == ["moved by the job: 2, and should be 1"]
    assert faults(tally, {"moved": 1, "delivered": 0}, 0) == ["delivered by the job: 0, and should be 1"]
    assert faults(tally, JOB, 3) == ["dead at the end: 3, and should be 0"]
