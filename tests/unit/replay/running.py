"""Runs a test that is a coroutine over a world of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.unit.replay.world import World


def in_world(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test's first parameter becomes a World in a directory of its own; the others stay pytest's."""

    def run(tmp_path: Path, **others: Any) -> None:
        async def body() -> None:
            world = World(tmp_path / "store")
            try:
                await test(world, **others)
            finally:
                world.close()

        asyncio.run(body())

    parameters = list(inspect.signature(test).parameters.values())[1:]
    place = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([place, *parameters])  # type: ignore[attr-defined]
    run.__name__ = run.__qualname__ = test.__name__
    run.__doc__ = test.__doc__
    run.__module__ = test.__module__
    return run
