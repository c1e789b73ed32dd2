"""A million rows that wait in one worker: see `fleet_million.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kafka import fleet_million
from tests.kafka.fleet_million import LIMIT_MIB, PARTITIONS, WINDOW_ROWS, Million, Phase, status_mib

STEADY = Phase("waited", 60, 300, 310)
SOUND = Million(
    rows=1_000_000,
    waiting=990_000,
    window_rows=WINDOW_ROWS - 100,
    phases=(STEADY, STEADY),
    peak_mib=LIMIT_MIB - 1,
    takeovers=PARTITIONS,
    lost=0,
    duplicates=0,
)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_rows_and_slow_sinks_keep_a_worker_within_its_memory(tmp_path: Path) -> None:
    found = fleet_million.run(tmp_path, rows=1_000_000, held_s=60)
    print(f"\n{found}")
    assert found.good, found


@pytest.mark.parametrize(
    "fault",
    [
        {"lost": 1},
        {"duplicates": 1},
        {"takeovers": PARTITIONS + 1},
        {"peak_mib": LIMIT_MIB},
        {"waiting": WINDOW_ROWS},
        {"window_rows": WINDOW_ROWS + 1},
        {"window_rows": WINDOW_ROWS // 2},
        {"phases": (STEADY, replace(STEADY, second_mib=330))},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_the_judgement_of_a_run(fault: dict[str, object]) -> None:
    assert SOUND.good
    assert not replace(SOUND, **fault).good


def test_the_kernel_says_what_a_process_holds() -> None:
    found = status_mib(os.getpid())
    assert 1 < found["VmRSS"] <= found["VmHWM"]
