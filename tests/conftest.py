"""How tests are shared out where several processes run them, as `make test` has it.

Tests of a file stay with one process, and so do those of a directory that share a server, which is then started once.
What waits most begins first: begun last, it would keep one process while the others have nothing left. Only what is
shared out is reordered.
"""

from __future__ import annotations

from typing import Any

import pytest

TOGETHER = ("tests/kafka/", "tests/contract/", "tests/integration/sinks/")
FIRST = (*TOGETHER, "tests/fault/", "tests/integration/")


def share_of(node_id: str) -> str:
    """What stays with one process, of which a test is part."""
    file = node_id.split("::", 1)[0]
    return next((directory for directory in TOGETHER if file.startswith(directory)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Sharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    config.option.loadscopereorder = False
    return Sharing(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _place(item.nodeid))


def _place(node_id: str) -> int:
    places = (place for place, directory in enumerate(FIRST) if node_id.startswith(directory))
    return next(places, len(FIRST))
