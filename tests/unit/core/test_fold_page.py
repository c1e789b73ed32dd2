"""A replay page's fold: a revival is folded once, however often the page names it."""

from __future__ import annotations

from collections.abc import Iterator

from ankusa.core.fold import fold_outcomes
from schemas.records import Breaker, CheckIn, Job, JobState, Lane, Page, Revival, Row, RowState

AT = 1_700_000_000_000


class OneDeadRow:
    """Tables with one job and one dead row."""

    def row(self, seq: int, sink: int) -> Row | None:
        dead = Row(RowState.DEAD, "a", "s", "http", AT, 1, generation=3)
        return dead if (seq, sink) == (7, 0) else None

    def job(self, job_id: str) -> Job | None:
        state = JobState.RUNNING
        return Job(id=job_id, kind="dlq", state=state, filter={}, rate=1, max_lag_ms=1, created_at=AT, updated_at=AT)

    def breaker(self, key: str) -> Breaker | None:
        return None

    def lane(self, key: str) -> Lane | None:
        return None

    def members(self, key: str, place: int = 0) -> Iterator[tuple[int, int]]:
        return iter(())

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        return None

    def pack(self, pack: str) -> CheckIn | None:
        return None

    def dedupe(self, key: str) -> tuple[str, int] | None:
        return None


def kinds(*revivals: Revival) -> list[str]:
    page = Page("job", AT, b"cursor", len(revivals), 0, revivals)
    return [type(op).__name__ for op in fold_outcomes(page, 9, AT, OneDeadRow())]


def test_a_row_named_twice_is_revived_once() -> None:
    assert kinds(Revival(7, 0, 3)) == ["PutRow", "PutAttempt", "PutJob"]
    assert kinds(Revival(7, 0, 3), Revival(7, 0, 3)) == ["PutRow", "PutAttempt", "PutJob"]


def test_a_stale_revival_and_one_of_no_row_do_nothing_but_count_the_page() -> None:
    assert kinds(Revival(7, 0, 2), Revival(7, 1, 3), Revival(8, 0, 3)) == ["PutJob"]
