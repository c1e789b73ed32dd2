"""A broker that goes away under a worker's questions about its topics, and comes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafka import cluster
from tests.kafka.folding import Fleet, until
from tests.support import brokers

ROUNDS, REFUSALS = 2, 6


@pytest.mark.fault
def test_questions_that_timed_out_end_nothing_when_the_broker_is_back(server: brokers.Kafka, tmp_path: Path) -> None:
    """The process goes on. A group's offsets asked of the admin client ended it, one time in two."""
    fleet = Fleet(cluster.address(server))
    command = [sys.executable, "-m", "tests.kafka.ask_ends", cluster.address(server), fleet.config.kafka.prefix]
    output = tmp_path / "output"
    with output.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as asking:
        try:
            for _ in range(ROUNDS):
                _said(output, asking, lambda line: line == "known", 1)
                server.kill()
                _said(output, asking, lambda line: "cannot be read" in line, REFUSALS)
                server.start_again()
            _said(output, asking, lambda line: line == "known", 3)
        finally:
            asking.kill()


def _said(output: Path, asking: subprocess.Popen[bytes], wanted: Callable[[str], bool], times: int) -> None:
    """Wait until so many more lines are as wanted; the process must live."""
    seen = len(output.read_text().splitlines())

    def said() -> bool:
        lines = output.read_text().splitlines()[seen:]
        return asking.poll() is not None or sum(map(wanted, lines)) >= times

    until(said, "answers")
    assert asking.poll() is None, output.read_text()
