"""References: the published form, and where a claim id points."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.claim_check import reference
from ankusa.claim_check.reference import MAX_BODIES

# The form that the published clients accept.
PUBLISHED = re.compile(r"^urn:ankusa:claim:v1:[A-Za-z0-9_-]{1,64}:[0-7][0-9A-HJKMNP-TV-Z]{25}$")

times = st.integers(0, (1 << 48) - 1)
bits = st.integers(0, (1 << 64) - 1)
positions = st.integers(0, MAX_BODIES - 1)


@given(times, bits, positions)
def test_a_claim_id_leads_back_to_its_pack_and_position(at: int, drawn: int, position: int) -> None:
    pack = reference.pack_id(at, drawn)
    claim = reference.claim_id(pack, position)
    assert reference.place_of(claim) == (pack, position)
    assert reference.is_pack(pack)
    assert reference.is_claim_id(claim)
    assert reference.is_pack(claim) is (position == 0)
    assert PUBLISHED.fullmatch(reference.reference("acme", pack, position))


@given(times, bits, times, bits)
def test_packs_sort_by_their_time(at: int, drawn: int, other_at: int, other: int) -> None:
    if at < other_at:
        assert reference.pack_id(at, drawn) < reference.pack_id(other_at, other)
    assert (reference.pack_id(at, drawn) < reference.first_at(other_at)) is (at < other_at)


def test_a_known_ulid() -> None:
    """The example of the ULID specification: 1469918176385 ms."""
    assert reference.pack_id(1_469_918_176_385, 0)[:10] == "01ARYZ6S41"


def test_a_reference_is_a_urn() -> None:
    pack = reference.pack_id(1_469_918_176_385, 0)
    assert reference.reference("acme", pack, 2) == "urn:ankusa:claim:v1:acme:01ARYZ6S410000000000000002"


@pytest.mark.parametrize(
    "text",
    [
        *("", "01ARYZ6S41000000000000000", "01ARYZ6S4100000000000000000", "81ARYZ6S410000000000000000"),
        *(
            "01aryz6s410000000000000000",
            "01ARYZ6S41000000000000000I",
            "01ARYZ6S41000000000000000L",
            "../../../etc/passwd",
        ),
        *("01ARYZ6S41000000000000000O", "01ARYZ6S41000000000000000U", "01ARYZ6S410000000000000000\n", "0" * 25 + "/"),
    ],
)
def test_what_is_no_claim_id(text: str) -> None:
    assert not reference.is_claim_id(text)
    assert not reference.is_pack(text)


@pytest.mark.parametrize("text", ["", "a/b", "..", ".", "a.b", "ä", "a" * 65, "acme\n", "a b", "%2e%2e"])
def test_what_is_no_tenant(text: str) -> None:
    assert not reference.is_tenant(text)


def test_a_tenant() -> None:
    assert all(reference.is_tenant(text) for text in ("acme", "A-b_9", "a" * 64))
