"""What is taken from a sink's answer: only what can be stored, however often it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from ankusa.core.retry import ERROR_LIMIT
from ankusa.dispatch.results import answered, raised
from ankusa.sinks.contract import Failed, Ok
from schemas import records


class Shifty(Ok, frozen=True):
    """An answer whose detail is another each time."""

    def __getattribute__(self, name: str) -> Any:
        if name != "detail":
            return super().__getattribute__(name)
        told.append(name)
        return "200" if len(told) <= 2 else "caf\udce9"


told: list[str] = []


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "answer",
    [
        Ok(),
        Ok("x" * ERROR_LIMIT),
        Ok("x" * (ERROR_LIMIT + 1)),
        Ok("ü" * (ERROR_LIMIT + 1)),
        Ok("\ud800"),
        Ok(Word("word")),
        Shifty(),
        Failed("permanent", "x" * (ERROR_LIMIT + 1)),
        Failed("retry_after", "429", 10**30),
        Failed("retry_after", "429", True),
        None,
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_every_text_is_bounded_and_can_be_stored(answer: object) -> None:
    told.clear()
    result = answered(answer)
    text = result.detail if isinstance(result, Ok) else result.reason
    assert type(text) is str
    assert 0 < len(text) <= ERROR_LIMIT
    records.encode(text)
    assert type(result) in (Ok, Failed)


def test_a_plain_answer_is_taken_as_it_is() -> None:
    plain = Ok("200")
    assert answered(plain) is plain


def test_what_is_raised_is_transient_and_bounded() -> None:
    result = raised(ValueError("y" * 10_000))
    assert (result.error_class, result.retry_after_ms) == ("transient", 0)
    assert len(result.reason) <= ERROR_LIMIT + 100
