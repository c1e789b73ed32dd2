"""The demo's count: what the providers were promised against what the sink has, by the sink's own record.

Owns the arithmetic and what has to hold; nothing in it is assumed from how the story was meant to go.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from msgspec import Struct

from ankusa.demo.provider import Accepted


class Tally(Struct, frozen=True):
    """Hooks by what became of them. `accepted` got a 201; `delivered` were taken by the sink; `retried` were taken
    after a refusal and without a replay; `dead` were in the DLQ; `replayed` were taken from a replay; `lost` got a 201
    and never came; `duplicates` are deliveries beyond the first; `altered` came with other bytes than were sent;
    `unknown` came although nobody was told 201."""

    accepted: int
    delivered: int
    retried: int
    dead: int
    replayed: int
    lost: int
    duplicates: int
    altered: int
    unknown: int


def count(accepted: Mapping[str, Accepted], dead: Set[str], hooks: Mapping[str, Mapping[str, Any]]) -> Tally:
    """The tally of `accepted` hooks, given the ids that were `dead` and the sink's record of its `hooks`."""
    taken = {hook_id: hooks[hook_id] for hook_id in accepted.keys() & hooks.keys() if hooks[hook_id]["ok"]}
    return Tally(
        accepted=len(accepted),
        delivered=len(taken),
        retried=sum(entry["tries"] > entry["ok"] and not entry["replayed"] for entry in taken.values()),
        dead=len(accepted.keys() & dead),
        replayed=sum(entry["replayed"] > 0 for entry in taken.values()),
        lost=len(accepted.keys() - taken.keys()),
        duplicates=sum(entry["ok"] - 1 for entry in taken.values()),
        altered=sum(entry["sha256"] != accepted[hook_id].sha256 for hook_id, entry in taken.items()),
        unknown=sum(entry["ok"] > 0 for hook_id, entry in hooks.items() if hook_id not in accepted),
    )


def faults(tally: Tally, job: Mapping[str, Any], dead_left: int) -> list[str]:
    """What does not add up, each as a line; empty when all does. `job` is the finished replay as the API shows it."""
    expected = [
        ("lost", tally.lost, 0),
        ("duplicates", tally.duplicates, 0),
        ("altered", tally.altered, 0),
        ("delivered without a 201", tally.unknown, 0),
        ("delivered", tally.delivered, tally.accepted),
        ("replayed", tally.replayed, tally.dead),
        ("moved by the job", job["moved"], tally.dead),
        ("delivered by the job", job["delivered"], tally.dead),
        ("dead at the end", dead_left, 0),
    ]
    found = [f"{name}: {value}, and should be {should}" for name, value, should in expected if value != should]
    found += [
        f"{name}: none, so nothing was shown" for name in ("accepted", "retried", "dead") if not getattr(tally, name)
    ]
    return found
