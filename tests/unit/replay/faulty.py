"""A replay host that fails, or ends the process, at a chosen call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ankusa.replay.ports import ReplayHost
from ankusa.store.errors import StoreError


class KilledError(BaseException):
    """The process ends here: nothing that runs may catch it as an error of a page."""


class Watched:
    """Passes every call to a host, after `before` heard of it: `before` may raise."""

    def __init__(self, host: ReplayHost, before: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._host = host
        self._before = before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._host, name)
        if not callable(found):
            return found

        def call(*given: Any) -> Any:
            self._before(name, given)
            return found(*given)

        return call


def kill_at(count: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Ends the process before the call number `count`, from 0 on."""
    calls = 0

    def before(name: str, given: tuple[Any, ...]) -> None:
        nonlocal calls
        calls += 1
        if calls > count:
            raise KilledError(name)

    return before


def refuse(*names: str, while_true: Callable[[], bool] = lambda: True) -> Callable[[str, tuple[Any, ...]], None]:
    """Answers calls of these names with a StoreError."""

    def before(name: str, given: tuple[Any, ...]) -> None:
        if name in names and while_true():
            raise StoreError("the disk is full")

    return before
