"""What the claim check counts: plain integers, read by metrics, never reset while the process lives."""

from __future__ import annotations

from msgspec import Struct


class ClaimCheckStats(Struct):
    """Packs, their bodies and bytes that were stored; puts that failed (the pack may have been stored all the same);
    packs that retention deleted, and those past their time that its last pass kept because a row of them was left."""

    packs: int = 0
    bodies: int = 0
    stored_bytes: int = 0
    failed: int = 0
    deleted: int = 0
    kept: int = 0
