"""Frames cut from a stream: whole however the bytes arrive, and refused when they are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.local.frame_reader import FrameError, FrameReader, check_hello, hello
from streams.local.frames import HEAD, MAX_FRAME_BYTES, Kind, frame

FRAMES = st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=200)), max_size=8)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_frames_come_out_as_they_went_in(frames: list[tuple[Kind, int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(*each) for each in frames)
    reader = FrameReader()
    out: list[tuple[Kind, int, bytes]] = []
    place, turn = 0, 0
    while place < len(stream):
        size = cuts[turn % len(cuts)]
        out.extend(reader.feed(stream[place : place + size]))
        place, turn = place + size, turn + 1
    assert out == frames


@pytest.mark.parametrize(
    "raw",
    [
        HEAD.pack(4, Kind.APPEND, 1),
        HEAD.pack(MAX_FRAME_BYTES + 1, Kind.APPEND, 1),
        HEAD.pack(5, 99, 1),
    ],
    ids=["short", "long", "kind"],
)
def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(raw))


def test_a_greeting_of_this_release_passes_and_no_other() -> None:
    ((kind, _, payload),) = FrameReader().feed(hello())
    check_hello(kind, payload)
    with pytest.raises(FrameError, match="version 77"):
        check_hello(Kind.HELLO, b"\x00\x4d")
    with pytest.raises(FrameError, match="no greeting"):
        check_hello(Kind.APPEND, payload)
    with pytest.raises(FrameError, match="no greeting"):
        check_hello(Kind.HELLO, b"")
