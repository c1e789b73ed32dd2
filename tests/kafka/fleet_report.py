"""What became of a fleet under load: what was lost and doubled, what each event cost, and whether attempts went on.

A hook is doubled when its sink took it twice. That is allowed where an owner of its partition began between the two and
the log had no outcome of it yet: it was in flight. Owns these counts; starts and reads nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from streams.kafka.places import partition_of
from tests.kafka.fleet_book import Book, Change, Places
from tests.kafka.fleet_sink import Asked
from tests.support.load import Load

RESUMES_S = 30.0
"""How long a partition may deliver nothing after an event, all its pauses together: it may go on and pause again, as
the group is balanced once more."""

LOG_LINES = 1000
"""The most that a worker may say: an outage of minutes is a few lines a second at its beginning and its end."""

PAUSE_S = 1.0
"""A partition that delivers nothing for this long has paused: between two hooks of it there is a tenth of that."""


class Event(Struct):
    """Something that was done to the fleet. Times in unix ms: `at` when it began, `back_at` from when on delivery has
    to resume by itself, `until` how long it was watched."""

    name: str
    at: int
    back_at: int
    until: int = 0


class Pauses(Struct, frozen=True, order=True):
    """One partition's pauses while it was watched, in seconds. `total_s`: how long it delivered nothing, infinite when
    nothing came any more. `over_s`: when its last pause was over, from the event on."""

    total_s: float
    longest_s: float
    over_s: float


class Cost(Struct, frozen=True):
    """What an event cost. `pauses` are those of the partition that paused for longest altogether. `in_flight`: taken by
    the sink, with no outcome in the log when an owner began."""

    event: Event
    pauses: Pauses
    takeovers: int
    in_flight: int
    duplicates: int

    @property
    def good(self) -> bool:
        return self.pauses.total_s <= RESUMES_S and self.duplicates <= self.in_flight

    def __str__(self) -> str:
        return (
            f"{self.event.name:44} paused for {self.pauses.total_s:5.1f} s (at once {self.pauses.longest_s:5.1f} s), "
            f"all over after {self.pauses.over_s:5.1f} s, "
            f"{self.takeovers:3} takeovers, {self.in_flight:4} in flight, {self.duplicates:4} delivered twice"
        )


class Report(Struct, frozen=True):
    """`unexplained` says of deliveries of hooks that the log had as delivered, or in whose partition nothing happened.
    `resets` are rows whose attempts began anew, `unrecorded` those with more requests than attempts and takeovers."""

    accepted: int
    refused: int
    unanswered: int
    lost: int
    duplicates: int
    refused_delivered: int
    unexplained: list[str]
    costs: list[Cost]
    retried: int
    attempts: int
    resets: int
    unrecorded: int
    log_lines: int

    @property
    def good(self) -> bool:
        nothing = (self.lost, len(self.unexplained), self.resets, self.unrecorded)
        return not any(nothing) and self.log_lines <= LOG_LINES and all(cost.good for cost in self.costs)

    def __str__(self) -> str:
        lines = [
            f"{self.accepted} acknowledged, {self.refused} refused, {self.unanswered} without an answer; "
            f"{self.lost} lost, {self.duplicates} delivered twice, of which {len(self.unexplained)} without a reason; "
            f"{self.refused_delivered} that were not acknowledged were delivered",
            *self.unexplained,
            *map(str, self.costs),
            f"{self.retried} hooks whose sink refused: {self.attempts} attempts in the log, {self.resets} numbered "
            f"anew, {self.unrecorded} with more requests than attempts and takeovers",
            f"{self.log_lines} lines of log at most from one worker",
        ]
        return "\n".join(lines)


def report(
    loads: Sequence[Load],
    unlucky: set[str],
    asked: Sequence[Asked],
    places: Places,
    book: Book,
    events: list[Event],
    log_lines: int,
) -> Report:
    """Count. `unlucky` are acknowledged hooks beside those of `loads`, whose sink refused them for a while."""
    accepted = set().union(unlucky, *(load.ids for load in loads))
    taken: defaultdict[str, list[int]] = defaultdict(list)
    refused: defaultdict[str, int] = defaultdict(int)
    for request in asked:
        if request.delivered:
            taken[request.id].append(request.at)
        else:
            refused[request.id] += 1
    doubled = list(_doubled(taken, places, book))
    attempts = {hook_id: len(book.attempts.get(places.seq_by_id[hook_id], ())) for hook_id in unlucky}
    requests = {hook_id: len(taken.get(hook_id, ())) + refused[hook_id] for hook_id in unlucky}
    return Report(
        accepted=len(accepted),
        refused=sum(len(load.refused) for load in loads),
        unanswered=sum(len(load.unanswered) for load in loads),
        lost=len(accepted - taken.keys()),
        duplicates=len(doubled),
        refused_delivered=len(taken.keys() - accepted),
        unexplained=[_story(doubling, places, book) for doubling in doubled if doubling.change is None],
        costs=[_cost(event, events, taken, places, book, doubled) for event in events],
        retried=len(unlucky),
        attempts=sum(attempts.values()),
        resets=len(book.resets()),
        unrecorded=sum(
            not attempts[hook_id] <= requests[hook_id] <= attempts[hook_id] + len(_changes(hook_id, places, book))
            for hook_id in unlucky
        ),
        log_lines=log_lines,
    )


def _changes(hook_id: str, places: Places, book: Book) -> Sequence[Change]:
    return book.changes.get(partition_of(places.seq_by_id[hook_id]), ())


class Doubling(Struct, frozen=True):
    """Two deliveries of a hook in a row, and the change of owner between them that explains it."""

    id: str
    before: int
    after: int
    change: Change | None


def _doubled(taken: Mapping[str, list[int]], places: Places, book: Book) -> Iterator[Doubling]:
    for hook_id, times in taken.items():
        settled = book.settled.get(places.seq_by_id[hook_id])
        for before, after in pairwise(times):
            explaining = [
                change
                for change in _changes(hook_id, places, book)
                if before <= change.at <= after and (settled is None or settled >= change.place)
            ]
            yield Doubling(hook_id, before, after, explaining[-1] if explaining else None)


def _story(doubling: Doubling, places: Places, book: Book) -> str:
    """What is known of one that nothing explains."""
    seq = places.seq_by_id[doubling.id]
    changes = [(change.place, change.at - doubling.before) for change in _changes(doubling.id, places, book)]
    return (
        f"{doubling.id} of partition {partition_of(seq)} taken at {doubling.before} and again "
        f"{doubling.after - doubling.before} ms later; "
        f"settled at {book.settled.get(seq)}; attempts {book.attempts.get(seq)}; owners at (place, ms after) {changes}"
    )


def _cost(
    event: Event,
    events: list[Event],
    taken: Mapping[str, list[int]],
    places: Places,
    book: Book,
    doubled: Sequence[Doubling],
) -> Cost:
    following = next((other.at for other in events if other.at > event.at), None)

    def its(change: Change) -> bool:
        return event.at <= change.at and (following is None or change.at < following)

    changes = [change for number in book.changes for change in book.changes[number] if its(change)]
    first: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    arrivals: defaultdict[int, list[int]] = defaultdict(list)
    for hook_id, times in taken.items():
        seq = places.seq_by_id[hook_id]
        first[partition_of(seq)].append((seq, times[0]))
        arrivals[partition_of(seq)] += times
    in_flight = set()
    for change in changes:
        in_flight |= book.in_flight(change, (seq for seq, at in first[change.partition] if at <= change.at))
    return Cost(
        event=event,
        pauses=max(pauses_of(sorted(times), event) for times in arrivals.values()),
        takeovers=len(changes),
        in_flight=len(in_flight),
        duplicates=sum(doubling.change is not None and its(doubling.change) for doubling in doubled),
    )


def pauses_of(times: Sequence[int], event: Event) -> Pauses:
    """The pauses of a partition that delivered at `times` (unix ms, in order) from when it had to resume by itself."""
    watched = times[bisect_left(times, event.back_at) : bisect_right(times, event.until)]
    if not watched:
        silence_s = (event.until - event.back_at) / 1000
        return Pauses(float("inf"), silence_s, float("inf"))
    silences = [(after - before, after) for before, after in pairwise([event.back_at, *watched, event.until])]
    pauses = [(silence, over) for silence, over in silences if silence >= PAUSE_S * 1000]
    return Pauses(
        total_s=sum(silence for silence, _ in pauses) / 1000,
        longest_s=max(silence for silence, _ in silences) / 1000,
        over_s=(pauses[-1][1] - event.back_at) / 1000 if pauses else 0.0,
    )
