"""`python -m tests.bench [name …]`: runs the benchmarks of spec 09 and prints their figures with the machine's.

Every figure is a ratio to something measured in the same run, with loss and duplicate counts. Nothing is asserted
about time: a benchmark reports.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from tests.bench import (
    accept,
    deliver,
    drain,
    end_to_end,
    kafka_accept,
    kafka_deliver,
    kafka_end_to_end,
    kafka_fold,
    kafka_shares,
    lane,
    scan,
)

BENCHES = {
    "accept": accept.run,
    "deliver": deliver.run,
    "drain": drain.run,
    "end_to_end": end_to_end.run,
    "lane": lane.run,
    "scan": scan.run,
    "kafka_end_to_end": kafka_end_to_end.run,
    "kafka_fold": kafka_fold.run,
    "kafka_shares": kafka_shares.run,
    "kafka_accept": kafka_accept.run,
    "kafka_deliver": kafka_deliver.run,
}


def machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], help="which (default: all)")
    parser.add_argument("--seconds", type=float, default=10, help="length of each load")
    parser.add_argument("--large", action="store_true", help="scan cost up to 5,000,000 rows instead of 1,000,000")
    arguments = parser.parse_args()
    print(f"machine: {machine()}")
    for name in arguments.names or BENCHES:
        print(f"\n== {name}")
        BENCHES[name](arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
