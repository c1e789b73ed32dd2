"""The bytes of a pack: found again, bounded, never mistaken for something else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.claim_check import pack as packs
from ankusa.claim_check.pack import PackError

BODIES = [b"first", b"", b"the third", b"x" * 1000]


def stored(bodies: list[bytes]) -> bytes:
    return packs.head([len(body) for body in bodies]) + b"".join(bodies)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_every_body_is_found_in_the_least_that_must_be_read(bodies: list[bytes]) -> None:
    whole = stored(bodies)
    for position, body in enumerate(bodies):
        place = packs.place(whole[: packs.head_bytes(position + 1)], position)
        assert place is not None
        start, length = place
        assert whole[start : start + length] == body
    assert len(whole) == sum(map(len, bodies)) + packs.head_bytes(len(bodies))


def test_there_is_nothing_past_the_last() -> None:
    whole = stored(BODIES)
    for position in (len(BODIES), 100, 65_535):
        assert packs.place(whole[: packs.head_bytes(position + 1)], position) is None


@pytest.mark.parametrize("cut", [0, 1, 11, 12, 19, 20, 43])
def test_a_pack_that_is_cut_in_its_head_is_refused(cut: int) -> None:
    with pytest.raises(PackError):
        packs.place(stored(BODIES)[:cut], 3)


def test_bytes_that_are_no_pack_are_refused() -> None:
    with pytest.raises(PackError):
        packs.place(b"\x89PNG" + stored(BODIES)[4:], 0)


def test_ends_that_run_backwards_are_refused() -> None:
    whole = bytearray(stored(BODIES))
    whole[12:20] = (10**6).to_bytes(8, "big")
    with pytest.raises(PackError):
        packs.place(bytes(whole), 1)
