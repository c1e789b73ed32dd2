"""How a process of the Kafka host begins: its arguments, its configuration, its log.

Owns what an edge and a worker have in common before either runs. Never runs one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Coroutine

import uvloop

from ankusa import logs
from ankusa.config import ConfigError, load
from ankusa.edge.parent import signal_on_parent_death
from schemas.config import Config
from streams.edge import CONFIG_EXIT

Run = Callable[[Config, str | None, int], Coroutine[None, None, int]]
"""What the process does with a configuration, where that was read from, and the parent to end with; its exit status."""


def begin(role: str, run: Run) -> int:
    """Read the arguments and the configuration, set up the log under `role`, and run; the exit status."""
    parser = argparse.ArgumentParser(prog=f"ankusa-kafka-{role}")
    parser.add_argument("--config", help="the YAML file; without it ANKUSA_CONFIG")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end with this process (default: the parent)")
    arguments = parser.parse_args()
    signal_on_parent_death()
    try:
        config = load(arguments.config, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return CONFIG_EXIT
    logs.set_up(config.log.level, role)
    return uvloop.run(run(config, arguments.config, arguments.parent))
