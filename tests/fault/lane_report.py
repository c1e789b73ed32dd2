"""What `lanes.py` found, and whether that is good. Judges counts alone; never talks to a node."""

from __future__ import annotations

from msgspec import Struct

AWAY_S = 5
"""An engine that is back within this has answered for every commit that was sent to it (docs/delivery.md)."""


class Size(Struct, frozen=True):
    hooks: int
    keys: int
    kills: int


class Kill(Struct, frozen=True):
    """`began`, `ended`: unix ms before it and when all it killed was gone. `away_s`: until the node was ready again.
    `delivered`: hooks that the sink had answered 2xx by then."""

    what: str
    began: int
    ended: int
    away_s: float
    delivered: int


class Lane(Struct, frozen=True):
    """What became of one ordering key. `disordered`: first deliveries that came before one committed earlier.
    `overtaking`: hooks that were first asked for while an earlier one of the lane had not come to its end."""

    lost: int
    disordered: int
    overtaking: int
    duplicates: int
    unexplained: list[str]


class Report(Struct, frozen=True):
    """`unanswered`: committed hooks whose 201 was lost in a kill; they count like the others. `duplicates`: deliveries
    of a hook that the sink had taken; `unexplained`: those of them with no kill between the two."""

    size: Size
    accepted: int
    unanswered: int
    refused_delivered: int
    requests: int
    failed: int
    parks: int
    poison: int
    dead: int
    wrongly_dead: int
    lanes: dict[str, Lane]
    kills: list[Kill]
    healed: int
    left: dict[str, int]
    revived: int
    revived_disordered: int
    still_ms: int
    seconds: float

    def total(self, name: str) -> int:
        return sum(getattr(lane, name) for lane in self.lanes.values())

    @property
    def unexplained(self) -> list[str]:
        return [text for lane in self.lanes.values() for text in lane.unexplained]

    @property
    def duplicates_allowed(self) -> int:
        """What can be in flight at a kill: the head of each lane."""
        return len(self.kills) * self.size.keys

    @property
    def good(self) -> bool:
        unknown = any(kill.away_s > AWAY_S for kill in self.kills)
        return (
            self.accepted >= self.size.hooks
            and len(self.kills) == self.size.kills
            and not any(self.total(name) for name in ("lost", "disordered", "overtaking"))
            and not self.unexplained
            and all(lane.duplicates <= len(self.kills) for lane in self.lanes.values())
            and self.dead == self.poison == self.revived
            and not (self.wrongly_dead or self.healed or any(self.left.values()) or self.revived_disordered)
            and (unknown or not self.refused_delivered)
        )

    def __str__(self) -> str:
        away = [kill.away_s for kill in self.kills]
        at = ", ".join(f"{kill.what} at {kill.delivered}" for kill in self.kills)
        return "\n".join(
            (
                f"{self.accepted} accepted over {len(self.lanes)} keys ({self.unanswered} more whose answer was lost); "
                f"{len(self.kills)} kills ({at} delivered), ready again after {min(away):.1f} to {max(away):.1f} s",
                f"{self.requests} requests, of which {self.failed} failed; {self.parks} parks",
                f"lost {self.total('lost')}, first deliveries out of commit order {self.total('disordered')}, "
                f"overtaking {self.total('overtaking')}, refused and delivered {self.refused_delivered}",
                f"duplicates {self.total('duplicates')} (at most {self.duplicates_allowed} were in flight), "
                f"without a kill {len(self.unexplained)}",
                f"poison {self.poison}, dead {self.dead} (wrongly {self.wrongly_dead}), lanes healed {self.healed}, "
                f"left {self.left}",
                f"revived {self.revived}, out of order {self.revived_disordered}; {self.seconds:.0f} s; "
                f"the machine stood still for {self.still_ms} ms",
                *(f"twice without a kill: {text}" for text in self.unexplained),
            )
        )
