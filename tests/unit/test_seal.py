"""Sealing: what was sealed opens under its own name with any of the keys, and with nothing else."""

from __future__ import annotations

import base64

import pytest

from ankusa.config import effective
from ankusa.redact import redact
from ankusa.seal import Seal, SealKeyError, UnsealError
from schemas.config import Config, SourceStore

ONE = base64.b64encode(bytes(range(32))).decode()
TWO = base64.b64encode(bytes(range(1, 33))).decode()


def test_a_sealed_text_opens_and_shows_nothing_of_itself() -> None:
    seal = Seal(ONE)
    kept = seal.seal(b"whsec_topsecret", "acme.orders")
    assert b"topsecret" not in kept
    assert seal.open(kept, "acme.orders") == b"whsec_topsecret"
    assert seal.seal(b"whsec_topsecret", "acme.orders") != kept  # a nonce of its own each time


def test_without_a_key_a_text_is_kept_as_it_is_and_opens_with_any() -> None:
    kept = Seal(None).seal(b"plain", "a.b")
    assert not Seal(None).has_key
    assert Seal(None).open(kept, "a.b") == Seal(ONE).open(kept, "a.b") == b"plain"
    assert Seal(None).is_current(kept)
    assert not Seal(ONE).is_current(kept)


def test_keys_are_changed_newest_first() -> None:
    old = Seal(ONE).seal(b"text", "a.b")
    both = Seal([TWO, ONE])
    assert both.open(old, "a.b") == b"text"
    assert not both.is_current(old)
    new = both.seal(b"text", "a.b")
    assert both.is_current(new)
    assert Seal(TWO).open(new, "a.b") == b"text"
    with pytest.raises(UnsealError) as refused:
        Seal(TWO).open(old, "a.b")
    assert refused.value.key_missing
    with pytest.raises(UnsealError):
        Seal(None).open(old, "a.b")


def test_a_sealed_text_opens_under_no_other_name() -> None:
    kept = Seal(ONE).seal(b"text", "acme.orders")
    with pytest.raises(UnsealError) as refused:
        Seal(ONE).open(kept, "globex.orders")
    assert not refused.value.key_missing


def test_no_changed_byte_passes() -> None:
    kept = Seal(ONE).seal(b"text", "a.b")
    for place in range(len(kept)):
        changed = kept[:place] + bytes((kept[place] ^ 1,)) + kept[place + 1 :]
        try:
            opened = Seal(ONE).open(changed, "a.b")
        except UnsealError:
            continue
        assert place == 0  # said to be plain: it is then what it is, and no document
        assert opened != b"text"
    for length in range(len(kept)):
        with pytest.raises(UnsealError):
            Seal(ONE).open(kept[:length], "a.b")


def test_both_alphabets_with_padding_or_without() -> None:
    raw = bytes([0xFB, 0xFF]) * 16
    standard, safe = base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()
    assert standard != safe
    kept = Seal(standard).seal(b"text", "a.b")
    for spelling in (safe, safe.rstrip("="), standard.rstrip("="), f"  {standard}\n"):
        assert Seal(spelling).open(kept, "a.b") == b"text"


@pytest.mark.parametrize(
    "key", ["", "hunter2!", "aGVsbG8=", ONE + "AA", [], [ONE, "x"], base64.b64encode(bytes(31)).decode()]
)
def test_what_is_no_key_is_refused_without_being_quoted(key: str | list[str]) -> None:
    with pytest.raises(SealKeyError) as refused:
        Seal(key)
    text = key if isinstance(key, str) else key[-1] if key else ""
    assert len(text) < 4 or text not in str(refused.value)


def test_the_key_is_shown_nowhere_and_written_back_whole() -> None:
    config = Config(source_store=SourceStore(type="persistent", secret_key=(ONE, TWO)))
    shown = redact(config)["source_store"]
    assert shown["secret_key"] == ["[redacted]", "[redacted]"]
    assert ONE not in repr(config)
    assert effective(config)["source_store"]["secret_key"] == [ONE, TWO]
