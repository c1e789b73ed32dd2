"""Hosts under the contract suite. A test takes `start`, and starts the host it wants with its dispatch settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.contract.embedded import embedded
from tests.contract.host import Host

HOSTS: dict[str, Any] = {"embedded": embedded}

Start = Callable[..., Host]


@pytest.fixture(params=sorted(HOSTS))
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """`start(**dispatch)`: a running host; closed when the test ends."""
    with ExitStack() as stack:
        yield lambda **dispatch: stack.enter_context(HOSTS[request.param](tmp_path, **dispatch))


@pytest.fixture
def host(start: Start) -> Host:
    """A host with the default settings and no cap per sink."""
    return start()
