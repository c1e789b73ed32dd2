"""Binding: by index and type, else by the one sink of the type, else not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.core.binding import bind


@pytest.mark.parametrize(
    ("sink", "kind", "now", "index"),
    [
        (0, "http", ["http"], 0),
        (1, "http", ["http", "http"], 1),  # several of its type, and its own place is one of them
        (0, "http", ["log", "http"], 1),
        (2, "log", ["log"], 0),
        (0, "http", ["log", "http", "http"], None),
        (0, "http", ["log"], None),
        (0, "http", [], None),
        (5, "http", ["http", "http"], None),
    ],
)
def test_a_row_finds_its_sink(sink: int, kind: str, now: list[str], index: int | None) -> None:
    assert bind(sink, kind, now) == index


@given(st.integers(0, 5), st.sampled_from(["a", "b"]), st.lists(st.sampled_from(["a", "b", "c"]), max_size=5))
def test_what_it_finds_is_of_the_rows_type(sink: int, kind: str, now: list[str]) -> None:
    index = bind(sink, kind, now)
    if index is not None:
        assert now[index] == kind
    elif kind in now:
        assert now.count(kind) > 1
