"""How long the tests of loads wait for what was accepted: as long as some of it comes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import tally

HOOKS, WITHIN_S = 100, 60


class Trickling:
    """A sink to which one of so many hooks comes every second of `now_s`, and the rest never."""

    def __init__(self, come: int) -> None:
        self.come, self.now_s = come, 0
        self.by_id: Counter[str] = Counter()
        self.by_mark: Counter[str] = Counter()

    def refresh(self) -> Trickling:
        self.now_s += 1
        if self.now_s <= self.come:
            self.by_id[f"hook-{self.now_s}"] = 1
        return self


@pytest.mark.parametrize("come", [HOOKS, HOOKS - 1])
def test_who_settles_waits_while_anything_comes_and_not_for_ever(come: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sink: Any = Trickling(come)
    ids = {f"hook-{number}" for number in range(1, HOOKS + 1)}
    load: Any = SimpleNamespace(ids=ids, accepted=ids, refused=(), unanswered=())
    monkeypatch.setattr(tally, "time", SimpleNamespace(monotonic=lambda: sink.now_s, sleep=lambda seconds: None))
    assert tally.settle([load], sink, WITHIN_S).lost == HOOKS - come
    assert sink.now_s <= HOOKS + WITHIN_S + 2
